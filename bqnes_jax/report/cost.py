"""What an ensemble costs: parameters, and time for a prediction."""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.families import count_parameters
from bqnes_jax.report import html
from bqnes_jax.report.answers import Part, point_of
from bqnes_jax.report.html import Cell, Section
from bqnes_jax.runs import Ensemble, Run
from bqnes_jax.runs.workbench import keys_of

_INPUTS = 256  # predicted at a time
_REPEATS, _LONG = 5, 2.0  # so often, unless once takes so many seconds


class Timed(NamedTuple):
    """How long an ensemble takes for an input, in seconds; NaN, and why, if that is not known."""

    seconds: float
    why: str = ""


def prepare_timing(ensemble: Ensemble) -> Callable[[], Timed]:
    """Compile what predicts, and return a function that measures how long it takes.

    Inputs are made up: no data are kept in a run, and the time does not depend on them.
    """
    try:
        predict = ensemble.run.predictor(ensemble.members)
        inputs = _made_up(ensemble.run)
        np.asarray(predict(inputs))
    except Exception as error:  # of the functions of a user's family, there may be any
        reason = str(error) if isinstance(error, BQNESError) else f"{type(error).__name__}: {error}"
        unknown = Timed(float("nan"), " ".join(reason.split())[:200])
        return lambda: unknown

    def measure() -> Timed:
        taken = []
        while len(taken) < _REPEATS and sum(taken) < _LONG:
            started = perf_counter()
            np.asarray(predict(inputs))
            taken.append(perf_counter() - started)
        return Timed(float(np.median(taken)) / len(inputs))

    return measure


def at_which_cost(ensemble: Ensemble, timed: Timed) -> Part:
    """Answer with parameters, time for a prediction, and what training took."""
    run, point = ensemble.run, point_of(ensemble.run)
    single = run.ensemble(1, "top")
    every = np.append(ensemble.members, single.members)
    counts = [int(count) for count in count_numbers(run, every)]
    whole = sum(counts[:-1])
    entries = {entry.key: entry for entry in run.store.summaries()}
    seconds = [entries[key].seconds if key in entries else np.nan for key in _keys(run, every)]
    rows: list[list[str | Cell]] = [
        ["This ensemble", _number(whole), _took(seconds[:-1])],
        *(
            [f"Member #{i}", _number(count), _took([took])]
            for i, count, took in zip(ensemble.members, counts[:-1], seconds, strict=False)
        ),
        [f"Best single network, #{every[-1]}", _number(counts[-1]), _took(seconds[-1:])],
    ]
    share = whole / max(counts[-1], 1)
    trained = [entry.seconds for entry in entries.values()]
    sentence = (
        f"It has {_number(whole)} parameters, {share:.1f} times as many as the best "
        f"single network, and its {len(ensemble.members)} networks are all asked for each {point}. "
        + _said_of_time(timed, point, len(ensemble.members))
        + f" Training all {len(trained)} networks of the store took {_took(trained)}, without what "
        "is done once for all of them (such as to train a supernet)."
    )
    head = ("", "Parameters in use", "Training, with what was compiled")
    return Part(Section("At which cost?", sentence, html.table(head, rows, own=0)))


def count_numbers(run: Run, members: np.ndarray) -> np.ndarray:
    """Return how many parameters candidates, by number, predict by; 0 where that is not known."""
    record, keys = run.record, _keys(run, members)
    try:
        kept = [run.store.variables(*key) for key in keys]
    except BQNESError:
        kept = [None] * len(keys)
    return count_parameters(
        run.family,
        record.archs[members].astype(np.int32),
        kept,
        classes=int(record.classes),
        input_shape=tuple(map(int, record.input_shape)),
    )


def _keys(run: Run, members: np.ndarray) -> list:
    return keys_of(run.space, run.record.archs[members], run.config.seed)


def _made_up(run: Run) -> np.ndarray:
    """Return inputs like those of training, as far as their shape tells."""
    random, shape = np.random.default_rng(0), tuple(map(int, run.record.input_shape))
    if len(shape) == 3:
        return random.integers(0, 256, (_INPUTS, *shape), dtype=np.uint8)
    return random.normal(size=(_INPUTS, *shape)).astype(np.float32)


def _said_of_time(timed: Timed, point: str, members: int) -> str:
    if np.isnan(timed.seconds):
        return f"How long it takes for each {point} is not known: {timed.why.rstrip('.')}."
    return (
        f"It takes {_time(timed.seconds)} for each {point}, {_time(timed.seconds / members)} for "
        "each member on average, measured on this machine when the report was made, "
        f"{_INPUTS} at a time, compiled and warm."
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else "not known"


def _time(seconds: float) -> str:
    unit, scale = next(
        ((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e3)) if seconds * scale >= 1),
        ("µs", 1e6),
    )
    return f"{seconds * scale:.3g} {unit}"


def _took(seconds: list[float]) -> str:
    total = float(np.sum(seconds))
    if np.isnan(total):
        return "not known"
    return f"{total / 60:.1f} min" if total >= 100 else f"{total:.3g} s"
