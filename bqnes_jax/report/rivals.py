"""What an ensemble is compared with: the rivals that cost as much, and those that cost more."""

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bqnes_jax.calibration import calibrate_ensemble
from bqnes_jax.errors import BQNESError
from bqnes_jax.pooling import apply_temperature
from bqnes_jax.report.selections import RIVALS
from bqnes_jax.report.table import label_of, name_of
from bqnes_jax.report.uncertainty import Measured, Said, measure_each
from bqnes_jax.runs import Ensemble, Run
from bqnes_jax.spaces import Seeded
from bqnes_jax.types import Status

_SETS = 20  # random ensembles that are averaged
_BY = {
    "caruana": "greedy selection with replacement, of as many members",
    "beam": "a beam search for as many members of equal weight",
    "restack": "stacking that keeps unlike members",
    "recombine": "recombination of the posterior",
    "corrective": "stacking that begins with one member and adds what corrects it",
    "logpool": "a pool in log space",
}


class Rival(NamedTuple):
    """Something to compare with.

    Attributes:
        name: of it.
        is_what: says how it is made, or why it is not known.
        members: how many networks it asks; 0 where it is not known.
        said: its log-probabilities at the test points, a set for each draw; None if not known.
        status: what went differently when it was selected.
    """

    name: str
    is_what: str
    members: int = 0
    said: Said | None = None
    status: Status = Status.OK


class Compared(NamedTuple):
    """A rival, and how good it is; None where that is not known."""

    rival: Rival
    measured: Measured | None


def compare(ensemble: Ensemble) -> list[Compared]:
    """Measure an ensemble, which comes first, and its rivals on the same test points."""
    rivals = [_own(ensemble), *_rivals(ensemble)]
    every = [rival.said for rival in rivals if rival.said is not None]
    measured = iter(measure_each(every, ensemble.run.record.test_labels))
    return [Compared(r, None if r.said is None else next(measured)) for r in rivals]


def _own(ensemble: Ensemble) -> Rival:
    name = name_of(ensemble)
    return _select(ensemble, name, "this ensemble")


def _rivals(ensemble: Ensemble) -> Iterator[Rival]:
    run, count = ensemble.run, len(ensemble.members)
    yield _select(
        run.ensemble(1, "top"),
        "Best single",
        "the network with the smallest loss on the validation data",
    )
    yield _best_member(ensemble)
    yield _random(run, count)
    yield _all_equal(run)
    yield _deep(run, count)
    for method in RIVALS:
        if method != ensemble.method:
            other = run.ensemble(ensemble.size, method)
            name = "Caruana" if method == "caruana" else label_of(other)
            yield _select(other, name, _BY[method])


def _select(ensemble: Ensemble, name: str, is_what: str) -> Rival:
    said = np.asarray(ensemble.test_log_probs)[None]
    return Rival(name, is_what, len(ensemble.members), said, ensemble.status)


def _best_member(ensemble: Ensemble) -> Rival:
    """Return the member that alone does best on the test points, which no one knows before."""
    run, labels = ensemble.run, ensemble.run.record.test_labels
    said = np.concatenate([_equal(run, np.array([member])) for member in ensemble.members])
    losses = -said[:, np.arange(len(labels)), labels].mean(axis=1)
    best = int(np.argmin(losses))
    is_what = (
        f"member #{ensemble.members[best]}, chosen by the test data themselves: no one could have "
        "known which"
    )
    return Rival("Best member", is_what, 1, said[best : best + 1])


def _random(run: Run, count: int) -> Rival:
    name, initial = "Random ensemble", int(run.record.counts[0])
    if run.first_stage is not None:
        why = "none of the networks that were trained alone was drawn at random"
        return Rival(name, why)
    usable = np.flatnonzero(_usable(run)[:initial])
    if len(usable) < count:
        why = f"{len(usable)} networks were drawn at random, and the ensemble has {count} members"
        return Rival(name, why)
    sets = _draw_sets(usable, count)
    said = np.concatenate([_equal(run, members) for members in sets])
    is_what = (
        f"{count} of the {len(usable)} networks that were drawn at random, with equal weights; the "
        f"average of {len(sets)} such ensembles"
    )
    return Rival(name, is_what, count, said)


def _draw_sets(usable: Int[np.ndarray, " n"], count: int) -> list[np.ndarray]:
    """Return different sets of so many: all, or some of them drawn at random."""
    if comb(len(usable), count) <= _SETS:
        return [np.array(chosen) for chosen in combinations(usable.tolist(), count)]
    random, found = np.random.default_rng(0), {}
    while len(found) < _SETS:
        chosen = np.sort(random.choice(usable, count, replace=False))
        found[tuple(chosen.tolist())] = chosen
    return list(found.values())


def _all_equal(run: Run) -> Rival:
    usable = np.flatnonzero(_usable(run))
    is_what = f"all {len(usable)} networks that were trained, with equal weights"
    return Rival("All equal", is_what, len(usable), _equal(run, usable))


def _deep(run: Run, count: int) -> Rival:
    """Return the best architecture from as many seeds as the ensemble has members, if trained."""
    name, space, record = "Deep ensemble", run.space, run.record
    remedy = f"bqnes run --seeds {max(count, 2)} --algorithm 'Deep ensemble' trains one"
    if not isinstance(space, Seeded):
        why = f"each architecture was trained from one weight seed; {remedy}"
        return Rival(name, why)
    values, groups = record.log_likelihoods, record.archs[:, :-1]
    best = groups[np.nanargmax(np.where(np.isfinite(values), values, -np.inf))]
    same = np.flatnonzero((groups == best).all(axis=1) & _usable(run))
    if len(same) < count:
        why = f"of the best architecture {len(same)} seeds were trained, not {count}; {remedy}"
        return Rival(name, why)
    chosen = same[:count]
    is_what = f"the best architecture by the validation data, from {count} weight seeds"
    return Rival(name, is_what, count, _equal(run, chosen))


def _usable(run: Run) -> np.ndarray:
    return run.record.log_likelihoods < np.inf  # NaN, a training that failed, is not


def _equal(run: Run, members: Int[np.ndarray, " M"]) -> Said:
    """Return what members of equal weight say, calibrated as the ensemble of the run is."""
    said = _mean(np.asarray(run.test_log_probs(members[i : i + 1]))[0] for i in range(len(members)))
    when = run.config.calibrate
    if when == "off" or run.record.log_probs.shape[1] == 1:
        return said[None]
    valid = _mean(np.asarray(run.valid_log_probs[i], float) for i in members)
    true = _mean(np.asarray(run.record.log_probs[i], float) for i in members)
    like = np.asarray(run.valid_log_probs[:1]).dtype
    fitted = calibrate_ensemble(
        np.ones(1, like), true[None].astype(like), valid[None].astype(like)
    ).use(when)
    return np.asarray(apply_temperature(jnp.asarray(said), float(fitted)))[None]


def _mean(every: Iterator[Float[np.ndarray, "*shape"]]) -> Float[np.ndarray, "*shape"]:
    """Average probabilities, given as logarithms, one network after another."""
    total, count = None, 0
    for one in every:
        total = one if total is None else np.logaddexp(total, one)
        count += 1
    if total is None:
        raise BQNESError("an ensemble has no members; give at least one.")
    return total - np.log(count)
