"""Every public function is called with odd numbers: a result, a status, or an error in a sentence.

A surrogate is made from odd numbers, too, by what makes it: nobody writes into one that exists.
"""

import collections
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from attacks.functions import every
from attacks.tally import Tally
from bqnes_jax import selection
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF
from bqnes_jax.surrogates import WarpConfig, gp, wsabi
from tests.helpers.toy import GRID
from tests.test_transformations import grid, hyperparameters, numbers

CALLS = 100_000
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, 1e19, -1e30, 1e-40, 1.0, -1.0, 3e38])
ODD_WHOLE = np.array([-1, 0, 1, 7, 99, 2**31 - 1])
SCALES = (1e-30, 1e10, 1e19)
ROWS = 8  # of what the tests make
SIZES = ((1, 1), (4, 2), (4, 4), (7, 3))  # of how many candidates how many are selected
METHODS = selection.methods()


class Form(NamedTuple):
    """A function, and what makes its arguments from a key."""

    call: Callable
    make: Callable[[jax.Array], tuple]


def of_selection(method: str, count: int, size: int) -> Form:
    """Select so many of so many candidates."""

    def call(log_probs, classes):
        gram = jnp.exp(-jnp.square(log_probs[:, None, 0] - log_probs[None, :, 0]))
        needed = classes if selection.needs_classes(method) else None
        rule = jnp.full(count, 1 / count)
        return selection.select(method, log_probs, size, kernel=gram, classes=needed, rule=rule)

    def make(key):
        log_probs = jax.nn.log_softmax(jax.random.normal(key, (count, 6, 3)))
        return log_probs[..., 0], log_probs

    return Form(call, make)


def is_surrogate(value: object) -> bool:
    return isinstance(value, gp.Posterior | wsabi.LikelihoodModel)


def from_ingredients(form: Form) -> Form:
    """Let a function of a surrogate be one of what the surrogate is made from."""
    example = form.make(jax.random.key(0))
    place = next((i for i, value in enumerate(example) if is_surrogate(value)), None)
    if place is None:
        return form

    def made(scale, archs, targets, given):
        kernel = RBF(GRID, scale)
        if isinstance(example[place], gp.Posterior):
            return gp.condition(kernel, archs, targets, given)
        config = WarpConfig(warp=example[place].warp)
        return wsabi.condition(kernel, archs, targets, given, config=config)

    def call(ingredients, *others):
        surrogate = made(*ingredients)
        return {"status": surrogate.status}, form.call(*others[:place], surrogate, *others[place:])

    def make(key):
        others = [value for i, value in enumerate(form.make(key)) if i != place]
        targets = 99 * numbers(key)
        return (jnp.asarray(0.4), grid(key), targets, hyperparameters(key)), *others

    return Form(call, make)


def with_rows(form: Form, count: int) -> Form:
    """Let a function of many rows be called with the first few of them, or with none."""

    def cut(leaf: object) -> object:
        return leaf[tuple(slice(count) if n == ROWS else slice(None) for n in jnp.shape(leaf))]

    return Form(form.call, lambda key: jax.tree.map(cut, form.make(key)))


def has_rows(form: Form) -> bool:
    example = form.make(jax.random.key(0))
    graphs = any(isinstance(value, jraph.GraphsTuple) for value in example)
    return not graphs and any(ROWS in jnp.shape(leaf) for leaf in jax.tree.leaves(example))


def forms() -> dict[str, Form]:
    """Return every public function, also with one row and with none, and selections of sizes."""
    found = {name: from_ingredients(Form(*pair)) for name, pair in every().items()}
    of_rows = {name: form for name, form in found.items() if has_rows(form)}
    for text, count in (("one row", 1), ("no rows", 0)):
        found |= {f"{name}, {text}": with_rows(form, count) for name, form in of_rows.items()}
    for method in METHODS:
        for count, size in SIZES:
            found[f"select {method}, {size} of {count}"] = of_selection(method, count, size)
    return found


def spoil(draw: np.random.Generator, leaf: object) -> object:
    """Put odd numbers at up to two places of some arrays, and scale some of them altogether."""
    if not _is_array(leaf) or draw.random() < 0.5:
        return leaf
    array = np.array(leaf)
    flat = array.reshape(-1)
    for place in draw.integers(0, flat.size, draw.integers(0, 3)) if flat.size else ():
        if array.dtype.kind == "f":
            flat[place] = draw.choice(ODD).astype(array.dtype)
        elif array.dtype.kind in "iu":
            flat[place] = draw.choice(ODD_WHOLE)
        elif array.dtype.kind == "b":
            flat[place] = not flat[place]
    if array.dtype.kind == "f" and draw.random() < 0.1:
        with np.errstate(over="ignore"):
            array = array * array.dtype.type(draw.choice(SCALES))
    return jnp.asarray(array)


def outcome(form: Form, arguments: tuple) -> tuple[str, str]:
    """Call a function; return what came of it, and a note if that is a bug."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = form.call(*arguments)
        except BQNESError:
            return "survived", ""
        except Exception as error:
            return "lost", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if _any(np.isnan, found) and not _any(_is_odd, arguments) and not _status(found):
        return "silent", " ".join(f"NaN for {arguments!r}".split())[:600]
    return "survived", ""


def attack(tally: Tally, scratch: Path) -> None:
    """Call each function until it was called often enough."""
    functions = forms()
    each = -(-CALLS // len(functions))
    for name, form in functions.items():
        have = tally.tried("calls", name)
        draw = np.random.default_rng(have)
        bases = [form.make(jax.random.key(have + i)) for i in range(8)] if have < each else []
        counts, notes = collections.Counter(tried=0), []
        for number in range(have, each):
            arguments = jax.tree.map(functools.partial(spoil, draw), bases[number % 8])
            found, note = outcome(form, arguments)
            counts.update(["tried", found])
            notes += [note] if note else []
        tally.add("calls", name, "; ".join(notes[:1]), **counts)
        tally.write()


def _is_array(leaf: object) -> bool:
    return hasattr(leaf, "dtype") and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_odd(array: np.ndarray) -> np.ndarray:
    return ~np.isfinite(array)


def _any(test: Callable[[np.ndarray], np.ndarray], tree: object) -> bool:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if _is_array(leaf)]
    return any(test(leaf).any() for leaf in leaves if leaf.dtype.kind == "f")


def _status(found: object) -> int:
    """Return every status bit that is in a result: of the result itself, or of a surrogate."""
    status = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
        if "status" in jax.tree_util.keystr(path):
            status |= int(np.bitwise_or.reduce(np.asarray(leaf), axis=None))
    return status
