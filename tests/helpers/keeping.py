"""Write what later versions have to read, once for each format.

python -m tests.helpers.keeping
"""

import shutil
import sys
from pathlib import Path

import numpy as np

from bqnes_jax.cli import main
from bqnes_jax.storage import Entry, Manifest, Store
from bqnes_jax.storage.records import FORMAT

KEPT = Path(__file__).parents[1] / "kept"
MANIFEST = Manifest("toy", "toy", {"steps": 3, "rate": 0.1}, 3, 2, 2)
PREDICTED = np.log(np.linspace([0.1, 0.9], [0.8, 0.2], 5))
VARIABLES = {
    "layers": [np.arange(6, dtype=np.float32).reshape(2, 3), None],
    "counts": (np.array([1, -2], np.int32), np.array(True)),
}
ENTRIES = [
    Entry(
        *("a", 0, "ok", *np.split(PREDICTED, [3])),
        *(0.5, 0.25, 0.75, 2.0),
        variables=VARIABLES,
        train_log_likelihood=-12.5,
    ),
    Entry("a", 1, "failed", seconds=1.0),
    Entry("ä|b~1", 0, "ok", np.full((3, 2), np.log(0.5)), np.full((2, 2), np.log(0.5))),
]
RUN = [
    *("run", "--data", "digits", "--image-size", "4", "--split", "40", "50", "60"),
    *("--train.steps", "200", "--train.batch", "20", "--train.chunk", "2"),
    *("--train.network.channels", "1", "--initial", "4", "--budget", "8", "--batch", "2"),
    *("--fit.kernel-steps", "0"),
]


def folder(number=FORMAT):
    """Return where files of a format are kept."""
    return KEPT / f"format-{number}"


def write():
    """Write a store and a run; return a code, or why nothing was written."""
    if folder().exists():
        return f"{folder()} is there: files of a format are written once."
    store = Store.open(folder() / "store", MANIFEST)
    store.put(ENTRIES)
    code = main([*RUN, "--out", str(folder() / "run")])
    for path in folder().glob("run/*"):
        if path.suffix in (".html", ".png", ".pdf") or path.name in ("lock", "report", "plots"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return code


if __name__ == "__main__":
    sys.exit(write())
