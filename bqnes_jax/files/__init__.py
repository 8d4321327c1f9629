"""Files on disk: written whole or not at all, and read without trust."""

from bqnes_jax.files.atomic import (
    as_json,
    locked,
    make_folder,
    sweep,
    write_json,
    write_whole,
    writing,
)
from bqnes_jax.files.digests import check_bound, write_bound
from bqnes_jax.files.untrusted import (
    Bounded,
    check_plain,
    check_unpacked,
    damaged_means_refused,
    load_json,
    open_file,
    read_json,
    read_small,
)

__all__ = [
    "Bounded",
    "as_json",
    "check_bound",
    "check_plain",
    "check_unpacked",
    "damaged_means_refused",
    "load_json",
    "locked",
    "make_folder",
    "open_file",
    "read_json",
    "read_small",
    "sweep",
    "write_bound",
    "write_json",
    "write_whole",
    "writing",
]
