"""Every test runs twice, in float32 and in float64; what takes long runs with `pytest --all`."""

import gc
import os
import shutil
from pathlib import Path

import jax
import pytest
import scipy.linalg  # loads the LAPACK that JAX uses, for its threads to be limited below
import threadpoolctl
from hypothesis import HealthCheck, settings

# The suite spends its time in compiling small programs, which need no optimised machine code.
_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_force_host_platform_device_count=1",  # whichever test comes first
]
# XLA ends the process at a flag that it does not know.
if (0, 10) <= jax.__version_info__ < (0, 12):
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]  # the older ones compile twice as fast
if jax.__version_info__ >= (0, 10):  # compiles 8 % faster
    _FLAGS += ["--xla_cpu_enable_concurrency_optimized_scheduler=false"]
os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, os.environ.get("XLA_FLAGS", "")])
# What one test has compiled the others load: in both workers, in the processes that tests start,
# after `forget_programs`, and in the next suite. XLA and its flags are part of what a program is
# known by; what cannot be read is compiled again.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # a worker has that of the first process
    _PROGRAMS = Path("~/.cache/bqnes-jax/programs-of-tests").expanduser()
    _PROGRAMS.mkdir(parents=True, exist_ok=True)
    if sum(file.stat().st_size for file in _PROGRAMS.iterdir()) > 4 << 30:
        shutil.rmtree(_PROGRAMS)  # many versions of the code have left theirs
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_PROGRAMS)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# For a process that is killed: it could leave half a program, which no later one would replace.
KEEP_NOTHING = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
# Two workers with LAPACK threads of their own wait for each other, up to ten times longer.
assert scipy.linalg.lapack
threadpoolctl.threadpool_limits(1)

# These take longest, from minutes down to half of one, and come first: a worker that is done with
# them early still has short files to do.
_FIRST = [
    f"test_{name}"
    for name in (
        *("open_house", "notebooks", "devices", "failures", "logpool", "cli", "runs", "seeded"),
        *("transformations", "gp", "refitting", "comparison", "families", "candidates", "scale"),
        *("combine", "algorithms", "kills", "population", "supernet", "selection", "mobilenet"),
        *("evidence", "seeded_runs", "calibration", "all_corruptions", "acquisition"),
    )
]


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run what is slow, too: half an hour")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--all"):
        slow = [item for item in items if is_slow(item)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    place = {name: i for i, name in enumerate(_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def all_but_slow(names, *quick):
    """Return parameters of which all but a few are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def is_slow(item):
    """Tell whether a test takes seconds: `slow`, or `slow("float64")`, in that precision alone."""
    marks = item.iter_markers("slow")  # of the function, and of a parameter
    return any(not mark.args or item.callspec.params["precision"] in mark.args for mark in marks)


def pytest_collection_finish():
    """Look for garbage rarely, and not in modules: tracing makes so much that it took a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


settings.register_profile(
    "bqnes",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("bqnes")


@pytest.fixture(params=["float32", "float64"], autouse=True)
def precision(request):
    """Set JAX's precision for one test; the value is the name of the floating type.

    A test without floating-point numbers may ask for one precision only, by parametrising it.
    """
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Free what a file has compiled: a process may hold only so many memory maps (65,530)."""
    yield
    jax.clear_caches()


@pytest.fixture
def own_names(monkeypatch):
    """Forget, after a test, the names that it has registered."""
    from bqnes_jax import algorithms, candidates, families, selection

    for registry in (
        algorithms.registry._ALGORITHMS,
        candidates.registry._CHOOSERS,
        families.registry._KINDS,
        selection.registry._METHODS,
    ):
        monkeypatch.setattr(registry, "_things", dict(registry._things))


@pytest.fixture
def tolerance(precision):
    """Return a function (float32 tolerance, float64 tolerance) -> the one in force."""
    return lambda single, double: single if precision == "float32" else double


@pytest.fixture
def compilations():
    """Return a function that tells how many programs XLA has compiled since it was last called.

    Those that were compiled before and are loaded from the folder of programs count as well.
    """
    _COMPILED.clear()

    def since_last():
        count = len(_COMPILED)
        _COMPILED.clear()
        return count

    return since_last


_COMPILED = []  # of this process; JAX 0.7 has no way to stop listening


def _note_compilation(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(duration)


jax.monitoring.register_event_duration_secs_listener(_note_compilation)


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def archive(tmp_path):
    """Return a small archive in the format of NATS-Bench's, without weights."""
    from tests.helpers import published

    return published.simple(tmp_path / "NATS-tss-v1_0-3ffb9-simple")


@pytest.fixture
def no_files(monkeypatch):
    """Leave the files of figures empty, which saves most of the time."""
    monkeypatch.setattr("bqnes_jax.report.plots.to_bytes", lambda figure, form: b"")
