"""The speed suite at tiny sizes: what it reports, and that its peers do the same job."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture
def module(importable):
    return importlib.import_module


@pytest.fixture
def machine(module):
    return module("timing").Machine({"float32": 1e9, "float64": 1e9}, 1e9, 1e9)


def toy_job(ways):
    def missing():
        raise ImportError

    def case(n):
        return ways.Case(
            [
                ways.ours("twice", lambda x: x + x, np.ones(n), check=check, ratio=1e-9),
                ways.ours("never", lambda x: x, np.ones(n), limit=0.0),
                ways.peer("NumPy", lambda: lambda: 2 * np.ones(n), check=check),
                ways.peer("wrong", lambda: lambda: np.ones(n), check=check),
                ways.peer("absent", missing),
            ],
            flops=n,
            numbers=n,
        )

    def check(answer):
        return f"first {answer[0]:.0f}", bool(answer[0] == 2)

    return ways.Job("toy", "a toy", case, {"small": (8,)}, {"small": (1, 2, 4, 8)})


@pytest.mark.slow
def test_a_report_has_a_line_for_each_way(module, machine, tmp_path, monkeypatch):
    speed, ways = module("speed"), module("ways")
    monkeypatch.setattr(speed, "JOBS", {"toy": toy_job(ways)})
    monkeypatch.setattr(speed, "measure_machine", lambda: machine)
    speed.main(speed.Options(("all",), repeats=2, sizes="small", out=tmp_path))

    result = json.loads((tmp_path / "speed.json").read_text())
    twice, never, numpy, wrong, absent = result["jobs"]["toy"]["rows"]
    assert set(twice["ratios"]) == {"NumPy"}  # neither what is wrong nor what is missing
    assert twice["met"] and not never["met"]
    assert twice["calls"] >= 2 and twice["bound"] == 8 * 4 / 1e9
    assert numpy["good"] and not wrong["good"] and absent["seconds"] is None
    assert twice["peak"] is None or twice["peak"] > 0
    growth = result["jobs"]["toy"]["growth"]
    assert growth["sizes"] == [1, 2, 4, 8]
    assert set(growth["exponents"]) == {"ours, twice", "NumPy", "wrong"}

    report = (tmp_path / "speed.md").read_text()
    table = [text for text in report.splitlines() if text.startswith("| 8 ")]
    assert len(table) == 5 and len({text.count("|") for text in table}) == 1
    assert "not installed" in table[-1] and "not good enough" in table[-2]
    assert "exponent" in report and "threads: XLA" in report


def test_some_jobs_do_not_replace_the_report_of_all(module, machine, tmp_path, monkeypatch):
    speed, ways = module("speed"), module("ways")
    monkeypatch.setattr(speed, "JOBS", {"toy": toy_job(ways), "other": toy_job(ways)})
    monkeypatch.setattr(speed, "measure_machine", lambda: machine)
    speed.main(speed.Options(("toy",), repeats=1, sizes="small", growth=False, out=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"speed-toy.json", "speed-toy.md"}


def test_exponent(module):
    sizes = [10, 20, 40, 80]
    assert module("timing").exponent(sizes, [3e-4 * n**1.5 for n in sizes]) == pytest.approx(1.5)


def test_a_bound_is_the_slower_of_counting_and_moving(machine):
    assert machine.bound(flops=5e9, numbers=1e9, precision="float32") == 5
    assert machine.bound(flops=5e9, numbers=1e9, precision="float64") == 8


def test_seconds_are_written_in_their_unit(module):
    written = map(module("speed").as_seconds, (12.3, 0.0123, 1.23e-5))
    assert list(written) == ["12.3 s", "12.3 ms", "12.3 µs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wl", "gp", "recombination", "stacking", "search"])
def test_ours_and_the_peers_do_the_same_job(module, name):
    job = module("jobs").JOBS[name]
    case = job.case(job.sizes["small"][0])
    assert case.flops > 0 and case.numbers > 0
    for way in case.ways:
        if way.run is None or way.name == "softmax and L-BFGS":  # which stalls
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peers: hyper-parameters at a bound
            says, good = way.check(way.run())
        assert good, f"{way.name}: {says}"


@pytest.mark.parametrize(("n", "k"), [(7, 7), (37, 5), (150, 10), (203, 4)])
def test_the_tree_in_numpy_is_exact(module, n, k):
    draw = np.random.default_rng(n)
    functions, weights = draw.normal(size=(n, k - 1)), draw.dirichlet(np.ones(n))
    found = module("peers").numpy_tree(functions, weights)()
    assert len(found.indices) <= k and (found.weights >= 0).all()
    np.testing.assert_allclose(found.weights.sum(), 1, atol=1e-13)
    np.testing.assert_allclose(
        found.weights @ functions[found.indices], weights @ functions, atol=1e-13
    )


def test_multiply_adds_of_a_network(module):
    count = module("jobs").multiply_adds
    skips, large = np.full((1, 6), 1), np.array([[3, 1, 1, 1, 1, 1]])
    assert count(skips, 1, 1, 4) == 9 * 16 + 14 * (4 * 4 + 16 * 1)
    assert count(large, 1, 1, 4) - count(skips, 1, 1, 4) == 9 * (16 + 4 * 4 + 16 * 1)
