"""Work divided among devices, hosts and the workers of executors."""

from bqnes_jax.parallel.clusters import Cluster, open_cluster
from bqnes_jax.parallel.devices import (
    Chunk,
    chunk_of,
    device_memory,
    host_memory,
    in_chunks,
    is_out_of_memory,
    make_mesh,
    mesh_for,
    of_each,
    place,
    spread,
    use_all_cores,
)
from bqnes_jax.parallel.executors import Calls, Lost, OnDask, OnRay, OnSubmitit, Workers
from bqnes_jax.parallel.hosts import agree, is_first, own_part, wait_for_all

__all__ = [
    "Calls",
    "Chunk",
    "Cluster",
    "Lost",
    "OnDask",
    "OnRay",
    "OnSubmitit",
    "Workers",
    "agree",
    "chunk_of",
    "device_memory",
    "host_memory",
    "in_chunks",
    "is_first",
    "is_out_of_memory",
    "make_mesh",
    "mesh_for",
    "of_each",
    "open_cluster",
    "own_part",
    "place",
    "spread",
    "use_all_cores",
    "wait_for_all",
]
