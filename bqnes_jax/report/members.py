"""Why these members: what each is alone, what it adds, and how they differ from class to class."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bqnes_jax.metrics import disagreement
from bqnes_jax.pooling import Pool, apply_temperature, ensemble_log_probabilities
from bqnes_jax.report import architectures, figures, html
from bqnes_jax.report.answers import Part, nats, percent, point_of
from bqnes_jax.report.html import Cell, Drawing, Section
from bqnes_jax.report.plots import with_sign
from bqnes_jax.report.uncertainty import Estimate, compare_losses, measure_each
from bqnes_jax.runs import Ensemble

HEAD = ("Member", "Weight", "Error rate alone", "Loss alone", "Loss without it")


def why_these_members(ensemble: Ensemble) -> Part:
    """Answer with a table of the members, drawings of them, and how they differ."""
    run, members, labels = ensemble.run, ensemble.members, ensemble.run.record.test_labels
    said = np.asarray(run.test_log_probs(members))
    alone = measure_each([one[None] for one in said], labels)
    added = losses_without(ensemble, said)
    rows: list[list[str | Cell]] = []
    for i, text in enumerate(ensemble.texts):
        gap = Cell("–") if added is None else _gap(added[i])
        error, loss = percent(alone[i].error), nats(alone[i].loss)
        name = Cell(f"#{members[i]}", text)
        rows.append([name, f"{ensemble.weights[i]:.3f}", error, loss, gap])
    drawings = [
        Drawing(
            f"architecture-{member}",
            f"Member #{member}: {run.space.to_string(arch)}",
            architectures.draw(run.space, arch, f"#{member}, weight {weight:.2f}"),
        )
        for member, arch, weight in zip(members, ensemble.archs, ensemble.weights, strict=True)
    ]
    body = html.table(HEAD, rows)
    body += html.paragraph(f"In the drawings, {architectures.how_to_read(run.space)}.")
    body += html.figures(drawings, small=True)
    if len(members) == 1:
        body += html.paragraph("The ensemble has one member.")
    else:
        diverse = _diversity(ensemble, said)
        body += html.figures(diverse)
        drawings += diverse
    return Part(Section("Why these members?", _sentence(ensemble), body), drawings)


def losses_without(
    ensemble: Ensemble, said: Float[np.ndarray, "M m classes"]
) -> list[Estimate] | None:
    """Return how much larger the loss is without each member, the others sharing its weight."""
    count, labels = len(ensemble.members), ensemble.run.record.test_labels
    if count == 1:
        return None
    whole = _losses(np.asarray(ensemble.test_log_probs), labels)
    others = []
    for i in range(count):
        weights = np.where(np.arange(count) == i, 0, ensemble.weights)
        weights = weights * (ensemble.weights.sum() / weights.sum())
        pooled = ensemble_log_probabilities(
            jnp.asarray(weights, float), jnp.asarray(said), pool=ensemble.pool
        )
        others.append(_losses(np.asarray(apply_temperature(pooled, ensemble.temperature)), labels))
    return compare_losses(whole, others)


def differing_by_class(
    predicted: Int[np.ndarray, "M m"],
    together: Int[np.ndarray, " m"],
    labels: Int[np.ndarray, " m"],
    classes: int,
) -> Float[np.ndarray, "rows classes"]:
    """Return shares of the points of each class: errors of each member and of all together, and
    where members do not all say the same; NaN for a class without points.

    Example:
        >>> predicted = np.array([[0, 1, 1], [0, 0, 1]])
        >>> differing_by_class(predicted, predicted[0], np.array([0, 0, 1]), 2).tolist()
        [[0.5, 0.0], [0.0, 0.0], [0.5, 0.0], [0.5, 0.0]]
    """
    wrong = [*(predicted != labels), together != labels, (predicted != predicted[0]).any(axis=0)]
    counts = np.bincount(labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        return np.stack(
            [
                np.bincount(labels, each, classes) / np.where(counts, counts, np.nan)
                for each in wrong
            ]
        )


def draw_by_class(
    shares: Float[np.ndarray, "rows classes"], members: Int[np.ndarray, " M"]
) -> Drawing:
    """Draw errors and differences by class, of at most so many classes as can be read."""
    classes = np.arange(shares.shape[1])
    most = figures.MOST_CLASSES
    caption = "Of each class, how often every member is wrong, how often the ensemble is, and how "
    caption += "often not all members say the same: where they differ, the ensemble can be right."
    if len(classes) > most:
        worst = np.argsort(-np.nan_to_num(shares[-2]), kind="stable")[:most]
        classes = np.sort(worst)
        caption += f" Shown are the {most} classes with the most errors."
    rows = [*(f"#{i}" for i in members), "ensemble", "differing"]
    hardest = int(np.nanargmax(shares[-2]))
    most_errors = 100 * shares[-2][hardest]
    low, high = 100 * np.nanmin(shares[-1]), 100 * np.nanmax(shares[-1])
    shows = (
        f"Errors by class: the ensemble errs most on class {hardest}, {most_errors:.0f} % of its "
        f"points; members differ on {low:.0f} % to {high:.0f} % of the points of a class."
    )
    figure = figures.by_class(rows, shares[:, classes], [str(c) for c in classes])
    return Drawing("by-class", shows, figure, caption)


def draw_disagreement(
    said: Float[np.ndarray, "M m classes"], members: Int[np.ndarray, " M"]
) -> Drawing:
    """Draw how often two members predict different classes."""
    pairwise = np.asarray(disagreement(said, log=True).pairwise)
    pairs = 100 * pairwise[np.triu_indices(len(members), 1)]
    return Drawing(
        "disagreement",
        f"Two members differ on {pairs.min():.1f} % to {pairs.max():.1f} % of the test points.",
        figures.disagreement(pairwise, members),
        "How often two members predict different classes: those that differ more can correct more "
        "of each other's mistakes.",
    )


def _diversity(ensemble: Ensemble, said: Float[np.ndarray, "M m classes"]) -> list[Drawing]:
    record = ensemble.run.record
    together = np.asarray(ensemble.test_log_probs).argmax(axis=1)
    labels = np.asarray(record.test_labels)
    shares = differing_by_class(said.argmax(axis=2), together, labels, int(record.classes))
    return [
        draw_disagreement(said, ensemble.members),
        draw_by_class(shares, ensemble.members),
    ]


def _sentence(ensemble: Ensemble) -> str:
    sums = "sum to 1" if ensemble.pool == Pool.MIXTURE else "of a pool in log space have any sum"
    return (
        f"The weights {sums}. “Loss without it” is how much the loss per "
        f"{point_of(ensemble.run)} grows if the others share a member's weight: where its interval "
        "holds 0, the test data do not show that the member adds anything. Alone, a member is "
        "measured without calibration."
    )


def _losses(log_probs: Float[np.ndarray, "m classes"], labels: np.ndarray) -> np.ndarray:
    return -log_probs[np.arange(len(labels)), labels]


def _gap(gap: Estimate) -> Cell:
    value = ("+" if gap.value > 0 else "") + with_sign(gap.value, 4)
    mark = "good" if gap.low > 0 else "look" if gap.high < 0 else ""
    return Cell(value, f"[{with_sign(gap.low, 4)}, {with_sign(gap.high, 4)}]", mark)
