"""What a log-linear pool costs: seconds and memory beside `corrective`, on made-up predictions.

Each method selects 10 members in a process of its own, whose largest memory is what the system
says it was. The predictions of all classes are in half precision.

    python benchmarks/logpool.py
"""

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from shared import RESULTS, console, one_sentence, show, timed, write
from timing import as_seconds, description

from bqnes_jax.selection import needs_classes, select


@dataclass(frozen=True)
class Options:
    """Measure the methods."""

    candidates: int = 150
    """N."""
    points: int = 5000
    """Validation points."""
    classes: int = 100
    """Classes."""
    size: int = 10
    """Members."""
    repeats: int = 3
    """Warm calls, of which the median is taken."""
    methods: tuple[str, ...] = ("corrective", "logpool")
    """Which."""
    alone: bool = False
    """Measure in this process, and print JSON."""
    out: Path = RESULTS / "logpool.json"
    """Where to write the results."""


def predictions(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Draw candidates of unlike skill and sharpness that agree on which points are hard."""
    random = np.random.default_rng(0)
    labels = random.integers(0, options.classes, options.points)
    hard = random.normal(0, 1.5, options.points)
    shape = options.candidates, options.points, options.classes
    classes = np.empty(shape, np.float16)
    for n in range(options.candidates):  # one at a time: float64 of all would be the peak
        logits = random.normal(size=shape[1:]).astype(np.float32)
        logits[np.arange(options.points), labels] += random.uniform(2, 5) - hard
        logits *= random.uniform(0.7, 2)
        logits -= logits.max(axis=1, keepdims=True)
        classes[n] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return classes[:, np.arange(options.points), labels].astype(np.float32), classes


def measure(options: Options) -> dict:
    (method,) = options.methods
    log_probs, classes = predictions(options)
    given = {"classes": jnp.asarray(classes)} if needs_classes(method) else {}
    del classes
    found, first = timed(lambda: select(method, log_probs, options.size, **given))
    took = [
        timed(lambda: select(method, log_probs, options.size, **given))[1]
        for _ in range(options.repeats)
    ]
    return {
        "method": method,
        "first": first,
        "seconds": float(np.median(took)),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
        "loss": float(found.info.loss),
        "used": int(found.info.used),
        "status": int(found.info.status),
    }


def main(options: Options) -> None:
    if options.alone:
        print(json.dumps(measure(options)))
        return
    results = []
    for method in options.methods:
        sizes = ("candidates", "points", "classes", "size", "repeats")
        given = [f"--{name}={getattr(options, name)}" for name in sizes]
        command = [sys.executable, __file__, "--alone", "--methods", method, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
        console.print(results[-1], style="dim")
    rows = [
        [r["method"], as_seconds(r["seconds"]), f"{r['gigabytes']:.2f} GB", f"{r['loss']:.4f}"]
        for r in results
    ]
    title = f"{options.size} of {options.candidates}, {options.points} points"
    show(f"{title}, {options.classes} classes", ["method", "time", "memory", "loss"], rows)
    setting = {"candidates": options.candidates, "points": options.points}
    setting |= {"classes": options.classes, "size": options.size, "jax": jax.__version__}
    write(options.out, {"machine": description(), "setting": setting, "methods": results})


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
