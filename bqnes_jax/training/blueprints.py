"""What a supernet is made of, for each network that has the architecture as an input.

A supernet holds the weights of all architectures. How it is trained differs: slices of a MobileNet
by the sandwich rule, cells of NATS-Bench by one random cell at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Int32

from bqnes_jax.models.cells import NATSNetwork, NATSNetworkConfig
from bqnes_jax.models.mobilenet import MobileNet, MobileNetConfig, NormStatistics
from bqnes_jax.models.norms import MOMENTUM
from bqnes_jax.parallel import of_each
from bqnes_jax.spaces.base import Space
from bqnes_jax.spaces.nats import NATS
from bqnes_jax.training.population import draw_variables, weight_shapes
from bqnes_jax.types import PRNGKey

Params = Mapping[str, Any]  # a tree of arrays
Statistics = Mapping[str, Any]  # a tree whose leaves are `NormStatistics`
Images = Float[Array, "n h w c"]


class Blueprint(NamedTuple):
    """What `make_supernet` has to know about a network.

    Attributes:
        space: the architectures.
        init: draws the parameters, for images of a shape.
        loss: what a step minimises, and the loss to show; `count` random architectures take part.
        statistics: of the batch norms of an architecture, for a batch.
        apply: returns the logits of an architecture with such statistics.
    """

    space: Space
    init: Callable[[PRNGKey, tuple[int, ...]], Params]
    loss: Callable[
        [PRNGKey, int, Params, Images, Int[Array, " n"]],
        tuple[Float[Array, ""], Float[Array, ""]],
    ]
    statistics: Callable[[Params, Int32[Array, " length"], Images], Statistics]
    apply: Callable[
        [Params, Statistics, Int32[Array, " length"], Images], Float[Array, "n classes"]
    ]


def blueprint_of(network: MobileNetConfig | NATSNetworkConfig) -> Blueprint:
    """Return what a supernet of this network is made of."""
    return _cells(network) if isinstance(network, NATSNetworkConfig) else _slices(network)


def _slices(config: MobileNetConfig) -> Blueprint:
    """Describe slices, trained by the sandwich rule with in-place distillation.

    Each step sees the largest network, the smallest and some random ones; the largest learns the
    labels, the others what the largest predicts.
    """
    network, space = MobileNet(config), config.space

    def init(key, image_shape):
        return network.init(key, space.largest, jnp.zeros((1, *image_shape)))["params"]

    def loss(key, count, params, images, labels):
        drawn = space.sample(key, count)
        archs = jnp.concatenate([space.largest[None], space.smallest[None], drawn])

        def of_one(arch):
            return cast(Array, network.apply({"params": params}, arch, images, True))

        logits = jax.vmap(of_one)(archs)
        teacher = lax.stop_gradient(jax.nn.softmax(logits[0]))
        largest = optax.softmax_cross_entropy_with_integer_labels(logits[0], labels).mean()
        others = optax.softmax_cross_entropy(logits[1:], teacher).mean(1).sum()
        return largest + others, largest

    def statistics(params, arch, images):
        _, updated = network.apply({"params": params}, arch, images, True, mutable=["batch_stats"])
        return updated["batch_stats"]

    def apply(params, statistics, arch, images):
        variables = {"params": params, "batch_stats": statistics}
        return cast(Array, network.apply(variables, arch, images))

    return Blueprint(space, init, loss, statistics, apply)


def _cells(config: NATSNetworkConfig) -> Blueprint:
    """Describe cells that share their weights: a step trains random ones, and nothing else."""
    network = NATSNetwork(config)

    def init(key, image_shape):
        return draw_variables(key, config, image_shape)["params"]

    def run(params, statistics, arch, images):
        variables = {"params": params, "batch_stats": statistics}
        return network.apply(variables, arch, images, True, mutable=["batch_stats"])

    def make_empty(images):
        shapes = weight_shapes(config, images.shape[1:])["batch_stats"]
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def loss(key, count, params, images, labels):
        def of_one(arch):
            logits, _ = run(params, make_empty(images), arch, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        mean = jnp.mean(of_each(of_one, NATS.sample(key, count)))
        return mean, mean

    def statistics(params, arch, images):
        # Running statistics that begin at 0 are the momentum times those of the batch.
        _, updated = run(params, make_empty(images), arch, images)
        return _pair(jax.tree.map(lambda leaf: leaf / MOMENTUM, updated["batch_stats"]))

    def apply(params, statistics, arch, images):
        variables = {"params": params, "batch_stats": _unpair(statistics)}
        return cast(Array, network.apply(variables, arch, images))

    return Blueprint(NATS, init, loss, statistics, apply)


def _pair(stats: Mapping[str, Any]) -> dict:
    """Put mean and variance of each batch norm into one leaf."""
    return {
        name: NormStatistics(part["running_mean"], part["running_var"])
        if "running_mean" in part
        else _pair(part)
        for name, part in stats.items()
    }


def _unpair(stats: Mapping[str, Any]) -> dict:
    """Undo `_pair`."""
    return {
        name: {"running_mean": part.mean, "running_var": part.var}
        if isinstance(part, NormStatistics)
        else _unpair(part)
        for name, part in stats.items()
    }
