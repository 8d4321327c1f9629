"""Ensembles of models that exist already: every method of selection, on predictions of real models.

Three sets: 10 networks on CIFAR-10N and 35 language models (files of predictions in
BQNES_DATA_DIR), and 12 classifiers of scikit-learn on its digits, trained here. Some points select
members and weights, all others test them; each split draws them anew. What is done is in the
result, and the same command goes on from there.

    python benchmarks/combine.py
"""

import functools
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from shared import RESULTS, console, one_sentence, write

from bqnes_jax.calibration import calibrate, left_out_predictions
from bqnes_jax.errors import BQNESError
from bqnes_jax.files.arrays import open_npz
from bqnes_jax.metrics import accuracy, ece, mean_log_likelihood
from bqnes_jax.pooling import apply_temperature, ensemble_log_probabilities
from bqnes_jax.selection import methods, select
from bqnes_jax.studies.combine import likeness

SIZES = (1, 3, 5, 10)
METRICS = ("loss", "ece", "accuracy")
CALIBRATED = ("beam", "corrective")  # also with a temperature after pooling
OWN = "logpool"


@dataclass(frozen=True)
class Options:
    """Compare the methods of selection."""

    splits: int = 10
    """How often points are drawn."""
    sets: tuple[str, ...] = ("digits", "cifar10n", "llm_emotion")
    """Which predictions."""
    out: Path = RESULTS / "combine.json"
    """Where to write the results; tables and a plot go beside it."""


def stored(name: str, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Read predictions from the data directory, and bring the points into the order of a split."""
    path = Path(os.environ.get("BQNES_DATA_DIR", ".")) / f"predictions_{name}.npz"
    if not path.exists():
        raise BQNESError(f"{path} does not exist; set BQNES_DATA_DIR to where it is.")
    with open_npz(path) as file:
        log_probs, labels = file["log_probs"].read(), file["labels"].read()
    order = np.random.default_rng(split).permutation(len(labels))
    return log_probs[:, order], labels[order]


def digits(split: int) -> tuple[np.ndarray, np.ndarray]:
    """Train 12 classifiers on a third of the digits, and return what they say about the others."""
    from sklearn.datasets import load_digits
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.naive_bayes import BernoulliNB, GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.tree import DecisionTreeClassifier

    images, labels = load_digits(return_X_y=True)
    images = images / 16
    train, rest, y_train, y_rest = train_test_split(
        images, labels, train_size=597, stratify=labels, random_state=split
    )
    models = [
        LogisticRegression(C=0.1, max_iter=1000),
        LogisticRegression(C=10, max_iter=1000),
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        GaussianNB(var_smoothing=1e-2),
        BernoulliNB(binarize=0.5),
        KNeighborsClassifier(3),
        KNeighborsClassifier(10, weights="distance"),
        DecisionTreeClassifier(min_samples_leaf=3, random_state=split),
        RandomForestClassifier(200, random_state=split),
        ExtraTreesClassifier(200, random_state=split),
        MLPClassifier(50, max_iter=300, random_state=split),
        MLPClassifier((100, 50), alpha=0.1, max_iter=300, random_state=split),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of networks that could be trained longer
        said = np.stack([model.fit(train, y_train).predict_proba(rest) for model in models])
    return np.log(np.maximum(said, 1e-7)), y_rest


SETS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "digits": (digits, (300, 600)),
    "cifar10n": (functools.partial(stored, "cifar10n"), (300, 2000)),
    "llm_emotion": (functools.partial(stored, "llm_emotion"), (300, 2000)),
}


def measure_split(log_probs: np.ndarray, labels: np.ndarray, points: int) -> dict:
    """Return the metrics of every method and size, by name and number of members."""
    said = jax.nn.log_softmax(jnp.asarray(log_probs, jnp.float32), axis=-1)
    true = jnp.take_along_axis(said, jnp.asarray(labels)[None, :, None], axis=2)[..., 0]
    classes, log_probs = said[:, :points], true[:, :points]
    kernel, rule = likeness(classes)
    given = {"kernel": kernel, "rule": rule}
    rest, test_labels, own_labels = said[:, points:], labels[points:], labels[:points]
    everyone = jnp.full(len(said), 1 / len(said))
    found = {"all equal": {str(len(said)): _measure(_pool(everyone, rest, "mixture"), test_labels)}}
    for name in methods():
        found[name] = {}
        for size in SIZES:
            chosen = select(name, log_probs, size, classes=classes, **given)
            pooled = _pool(chosen.weights, rest[chosen.members], chosen.pool)
            found[name][str(size)] = _measure(pooled, test_labels)
            if name in CALIBRATED:
                left_out = left_out_predictions(name, log_probs, size, classes=classes)
                temperature = calibrate(left_out, own_labels).temperature
                tempered = apply_temperature(pooled, temperature)
                of_name = found.setdefault(f"{name} + temperature", {})
                of_name[str(size)] = _measure(tempered, test_labels)
    return found


def _pool(weights, members, pool):
    return ensemble_log_probabilities(weights, members, pool=pool)


@jax.jit
def _metrics(said, labels):
    loss = -mean_log_likelihood(said, labels, log=True)
    return jnp.stack([loss, ece(said, labels, log=True), accuracy(said, labels, log=True)])


def _measure(said, labels) -> list[float]:
    return [round(float(value), 6) for value in _metrics(said, labels)]


def as_array(result: dict, name: str, points: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return methods, sizes, and an array of splits × methods × sizes × metrics."""
    splits = result[name][points]
    rows = [(method, size) for method in splits[0] for size in splits[0][method]]
    values = np.array([[split[method][size] for method, size in rows] for split in splits])
    return [method for method, _ in rows], [size for _, size in rows], values


def as_markdown(result: dict) -> str:
    """Write means and paired differences from the log pool of the same size."""
    lines = ["# Ensembles of models that exist already", ""]
    lines += [
        "`python benchmarks/combine.py`. Test loss in nats per point, ECE and accuracy: means"
    ]
    lines += ["over splits. Δ is the loss minus that of `logpool` with as many members (of `all"]
    lines += ["equal`: with 10), with the standard error of the paired differences.", ""]
    for name in result:
        for points in result[name]:
            of, sizes, values = as_array(result, name, points)
            lines += [f"## {name}, {points} validation points, {len(values)} splits", ""]
            lines += ["| method | M | loss | Δ | ECE | accuracy, % |", "|---|--:|--:|--:|--:|--:|"]
            means = values.mean(axis=0)
            for i, (method, size) in enumerate(zip(of, sizes, strict=True)):
                other = [j for j, m in enumerate(of) if m == OWN]
                own = next((j for j in other if sizes[j] == size), other[-1])
                cells = [f"{means[i, 0]:.4f}", _difference(values[:, i, 0] - values[:, own, 0])]
                cells += [f"{means[i, 1]:.4f}", f"{100 * means[i, 2]:.2f}"]
                if method == OWN:
                    method, cells[1] = f"**{method}**", ""
                lines.append(f"| {method} | {size} | {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines)


def _difference(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():+.4f} ± {error:.4f}"


def draw(result: dict) -> Figure:
    """Draw loss and ECE against M, for each set and number of validation points."""
    panels = [(name, points) for name in result for points in result[name]]
    figure = Figure(figsize=(2.6 * len(panels), 5.6), layout="constrained", facecolor="white")
    axes = figure.subplots(2, len(panels), squeeze=False)
    shown = (OWN, "beam", "beam + temperature", "caruana", "corrective", "stack", "restack")
    for column, (name, points) in enumerate(panels):
        of, _, values = as_array(result, name, points)
        for row, metric in enumerate(METRICS[:2]):
            ax = axes[row][column]
            for method in shown:
                places = [i for i, m in enumerate(of) if m == method]
                style = {"linewidth": 2.4, "color": "black"} if method == OWN else {}
                x, y = range(len(places)), values[:, places, row].mean(axis=0)
                ax.plot(x, y, "o-", markersize=3, label=method, **style)
            ax.set_xticks(range(len(SIZES)), SIZES)
            ax.set_title(f"{name}, {points} points" if row == 0 else "", fontsize=9)
            ax.set_ylabel(metric if column == 0 else "")
            ax.set_xlabel("members" if row else "")
            ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def main(options: Options) -> None:
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.sets:
        load, sizes = SETS[name]
        for split in range(options.splits):
            missing = [n for n in sizes if len(result.get(name, {}).get(str(n), [])) <= split]
            if not missing:
                continue
            log_probs, labels = load(split)
            for points in missing:
                console.print(f"{name}, {points} points, split {split}", style="dim")
                found = measure_split(log_probs, labels, points)
                result.setdefault(name, {}).setdefault(str(points), []).append(found)
            write(options.out, result)
    options.out.with_suffix(".md").write_text(as_markdown(result))
    draw(result).savefig(options.out.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
