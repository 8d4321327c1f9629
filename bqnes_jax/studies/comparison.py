"""Several algorithms × ensemble sizes × seeds, as in the paper's tables.

`compare_on_table` runs everything compiled on a table of results, `compare_live` trains on a store
that all share. Both search once for each strategy and seed, whatever is then selected from it.
"""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int32

from bqnes_jax import algorithms, candidates
from bqnes_jax.algorithms import Maker, Pair, classes_for, find_trainable, select_ensemble
from bqnes_jax.calibration import calibrate_ensemble
from bqnes_jax.candidates import Prior, SearchConfig
from bqnes_jax.candidates.base import check_members
from bqnes_jax.compiling import jit_quickly
from bqnes_jax.drivers import Evaluate, Searched, loop_all, scan
from bqnes_jax.elastic import Crew, drive_all
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.parallel import spread
from bqnes_jax.quadrature import effective_size
from bqnes_jax.selection import needs_kernel, takes_limit
from bqnes_jax.spaces import Architectures, EnumerableSpace, Seeded, Space, count_seeds
from bqnes_jax.studies.rows import Chosen, Predict, Row, measure_row
from bqnes_jax.tables import Tabulated, evaluator

_MOST_SEEDS = 10_000


Choose = Callable[[str, int], Chosen]
Sizes = Callable[[str], Sequence[int]]


def compare_on_table(
    tabulated: Tabulated,
    names: Sequence[str],
    sizes: Sequence[int],
    seeds: int,
    *,
    config: SearchConfig = SearchConfig(),
    report: Callable[[str], None] | None = None,
    predict: Predict | None = None,
    mesh: Mesh | None = None,
    ece_reference: str = "confidence",
    prior: Prior | None = None,
    calibrated: bool = False,
) -> list[Row]:
    """Compare algorithms on a table of predictions, all seeds of a search in one program.

    Test predictions are those of the table; where they do not fit into memory, `predict` returns
    those of some architectures. Seeds are divided among the devices of a mesh; by default all.
    For `ece_reference` see `metrics.ece`, for `prior` see `candidates.make`. If it is `calibrated`,
    rows have calibrated metrics as well, unless the table has no classes of validation points.
    """
    whole, table = tabulated.space, tabulated.table
    if predict is None and table.test_log_probs is not None:
        predict = functools.partial(_look_up, whole, table.test_log_probs)
    if table.log_probs is None or predict is None:
        raise BQNESError("the table has no predictions; comparing ensembles needs them.")
    evaluate = evaluator(table, whole, measure=config.measure)
    keys = jax.random.key_data(jax.vmap(jax.random.key)(jnp.arange(seeds)))
    calibrated = calibrated and table.classes is not None

    # A surrogate that nobody asks is half of a program.
    alike = {found.strategy for found in _pairs(names) if needs_kernel(found.method)}

    @functools.cache
    def search(strategy: str, space: Space, config: SearchConfig):
        beliefs = strategy in alike
        made = candidates.make(strategy, space, config=config, prior=prior, beliefs=beliefs)
        return _repeat(lambda key, evaluate: scan(made, config, key, evaluate), mesh)(
            keys, evaluate
        )

    @functools.cache
    def selector(algorithm: Pair, space: Space, slots: int, config: SearchConfig):
        one = _selector(algorithm, space, slots, config, prior, calibrated)
        return spread(
            lambda found, evaluate, limit: lax.map(lambda each: one(each, evaluate, limit), found),
            mesh,
            quickly=True,
        )

    largest = max(sizes, default=1)

    def choose(name: str, size: int) -> Chosen:
        algorithm, space = algorithms.find(name), _searched_space(name, whole, size)
        if isinstance(algorithm, Pair):
            # One program for all sizes, where that can be.
            limited = takes_limit(algorithm.method)
            slots, limit = (largest, jnp.int32(size)) if limited else (size, None)
            # The first random candidates are the same, however many there are.
            budgeted = algorithm.with_budget(config, slots)
            found = search(algorithm.strategy, space, budgeted)
            return selector(algorithm, space, slots, budgeted)(found, evaluate, limit)
        run = algorithms.make(name, space, size, config=config, prior=prior)

        def once(key, evaluate):
            result = run(key, evaluate)
            return _make_chosen(algorithm, _as_it_is(result, evaluate) if calibrated else result)

        return _repeat(once, mesh)(keys, evaluate)

    labels, sizes_of = tabulated.test_labels, _sizes(whole, sizes, config)
    if report is not None:
        report("searching")
    _prepare(names, lambda name: choose(name, largest))
    return _compare(names, sizes_of, seeds, choose, predict, labels, report, ece_reference)


def _pairs(names: Sequence[str]) -> list[Pair]:
    """Return those algorithms that choose candidates and then select among them."""
    return [found for found in map(algorithms.find, names) if isinstance(found, Pair)]


def _prepare(names: Sequence[str], choose: Callable[[str], object]) -> None:
    """Search and select once by each algorithm, strategies beside each other.

    Compiling takes most of it, and keeps a single core busy. On several hosts nothing is done:
    programs must follow each other in the same order on all of them.
    """
    if jax.process_count() > 1:
        return
    of_strategy: dict[str, list[str]] = {}
    for name in names:
        if isinstance(found := algorithms.find(name), Pair) and not found.one_architecture:
            of_strategy.setdefault(found.strategy, []).append(name)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(lambda same: [*map(choose, same)], of_strategy.values()):
            pass  # an error in a thread is raised here


def _searched_space(name: str, space: Space, size: int) -> Space:
    """Return what an algorithm searches of a space that may have weight seeds.

    Those that are about seeds search all of it; the others each architecture with the first seed,
    so that a comparison tells what the seeds are worth.
    """
    algorithms.check_seeds(name, space, size)
    algorithm = algorithms.find(name)
    jointly = isinstance(algorithm, Pair) and algorithm.needs_seeds
    return space.first if isinstance(space, Seeded) and not jointly else space


def check_sizes(space: Space, sizes: Sequence[int], config: SearchConfig) -> None:
    """Refuse numbers of members that a comparison cannot have."""
    for size in sizes:
        check_members("size", size, space, config)


def _sizes(space: Space, sizes: Sequence[int], config: SearchConfig) -> Sizes:
    """Return the sizes of which an algorithm has rows, by its name.

    One of a single architecture has as many members as there are seeds, at most.
    """

    def of(name: str) -> Sequence[int]:
        algorithm = algorithms.find(name)
        if name == "Best single":
            return (1,)
        if isinstance(algorithm, Pair) and algorithm.one_architecture:
            return [size for size in sizes if size <= count_seeds(space)] or sizes
        return sizes

    check_sizes(space, sizes, config)
    return of


@functools.partial(jax.jit, static_argnums=0)
def _look_up(
    space: EnumerableSpace, log_probs: Float[Array, "size m classes"], archs: Architectures
) -> Float[Array, "M m classes"]:
    return log_probs[space.index(archs)]


def compare_live(
    space: Space,
    evaluate: Evaluate,
    predict: Predict,
    test_labels: Int32[Array, " m"],
    names: Sequence[str],
    sizes: Sequence[int],
    seeds: int,
    *,
    config: SearchConfig = SearchConfig(),
    report: Callable[[str], None] | None = None,
    prior: Prior | None = None,
    calibrated: bool = False,
    crew: Crew | None = None,
) -> list[Row]:
    """Compare algorithms that train what they ask for; `evaluate` should remember what it did.

    Args:
        space: what to search.
        evaluate: trains architectures, as `runs.Workbench.evaluator`.
        predict: returns the log-probabilities of all classes at the test points, by trained
            architectures.
        test_labels: the classes of the test points.
        names: of algorithms that need no table.
        sizes: numbers of members; at most the budget.
        seeds: how many searches of each strategy.
        config: of the searches.
        report: called with the name of what is done next.
        prior: over the space, as in `candidates.make`.
        calibrated: whether rows have calibrated metrics as well.
        crew: who trains instead of `evaluate`, several at a time; by default all searches of a
            strategy are done in step.
    """
    for name in names:
        find_trainable(name)
    options = {"config": config, "prior": prior, "calibrated": calibrated, "crew": crew}
    choose = choose_live(space, evaluate, seeds, **options)
    sizes_of = _sizes(space, sizes, config)
    return _compare(names, sizes_of, seeds, choose, predict, test_labels, report)


def choose_live(
    space: Space,
    evaluate: Evaluate,
    seeds: int,
    *,
    config: SearchConfig = SearchConfig(),
    prior: Prior | None = None,
    calibrated: bool = False,
    crew: Crew | None = None,
) -> Choose:
    """Return a function (algorithm, size) that returns the ensembles of all seeds.

    It searches once for each strategy; see `compare_live`.
    """

    @functools.cache
    def search(strategy: str, space: Space, config: SearchConfig):
        made = candidates.make(strategy, space, config=config, prior=prior)
        keys = [jax.random.key(seed) for seed in range(seeds)]
        if crew is not None:
            return drive_all(made, config, keys, crew)
        return loop_all(made, config, keys, evaluate)

    def choose(name: str, size: int) -> Chosen:
        algorithm, own = find_trainable(name), _searched_space(name, space, size)
        budgeted = algorithm.with_budget(config, size)
        one = _selector(algorithm, own, size, budgeted, prior, calibrated)
        chosen = [one(each, evaluate) for each in search(algorithm.strategy, own, budgeted)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *chosen)

    return choose


def _compare(
    names,
    sizes: Sizes,
    seeds,
    choose: Choose,
    predict: Predict,
    test_labels,
    report,
    ece_reference: str = "confidence",
):
    check_whole("seeds", seeds, 1, _MOST_SEEDS)
    rows = []
    for name in names:
        for size in sizes(name):
            if report is not None:
                report(f"{name}, {size} members")
            rows.append(
                measure_row(
                    name,
                    size,
                    choose(name, size),
                    predict,
                    test_labels,
                    ece_reference=ece_reference,
                )
            )
    return rows


def _repeat(run: Callable, mesh: Mesh | None) -> Callable:
    """Do for many keys, one after another on each device, what a function does for one."""

    def every(keys, evaluate):
        return lax.map(lambda key: run(jax.random.wrap_key_data(key), evaluate), keys)

    return spread(every, mesh, quickly=True)


def _selector(
    algorithm: Pair,
    space: Space,
    size: int,
    config: SearchConfig,
    prior: Prior | None,
    calibrated: bool,
) -> Callable[..., Chosen]:
    """Return a function that selects an ensemble from what one search has evaluated.

    Of its slots it fills as many as a limit says, if one is given.
    """
    made = candidates.make(algorithm.strategy, space, config=config, prior=prior)

    @jit_quickly()
    def select(
        one: Searched,
        classes: Float[Array, "n points classes"] | None,
        limit: Int32[Array, ""] | None,
    ) -> Chosen:
        result = select_ensemble(
            algorithm, made, one, size, classes=classes, calibrated=calibrated, limit=limit
        )
        chosen = _make_chosen(algorithm, result)
        if limit is None or not algorithm.only_members:
            return chosen
        own = algorithm.selectable(one.history, limit).known / one.trace.temperature[-1]
        return chosen._replace(effective_size=effective_size(own))

    def of_search(
        one: Searched, evaluate: Evaluate, limit: Int32[Array, ""] | None = None
    ) -> Chosen:
        archs = one.history.archs
        if not calibrated:
            return select(one, classes_for(algorithm.method, evaluate, archs), limit)
        classes = evaluate(archs).classes
        if classes is None:
            raise BQNESError(
                "evaluate returned classes None; calibration needs the log-probabilities of all "
                "classes at the validation points: use a store, or calibrated=False."
            )
        return select(one, classes, limit)

    return of_search


def _as_it_is(result: algorithms.Result, evaluate: Evaluate) -> algorithms.Result:
    """Calibrate an ensemble that was not selected from candidates of a search.

    That is by all validation points, also those that chose the members of NES-BS and Best single.
    """
    said = evaluate(result.archs)
    assert said.log_probs is not None and said.classes is not None  # there is a table of them
    calibration = calibrate_ensemble(result.weights, said.log_probs, said.classes, pool=result.pool)
    return result._replace(calibration=calibration)


def _make_chosen(algorithm: Maker, result: algorithms.Result) -> Chosen:
    """Return an ensemble, and what went differently in all that it rests on."""
    status, worth = result.info.status, jnp.asarray(jnp.nan)
    blind = isinstance(algorithm, Pair) and not candidates.uses_surrogate(algorithm.strategy)
    if result.trace is not None:
        worth = result.trace.effective_size[-1]
        status = status if blind else status | result.trace.evidence.status[-1]
    temperature = None if result.calibration is None else result.calibration.temperature
    return Chosen(result.archs, result.weights, status, worth, result.pool, temperature)
