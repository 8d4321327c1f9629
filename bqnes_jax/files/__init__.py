"""Files on disk: written whole or not at all, and read without trust."""

from bqnes_jax.files.atomic import (
    as_json,
    explain_writing,
    hold_lock,
    make_folder,
    sweep,
    write_json,
    write_whole,
)
from bqnes_jax.files.digests import check_bound, write_bound
from bqnes_jax.files.remote import Remote, as_path
from bqnes_jax.files.untrusted import (
    Bounded,
    check_plain,
    check_unpacked,
    is_there,
    load_json,
    open_file,
    read_json,
    read_log,
    read_small,
    refuse_damaged,
    size_of_file,
)

__all__ = [
    "Bounded",
    "Remote",
    "as_json",
    "as_path",
    "check_bound",
    "check_plain",
    "check_unpacked",
    "explain_writing",
    "hold_lock",
    "is_there",
    "load_json",
    "make_folder",
    "open_file",
    "read_json",
    "read_log",
    "read_small",
    "refuse_damaged",
    "size_of_file",
    "sweep",
    "write_bound",
    "write_json",
    "write_whole",
]
