"""Files on disk: written whole or not at all, and read without trust."""

from bqnes_jax.files.atomic import TEMPORARY, locked, write_json, write_whole, writing
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
    "TEMPORARY",
    "Bounded",
    "check_plain",
    "check_unpacked",
    "damaged_means_refused",
    "load_json",
    "locked",
    "open_file",
    "read_json",
    "read_small",
    "write_json",
    "write_whole",
    "writing",
]
