"""Work divided among devices and hosts."""

from bqnes_jax.parallel.devices import (
    Chunk,
    chunk_of,
    device_memory,
    in_chunks,
    make_mesh,
    mesh_for,
    of_each,
    place,
    spread,
    use_all_cores,
)
from bqnes_jax.parallel.hosts import agree, is_first, own_part, wait_for_all

__all__ = [
    "Chunk",
    "agree",
    "chunk_of",
    "device_memory",
    "in_chunks",
    "is_first",
    "make_mesh",
    "mesh_for",
    "of_each",
    "own_part",
    "place",
    "spread",
    "use_all_cores",
    "wait_for_all",
]
