"""From data to a run: search, train, select, and keep it.

result = bqnes_jax.search(data="digits", budget=40)
ensemble = result.ensemble(size=3)
probabilities = ensemble.predict(images)
"""

import contextlib
import dataclasses
import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bqnes_jax import algorithms, candidates, drivers, elastic
from bqnes_jax.candidates import Prior, SearchConfig
from bqnes_jax.candidates.base import check_members
from bqnes_jax.data import Split, check_split
from bqnes_jax.elastic import Arrived, Event
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import NetworkFamily, NoOptions, with_seeds
from bqnes_jax.families.base import Progress
from bqnes_jax.files import as_path, explain_writing
from bqnes_jax.files.trees import write_tree
from bqnes_jax.identity import describe_code, first_difference, identity
from bqnes_jax.parallel import Workers, is_first, wait_for_all
from bqnes_jax.runs.config import (
    RunConfig,
    describe_fields,
    first_stage,
    load_data,
    make_family,
    make_prior,
)
from bqnes_jax.runs.journal import Journal, count_asked
from bqnes_jax.runs.layout import (
    ARRIVALS,
    FIRST_STAGE,
    SEARCH,
    SHARED,
    begin,
    keep_config,
    read_config,
)
from bqnes_jax.runs.presets import configure
from bqnes_jax.runs.record import Record, make_record, read_record, write_record
from bqnes_jax.runs.run import Run
from bqnes_jax.runs.tasks import Team, open_team
from bqnes_jax.runs.workbench import Workbench, open_workbench

_OF_SEARCH = 0x5EA4C8  # apart from the keys of the weights, which start from the same seed
_OF_DATA = ("data_directory", "image_size", "split", "split_file", "split_seed")


def search(
    config: RunConfig | None = None,
    *,
    family: NetworkFamily | str | None = None,
    data: Split | str | os.PathLike[str] | None = None,
    prior: Prior | str | None = None,
    out: str | os.PathLike[str] | None = None,
    preset: str = "tiny",
    progress: Progress | None = None,
    executor: Executor | None = None,
    workers: Workers | None = None,
    replay: str | os.PathLike[str] | None = None,
    started: Callable[[Workbench], object] | None = None,
    **fields: object,
) -> Run:
    """Search a space with real training, and return the run.

    Args:
        config: what to do; by default the preset.
        family: what is trained: a `families.NetworkFamily`, or its name.
        data: on what: the result of `data.from_arrays`, a name, or the path of an .npz.
        prior: a pure function of n×length architectures that returns n log-weights, or its name as
            package.module:function; −inf rules an architecture out. By default all are equally
            likely.
        out: the directory of the run, also s3://bucket/run or gs://bucket/run; one that was begun
            before goes on from there, and further if the budget is larger. By default a temporary
            one, which is removed with the result.
        preset: "tiny", "small", "paper" or "reference", unless a config is given.
        progress: called with (done, of how many, what is done).
        executor: who trains: any `concurrent.futures.Executor`, such as `ProcessPoolExecutor` or
            that of a Dask client. As soon as one training ends, the next begins.
        workers: how many networks to train at once there, or a function that tells.
        replay: the directory of a run that was trained so; what it asked for and what arrived
            happens in the same order again.
        started: called with what trains, when a new run is about to train its first network.
        **fields: fields of `RunConfig` and `SearchConfig`, instead of those of the preset; they are
            described below.
    """
    if not (prior is None or isinstance(prior, str) or callable(prior)):
        raise BQNESError(
            f"prior is {prior!r}; it must be a function of architectures, or its name as "
            "package.module:function."
        )
    config, family, data = _resolve(
        config, family, data, preset, fields | ({"prior": prior} if isinstance(prior, str) else {})
    )
    if callable(prior):  # known by its code
        config = dataclasses.replace(config, prior=f"<{describe_code(prior)[:16]}>")
    else:
        prior = make_prior(config.prior)
    family = with_seeds(family, config.seeds)
    _check(config, family, data, prior)
    if executor is not None and jax.process_count() > 1:
        raise BQNESError(
            f"executor is given to {jax.process_count()} hosts; leave --hosts out: workers train."
        )
    order = None if replay is None else _order_of(as_path(replay), config, family)

    scratch = None
    if out is None:
        if jax.process_count() > 1:
            raise BQNESError("out is None; several hosts need a directory that all of them see.")
        scratch = tempfile.TemporaryDirectory(prefix="bqnes-")
        out = scratch.name
    directory = as_path(out)
    with begin(directory, config), contextlib.ExitStack() as stack:
        team = None
        if executor is not None:
            given = {"family": family, "data": data, "seed": config.seed, "directory": directory}
            if workers is None:
                raise BQNESError(
                    "workers is None, but executor is given; say how many to train at once."
                )
            team = stack.enter_context(open_team(executor, workers, **given))
        elif workers is not None:
            raise BQNESError(f"workers is {workers!r}, but executor is None; give one, or neither.")
        given = (config, family, data, prior, directory, progress, scratch)
        return _launch(*given, team=team, order=order, started=started)


if search.__doc__:  # for help(bqnes_jax.search)
    search.__doc__ = f"{inspect.cleandoc(search.__doc__)}\n\n{describe_fields()}\n"


def _check(config: RunConfig, family: NetworkFamily, data: Split, prior: Prior | None) -> None:
    """Refuse settings and data that do not go together, before anything is trained."""
    check_members("ensemble_size", config.ensemble_size, family.space, config.search)
    algorithms.check_seeds(config.algorithm, family.space, config.ensemble_size)
    algorithm = algorithms.find_trainable(config.algorithm)
    search_config = algorithm.with_budget(config.search, config.ensemble_size)
    candidates.make(algorithm.strategy, family.space, config=search_config, prior=prior)
    check_split(data)
    family.check(data)
    if config.evaluate == "shared":
        if algorithm.only_members:
            raise BQNESError(
                f"evaluate is 'shared', but {config.algorithm!r} searches nothing to choose from; "
                "leave it out, or use another algorithm."
            )
        first_config, first_family = first_stage(config, family)
        _check(first_config, first_family, data, prior)


def _launch(
    config: RunConfig,
    family: NetworkFamily,
    data: Split,
    prior: Prior | None,
    directory: Path,
    progress: Progress | None,
    scratch: tempfile.TemporaryDirectory | None = None,
    *,
    team: Team | None = None,
    order: Sequence[Event] | None = None,
    started: Callable[[Workbench], object] | None = None,
) -> Run:
    """Search in a directory; first with shared weights, if that is how candidates are evaluated."""
    algorithm = algorithms.find_trainable(config.algorithm)
    search_config = algorithm.with_budget(config.search, config.ensemble_size)
    if config.evaluate == "shared":
        own = *first_stage(config, family), data, prior, directory / FIRST_STAGE
        with begin(directory / FIRST_STAGE, own[0]):
            first = _launch(*own, progress and _of_first_stage(progress))
        recorded = _shortlist(first, config.shortlisted, _record_so_far(directory, family))
        count = len(recorded.archs)
        search_config = dataclasses.replace(search_config, initial=count, budget=count)
    else:
        recorded = _record_so_far(directory, family)
    bench = open_workbench(
        family,
        data,
        directory,
        seed=config.seed,
        progress=progress,
        asked=search_config.batch,
        team=team,
    )
    if is_first():
        _keep_shared(directory, bench)
        if started is not None and recorded is None:
            started(bench)
    journal = None
    if team is not None or order is not None or (directory / ARRIVALS).exists():
        journal = Journal(directory / ARRIVALS, family.space)
        journal.begin_as(order or ())
        journal.include(recorded, search_config.initial)
    record = _search(config, search_config, bench, prior, recorded, progress, journal)
    run = Run(directory, config, family, record, scratch)
    if is_first():
        _save(run)
    wait_for_all()
    return run


def _order_of(directory: Path, config: RunConfig, family: NetworkFamily) -> Sequence[Event]:
    """Return the events of a run that was trained on workers, if it is a run of this config."""
    if not (directory / ARRIVALS).exists():
        raise BQNESError(
            f"replay is {directory}, which has no {ARRIVALS}; give the directory of a run that was "
            "trained on workers: any other is done again by the same command."
        )
    different = first_difference(read_config(directory).identity(), config.identity())
    if different is not None:
        name, old, new = different
        raise BQNESError(
            f"replay is {directory}, which has {name} = {old!r}, not {new!r}; give the same config."
        )
    events = Journal(directory / ARRIVALS, family.space).events
    recorded = _record_so_far(directory, family)
    searched = 0 if recorded is None else len(recorded.archs)
    arrived = sum(isinstance(event, Arrived) for event in events)
    if arrived < searched:
        raise BQNESError(
            f"{directory / ARRIVALS} has lost its end: {arrived} of {searched} candidates arrive "
            "in it; give the run's own command without --replay, or replay another run."
        )
    return events


def _of_first_stage(progress: Progress) -> Progress:
    """Let a search with shared weights say what it does: it trains no candidate."""

    def report(done: int, total: int, what: str) -> None:
        progress(done, total, "evaluating with shared weights" if what == "training" else what)

    return report


def _shortlist(run: Run, count: int, before: drivers.Recorded | None = None) -> drivers.Recorded:
    """Return the members of an ensemble of that size, and then the likeliest of the others.

    What was trained before comes first: a run never becomes shorter.
    """
    values = run.record.log_likelihoods
    usable = np.flatnonzero(~np.isnan(values))
    count = min(count, len(usable))
    members = run.ensemble(count, calibrate="off").members.tolist()
    others = usable[np.argsort(-values[usable], kind="stable")].tolist()
    chosen = list(dict.fromkeys([*members, *others]))[:count]
    archs = run.record.archs[chosen]
    if before is not None:
        trained = np.asarray(before.archs)
        fresh = ~(archs[:, None] == trained).all(axis=2).any(axis=1)
        archs = np.concatenate([trained, archs[fresh]])
    return drivers.Recorded(jnp.asarray(archs, jnp.int32), jnp.full(len(archs), jnp.nan))


def _resolve(
    config: RunConfig | None,
    family: NetworkFamily | str | None,
    data: Split | str | os.PathLike[str] | None,
    preset: str,
    fields: dict,
) -> tuple[RunConfig, NetworkFamily, Split]:
    """Return the config with what was given beside it, and the family and data that it names."""
    if config is not None and not isinstance(config, RunConfig):
        raise BQNESError(
            f"config is {config!r}; it must be a RunConfig: for a data set write data={config!r}."
        )
    if isinstance(family, type) or not isinstance(family, NetworkFamily | str | None):
        raise BQNESError(
            f"family is a {type(family).__name__}; it must be a name, or a NetworkFamily such as "
            "bqnes_jax.families.from_functions returns."
        )
    data = os.fspath(data) if isinstance(data, os.PathLike) else data
    if not isinstance(data, Split | str | None):
        raise BQNESError(
            f"data is a {type(data).__name__}; it must be a name, the path of an .npz, or what "
            "bqnes_jax.data.from_arrays(x, y) returns."
        )
    named = {"family": family, "data": data}
    given = fields | {name: value for name, value in named.items() if isinstance(value, str)}
    if config is not None and given:
        raise BQNESError(
            f"both a config and {next(iter(given))!r} are given; put it into the config."
        )
    if isinstance(family, NetworkFamily) and "train" in given:
        raise BQNESError("train is given, but the family decides how it trains; leave it out.")
    config = configure(preset, **given) if config is None else config
    if isinstance(family, NetworkFamily):
        config = dataclasses.replace(config, family=f"<{family.name}>", train=NoOptions())
    if isinstance(data, Split):
        beside = [name for name in _OF_DATA if name in given]
        if beside:
            raise BQNESError(
                f"{beside[0]} is given, but data are arrays that are cut already; leave it out, or "
                "give it to bqnes_jax.data.from_arrays."
            )
        config = dataclasses.replace(config, data=data.name, image_size=None, split=None)
    found = family if isinstance(family, NetworkFamily) else make_family(config)
    return config, found, data if isinstance(data, Split) else load_data(config)


def _record_so_far(directory: Path, family: NetworkFamily) -> drivers.Recorded | None:
    path = directory / SEARCH
    return read_record(path, family.space).beginning if path.is_file() else None


def _search(
    config: RunConfig,
    search_config: SearchConfig,
    bench: Workbench,
    prior: Prior | None,
    recorded: drivers.Recorded | None,
    progress: Progress | None,
    journal: Journal | None,
) -> Record:
    """Train what the strategy asks for, after what was searched before, and return what that gave.

    A run never becomes shorter: what it has is kept.
    """
    before = 0 if recorded is None else len(recorded.archs)
    before = before if journal is None else max(before, count_asked(journal.events))
    if before > search_config.budget:
        search_config = dataclasses.replace(search_config, budget=before)
    pair = algorithms.find_trainable(config.algorithm)
    strategy = candidates.make(pair.strategy, bench.space, config=search_config, prior=prior)
    done = 0

    def count(trained: int) -> None:
        nonlocal done
        done += trained
        if progress is not None:
            progress(done, search_config.budget, "training")

    key = jax.random.fold_in(jax.random.key(config.seed), _OF_SEARCH)
    if journal is None:
        evaluate = bench.evaluator(count)
        found = drivers.loop(strategy, search_config, key, evaluate, recorded=recorded)
    else:
        events = list(journal.events)
        crew = bench.crew(count)
        driven = elastic.drive(
            strategy, search_config, key, crew, recorded=events, note=journal.note
        )
        found = driven.searched
    searched = jax.device_get(found)  # where the rest is done without compiling
    if not np.any(searched.history.log_likelihoods < np.inf):  # NaN is not
        rate = identity(config.train).get("learning_rate")
        remedy = "" if rate is None else f", or lower train.learning_rate (it is {rate})"
        raise BQNESError(
            f"every training failed: no loss of {search_config.budget} networks is a number; check "
            f"the scale of the data{remedy} in a new run."
        )
    last = jax.tree.map(lambda leaf: leaf[-1], searched.trace)
    gram = np.asarray(strategy.gram(last, searched.history.archs))
    archs = searched.history.archs
    log_prior = np.zeros(len(archs)) if prior is None else np.asarray(prior(jnp.asarray(archs)))
    rule = np.asarray(strategy.rule(last, searched.history))
    return make_record(searched, gram, log_prior, rule, bench.data)


def _keep_shared(directory: Path, bench: Workbench) -> None:
    """Write what all networks have in common, before any is trained."""
    try:
        with explain_writing(f"run {directory}"):
            write_tree(directory / SHARED, bench.trainer.shared)
    except TypeError as error:
        raise BQNESError(
            f"what the family {bench.family.name!r} shares cannot be kept ({error}); it must be "
            "dicts, lists and tuples of arrays."
        ) from None


def _save(run: Run) -> None:
    """Write what was found, and the ensemble selected from it."""
    with explain_writing(f"run {run.directory}"):
        write_record(run.directory / SEARCH, run.record)
    keep_config(run.directory, run.config)
    run.ensemble().save()
