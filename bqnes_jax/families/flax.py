"""A family of Flax modules: you build the network of an architecture, the training is ours."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bqnes_jax.data import Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.families.base import Variables
from bqnes_jax.families.functions import Choices, FunctionFamily, from_functions
from bqnes_jax.identity import describe_code, digest, identity
from bqnes_jax.spaces import ChoiceSpace
from bqnes_jax.training.population import in_batches
from bqnes_jax.training.recipe import Recipe, count_steps, draw_batch
from bqnes_jax.types import PRNGKey

Build = Callable[[Choices], nn.Module]

_BATCH = 256  # inputs predicted at a time


def from_flax(
    space: ChoiceSpace,
    build: Build,
    recipe: Recipe = Recipe(),  # noqa: B008 (immutable)
    *,
    name: str | None = None,
) -> FunctionFamily:
    """Make a family from a function that builds a Flax module.

    Args:
        space: what can be chosen, such as `spaces.Product`.
        build: a function of choices, such as `{"depth": 2}`, that returns a Linen module from
            inputs (n, …) to logits (n, classes). If the module's call takes `train`, `training` or
            `deterministic`, it is told which. A module of NNX is wrapped by Flax's own bridge:
            `nnx.bridge.to_linen(MyModule, …)`.
        recipe: how each module is trained.
        name: what the family is called; by default the name of `build`.

    Example:
        >>> from bqnes_jax.spaces import Product
        >>> family = from_flax(Product(width=(8, 16)), lambda choices: nn.Dense(2), name="linear")
        >>> family.name
        'linear'
    """
    if not isinstance(recipe, Recipe):
        raise BQNESError(f"recipe is {recipe!r}; it must be a bqnes_jax.training.Recipe.")
    return from_functions(
        space,
        functools.partial(_train, build, recipe),
        functools.partial(_predict, build),
        name=name or getattr(build, "__name__", type(build).__name__),
        manifest={"build": _describe_build(space, build), "recipe": identity(recipe)},
    )


def _describe_build(space: ChoiceSpace, build: Build) -> str:
    """Describe the function that builds, and the class of what it builds, wherever that is from."""
    module = build(space.decode(np.zeros(len(space.options), np.int32)))
    if not isinstance(module, nn.Module):
        raise BQNESError(
            f"build returned a {type(module).__name__}; it must return a module of Flax Linen, or "
            "one of NNX wrapped by flax.nnx.bridge.to_linen."
        )
    return digest([describe_code(build), describe_code(_class_of(module))])


def _train(build: Build, recipe: Recipe, key: PRNGKey, choices: Choices, data: Split) -> Variables:
    """Minimise the cross-entropy of a module by the recipe."""
    module, n = build(choices), len(data.train.labels)
    steps, per_epoch = count_steps(recipe, n)
    optimiser = recipe.make_optimiser(steps)
    inputs, labels = (jnp.asarray(array) for array in data.train)
    moments = _moments(inputs, recipe.standardise)
    init_key, order_key, noise_key = jax.random.split(key, 3)

    def loss_of(params, rest, inputs, labels, noise):
        logits, rest = module.apply(
            {"params": params, **rest},
            _scale(inputs, moments),
            **_mode(module, train=True),
            rngs={"dropout": noise},
            mutable=list(rest),
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.mean(losses), rest

    def step(carry, t):
        params, rest, memory, order = carry
        order, batch = draw_batch(order_key, order, t, per_epoch, recipe.batch)
        gradient, rest = jax.grad(loss_of, has_aux=True)(
            params,
            rest,
            inputs[batch],
            labels[batch],
            jax.random.fold_in(noise_key, t),
        )
        updates, memory = optimiser.update(gradient, memory, params)
        return (optax.apply_updates(params, updates), rest, memory, order), None

    rngs: dict[str, jax.Array] = dict(
        zip(("params", "dropout"), jax.random.split(init_key), strict=True)
    )
    first = _scale(inputs[:1], moments)
    variables = dict(module.init(rngs, first, **_mode(module, train=False)))
    params = variables.pop("params")
    start = (params, variables, optimiser.init(params), jnp.arange(n))
    (params, rest, _, _), _ = lax.scan(step, start, jnp.arange(steps))
    return {"variables": {"params": params, **rest}, "moments": moments}


def _predict(build: Build, variables: Variables, choices: Choices, inputs: ArrayLike) -> jax.Array:
    """Return the log-probabilities of a trained module."""
    module = build(choices)

    def of_batch(batch):
        scaled = _scale(batch, variables["moments"])
        logits = module.apply(variables["variables"], scaled, **_mode(module, train=False))
        return jax.nn.log_softmax(cast(Array, logits))

    return in_batches(of_batch, jnp.asarray(inputs), _BATCH)


def _class_of(module: nn.Module) -> type:
    return getattr(module, "nnx_class", type(module))  # the first: of a module in Flax's bridge


def _mode(module: nn.Module, train: bool) -> dict[str, Any]:
    """Return the argument by which a module is told whether it is trained, if it has one."""
    parameters = inspect.signature(_class_of(module).__call__).parameters
    says = {"train": train, "training": train, "deterministic": not train}
    return next(({name: says[name]} for name in says if name in parameters), {})


def _moments(inputs: Array, standardise: bool) -> Float[Array, "2 features"]:
    """Return mean and standard deviation along the last axis of the training inputs."""
    inputs = inputs.astype(jnp.result_type(float))
    axes = tuple(range(max(inputs.ndim - 1, 1)))  # of plain numbers, all of them
    mean, deviation = jnp.mean(inputs, axes), jnp.std(inputs, axes)
    moments = jnp.stack([mean, jnp.where(deviation > 0, deviation, 1)])
    return moments if standardise else jnp.stack([jnp.zeros_like(mean), jnp.ones_like(mean)])


def _scale(inputs: Array, moments: Float[Array, "2 features"]) -> Array:
    return (inputs - moments[0]) / moments[1]
