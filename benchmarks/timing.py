"""How things are timed: warm, with the better number of threads, beside what the machine can do."""

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg  # loads the LAPACK that JAX uses, for its threads to be limited
import threadpoolctl

assert scipy.linalg.lapack

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_QUICK = 0.1  # seconds; what takes less is tried three times with each number of threads
_PATIENCE = 20.0  # seconds for one measurement; what takes long is repeated less often


class Measured(NamedTuple):
    """What a function costs.

    Attributes:
        seconds: the median of warm calls.
        compiling: how much longer the first call took.
        calls: how many warm ones there were.
        threads: of BLAS, LAPACK and OpenMP: 1 or all, whichever was faster.
        peak: bytes resident at most during the first call; None if not known.
        before: bytes resident before it.
        verdict: what was found out about the answer.
    """

    seconds: float
    compiling: float
    calls: int
    threads: int
    peak: int | None
    before: int | None
    verdict: Any


def measure(run: Callable[[], Any], repeats: int, inspect: Callable[[Any], Any]) -> Measured:
    """Call a function until its cost is known, at least once with each number of threads.

    No answer is kept, so that the peak is that of one call; `inspect` sees the first.
    """
    before = _forget_peak()
    start = perf_counter()
    with limited(CORES):
        answer, first = _timed(run)
    peak = None if before is None else _resident("VmHWM")
    verdict = inspect(answer)
    del answer
    samples = {threads: _trials(run, threads) for threads in {1, CORES}}
    threads = min(samples, key=lambda n: statistics.median(samples[n]))
    best = samples[threads]
    with limited(threads):
        while len(best) < repeats and perf_counter() - start < _PATIENCE:
            best.append(_timed(run)[1])
    seconds = statistics.median(best)
    return Measured(seconds, max(first - seconds, 0), len(best), threads, peak, before, verdict)


def _trials(run: Callable[[], Any], threads: int) -> list[float]:
    """Time a few calls; what is quick is called once before, as threads that wait must wake up."""
    with limited(threads):
        took = _timed(run)[1]
        return [took] if took > _QUICK else [_timed(run)[1] for _ in range(3)]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Fit seconds ∝ size^exponent by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def as_seconds(seconds: float) -> str:
    factor, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * factor:.3g} {unit}"


@contextlib.contextmanager
def limited(threads: int) -> Iterator[None]:
    """Limit the threads of BLAS, LAPACK, OpenMP and PyTorch; XLA always uses all cores."""
    torch = sys.modules.get("torch")
    with threadpoolctl.threadpool_limits(threads):
        if torch is not None:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Let JAX work in float32 or in float64."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", name == "float64")
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


class Machine(NamedTuple):
    """What this machine can do at best, as measured: what a bound is made of.

    Attributes:
        flops: a second, of a product of large matrices, by precision.
        bytes: a second, read or written, of a large array that is there already.
        fresh: bytes a second, written into memory that JAX has just asked for.
    """

    flops: dict[str, float]
    bytes: float
    fresh: float

    def bound(self, flops: float, numbers: float, precision: str) -> float:
        """Seconds that so many operations, and numbers read or written, take at least."""
        size = np.dtype(precision).itemsize
        return max(flops / self.flops[precision], numbers * size / self.bytes)


def measure_machine(side: int = 2048, megabytes: int = 512) -> Machine:
    flops = {}
    for name in ("float32", "float64"):
        with precision(name):
            matrix = np.ones((side, side), name)
            on_device, multiply = jnp.asarray(matrix), jax.jit(jnp.matmul)
            seconds = [_fastest(lambda m=on_device, f=multiply: f(m, m))]
            for threads in {1, CORES}:
                with limited(threads):
                    seconds.append(_fastest(lambda m=matrix: m @ m))
            flops[name] = 2 * side**3 / min(seconds)
    array = np.ones(megabytes * 2**18, np.float32)
    other, on_device = np.zeros_like(array), jnp.asarray(array)
    add_up, fill = jax.jit(jnp.sum), jax.jit(lambda value: jnp.full(array.shape, value))
    copying = _fastest(lambda: np.copyto(other, array))
    summing = _fastest(lambda: add_up(on_device))
    filling = _fastest(lambda: fill(1.0))
    rate = max(2 * array.nbytes / copying, array.nbytes / summing)
    return Machine(flops, rate, array.nbytes / filling)


def description() -> dict:
    """Tell what was measured, and on what."""
    versions = {
        name: getattr(sys.modules.get(name), "__version__", None)
        for name in ("jax", "numpy", "scipy", "sklearn", "grakel", "torch", "gpytorch")
    }
    model = Path("/proc/cpuinfo")
    names = [
        line.split(":")[1].strip()
        for line in (model.read_text().splitlines() if model.exists() else ())
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": CORES,
        "python": platform.python_version(),
        "versions": {name: version for name, version in versions.items() if version},
        "threads": f"XLA {CORES}; BLAS, LAPACK and OpenMP 1 or {CORES}, the faster of them",
        "memory": os.environ.get("GLIBC_TUNABLES", "as usual"),
    }


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    answer = jax.block_until_ready(run())
    return answer, perf_counter() - start


def _fastest(run: Callable[[], Any], calls: int = 5) -> float:
    _timed(run)
    return min(_timed(run)[1] for _ in range(calls))


def _forget_peak() -> int | None:
    """Start counting the peak anew; returns what is resident now, None where that is not told."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what has been freed goes back
        _CLEAR.write_text("5")
    except (AttributeError, OSError):
        return None
    return _resident("VmRSS")


def _resident(name: str) -> int | None:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return None
