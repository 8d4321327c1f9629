"""Published weights of NATS-Bench, which are PyTorch's, as variables of `NATSNetwork`."""

import functools
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from bqnes_jax.errors import BQNESError, check_shape
from bqnes_jax.models.cells import CONV_1X1, CONV_3X3, NATSNetwork, NATSNetworkConfig
from bqnes_jax.spaces.base import as_architectures
from bqnes_jax.spaces.nats import EDGES, NATS

_NORM = {
    "weight": "params",
    "bias": "params",
    "running_mean": "batch_stats",
    "running_var": "batch_stats",
}
_COUNTER = "num_batches_tracked"  # of PyTorch's batch norm; it says nothing about predictions

_Path = tuple[str, ...]
_Place = tuple[str, _Path, tuple[int, ...]]  # published name, path here, index in the array there


def convert_published(
    state: Mapping[str, np.ndarray], arch: ArrayLike, config: NATSNetworkConfig
) -> dict:
    """Convert a published state dict to the variables of the network, for `NATSNetwork.apply`.

    Nothing is transposed; each array only gets its place (the table is in `models.cells`). What the
    architecture does not use, and so was not published, stays at 0. A state dict with other names
    or shapes than those of the architecture is refused.

    Args:
        state: arrays by their published names.
        arch: the architecture.
        config: the macro-skeleton.
    """
    arch = np.asarray(as_architectures(NATS, arch))
    check_shape("architecture", arch, (len(EDGES),))
    variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), _shapes(config))
    places = list(_places(arch, config))
    given = {name for name in state if not name.endswith(_COUNTER)}
    expected = {name for name, *_ in places}
    if given != expected:
        wrong = min(given ^ expected)
        reason = "is missing" if wrong in expected else "does not belong there"
        raise BQNESError(
            f"{wrong} {reason} in the weights of {NATS.to_string(arch)} with {config.cells} cells "
            "in a stage; they are of another network."
        )
    for name, (*path, leaf), index in places:
        target = variables
        for part in path:
            target = target[part]
        check_shape(name, state[name], target[leaf][index].shape)
        target[leaf][index] = state[name]
    return variables


@functools.cache
def _shapes(config: NATSNetworkConfig) -> dict:
    arch, image = jnp.zeros(len(EDGES), jnp.int32), jnp.zeros((1, 1, 1, 3))
    return jax.eval_shape(NATSNetwork(config).init, jax.random.key(0), arch, image)


def _places(arch: np.ndarray, config: NATSNetworkConfig) -> Iterator[_Place]:
    """List where each published array goes."""

    def norm(name: str, *path: str, index: tuple[int, ...] = ()) -> Iterator[_Place]:
        for leaf, collection in _NORM.items():
            yield f"{name}.{leaf}", (collection, *path, leaf), index

    yield "stem.0.weight", ("params", "stem", "conv"), ()
    yield from norm("stem.1", "stem")
    for i in range(3 * config.cells + 2):
        published, (stage, cell) = f"cells.{i}", divmod(i, config.cells + 1)
        if cell == config.cells:
            here = f"reduction_{stage + 1}"
            for block in ("conv_a", "conv_b"):
                name = f"{published}.{block}.op"
                yield f"{name}.1.weight", ("params", here, block, "conv"), ()
                yield from norm(f"{name}.2", here, block)
            yield f"{published}.downsample.1.weight", ("params", here, "downsample"), ()
            continue
        here = f"cells_{stage}"
        for edge, operation in enumerate(arch):
            if operation in (CONV_1X1, CONV_3X3):
                name = f"{published}.layers.{edge}.op"
                large = int(operation == CONV_3X3)
                kernel = ("conv_1x1", "conv_3x3")[large]
                yield f"{name}.1.weight", ("params", here, kernel), (cell, edge)
                yield from norm(f"{name}.2", here, index=(cell, edge, large))
    yield from norm("lastact.0", "lastact")
    for leaf in ("weight", "bias"):
        yield f"classifier.{leaf}", ("params", f"classifier_{leaf}"), ()
