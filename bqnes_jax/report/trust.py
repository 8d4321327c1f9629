"""Can it be trusted: checks with bounds, and what went differently than it should."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bqnes_jax import algorithms
from bqnes_jax.candidates import uses_surrogate
from bqnes_jax.report import html
from bqnes_jax.report.answers import Part
from bqnes_jax.report.html import Cell, Section
from bqnes_jax.report.plots import with_sign
from bqnes_jax.report.rivals import Compared
from bqnes_jax.report.worth import Searched
from bqnes_jax.runs import Ensemble, Run
from bqnes_jax.runs.workbench import keys_of
from bqnes_jax.types import Status, explain_each

HEAD = ("Check", "Found", "Should be", "Verdict")
_MARKS = {True: ("✓ passed", "good"), False: ("▲ look", "look"), None: ("? not known", "unknown")}
_FIT = 0.5  # of the validation loss: a larger training loss means that networks do not fit
_WORTH = (1.5, 0.5)  # candidates, and share of them, between which a posterior tells something
_COVERED = 0.8  # of the intervals of the evidence


class Check(NamedTuple):
    """Something that has to hold; `passed` is None where it is not known."""

    asks: str
    found: str
    wanted: str
    passed: bool | None
    means: str = ""


def can_it_be_trusted(checks: Sequence[Check], said: Sequence[str]) -> Part:
    """Answer with the checks, and with what to do about what went differently."""
    rows = [
        [Cell(one.asks, one.means), one.found, one.wanted, Cell(_verdict(one), "", _mark(one))]
        for one in checks
    ]
    counts = [sum(one.passed is verdict for one in checks) for verdict in (True, False, None)]
    passed, looks, unknown = counts
    sentence = f"{passed} of {len(checks)} checks are passed"
    sentence += f", {looks} need{'s' if looks == 1 else ''} a look" if looks else ""
    sentence += f", {unknown} {'is' if unknown == 1 else 'are'} not known" if unknown else ""
    sentence += ". Bounds are rules of thumb: what fails one may be right, and should be explained."
    body = html.table(HEAD, rows, words=True)
    if said:
        body += html.paragraph("What went differently than it should, and what helps:")
        body += html.items(said)
    return Part(Section("Can it be trusted?", sentence, body))


def check_run(ensemble: Ensemble, compared: Sequence[Compared], searched: Searched) -> list[Check]:
    """Return all checks of a run and its ensemble."""
    return list(_checks(ensemble, compared, searched))


def explain_differences(ensemble: Ensemble, compared: Sequence[Compared]) -> list[str]:
    """Say what went differently in the search, in the ensemble, and in its rivals."""
    rivals = [(one.rival.name, one.rival.status) for one in compared[1:]]
    return [*ensemble.warnings(), *explain_each(rivals)]


def name_bits(status: Status) -> str:
    """Name what a status reports."""
    names = [str(bit.name).lower().replace("_", " ") for bit in Status if bit in status]
    return ", ".join(names) or "nothing"


def _checks(
    ensemble: Ensemble, compared: Sequence[Compared], searched: Searched
) -> Iterator[Check]:
    run, record = ensemble.run, ensemble.run.record
    total, failed = len(record.archs), int(np.isnan(record.log_likelihoods).sum())
    found = f"{failed} of {total} failed"
    yield Check("Trainings", found, "none failed", failed == 0, "a loss that is no number")
    yield _fit(run)
    yield _sharpness(run)
    strategy = algorithms.find_trainable(run.config.algorithm).strategy
    if uses_surrogate(strategy):
        yield Check("Search", name_bits(run.status), "nothing", not run.status, "what it reported")
        yield _surrogate(searched)
        if run.first_stage is None:
            yield _evidence(searched)
    found = name_bits(ensemble.status)
    yield Check("Selection", found, "nothing", not ensemble.status, "what it reported")
    yield _optimism(ensemble, compared)
    keys = keys_of(run.space, ensemble.archs, run.config.seed)
    kept = all(run.store.has_variables(*key) for key in keys)
    found = "all are kept" if kept else "some were not kept"
    yield Check("Variables", found, "all are kept", kept, "so that members can predict anew")


def _fit(run: Run) -> Check:
    """Compare training with validation loss, on average over the candidates."""
    asks, means = "Training loss / validation loss", "whether the networks fit their training data"
    config = run.store.manifest.config
    points = config.get("train_points") if isinstance(config, dict) else None
    fits = {entry.key: entry.train_log_likelihood for entry in run.store.summaries()}
    keys = keys_of(run.space, run.record.archs, run.config.seed)
    train = -np.array([fits.get(key, np.nan) for key in keys], float)
    valid = -np.asarray(run.record.log_likelihoods, float) / run.record.log_probs.shape[1]
    both = np.isfinite(train) & np.isfinite(valid)
    wanted = f"at most {_FIT:g}"
    if not isinstance(points, int) or not both.any() or valid[both].mean() <= 0:
        return Check(asks, "not known", wanted, None, means)
    share = float((train[both] / points).mean() / valid[both].mean())
    return Check(asks, f"{share:.2f}", wanted, share <= _FIT, means)


def _sharpness(run: Run) -> Check:
    """Look whether the posterior over the candidates is one of them, or all alike."""
    worth = float(run.record.effective_sizes[-1])
    total = int((run.record.log_likelihoods < np.inf).sum())
    low, high = _WORTH[0], max(_WORTH[1] * total, _WORTH[0])
    return Check(
        "Effective sample size",
        f"{worth:.1f} of {total}",
        f"{low:g} to {high:g}",
        low <= worth <= high,
        "how many equally likely candidates the posterior is worth",
    )


def _surrogate(searched: Searched) -> Check:
    rank = searched.correlation
    found, passed = "not known", None
    if np.isfinite(rank.low):
        found = f"{with_sign(rank.value, 2)} [{with_sign(rank.low, 2)}, {with_sign(rank.high, 2)}]"
        passed = rank.low > 0
    means = "whether it predicts candidates that it has not seen better than a constant"
    return Check("Rank correlation of the surrogate", found, "interval above 0", passed, means)


def _evidence(searched: Searched) -> Check:
    held, steps = searched.covered
    found = f"{held} of {steps}" if steps else "not known"
    passed = held >= _COVERED * steps if steps else None
    means = "how many earlier intervals of ± 2 standard deviations hold the last value"
    return Check(
        "Coverage of the evidence", found, f"{100 * _COVERED:.0f} % or more", passed, means
    )


def _optimism(ensemble: Ensemble, compared: Sequence[Compared]) -> Check:
    """Compare the loss on the points that selected the members with that on the others."""
    asks = "Validation loss of the ensemble"
    means = "one below the interval of the test loss was reached by selection, and flatters"
    own = compared[0].measured
    assert own is not None
    wanted = f"at least {own.loss.low:.4f}"
    loss = validation_loss(ensemble)
    passed = bool(loss >= own.loss.low) if np.isfinite(loss) else None
    return Check(asks, f"{loss:.4f}", wanted, passed, means)


def validation_loss(ensemble: Ensemble) -> float:
    """Return the loss of the ensemble on the points that selected it, in nats per point."""
    said = np.asarray(ensemble.run.valid_log_probs[ensemble.members], np.float32)
    true = ensemble.run.record.log_probs[ensemble.members]
    # The true class is not kept: it is the one with the probabilities of the true class.
    label = np.abs(said - true[..., None]).sum(axis=0).argmin(axis=1)
    pooled = np.asarray(ensemble.valid_log_probs)
    return float(-pooled[np.arange(len(label)), label].mean())


def _verdict(check: Check) -> str:
    return _MARKS[check.passed][0]


def _mark(check: Check) -> str:
    return _MARKS[check.passed][1]
