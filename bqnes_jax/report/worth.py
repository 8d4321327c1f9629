"""Was the search worth it: its candidates against random draws, the surrogate, the evidence."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bqnes_jax import algorithms
from bqnes_jax.candidates import uses_surrogate
from bqnes_jax.report import html, luck, search_figures
from bqnes_jax.report.answers import Part, point_of
from bqnes_jax.report.html import Drawing, Section
from bqnes_jax.report.plots import with_sign
from bqnes_jax.report.surrogate import (
    Predicted,
    ask_surrogate,
    interval_of_correlation,
    rank_correlation,
)
from bqnes_jax.report.uncertainty import Estimate
from bqnes_jax.runs import Ensemble, Run


class Searched(NamedTuple):
    """What is known about a search.

    Attributes:
        luck: its candidates against random draws; None where there are not both.
        predicted: what the surrogate said of them before.
        correlation: between that and what came out, of ranks.
        draws: log Ẑ by the random draws alone.
        covered: how many of the earlier intervals of log Ẑ hold its last value, and how many
            there were.
    """

    luck: luck.Luck | None
    predicted: Predicted
    correlation: Estimate
    draws: Estimate | None
    covered: tuple[int, int]


def look_at_search(run: Run) -> Searched:
    """Compute what is said about a search."""
    record, predicted = run.record, ask_surrogate(run)
    initial = _at_random(run)
    tempered = np.asarray(record.log_likelihoods, float) / float(record.temperature)
    correlation = rank_correlation(predicted.actual, predicted.mean)
    sd = 2 * record.evidence_sd[:-1]
    known = np.isfinite(record.log_evidence[:-1]) & np.isfinite(sd)
    off = np.abs(record.log_evidence[:-1][known] - record.log_evidence[-1])
    return Searched(
        luck.judge(record.log_likelihoods, initial),
        predicted,
        interval_of_correlation(correlation, len(predicted.actual)),
        luck.evidence_of_draws(tempered[:initial]) if initial else None,
        (int((off <= sd[known]).sum()), int(known.sum())),
    )


def was_it_worth_it(ensemble: Ensemble, searched: Searched) -> Part:
    """Answer with sentences, and with what the search saw and believed."""
    run = ensemble.run
    drawings = list(_drawings(ensemble, searched))
    strategy = algorithms.find_trainable(run.config.algorithm).strategy
    said = [*_of_luck(run, searched), *_of_surrogate(searched, uses_surrogate(strategy))]
    said += [*_of_evidence(run, searched), _of_scale(run)]
    return Part(
        Section("Was the search worth it?", "", html.items(said) + html.figures(drawings)), drawings
    )


def losses_of(run: Run) -> Float[np.ndarray, " n"]:
    """Return the validation loss of each candidate, in nats per point; NaN where it failed."""
    return -np.asarray(run.record.log_likelihoods, float) / run.record.log_probs.shape[1]


def coverage(predicted: Predicted, deviations: float) -> float:
    """Return the share of candidates that came out within so many standard deviations."""
    return float(np.mean(np.abs(predicted.off) <= deviations)) if len(predicted.off) else np.nan


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _at_random(run: Run) -> int:
    """Return how many of the candidates were drawn at random: none of a shortlist."""
    return int(run.record.counts[0]) if run.first_stage is None else 0


def _of_luck(run: Run, searched: Searched) -> Iterator[str]:
    found = searched.luck
    if run.first_stage is not None:
        count = len(run.first_stage.record.archs)
        yield (
            f"{count} candidates were searched with shared weights, and a shortlist of "
            f"{len(run.record.archs)} was trained alone: none of them at random, so that what "
            "random draws would have done is not known."
        )
        return
    if found is None:
        yield (
            "All candidates were drawn at random: there was no search, or nothing to compare it "
            "with."
        )
        return
    wins = found.wins
    verdict = (
        "the search was better than chance"
        if wins.low > 0.5
        else "the search was worse than chance"
        if wins.high < 0.5
        else "the search is not told from chance"
    )
    yield (
        f"Against random draws: one of the {found.chosen} candidates that the search chose is "
        f"better than one of the {found.drawn} drawn at random in {_percent(wins.value)} of the "
        f"pairs [{_percent(wins.low)}, {_percent(wins.high)}], and 50 % is chance: {verdict}."
    )
    yield (
        f"Of the chosen, {found.ahead} are better than the best random one; of as many further "
        f"random draws {found.expected:.1f} would be, on average."
    )


def _of_surrogate(searched: Searched, used: bool) -> Iterator[str]:
    predicted, rank = searched.predicted, searched.correlation
    if not predicted.actual.size:
        yield "No candidate was trained after the first ones: the surrogate predicted none."
        return
    said = "Surrogate" if used else "Surrogate (which this search did not ask)"
    if not np.isfinite(rank.value):
        yield f"{said}: what it predicts has no order."
        return
    ends = (
        f" [{with_sign(rank.low, 2)}, {with_sign(rank.high, 2)}]" if np.isfinite(rank.low) else ""
    )
    once, twice = (_percent(coverage(predicted, deviations)) for deviations in (1.0, 2.0))
    yield (
        f"{said}: the rank correlation of what it predicted with what came out is "
        f"{with_sign(rank.value, 2)}{ends} over {len(predicted.actual)} candidates that it had not "
        f"seen; {once} of them came out within one standard deviation of its prediction and "
        f"{twice} within two (68 % and 95 %, were its errors normal)."
    )


def _of_evidence(run: Run, searched: Searched) -> Iterator[str]:
    record, draws = run.record, searched.draws
    last, sd = float(record.log_evidence[-1]), float(record.evidence_sd[-1])
    if run.first_stage is not None:  # a shortlist stands for no space
        return
    if not np.isfinite(record.log_evidence).any():
        yield "The evidence was never positive."
        return
    held, steps = searched.covered
    said = f"Evidence: log Ẑ = {with_sign(last, 2)} ± {sd:.2f} at the end."
    if steps:
        said += (
            f" Of the {steps} intervals of ± 2 standard deviations before, {held} hold this value "
            f"({_percent(held / steps)}; 95 % would, were they right and the last value exact)."
        )
    if draws is not None and np.isfinite(draws.value):
        said += (
            f" The random draws alone, without a surrogate, say {with_sign(draws.value, 2)} "
            f"[{with_sign(draws.low, 2)}, {with_sign(draws.high, 2)}]."
        )
    yield said


def _of_scale(run: Run) -> str:
    """Say how much the likelihood tells the candidates apart."""
    count, points = run.record.log_probs.shape
    temperature = float(run.record.temperature)
    return (
        f"Scale: at the temperature {temperature:.4g} the {points} validation points count as "
        f"{points / temperature:.3g} observations, and the posterior over the {count} candidates "
        f"is worth {run.record.effective_sizes[-1]:.1f} equally likely ones: near 1 one network "
        f"stands for all, near {count} the likelihood tells nothing apart."
    )


def _drawings(ensemble: Ensemble, searched: Searched) -> Iterator[Drawing]:
    run, members = ensemble.run, ensemble.members
    record, losses, point = run.record, losses_of(run), point_of(run)
    initial = _at_random(run)
    drawn = losses[:initial]
    expected = -luck.expected_best(-drawn[np.isfinite(drawn)])
    best = np.fmin.accumulate(losses)
    shows = (
        f"Validation loss of {len(losses)} candidates in their order: the smallest so far falls "
        f"from {best[0]:.3f} to {best[-1]:.3f} nats per {point}"
        + (f"; of random draws it is {expected[-1]:.3f}." if len(expected) else ".")
    )
    yield Drawing(
        "candidates",
        shows,
        search_figures.candidates(losses, members, initial, expected),
        "Each point is a network; triangles are far above. The dashed line is the smallest loss of "
        "as many random draws, on average over those that were trained, and level where there were "
        "no more of them."
        if len(expected)
        else "Each point is a network; triangles are far above.",
    )
    figure = search_figures.evidence(
        record.counts, record.log_evidence, record.evidence_sd, draws=searched.draws
    )
    if figure is not None and run.first_stage is None:
        yield Drawing(
            "evidence",
            f"Log evidence against evaluations: it ends at {record.log_evidence[-1]:.2f}, plus or "
            f"minus {record.evidence_sd[-1]:.2f}.",
            figure,
            "Log Ẑ is the logarithm of the tempered likelihood averaged over the whole space, as "
            "it was believed at that time; the band narrows as more is known.",
        )
    if searched.predicted.actual.size:
        rank = searched.correlation.value
        yield Drawing(
            "surrogate",
            f"Predicted against actual log-likelihood of {len(searched.predicted.actual)} "
            f"candidates; the rank correlation is {rank:.2f}.",
            search_figures.predictions(searched.predicted, rank),
            "Each point is a candidate as predicted from those trained before it was chosen, ± 1 "
            "standard deviation; on the dashed line predictions are right. log ℓ is the "
            f"log-likelihood divided by {float(record.temperature):g}.",
        )
    places, shares = kernel_coordinates(record.gram)
    yield Drawing(
        "map",
        f"Map of the candidates by the kernel; its two axes have {100 * sum(shares):.0f} % of the "
        "spread.",
        search_figures.kernel_map(places, shares, -losses, members),
        "Candidates near each other are alike to the kernel, the brighter the better; members that "
        "lie far apart are different networks.",
    )


def kernel_coordinates(
    gram: Float[np.ndarray, "n n"],
) -> tuple[Float[np.ndarray, "n 2"], tuple[float, float]]:
    """Return the two leading coordinates of kernel PCA, and their shares of the spread.

    These are the coordinates of classical scaling of the kernel's distances, too.
    """
    gram = np.asarray(gram, float)
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    spread, vectors = np.linalg.eigh((centred + centred.T) / 2)
    spread = np.maximum(np.append([0.0], spread), 0)  # one candidate has one coordinate only
    vectors = np.hstack([np.zeros((len(gram), 1)), vectors])
    places = (vectors * np.sqrt(spread))[:, [-1, -2]]
    # The sign of an eigenvector is arbitrary: the one farthest from the middle is on the right.
    farthest = places[np.abs(places).argmax(axis=0), [0, 1]]
    shares = spread[[-1, -2]] / max(spread.sum(), np.finfo(float).tiny)
    return places * np.where(farthest < 0, -1.0, 1.0), (float(shares[0]), float(shares[1]))
