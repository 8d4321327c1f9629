"""Train many architectures of a space, with several seeds each, in one compiled program.

`make_train(config)` returns a pure function of (key, architecture, data), to be compiled and mapped
as you like. `train_population` is a thin shell around it: it cuts (architectures × seeds) into
chunks of one size, divides each chunk among the devices, and gathers the results.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32

from bqnes_jax.data.augment import AugmentConfig, augment
from bqnes_jax.data.examples import Split
from bqnes_jax.data.images import channel_moments, check_images, normalise
from bqnes_jax.errors import BQNESError, check_positive, check_shape, check_whole
from bqnes_jax.identity import EXTENT, SPEED, field
from bqnes_jax.models.cells import NATSNetworkConfig
from bqnes_jax.models.darts import DARTSNetworkConfig
from bqnes_jax.models.networks import NetworkConfig
from bqnes_jax.parallel import (
    Chunk,
    chunk_of,
    device_memory,
    in_chunks,
    mesh_for,
    of_each,
    place,
    spread,
)
from bqnes_jax.spaces.base import EnumerableSpace, Space, as_architectures
from bqnes_jax.training.recipe import check_recipe, count_steps, draw_batch, make_optimiser
from bqnes_jax.training.vectors import size_of, unravel
from bqnes_jax.types import PRNGKey


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The recipe of NATS-Bench by default: SGD with Nesterov momentum, cosine to a rate of 0.

    Attributes:
        network: the macro-skeleton.
        seeds: how often each architecture is trained, from different weights.
        epochs: passes over the training images; each leaves out what does not fill a batch.
        steps: how many steps instead of how many epochs.
        batch: images in a step.
        learning_rate: at the start.
        momentum: of Nesterov's kind.
        weight_decay: added to the gradient, for every parameter. It shrinks those of operations
            that an architecture does not use as well, which changes nothing of its output.
        augment: random flips and crops.
        keep_weights: return what was trained, too.
        chunk: how many members (architectures × seeds) a device trains in one go: on CPUs one after
            another, elsewhere at once. None for what fits into `memory`. Half as many where that
            proves too much.
        memory: bytes of a device that a chunk may use, by estimate; None for half of what it has,
            and on CPUs for one member.
    """

    network: NATSNetworkConfig = dataclasses.field(default_factory=NATSNetworkConfig)
    seeds: int = field(EXTENT, default=1)
    _: dataclasses.KW_ONLY
    epochs: int = 200
    steps: int | None = None
    batch: int = 256
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    keep_weights: bool = field(SPEED, default=False)
    chunk: int | None = field(SPEED, default=None)
    memory: float | None = field(SPEED, default=None)

    def __post_init__(self):
        check_recipe(self)
        check_whole("seeds", self.seeds, 1)
        if self.chunk is not None:
            check_whole("chunk", self.chunk, 1)
        if self.memory is not None:
            check_positive("memory", self.memory)


@dataclasses.dataclass(frozen=True)
class DARTSTrainConfig(TrainConfig):
    """The recipe of DARTS by default, without its auxiliary head and cutout.

    Attributes:
        network: the macro-skeleton.
    """

    network: DARTSNetworkConfig = dataclasses.field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=DARTSNetworkConfig
    )
    _: dataclasses.KW_ONLY
    epochs: int = 600
    batch: int = 96
    learning_rate: float = 0.025
    weight_decay: float = 3e-4


class Trained(NamedTuple):
    """A trained member. One that failed has NaN instead of predictions, so that none is used.

    Attributes:
        valid_log_probs: log-probabilities of the classes of the validation images.
        test_log_probs: of the test images.
        valid_loss: mean negative log-likelihood of the validation labels.
        train_losses: of the batch of each step; NaN from the step on at which training failed.
        failed: whether a loss or a prediction was not finite. Training stops there for the member,
            whose weights stay as they are; those trained with it go on.
        weights: parameters and running statistics as one vector (`unravel_weights` turns it back);
            None unless the config asks for them.
        train_log_likelihood: summed over the training images, as they are.
    """

    valid_log_probs: Float[Array, "*members n_valid classes"]
    test_log_probs: Float[Array, "*members n_test classes"]
    valid_loss: Float[Array, "*members"]
    train_losses: Float[Array, "*members steps"]
    failed: Bool[Array, "*members"]
    weights: Float[Array, "*members w"] | None = None
    train_log_likelihood: Float[Array, "*members"] | None = None


class Population(NamedTuple):
    """A trained population.

    Attributes:
        trained: of each member, with axes [architecture, seed, …].
        seconds: that each chunk took, the first with compilation.
    """

    trained: Trained
    seconds: np.ndarray


class _State(NamedTuple):
    params: Float[Array, " p"]
    batch_stats: Mapping[str, Any]
    optimiser: optax.OptState


Train = Callable[[PRNGKey, Int32[Array, " length"], Split], Trained]


def make_train(config: TrainConfig) -> Train:
    """Return the pure function (key, arch, data) -> trained member.

    Map it over keys and architectures: `jax.vmap(make_train(config), (0, 0, None))`.
    """
    network = config.network.build()

    def train(key: PRNGKey, arch: Int32[Array, " length"], data: Split) -> Trained:
        n = len(data.train.inputs)
        steps, per_epoch = count_steps(config, n)
        init_key, order_key, augment_key = jax.random.split(key, 3)
        inputs, labels = (jnp.asarray(array) for array in data.train)
        moments = channel_moments(inputs)
        optimiser = make_optimiser(config, steps)

        def loss_of(params, batch_stats, images, labels, drop_key):
            logits, updated = network.apply(
                {"params": params, "batch_stats": batch_stats},
                arch,
                images,
                train=True,
                rngs={"drop_path": drop_key},
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return jnp.mean(losses), updated["batch_stats"]

        def step(carry, t):
            state, order, healthy = carry
            order, batch = draw_batch(order_key, order, t, per_epoch, config.batch)
            own_key = jax.random.fold_in(augment_key, t)
            images = augment(own_key, inputs[batch], config.augment)
            images = normalise(images, *moments)
            (loss, batch_stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(
                as_tree(state.params),
                state.batch_stats,
                images,
                labels[batch],
                jax.random.fold_in(own_key, 1),
            )
            gradient, _ = ravel_pytree(gradient)
            updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
            new = _State(state.params + updates, batch_stats, optimiser_state)
            healthy &= jnp.isfinite(loss)
            state = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), new, state)
            return (state, order, healthy), jnp.where(healthy, loss, jnp.nan)

        variables = draw_variables(init_key, config.network, inputs.shape[1:])
        # As one vector the parameters are updated by few instructions, which compile fast.
        params, as_tree = ravel_pytree(variables["params"])
        state = _State(params, variables["batch_stats"], optimiser.init(params))
        start = (state, jnp.arange(n), jnp.array(True))
        (state, _, healthy), train_losses = lax.scan(step, start, jnp.arange(steps))

        variables = {"params": as_tree(state.params), "batch_stats": state.batch_stats}

        def log_probs_of(images):
            logits = network.apply(variables, arch, normalise(images, *moments))
            return jax.nn.log_softmax(cast(Array, logits))

        # Together, so that the network is compiled for predicting once.
        images = jnp.concatenate([data.valid.inputs, data.test.inputs, inputs])
        log_probs = in_batches(log_probs_of, images, config.batch)
        valid, test, own = jnp.split(log_probs, ends_of(data))
        failed = ~(healthy & jnp.all(jnp.isfinite(valid)) & jnp.all(jnp.isfinite(test)))
        valid, test = (jnp.where(failed, jnp.nan, log_probs) for log_probs in (valid, test))
        of_labels = jnp.take_along_axis(valid, data.valid.labels[:, None], axis=1)
        weights = ravel_pytree(variables)[0] if config.keep_weights else None
        fit = jnp.where(failed, jnp.nan, sum_of_labels(own, labels))
        return Trained(valid, test, -jnp.mean(of_labels), train_losses, failed, weights, fit)

    return train


def weight_shapes(config: NetworkConfig, image_shape: tuple[int, ...]) -> dict:
    """Return the tree of what is trained, of shapes and types instead of arrays."""
    arch, image = jnp.zeros(len(config.space.options), jnp.int32), jnp.zeros((1, *image_shape))
    return jax.eval_shape(config.build().init, jax.random.key(0), arch, image)


def draw_variables(key: PRNGKey, config: NetworkConfig, image_shape: tuple[int, ...]) -> dict:
    """Draw initial variables for `apply` of a network, as PyTorch does: uniform within 1/√inputs.

    They are distributed as those of its `init`, and come from a single draw: a draw for
    each parameter is a third of what there is to compile in a training program.
    """
    shapes = weight_shapes(config, image_shape)
    draws = jax.random.uniform(key, (size_of(shapes["params"]),), minval=-1, maxval=1)
    features = shapes["params"]["classifier_weight"].shape[-1]

    def begin(path, leaf, draw):
        match path[-1].key:
            case "weight":
                return jnp.ones_like(draw)
            case "bias":
                return jnp.zeros_like(draw)
            case "classifier_weight" | "classifier_bias":
                return draw / math.sqrt(features)
        return draw / math.sqrt(math.prod(leaf.shape[-3:]))  # a kernel

    params = jax.tree_util.tree_map_with_path(
        begin, shapes["params"], unravel(draws, shapes["params"])
    )
    start = {"running_mean": jnp.zeros, "running_var": jnp.ones}
    stats = jax.tree_util.tree_map_with_path(
        lambda path, leaf: start[path[-1].key](leaf.shape, leaf.dtype), shapes["batch_stats"]
    )
    return {"params": params, "batch_stats": stats}


def weight_count(config: NetworkConfig, image_shape: tuple[int, ...]) -> int:
    """Count what is trained: parameters and running statistics of every operation."""
    return size_of(weight_shapes(config, image_shape))


def unravel_weights(
    weights: Float[Array, "*members w"],
    config: NetworkConfig,
    image_shape: tuple[int, ...],
) -> dict:
    """Turn vectors of trained weights into variables for `apply` of the network."""
    return unravel(weights, weight_shapes(config, image_shape))


def train_population(
    key: PRNGKey,
    archs: ArrayLike,
    data: Split,
    config: TrainConfig,
    *,
    mesh: Mesh | None = None,
) -> Population:
    """Train K architectures with `config.seeds` seeds each, a chunk at a time, by one program.

    The key of a member is `key` folded with the index of its architecture and its seed: the same
    (key, architecture, seed) gives the same result whatever else is trained, and in whichever
    chunk and on whichever device, to rounding.

    Args:
        key: of everything random.
        archs: K of them.
        data: images and labels.
        config: of the network and its training.
        mesh: of the devices that members are divided among; by default all.

    Example:
        >>> from bqnes_jax.data import Examples
        >>> network = NATSNetworkConfig(channels=1, cells=1, classes=2)
        >>> config = TrainConfig(network, seeds=2, steps=2, batch=4, chunk=4)
        >>> part = Examples(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 0, 1]))
        >>> data = Split(part, part, part, classes=2)
        >>> population = train_population(jax.random.key(0), np.ones((3, 6), int), data, config)
        >>> population.trained.failed.tolist(), population.seconds.shape
        ([[False, False], [False, False], [False, False]], (2,))
    """
    archs = as_architectures(config.network.space, archs)
    train = population_trainer(data, config, mesh=mesh, asked=len(archs) * config.seeds)
    parts, seconds = zip(*train(key, archs), strict=True)
    trained = jax.tree.map(
        lambda *leaves: np.concatenate(leaves).reshape(-1, config.seeds, *leaves[0].shape[1:]),
        *parts,
    )
    return Population(jax.device_put(trained), np.array(seconds))


def population_trainer(
    data: Split, config: TrainConfig, *, mesh: Mesh | None = None, asked: int | None = None
) -> Callable[[PRNGKey, ArrayLike], Iterator[tuple[Trained, float]]]:
    """Return a function that trains architectures and yields chunks of members as they are done.

    With each chunk come the seconds it took. `asked` is how many members there will be in a call:
    a chunk is no larger than that.
    """
    mesh = mesh_for(asked, mesh)
    chunk = choose_chunk(config, data, mesh, asked=asked)
    placed = place(data, mesh)

    def train(key: PRNGKey, archs: ArrayLike) -> Iterator[tuple[Trained, float]]:
        check_images(data, config.network.classes)
        count_steps(config, len(data.train.inputs))
        space = config.network.space
        archs = np.asarray(as_architectures(space, archs))
        check_shape("archs", archs, (None, len(space.options)))
        if not len(archs):
            raise BQNESError("archs are none; give at least one architecture.")
        archs = np.repeat(archs, config.seeds, axis=0)
        seeds = np.resize(np.arange(config.seeds, dtype=np.int32), len(archs))
        key_data = np.asarray(jax.random.key_data(key))
        started = perf_counter()
        for trained in in_chunks(
            _make_program(config, mesh), mesh, chunk, (archs, seeds), key_data, placed
        ):
            yield trained, perf_counter() - started
            started = perf_counter()

    return train


def choose_chunk(
    config: TrainConfig, data: Split, mesh: Mesh, *, asked: int | None = None
) -> Chunk:
    """Choose how many members a device trains at once, of `asked` in all.

    A CPU does not train several at once: one after another each computes only its own operations.
    Elsewhere, what a member needs is mostly what its gradient remembers of the forward pass.
    """
    if config.chunk is not None:
        return chunk_of(config.chunk, asked, mesh)
    if jax.default_backend() == "cpu" and config.memory is None:
        return chunk_of(1, asked, mesh)
    in_half = getattr(config.network, "bfloat16", False)
    size = 2 if in_half else jnp.dtype(float).itemsize
    each = config.network.count_kept(data.train.inputs.shape[1:]) * config.batch * size
    memory = device_memory() if config.memory is None else config.memory
    return chunk_of(max(1, int(memory // each)), asked, mesh)


@functools.cache
def _make_program(config: TrainConfig, mesh: Mesh):
    train = make_train(config)

    def members(archs, seeds, key, data):
        key = jax.random.wrap_key_data(key)

        def member(one):
            arch, seed = one
            own = jax.random.fold_in(key_of(config.network.space, key, arch), seed)
            return train(own, arch, data)

        return of_each(member, (archs, seeds))

    return spread(members, mesh, split=2)


def key_of(space: Space, key: PRNGKey, arch: Int32[Array, " length"]) -> PRNGKey:
    """Return an architecture's own key: folded with its number, or with each of its choices."""
    if isinstance(space, EnumerableSpace):
        return jax.random.fold_in(key, space.index(arch))
    return lax.fori_loop(0, len(arch), lambda i, key: jax.random.fold_in(key, arch[i]), key)


def ends_of(data: Split) -> list[int]:
    """Return where validation and test points end, where those of training come after them."""
    valid, test = len(data.valid.labels), len(data.test.labels)
    return [valid, valid + test]


def sum_of_labels(
    log_probs: Float[Array, "n classes"], labels: Int[Array, " n"]
) -> Float[Array, ""]:
    """Return the log-likelihood of the labels."""
    return jnp.sum(jnp.take_along_axis(log_probs, labels[:, None], axis=1))


def in_batches(function: Callable, images: Array, batch: int) -> Array:
    """Apply to a few images at a time; the last ones are filled up with the first."""
    n = len(images)
    batch = min(batch, n)
    number = -(-n // batch)
    batches = images[jnp.arange(number * batch) % n].reshape(number, batch, *images.shape[1:])
    out = lax.map(function, batches)
    return out.reshape(number * batch, *out.shape[2:])[:n]
