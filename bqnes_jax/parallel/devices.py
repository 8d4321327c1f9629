"""Work spread over the devices of one or many hosts, by JAX's own means.

Members (of a population, of a set of repeats) are divided among the devices of a mesh by
`jax.shard_map`; no device needs another's results. With several hosts, started by
`jax.distributed.initialize`, each process calls the same functions with the same arguments and gets
the same results, whole.
"""

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bqnes_jax.compiling import little_optimisation
from bqnes_jax.parallel.hosts import agree, wait_for_all

_AXIS = "members"
_SHARE = 0.5  # of a device's memory: the rest is for data, results and the compiler
_UNKNOWN_MEMORY = 8 * 2**30  # bytes of a host that does not tell
_MOST_CORES = 8  # that become devices: each holds the data

Tree = Any


def use_all_cores() -> None:
    """Make each core of a CPU a device, unless JAX has been told how many there are.

    Networks that are trained side by side on two cores are done 1.6 times as fast as by both
    together. It has no effect once JAX is at work, nor with several hosts: theirs must be as many.

    LAPACK gets one thread, unless $OPENBLAS_NUM_THREADS says otherwise or SciPy, which brings it,
    is loaded: on cores that are devices, its threads wait for one another.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    told = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if told or jax.config.values["jax_num_cpu_devices"] >= 0 or jax.distributed.is_initialized():
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # it is at work
        jax.config.update("jax_num_cpu_devices", min(cores or 1, _MOST_CORES))


def make_mesh(
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm] (jaxlib has no stubs)
) -> Mesh:
    """Put devices into a row; by default all devices of all hosts."""
    return Mesh(np.array(jax.devices() if devices is None else devices), (_AXIS,))


def mesh_for(asked: int | None, mesh: Mesh | None = None) -> Mesh:
    """Leave devices out that would have nothing to do with so many members; no host's, though."""
    mesh = make_mesh() if mesh is None else mesh
    if asked is None or asked >= mesh.size or jax.process_count() > 1:
        return mesh
    return make_mesh(list(mesh.devices[:asked]))


def spread(
    function: Callable, mesh: Mesh | None = None, *, split: int = 1, quickly: bool = False
) -> Callable[..., Tree]:
    """Compile a function so that each device of a mesh does its share of the leading axis.

    Args:
        function: of arrays, or trees of arrays. The leading axes of its first `split` arguments,
            and of all its results, are divided; further arguments each device has whole.
        mesh: of devices; by default all.
        split: how many arguments are divided.
        quickly: whether to compile it as `compiling.jit_quickly` does.

    Returns:
        A function of the same arguments, on the host, with results in NumPy. Shares are made equal
        by repeating the last member. Keys go in as `jax.random.key_data`.

    Example:
        >>> import jax.numpy as jnp
        >>> double = spread(lambda x, factor: x * factor)
        >>> double(np.arange(3), np.array(2)).tolist()
        [0, 2, 4]
    """
    mesh = make_mesh() if mesh is None else mesh

    def specs(count: int) -> tuple[PartitionSpec, ...]:
        return (PartitionSpec(_AXIS),) * split + (PartitionSpec(),) * (count - split)

    @functools.partial(jax.jit, compiler_options=little_optimisation() if quickly else None)
    def program(*arguments: Tree) -> Tree:
        mapped = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=specs(len(arguments)),
            out_specs=PartitionSpec(_AXIS),
            check_vma=False,
        )
        return mapped(*arguments)

    def call(*arguments: Tree) -> Tree:
        count = len(jax.tree.leaves(arguments[0])[0])
        share = -(-count // mesh.size)
        filled = np.minimum(np.arange(share * mesh.size), count - 1)
        members = jax.tree.map(lambda leaf: np.asarray(leaf)[filled], arguments[:split])
        placed = (place(members, mesh, spec=PartitionSpec(_AXIS)), place(arguments[split:], mesh))
        results = _gather(mesh, *_try(program, *placed[0], *placed[1]))
        return jax.tree.map(lambda leaf: leaf[:count], results)

    return call


def of_each(function: Callable[[Tree], Tree], members: Tree) -> Tree:
    """Apply a function to each member of a device's share: on CPUs in turn, elsewhere at once.

    In turn, what a member works on stays in the cache, and it computes only the branches it takes.

    Example:
        >>> of_each(lambda member: 2 * member, np.arange(3)).tolist()
        [0, 2, 4]
    """
    in_turn = jax.default_backend() == "cpu"
    return jax.lax.map(function, members) if in_turn else jax.vmap(function)(members)


def place(tree: Tree, mesh: Mesh, *, spec: PartitionSpec = PartitionSpec()) -> Tree:
    """Put arrays on the devices of a mesh: by default whole on each."""
    sharding = NamedSharding(mesh, spec)

    def one(leaf):
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        if jax.process_count() == 1:
            return jax.device_put(leaf, sharding)
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

    return jax.tree.map(one, tree)


@dataclasses.dataclass
class Chunk:
    """How many members a device does at once: fewer after it ran out of memory."""

    each: int

    def halve(self, error: Exception) -> None:
        """Make it half as large and say so; raise the error if it is about something else."""
        if self.each == 1 or not is_out_of_memory(error):
            raise error
        warnings.warn(
            f"a device ran out of memory with {self.each} members at once; going on with "
            f"{self.each // 2}.",
            stacklevel=2,
        )
        self.each //= 2


def in_chunks(
    program: Callable[..., Tree], mesh: Mesh, chunk: Chunk, members: tuple, *shared: Tree
) -> Iterator[Tree]:
    """Yield what a `spread` function gives for members, some at a time, all chunks of one shape.

    A chunk for which a device has not enough memory is done again in halves.
    """
    count, start = len(jax.tree.leaves(members)[0]), 0
    while start < count:
        size = chunk.each * mesh.size
        filled = np.minimum(np.arange(start, start + size), count - 1)
        some = jax.tree.map(lambda leaf, filled=filled: np.asarray(leaf)[filled], members)
        try:
            results = program(*some, *shared)
        except jax.errors.JaxRuntimeError as error:
            chunk.halve(error)
            continue
        yield jax.tree.map(lambda leaf, n=count - start: leaf[:n], results)
        start += size


def chunk_of(fitting: int, asked: int | None, mesh: Mesh) -> Chunk:
    """Choose a chunk of at most `fitting` members on a device, and no more than its share.

    Hosts choose alike, though what fits may differ between them: as the first one does.
    """
    each = fitting if asked is None else min(fitting, -(-asked // mesh.size))
    return Chunk(int(agree(np.array(each))))


def device_memory() -> float:
    """Return how many bytes a program may use on one device of this host."""
    devices = jax.local_devices()
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    if limit is None:  # a CPU: its devices share the memory of the host
        limit = host_memory() / len(devices)
    return _SHARE * limit


def host_memory() -> int:
    """Return how many bytes of memory this host has."""
    names = getattr(os, "sysconf_names", {})  # Windows has none
    if "SC_PHYS_PAGES" not in names:
        return _UNKNOWN_MEMORY
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory did not suffice, as XLA's do."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def _try(program: Callable[..., Tree], *arguments: Tree) -> tuple[Tree, Exception | None]:
    try:
        return jax.block_until_ready(program(*arguments)), None
    except jax.errors.JaxRuntimeError as error:
        return None, error


def _gather(mesh: Mesh, tree: Tree, error: Exception | None) -> Tree:
    """Return results whole, or raise an error: on all hosts of the mesh if one of them has one."""
    if {device.process_index for device in mesh.devices.flat} == {jax.process_index()}:
        if error is not None:
            raise error
        return jax.device_get(tree)
    wait_for_all()
    exhausted = error is not None and is_out_of_memory(error)
    failed = multihost_utils.process_allgather(np.array([error is not None, exhausted]))
    if error is not None:
        raise error
    if failed[:, 0].any():
        reason = "RESOURCE_EXHAUSTED: out of memory" if failed[:, 1].any() else "a program failed"
        raise jax.errors.JaxRuntimeError(f"{reason} on another host")
    return multihost_utils.process_allgather(tree, tiled=True)
