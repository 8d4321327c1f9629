"""Commands with --workers: processes of a cluster of their own; the driver is killed."""

import json
import os
import signal
import time

import numpy as np
import pytest

from bqnes_jax.runs.journal import Journal
from tests.cli.test_cli import SMALL
from tests.conftest import KEEP_NOTHING
from tests.helpers import farm
from tests.helpers.commands import call, finish, start

pytestmark = [
    pytest.mark.parametrize("precision", ["float32"], indirect=True),
    pytest.mark.slow,
]

RUN = [
    *(
        "run",
        "--family",
        "tests.helpers.farm:family",
        "--data",
        "points.npz",
        "--split",
        40,
        20,
        20,
    ),
    *("--initial", 3, "--budget", 10, "--batch", 1, "--fit.kernel-steps", 0, "--ensemble-size", 2),
]


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "points.npz", x=farm.examples()[0], y=farm.examples()[1])
    (tmp_path / "tries").mkdir()
    return tmp_path


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def arrays_in(path):
    with np.load(path) as content:
        return dict(content)


def test_a_killed_driver_goes_on_and_is_done_again(folder):
    farm_in = {"BQNES_TEST_FARM": str(folder / "tries")}
    command = [*RUN, "--workers", 2, "--out", "run"]
    driver = start(folder, *command, **farm_in, **KEEP_NOTHING)
    path = folder / "run" / "arrivals.log"
    for _ in range(2000):
        if path.exists() and path.read_text().count("arrived") >= 4:
            break
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    before = Journal(path, farm.SPACE).events
    stored = {one.name for one in (folder / "run" / "store" / "entries").iterdir()}
    tries = farm.tries_in(folder / "tries")
    workers = {pid for pids in tries.values() for pid in pids}
    for _ in range(200):
        if not any(map(is_running, workers)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, workers)), "they end with the driver"
    code, out, err = finish(start(folder, *command, **farm_in), timeout=200)
    assert code == 0, err
    assert "10 candidates by BQ-L" in out and not (folder / "run" / "task.pickle").exists()
    after = Journal(path, farm.SPACE).events
    assert [str(event) for event in after[: len(before)]] == [str(event) for event in before]
    entries = {one.name for one in (folder / "run" / "store" / "entries").iterdir()}
    assert stored < entries and len(entries) == 10, "what was asked for, and nothing else"

    other = [*RUN, "--out", "again", "--replay", "run"]
    code, out, err = finish(start(folder, *other, **farm_in), timeout=200)
    assert code == 0, err
    first, second = (arrays_in(folder / name / "search.npz") for name in ("run", "again"))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    ensembles = [json.loads((folder / n / "ensemble.json").read_text()) for n in ("run", "again")]
    assert ensembles[0]["weights"] == ensembles[1]["weights"]


def test_other_commands_train_on_workers(folder):
    """What they print is what they print without."""
    (folder / "task.json").write_text(json.dumps(SMALL))
    base = ["tabulate", "--config", "task.json", "--count", 4, "--best", 0]
    for name, flags in {"alone": [], "workers": ["--workers", 1]}.items():
        process = start(folder, *base, *flags, "--store", name, "--table", f"{name}.npz")
        code, _, err = finish(process, timeout=300)
        assert code == 0, err
    alone, workers = (arrays_in(folder / f"{name}.npz") for name in ("alone", "workers"))
    np.testing.assert_array_equal(alone["numbers"], workers["numbers"])
    farm_in = {"BQNES_TEST_FARM": str(folder / "tries")}
    compare = [
        *("compare", "--live", *RUN[1:9], "--algorithms", "BQ-S", "Random", "--seeds", 2),
        *("--sizes", 2, "--initial", 3, "--budget", 4, "--fit.kernel-steps", 0),
    ]
    said = []
    for name, flags in {"one": [], "two": ["--workers", 2]}.items():
        process = start(folder, *compare, *flags, "--out", name, **farm_in)
        code, _, err = finish(process, timeout=200)
        assert code == 0, err
        said.append((folder / name / "comparison.csv").read_text())
    assert said[0] == said[1]
    assert {len(own) for own in farm.tries_in(folder / "tries").values()} >= {2}


def test_flags_that_make_no_sense(folder):
    code, _, err = call(folder, "compare", "--workers", 2)
    assert code == 1 and "give --live" in err
    code, _, err = call(folder, *RUN, "--workers", "many")
    assert code == 1 and "it must be a number of processes" in err
    code, _, err = call(folder, *RUN, "--workers", "tcp://127.0.0.1:9")
    assert code == 1 and "no scheduler answers" in err
