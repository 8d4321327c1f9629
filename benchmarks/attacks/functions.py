"""Every public function that takes numbers, with what makes its arguments from a key.

`tests/test_transformations.py` has those that can be compiled and mapped; here are the others: of
spaces, surrogates, calibration, whole searches, models that exist already, and data.
"""

import functools
import inspect
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

import bqnes_jax
from bqnes_jax import (
    algorithms,
    calibration,
    candidates,
    combination,
    data,
    drivers,
    kernels,
    metrics,
    pooling,
    quadrature,
    selection,
    spaces,
    tables,
)
from bqnes_jax.candidates import Outcome, SearchConfig
from bqnes_jax.kernels import RBF, WL, Affine, FeatureRBF, WithCoordinates
from bqnes_jax.spaces import DARTS, NATS, SLIMMABLE, Product, Seeded, Subset
from bqnes_jax.surrogates import WarpConfig, gp, wsabi
from bqnes_jax.surrogates.base import Design
from bqnes_jax.surrogates.fitting import no_shape
from tests.helpers.toy import GRID
from tests.test_transformations import (
    NOT_NUMERICAL,
    PUBLIC,
    design,
    grid,
    model,
    numbers,
    posterior,
    prediction,
    probabilities,
)

SPACES = {
    "NATS": NATS,
    "SLIMMABLE": SLIMMABLE,
    "DARTS": DARTS,
    "Product": Product(depth=(1, 2, 3), width=(16, 32), activation=("relu", "tanh")),
    "Seeded": Seeded(NATS, 3),
    "Subset": Subset(NATS, (3, 77, 901, 15_000)),
}
CONFIG = SearchConfig(initial=3, budget=6)
POINTS, CLASSES = 5, 3  # of what a search evaluates


# ── spaces and kernels ───────────────────────────────────────────────────────────────────────────


def of_spaces() -> dict:
    """Return the methods of every space."""
    found = {}
    for name, space in SPACES.items():
        drawn = functools.partial(space.sample, n=8)
        found |= {
            f"{name}.sample": (functools.partial(space.sample, n=5), lambda key: (key,)),
            f"{name}.mutate": (space.mutate, lambda key, drawn=drawn: (key, drawn(key)[0])),
            f"{name}.to_string": (
                lambda arch, space=space: space.from_string(space.to_string(arch)),
                lambda key, drawn=drawn: (drawn(key)[0],),
            ),
            f"as_architectures, {name}": (
                functools.partial(spaces.as_architectures, space),
                lambda key, drawn=drawn: (drawn(key),),
            ),
            f"split_seeds, {name}": (
                functools.partial(spaces.split_seeds, space),
                lambda key, drawn=drawn: (drawn(key),),
            ),
        }
        of_many = ("index", "coordinates", "repair", "is_canonical")
        for method in (method for method in of_many if hasattr(space, method)):
            call = getattr(space, method)
            found[f"{name}.{method}"] = (call, lambda key, drawn=drawn: (drawn(key),))
        for method in (method for method in ("graph", "decode") if hasattr(space, method)):
            call = getattr(space, method)
            found[f"{name}.{method}"] = (call, lambda key, drawn=drawn: (drawn(key)[0],))
        if space.size is not None:
            found[f"{name}.from_index"] = (
                space.from_index,
                lambda key, size=space.size: (jax.random.randint(key, (8,), 0, size),),
            )
    return found


def of_kernels() -> dict:
    """Return the Gram matrices of the kernels that the tests do not transform."""
    kinds = {
        "Affine": Affine(NATS),
        "WithCoordinates": WithCoordinates(WL(NATS)),
        "FeatureRBF of both": FeatureRBF(WithCoordinates(WL(NATS)), 1.4),
        "RBF of slices": RBF(SLIMMABLE),
    }
    found = {}
    for name, kernel in kinds.items():
        drawn = functools.partial(kernel.space.sample, n=8)
        found[f"{name}.gram"] = (kernel.gram, lambda key, drawn=drawn: (drawn(key),))
    return found


# ── surrogates and calibration ───────────────────────────────────────────────────────────────────


@jax.jit
def refit(archs, log_likelihoods):
    """Fit a surrogate for the first time, as a step of a search does."""
    kernel = RBF(GRID, jnp.asarray(0.4))
    return wsabi.refit(no_shape(kernel), kernel, archs, log_likelihoods)


OF_SURROGATES = {
    "gp.only_finite": (
        lambda *parts: gp.only_finite(Design(*parts)).targets,
        design,
    ),
    "gp.posterior_basis": (gp.posterior_basis, lambda key: (posterior(key), grid(key))),
    "gp.double_sum": (
        gp.double_sum,
        lambda key: (posterior(key), grid(key), jax.nn.softmax(numbers(key))),
    ),
    "wsabi.refit": (refit, lambda key: (grid(key), 99 * numbers(key))),
    "wsabi.unwarp": (wsabi.unwarp, lambda key: (model(key), prediction(key))),
    "wsabi.slope": (wsabi.slope, lambda key: (model(key), prediction(key))),
    "wsabi.warp_likelihoods": (
        lambda y, mask: wsabi.warp_likelihoods(y, mask, WarpConfig()),
        lambda key: (99 * numbers(key), jnp.arange(8) < 6),
    ),
    "leave_one_out": (lambda m: m.leave_one_out(), lambda key: (model(key),)),
}


def say(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what one model says about eight points, and their classes."""
    log_probs = jax.nn.log_softmax(2 * jax.random.normal(key, (8, 3)))
    return log_probs, jax.random.randint(key, (8,), 0, 3)


def say_each(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what four models say about the true class of ten points, and about all classes."""
    classes = jax.nn.log_softmax(2 * jax.random.normal(key, (4, 10, 3)))
    return classes[..., 0], classes


OF_CALIBRATION = {
    "fit_temperature": (calibration.fit_temperature, say),
    "calibrate": (calibration.calibrate, say),
    "calibrated_log_likelihood": (
        lambda log_probs, labels: calibration.calibrated_log_likelihood(jnp.exp(log_probs), labels),
        say,
    ),
    "calibrate_ensemble": (
        calibration.calibrate_ensemble,
        lambda key: (jnp.ones(4) / 4, *say_each(key)),
    ),
    "select_calibrated": (
        lambda true, classes: calibration.select_calibrated("top", true, 2, classes=classes),
        say_each,
    ),
    "left_out_predictions": (
        lambda true, classes: calibration.left_out_predictions("logpool", true, 2, classes=classes),
        say_each,
    ),
}


# ── whole searches ───────────────────────────────────────────────────────────────────────────────


def tabulated(key: jax.Array) -> tuple:
    """Return a key, and what all cells of the grid have as log-likelihoods and say of all classes.

    The first class is always the true one.
    """
    classes = jax.nn.log_softmax(2 * jax.random.normal(key, (GRID.size, POINTS, CLASSES)))
    return key, jnp.sum(classes[..., 0], axis=1), classes


def look_up(log_likelihoods, classes, archs):
    rows = GRID.index(archs)
    return Outcome(archs, log_likelihoods[rows], classes[rows, :, 0], classes=classes[rows])


def of_searches() -> dict:
    """Return every strategy and every algorithm, on a table of odd numbers."""
    found = {}
    for name in candidates.strategies():
        space = Seeded(GRID, 1) if name == "replicate" else GRID
        strategy = candidates.make(name, space, kernel=RBF(space, 0.4), config=CONFIG)

        @jax.jit
        def search(key, log_likelihoods, classes, strategy=strategy):
            def evaluate(archs):
                found = look_up(log_likelihoods, classes, archs[:, :2])
                return found._replace(archs=archs)

            searched = drivers.scan(strategy, CONFIG, key, evaluate)
            return searched.trace.evidence, searched.history.archs, searched.trace.best

        found[f"scan, {name}"] = (search, tabulated)
    for name in ("BQ-S", "BQ-R", "BQ-L", "NES-RE", "NES-BS", "Random", "Best single"):
        run = algorithms.make(name, GRID, 2, kernel=RBF(GRID, 0.4), config=CONFIG)

        @jax.jit
        def choose(key, log_likelihoods, classes, run=run):
            result = run(key, functools.partial(look_up, log_likelihoods, classes))
            return result.archs, result.weights, {"status": result.info.status}

        found[f"algorithms, {name}"] = (choose, tabulated)
    return found


def loop_on_host(key, log_likelihoods, classes):
    """Search twice on the host, whose strategy was compiled once."""
    evaluate = functools.partial(look_up, log_likelihoods, classes)
    strategy = _random()
    several = drivers.loop_all(strategy, CONFIG, list(jax.random.split(key)), evaluate)
    return [searched.history.archs for searched in several]


@functools.cache
def _random():
    strategy = candidates.make("random", GRID, config=CONFIG, beliefs=False)
    return strategy._replace(init=jax.jit(strategy.init), ask=jax.jit(strategy.ask))


@jax.jit
def include(key, log_likelihoods, classes):
    """Draw by the posterior, and ask how likely each draw was."""
    kernel = RBF(GRID, 0.4)
    strategy = candidates.make("posterior", GRID, kernel=kernel, config=CONFIG)
    evaluate = functools.partial(look_up, log_likelihoods, classes)
    history = drivers.scan(strategy, CONFIG, key, evaluate).history
    found = candidates.inclusion_probabilities(GRID, history, kernel=kernel, config=CONFIG)
    steps = jnp.arange(len(found))[:, None] + CONFIG.initial
    return jnp.where(jnp.arange(CONFIG.budget) < steps, found, 0)  # the rest has no meaning


@jax.jit
def told(key, log_likelihoods, log_probs):
    strategy = candidates.make("random", GRID, config=CONFIG, beliefs=False)
    state, info = strategy.init(key)
    outcome = Outcome(info.archs, log_likelihoods[:3], log_probs)
    return candidates.tell(state, outcome).history.known


OF_HISTORIES = {
    "loop and loop_all": (loop_on_host, tabulated),
    "inclusion_probabilities": (include, tabulated),
    "tell": (told, lambda key: (key, numbers(key), jnp.log(probabilities(key)[..., 0]))),
}


# ── models that exist already, and data ──────────────────────────────────────────────────────────


def combined(valid, labels, **options):
    made = combination.combine(np.asarray(valid), np.asarray(labels), size=2, **options)
    return made.weights, made.temperature, made.predict(np.asarray(valid))


def probable(key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities by four models of ten points, and labels."""
    drawn = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return drawn.dirichlet(np.ones(3), (4, 10)), drawn.integers(0, 3, 10)


def images(key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (2, 8, 8, 3), 0, 256).astype(jnp.uint8)


def cut(inputs, labels):
    split = data.from_arrays(np.asarray(inputs), np.asarray(labels), split=(4, 2, 2), seed=0)
    return split.train.inputs, split.valid.inputs, split.test.inputs


def of_data() -> dict:
    """Return what makes ensembles of predictions, and what changes images."""
    found = {
        "combine": (combined, probable),
        "combine, log-probabilities": (
            functools.partial(combined, inputs="log_probabilities"),
            lambda key: (np.log(probable(key)[0]), probable(key)[1]),
        ),
        "combine, logits": (
            functools.partial(combined, inputs="logits", calibrate="members"),
            lambda key: (9 * np.log(probable(key)[0]), probable(key)[1]),
        ),
        "from_arrays": (cut, lambda key: (jax.random.normal(key, (8, 4)), jnp.arange(8) % 2)),
        "augment": (
            lambda key, pixels: data.augment(key, pixels, data.AugmentConfig()),
            lambda key: (key, images(key)),
        ),
        "channel_moments": (data.channel_moments, lambda key: (images(key),)),
        "downsample": (lambda pixels: data.downsample(pixels, 4), lambda key: (images(key),)),
        "normalise": (
            lambda pixels, mean, deviation: data.normalise(pixels, mean, deviation),
            lambda key: (images(key), numbers(key)[:3], numbers(key)[:3] ** 2),
        ),
        "evaluator": (
            lambda log_likelihoods, archs: (
                tables.evaluator(tables.Table(log_likelihoods, jnp.zeros(GRID.size)), GRID)(
                    archs
                ).archs
            ),
            lambda key: (tabulated(key)[1], grid(key)),
        ),
    }
    for method in selection.methods():
        if method not in ("quadrature", "logpool"):
            call = functools.partial(combined, method=method, calibrate="off")
            found[f"combine, {method}"] = (call, probable)
    for name in data.CORRUPTIONS:
        found[f"corrupt, {name}"] = (
            functools.partial(data.corrupt, name),
            lambda key: (key, images(key), jnp.asarray(3)),
        )
    return found


def every() -> dict:
    """Return every public function by name, with what makes its arguments."""
    found = PUBLIC | of_spaces() | of_kernels() | OF_SURROGATES | OF_CALIBRATION
    return found | of_searches() | OF_HISTORIES | of_data()


# ── what is public ───────────────────────────────────────────────────────────────────────────────

MODULES = (
    *(spaces, kernels, gp, wsabi, quadrature, pooling, metrics, selection, calibration),
    *(candidates, drivers, algorithms, combination, data, bqnes_jax),
)
# What takes names, files or no numbers, and what the functions above call by another name.
WITHOUT_NUMBERS = NOT_NUMERICAL | {
    *("strategies", "uses_surrogate", "make", "count_seeds", "enumerate_space"),
    *("algorithms", "find", "find_trainable", "check_seeds", "classes_for"),
    *("available", "check_images", "check_split", "data_directory", "fingerprint", "how_to_get"),
    *("load", "prepare", "read_split", "split", "split_indices", "write_split"),
    *("configure", "search"),
}
WITHIN = {
    "condition": "gp_condition",
    "fit": "gp_fit",
    "conversation": "loop and loop_all",
    "loop": "loop and loop_all",
    "loop_all": "loop and loop_all",
    "scan": "scan, us",
    "step_keys": "scan, us",
    "select_ensemble": "algorithms, BQ-S",
    "select_members": "algorithms, Best single",
    "best_single": "algorithms, Best single",
    "variational_ensemble": "algorithms, NES-BS",
    "corrupt": "corrupt, fog",
    "as_architectures": "as_architectures, NATS",
    "split_seeds": "split_seeds, Seeded",
}


def public_functions(module: ModuleType) -> set[str]:
    """Return the names of the functions that a module offers."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return {name for name in names if inspect.isfunction(getattr(module, name)) and name[0] != "_"}


def left_out() -> list[str]:
    """Return the public functions that nothing here calls."""
    called = set(every())
    called |= {name.rpartition(".")[2] for name in called}
    return sorted(
        f"{module.__name__}.{name}"
        for module in MODULES
        for name in public_functions(module) - WITHOUT_NUMBERS
        if WITHIN.get(name, name) not in called
    )
