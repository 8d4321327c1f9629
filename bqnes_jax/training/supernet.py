"""Train one network that holds the weights of all architectures of a space.

`make_supernet(config)` returns pure functions: `init`, `train` and `evaluate` (what architectures
predict, each with batch-norm statistics of its own). How a step trains, `training.blueprints` says
for each kind of network. `train_supernet` is a thin shell around them, with checkpoints: a training
that was stopped goes on to the same weights.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int32, Shaped

from bqnes_jax.data.augment import AugmentConfig, augment
from bqnes_jax.data.examples import Split, fingerprint
from bqnes_jax.data.images import channel_moments, check_images, normalise
from bqnes_jax.errors import check_shape, check_whole
from bqnes_jax.files import explain_writing, hold_lock
from bqnes_jax.identity import PREDICTION, SPEED, field, identity
from bqnes_jax.models.cells import NATSNetworkConfig
from bqnes_jax.models.mobilenet import MobileNetConfig, NormStatistics
from bqnes_jax.parallel import of_each
from bqnes_jax.spaces.base import as_architectures
from bqnes_jax.training.blueprints import Blueprint, Params, blueprint_of
from bqnes_jax.training.checkpoints import Checkpoints, check_same
from bqnes_jax.training.population import ends_of, in_batches, sum_of_labels
from bqnes_jax.training.recipe import check_recipe, count_steps, make_optimiser
from bqnes_jax.training.vectors import size_of, unravel
from bqnes_jax.types import PRNGKey

Moments = tuple[Float[Array, " c"], Float[Array, " c"]]
Progress = Callable[[int, float], None]


@dataclasses.dataclass(frozen=True)
class SupernetConfig:
    """SGD with Nesterov momentum, cosine to a rate of 0.

    Attributes:
        network: the largest network of a slimmable space.
        epochs: passes over the training images; each leaves out what does not fill a batch.
        steps: how many steps instead of how many epochs.
        batch: images in a step.
        learning_rate: at the start.
        momentum: of Nesterov's kind.
        weight_decay: added to the gradient, for every parameter.
        augment: random flips and crops.
        random_slices: how many random architectures a step trains beside the largest and the
            smallest.
        recalibration_batches: training batches, at most, by which the batch-norm statistics of a
            slice are found.
        save_every: steps between checkpoints.
        pretrained: the directory `supernet` of another run with the same seed, data and supernet,
            instead of training it again; it is trained there if it is not.
    """

    network: MobileNetConfig = dataclasses.field(default_factory=MobileNetConfig)
    epochs: int = 200
    _: dataclasses.KW_ONLY
    steps: int | None = None
    batch: int = 256
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    random_slices: int = 2
    recalibration_batches: int = field(PREDICTION, default=16)
    save_every: int = field(SPEED, default=500)
    pretrained: str | None = field(SPEED, default=None)

    def __post_init__(self):
        check_recipe(self)
        for name in ("recalibration_batches", "save_every"):
            check_whole(name, getattr(self, name), 1)
        check_whole("random_slices", self.random_slices, 0)


@dataclasses.dataclass(frozen=True)
class SharedCellsConfig(SupernetConfig):
    """The same for cells of NATS-Bench that share their weights.

    Attributes:
        network: the macro-skeleton, with every operation on every edge.
        random_slices: how many random cells a step trains.
    """

    network: NATSNetworkConfig = dataclasses.field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=NATSNetworkConfig
    )
    _: dataclasses.KW_ONLY
    random_slices: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_whole("random_slices", self.random_slices, 1)


class SupernetState(NamedTuple):
    """What the next step needs.

    Attributes:
        params: of the largest network.
        optimiser: what the optimiser remembers.
        step: how many steps were done.
        healthy: False from the step on at which a loss or a gradient was not finite; parameters
            stay as they were before it.
    """

    params: Params
    optimiser: optax.OptState
    step: Int32[Array, ""]
    healthy: Bool[Array, ""]


class Slices(NamedTuple):
    """What K slices predict. One that failed has NaN instead, so that none of it is used.

    Attributes:
        valid_log_probs: log-probabilities of the classes of the validation images.
        test_log_probs: of the test images.
        valid_loss: mean negative log-likelihood of the validation labels.
        failed: whether a prediction was not finite.
        batch_stats: means and variances of the batch norms, as one vector for each slice; for
            `predict_slices`.
        train_log_likelihood: summed over the training images, as they are; as far as the images of
            recalibration tell, of which there are fewer.
    """

    valid_log_probs: Float[Array, "k n_valid classes"]
    test_log_probs: Float[Array, "k n_test classes"]
    valid_loss: Float[Array, " k"]
    failed: Bool[Array, " k"]
    batch_stats: Float[Array, "k size"]
    train_log_likelihood: Float[Array, " k"]


class Supernet(NamedTuple):
    """Pure functions; made by `make_supernet`."""

    init: Callable[[PRNGKey, Split], SupernetState]
    train: Callable[
        [PRNGKey, SupernetState, Split, int], tuple[SupernetState, Float[Array, " steps"]]
    ]
    evaluate: Callable[[Params, Int32[Array, "k length"], Split], Slices]


def make_supernet(config: SupernetConfig) -> Supernet:
    """Return the pure functions of a config.

    - `init(key, data)`: the state before the first step.
    - `train(key, state, data, steps)`: do at most so many steps more, `steps` being static, and
      return their losses (of the largest network, or of random cells), NaN where there was no step
      since all of the config's are done, or none that could be used. What happens in step t depends
      on (key, t) alone: in pieces or in one go, the result is the same.
    - `evaluate(params, archs, data)`: what slices predict, [K, length] of them at once.
    """
    blueprint = blueprint_of(config.network)

    def init(key: PRNGKey, data: Split) -> SupernetState:
        params = blueprint.init(key, data.train.inputs.shape[1:])
        steps, _ = count_steps(config, len(data.train.inputs))
        state = make_optimiser(config, steps).init(params)
        return SupernetState(params, state, jnp.int32(0), jnp.bool_(True))

    def train(
        key: PRNGKey, state: SupernetState, data: Split, steps: int
    ) -> tuple[SupernetState, Float[Array, " steps"]]:
        check_whole("steps", steps, 1)
        inputs, labels = (jnp.asarray(array) for array in data.train)
        n = len(inputs)
        total, per_epoch = count_steps(config, n)
        optimiser = make_optimiser(config, total)
        moments = channel_moments(inputs)
        order_key, augment_key, slices_key = jax.random.split(key, 3)

        def order_of(t):
            return jax.random.permutation(jax.random.fold_in(order_key, t // per_epoch), n)

        def step(i, carry):
            state, order, losses = carry
            t = state.step
            place = t % per_epoch
            order = lax.cond(place == 0, order_of, lambda _: order, t)
            batch = lax.dynamic_slice_in_dim(order, place * config.batch, config.batch)
            images = augment(jax.random.fold_in(augment_key, t), inputs[batch], config.augment)
            images = normalise(images, *moments)
            own_key = jax.random.fold_in(slices_key, t)

            def loss_of(params):
                return blueprint.loss(own_key, config.random_slices, params, images, labels[batch])

            (loss, shown), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
            healthy = state.healthy & _all_finite((loss, gradient))
            updates, memory = optimiser.update(gradient, state.optimiser, state.params)
            new = (optax.apply_updates(state.params, updates), memory)
            old = (state.params, state.optimiser)
            params, memory = jax.tree.map(lambda new, old: jnp.where(healthy, new, old), new, old)
            losses = losses.at[i].set(jnp.where(healthy, shown, jnp.nan))
            return SupernetState(params, memory, t + 1, healthy), order, losses

        losses = jnp.full(steps, jnp.nan)
        # The number of steps is not known when compiling: XLA would make another program, with
        # other rounding, of a loop that it knows to be short.
        count = jnp.clip(total - state.step, 0, steps)
        start = (state, order_of(state.step), losses)
        state, _, losses = lax.fori_loop(0, count, step, start)
        return state, losses

    def evaluate(params: Params, archs: Int32[Array, "k length"], data: Split) -> Slices:
        inputs = jnp.asarray(data.train.inputs)
        moments = channel_moments(inputs)
        places = _recalibration_places(config, len(inputs))
        batches, labels = inputs[places], jnp.asarray(data.train.labels)[places.ravel()]
        seen = batches.reshape(-1, *inputs.shape[1:])
        images = jnp.concatenate([data.valid.inputs, data.test.inputs, seen])

        def of_one(arch):
            statistics = _recalibrate(blueprint, params, arch, batches, moments)
            log_probs = _log_probs(config, params, statistics, arch, images, moments)
            valid, test, own = jnp.split(log_probs, ends_of(data))
            loss = -jnp.mean(jnp.take_along_axis(valid, data.valid.labels[:, None], axis=1))
            fit = sum_of_labels(own, labels) * (len(inputs) / len(labels))
            predicted = jnp.isfinite(log_probs[: len(valid) + len(test)])
            failed = ~(jnp.all(predicted) & jnp.isfinite(loss))
            valid, test, loss, fit = (
                jnp.where(failed, jnp.nan, x) for x in (valid, test, loss, fit)
            )
            return Slices(valid, test, loss, failed, ravel_pytree(statistics)[0], fit)

        return of_each(of_one, archs)

    return Supernet(init, train, evaluate)


def predict_slices(
    config: SupernetConfig,
    params: Params,
    batch_stats: Float[Array, "k size"],
    archs: Int32[Array, "k length"],
    images: Shaped[Array, "n h w c"],
    moments: Moments,
) -> Float[Array, "k n classes"]:
    """Return log-probabilities of classes under slices whose statistics are known.

    `moments` are the `channel_moments` of the training images.
    """
    blueprint = blueprint_of(config.network)
    archs = as_architectures(blueprint.space, archs)
    image = jnp.zeros((1, *images.shape[1:]))
    shapes = jax.eval_shape(blueprint.statistics, params, archs[0], image)
    check_shape("batch_stats", batch_stats, (len(archs), size_of(shapes)))

    def of_one(member):
        statistics, arch = member
        return _log_probs(config, params, statistics, arch, images, moments)

    return of_each(of_one, (unravel(batch_stats, shapes), archs))


def unravel_params(
    vector: Float[Array, " w"],
    config: MobileNetConfig | NATSNetworkConfig,
    image_shape: tuple[int, ...],
) -> dict:
    """Turn the parameters of a supernet, as one vector, into those of its network."""
    init = blueprint_of(config).init
    shapes = jax.eval_shape(lambda key: init(key, image_shape), jax.random.key(0))
    check_shape("the vector of parameters", vector, (size_of(shapes),))
    return unravel(vector, shapes)


def train_supernet(
    key: PRNGKey,
    data: Split,
    config: SupernetConfig,
    directory: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> SupernetState:
    """Train to the end, with a checkpoint in `directory` after every `config.save_every` steps.

    Called again after it was stopped, it goes on from the last checkpoint, to bit-identical
    parameters. It stops where a loss is not finite: look at `healthy` of what it returns.

    Args:
        key: of everything random.
        data: images and labels.
        config: of the network and its training.
        directory: for the checkpoints of this training and of no other.
        progress: called after each checkpoint with the step and the mean loss since the last one.
    """
    check_images(data, config.network.classes)
    total, _ = count_steps(config, len(data.train.inputs))
    directory = Path(directory).absolute()
    with explain_writing(f"supernet {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
    init, train = _make_programs(config)
    with hold_lock(directory / "lock", f"supernet {directory}", wait=True):  # runs may share it
        check_same(directory, _recipe(key, data, config))
        data = jax.device_put(data)
        state = init(jax.random.fold_in(key, 0), data)
        with Checkpoints(directory / "checkpoints") as checkpoints:
            state = checkpoints.latest(state)
            while int(state.step) < total and bool(state.healthy):
                state, losses = train(jax.random.fold_in(key, 1), state, data, config.save_every)
                checkpoints.save(state)
                if progress is not None:
                    progress(int(state.step), float(jnp.nanmean(losses)))
    return state


@functools.cache
def _make_programs(config: SupernetConfig):
    supernet = make_supernet(config)
    return jax.jit(supernet.init), jax.jit(supernet.train, static_argnums=3)


def _recipe(key: PRNGKey, data: Split, config: SupernetConfig) -> dict:
    """Describe all that the weights depend on."""
    recipe = identity(config, predicts=False)
    recipe["inputs"] = fingerprint(data)
    recipe["key"] = np.asarray(jax.random.key_data(key)).tolist()
    recipe["precision"] = jnp.dtype(float).name
    return recipe


def _recalibration_places(config: SupernetConfig, images: int) -> np.ndarray:
    """Choose training images for recalibration, [batches, batch], none of them twice.

    Each batch is spread evenly over the set, which may be sorted by class.
    """
    batches = min(config.recalibration_batches, images // config.batch)
    places = np.arange(batches * config.batch) * images // (batches * config.batch)
    return places.reshape(config.batch, batches).T


def _recalibrate(
    blueprint: Blueprint,
    params: Params,
    arch: Int32[Array, " length"],
    batches: Shaped[Array, "batches n h w c"],
    moments: Moments,
) -> dict:
    """Find the statistics of a slice: mean and variance over all the batches together.

    A batch is normalised by its own statistics on its way through the network.
    """

    def statistics_of(images):
        return blueprint.statistics(params, arch, normalise(images, *moments))

    def add(carry, images):
        pooled, count = carry

        def pool(old, new):
            apart = new.mean - old.mean
            mean = old.mean + apart / count
            var = old.var + (new.var - old.var) / count + apart**2 * (count - 1) / count**2
            return NormStatistics(mean, var)

        new = statistics_of(images)
        pooled = jax.tree.map(
            pool, pooled, new, is_leaf=lambda node: isinstance(node, NormStatistics)
        )
        return (pooled, count + 1), None

    shapes = jax.eval_shape(statistics_of, batches[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (pooled, _), _ = lax.scan(add, (nothing, 1), batches)
    return pooled


def _log_probs(
    config: SupernetConfig,
    params: Params,
    statistics: dict,
    arch: Int32[Array, " length"],
    images: Shaped[Array, "n h w c"],
    moments: Moments,
) -> Float[Array, "n classes"]:
    blueprint = blueprint_of(config.network)

    def of_batch(images):
        logits = blueprint.apply(params, statistics, arch, normalise(images, *moments))
        return jax.nn.log_softmax(logits)

    return in_batches(of_batch, images, config.batch)


def _all_finite(tree: object) -> Bool[Array, ""]:
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.stack(finite))
