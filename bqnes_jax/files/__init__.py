"""Files on disk: written whole or not at all, and read without trust."""

from bqnes_jax.files.atomic import TEMPORARY, locked, write_json, write_whole, writing
from bqnes_jax.files.untrusted import (
    check_plain,
    check_unpacked,
    damaged_means_refused,
    load_json,
    read_at_most,
    read_json,
    read_small,
)

__all__ = [
    "TEMPORARY",
    "check_plain",
    "check_unpacked",
    "damaged_means_refused",
    "load_json",
    "locked",
    "read_at_most",
    "read_json",
    "read_small",
    "write_json",
    "write_whole",
    "writing",
]
