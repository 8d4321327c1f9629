"""Predictions on disk, safe against crashes and bit rot."""

from bqnes_jax.storage.records import FAILED, OK, Entry, Key, Manifest
from bqnes_jax.storage.store import DamagedEntryWarning, Predictions, Store, merge

__all__ = [
    "FAILED",
    "OK",
    "DamagedEntryWarning",
    "Entry",
    "Key",
    "Manifest",
    "Predictions",
    "Store",
    "merge",
]
