"""The algorithms by name, and the means to add to them."""

from bqnes_jax.algorithms.base import Algorithm, Maker
from bqnes_jax.algorithms.pairs import Pair
from bqnes_jax.algorithms.whole_space import best_single, variational_ensemble
from bqnes_jax.candidates import Prior, SearchConfig
from bqnes_jax.candidates.base import check_members
from bqnes_jax.drivers import Driver, scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import Kernel
from bqnes_jax.registry import Registry
from bqnes_jax.spaces.base import Space
from bqnes_jax.spaces.seeded import count_seeds

_ALGORITHMS: Registry[Maker] = Registry(
    "algorithm",
    {
        "BQ-S": Pair("us", "restack"),
        "BQ-R": Pair("us", "recombine"),
        "BQ-L": Pair("us", "logpool"),
        "NES-RE": Pair("evolution", "beam"),
        "NES-BS": variational_ensemble,
        "Random": Pair("random", "top", only_members=True),
        "BQ-W": Pair("us", "restack", needs_seeds=True),
        "Deep ensemble": Pair("replicate", "top", needs_seeds=True, one_architecture=True),
        "Best single": best_single,
    },
)


def algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms; every `"strategy+method"` is one more."""
    return _ALGORITHMS.names()


def register(name: str, maker: Maker) -> None:
    """Add an algorithm of your own: a function (space, size, kernel, config) -> run.

    Example:
        >>> register("EI + beam", Pair("ei", "beam"))
    """
    _ALGORITHMS.register(name, maker)


def make(
    name: str,
    space: Space,
    size: int,
    *,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),
    driver: Driver = scan,
    prior: Prior | None = None,
) -> Algorithm:
    """Make the algorithm of that name: a function `run(key, evaluate) -> Result`.

    Args:
        name: `"BQ-S"`, `"BQ-R"`, `"BQ-L"`, `"NES-RE"`, `"NES-BS"`, `"Random"`, `"Best single"`, one
            that was registered, or any `"strategy+method"`, such as `"us+corrective"`. In a space
            with weight seeds (`spaces.Seeded`) also `"BQ-W"` and `"Deep ensemble"`.
        space: what to search.
        size: M, the number of members; at most the budget.
        kernel: between architectures; by default the one that `config.kernel` chooses.
        config: budget, batch, surrogate and the rest.
        driver: the loop of the search: `drivers.scan`, with which the function is pure, or
            `drivers.loop` for an `evaluate` that trains on the host.
        prior: over the space, as in `candidates.make`; by default uniform.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from bqnes_jax.candidates import Outcome
        >>> from bqnes_jax.spaces import NATS
        >>> def evaluate(archs):  # predictions for two validation points; yours are trained
        ...     log_probs = -0.1 - 0.2 * jnp.stack([archs[:, 0], archs[:, 1]], axis=1)
        ...     return Outcome(archs, jnp.sum(log_probs, axis=1), log_probs)
        >>> run = make("NES-RE", NATS, size=2, config=SearchConfig(initial=4, budget=6))
        >>> result = jax.jit(run, static_argnums=1)(jax.random.key(0), evaluate)
        >>> result.archs.shape, result.weights.tolist()
        ((2, 6), [0.5, 0.5])
    """
    check_members("size", size, space, config)
    check_seeds(name, space, size)
    maker = find(name) if driver is scan else find_trainable(name)
    if isinstance(maker, Pair):
        return maker(space, size, kernel, config, driver=driver, prior=prior)
    if prior is not None:
        raise BQNESError(
            f"algorithm is {name!r}, in which a prior plays no part; leave prior out, or use "
            "'BQ-S', 'BQ-R', 'NES-RE', 'Random' or 'strategy+method'."
        )
    return maker(space, size, kernel, config)


def find(name: str) -> Maker:
    """Return what makes the algorithm of that name; a `Pair` where it is one.

    Example:
        >>> find("BQ-S")[:2], find("ei+beam").method
        (('us', 'restack'), 'beam')
    """
    strategy, plus, method = name.partition("+")
    if name not in _ALGORITHMS and not plus:
        known = ", ".join(map(repr, algorithms()))
        raise BQNESError(f"algorithm is {name!r}; allowed are {known}, or 'strategy+method'.")
    maker = _ALGORITHMS.find(name) if name in _ALGORITHMS else Pair(strategy, method)
    if isinstance(maker, Pair):
        maker.check()
    return maker


def check_seeds(name: str, space: Space, size: int) -> None:
    """Refuse an algorithm about weight seeds where a space has too few of them.

    BQ-W marginalises over architectures and seeds together. A Deep ensemble is the best
    architecture with as many seeds as members.
    """
    algorithm, seeds = find(name), count_seeds(space)
    if not isinstance(algorithm, Pair) or not algorithm.needs_seeds:
        return
    if seeds == 1:
        raise BQNESError(
            f"algorithm is {name!r}, which tries architectures with several weight seeds, but "
            "there is one; train with more (seeds, --seeds), or use a table that has them "
            "(--weight-seeds)."
        )
    if algorithm.one_architecture and size > seeds:
        raise BQNESError(
            f"algorithm is {name!r} with {size} members, seeds of one architecture, but there are "
            f"{seeds} seeds; ask for at most as many members, or train with more seeds."
        )


def find_trainable(name: str) -> Pair:
    """Return the algorithm of that name, if it needs no more results than it asks for.

    NES-BS and Best single look at every architecture, which no one trains: they need a table.
    """
    algorithm = find(name)
    if not isinstance(algorithm, Pair):
        raise BQNESError(
            f"algorithm is {name!r}, which needs results of the whole space; with training use "
            "'BQ-S', 'BQ-R', 'BQ-L', 'NES-RE', 'Random' or 'strategy+method'."
        )
    return algorithm
