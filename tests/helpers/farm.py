"""Networks whose training can be watched from outside, and dies where it is told to."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from bqnes_jax.data import from_arrays
from bqnes_jax.families import from_functions
from bqnes_jax.spaces import Product

SPACE = Product(a=(0, 1, 2, 3, 4, 5), b=(0, 1, 2, 3, 4, 5))


def examples():
    draw = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = draw.normal(size=(80, 2)) + 1.5 * y[:, None]
    return x.astype(np.float32), y


def data():
    return from_arrays(*examples(), split=(40, 20, 20), seed=0, name="points")


def predict(variables, choices, inputs):
    z = inputs @ variables["weights"] - 1.5
    logits = np.stack([np.zeros(len(inputs)), z], axis=1)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def watched(folder, *, seconds=0.0, deadly=(), wrong=(), greedy=()):
    """Return a family that notes who trains what in a folder, under a name for each try.

    Some architectures take their process with them, some raise an error, some all the memory.
    """

    def train(key, choices, data):
        here = (choices["a"], choices["b"])
        Path(folder, f"{here[0]}-{here[1]}-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(seconds)
        if here in deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if here in wrong:
            raise ValueError("no such network")
        if here in greedy:
            raise MemoryError("too large")
        return {"weights": np.array([0.2 * here[0], 0.1 * here[1]], np.float32)}

    return from_functions(SPACE, train, predict, jit=False, name="watched", manifest={"v": 1})


class Unsendable:
    """A result that takes its process with it when it is sent."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def lose(folder):
    """Return such a result the first time; then die at work."""
    first = not any(Path(folder).iterdir())
    Path(folder, str(time.monotonic_ns())).touch()
    if not first:
        os.kill(os.getpid(), signal.SIGKILL)
    return Unsendable()


def note_and_die(folder):
    Path(folder, str(time.monotonic_ns())).touch()
    die(0.0)


def die(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def die_when_told(folder):
    Path(folder, "begun").touch()
    while not Path(folder, "die").exists():
        time.sleep(0.02)
    die(0.0)


def die_once(folder):
    if not any(Path(folder).iterdir()):
        note_and_die(folder)
    return "alive"


def grow(share):
    """Take a share of the memory of this worker, keep it, and be there long enough to be seen."""
    import psutil
    from distributed import get_worker

    process, limit = psutil.Process(), get_worker().memory_manager.memory_limit
    wanted = int(share * limit) - process.memory_info().rss
    kept.append(np.ones(max(wanted, 0), np.uint8))
    time.sleep(1)
    return process.memory_info().rss / limit


kept = []


def tries_in(folder):
    """Return, for each architecture, the processes that have begun to train it."""
    found = {}
    for path in sorted(Path(folder).iterdir(), key=lambda path: path.name.rsplit("-", 1)[-1]):
        a, b, pid, _ = path.name.split("-")
        found.setdefault((int(a), int(b)), []).append(int(pid))
    return found


family = watched(os.environ.get("BQNES_TEST_FARM", "."), seconds=0.3)  # for commands
