"""A space, networks and data of one's own go through everything that the built-in ones have.

The run that is killed is a process of its own; the other commands share the programs of this one.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import families
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import from_functions
from bqnes_jax.report import write_report
from bqnes_jax.spaces import Product
from bqnes_jax.surrogates import FitConfig
from bqnes_jax.types import Status
from tests.conftest import KEEP_NOTHING
from tests.helpers import mlp
from tests.helpers.commands import call, start

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

# With bounds so narrow the noise sits at one of them, whatever is found.
BOUNDS = ["--fit.noise-bounds", "0.097", "0.1"]
# The kernel, whose fit is half of a step's program, is fitted in test_from_python.
FIT = [*BOUNDS, "--fit.kernel-steps", "0"]
FAST = {"batch": 1, "fit": FitConfig(kernel_steps=0)}  # the same from Python
SEARCH = ["--initial", "3", "--batch", "1", *FIT]
FAMILY = "tests.helpers.mlp:flax_family"
OF_FAMILY = ["--family", FAMILY]
TASK = [*OF_FAMILY, "--data", "my.npz", "--split", 300, 100, 169]


class House:
    """A folder with data; commands are given there."""

    def __init__(self, folder):
        self.folder = folder
        mlp.write_cancer(folder / "my.npz")
        np.save(folder / "new.npy", mlp.cancer().test.inputs[:4])
        self.call = functools.partial(call, folder)

    def done(self, *arguments):
        """Return what a command prints that has to succeed."""
        code, out, err = self.call(*arguments)
        assert code == 0, err
        return out, err


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Return a folder of commands; `test_from_python` has the family of functions."""
    return House(tmp_path_factory.mktemp("house"))


def run_command(out, budget=5):
    return ["run", *TASK, *SEARCH, "--ensemble-size", 2, "--budget", budget, "--out", out]


@pytest.fixture(scope="module")
def finished(house):
    """Return what a run of 5 candidates printed; it is in the folder `whole`."""
    return house.done(*run_command("whole"))


def ensemble_of(folder):
    content = json.loads((folder / "ensemble.json").read_text())
    return content["members"], content["weights"], content["architectures"]


def entries_in(folder):
    return sorted(path.name for path in (folder / "store" / "entries").glob("*.bqe"))


def arrays_in(path):
    with np.load(path) as content:
        return dict(content)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_ensemble(house, finished):
    out = house.folder / "killed"
    process = start(house.folder, *run_command("killed"), **KEEP_NOTHING)
    for _ in range(3000):
        if out.exists() and len(entries_in(out)) >= 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = entries_in(out)
    assert 3 <= len(kept) < 5 and not (out / "search.npz").exists()
    times = {name: (out / "store" / "entries" / name).stat().st_mtime_ns for name in kept}
    house.done(*run_command("killed"))
    assert ensemble_of(out) == ensemble_of(house.folder / "whole")
    assert entries_in(out) == entries_in(house.folder / "whole")
    for name, before in times.items():
        assert (out / "store" / "entries" / name).stat().st_mtime_ns == before, "not trained again"


@pytest.mark.slow
def test_a_run_grows(house, finished, monkeypatch):
    whole, grown = house.folder / "whole", house.folder / "grown"
    shutil.copytree(whole, grown)
    before, first = set(entries_in(whole)), arrays_in(whole / "search.npz")
    out, _ = house.done(*run_command("grown", budget=6))
    assert "6 candidates by BQ-L" in out
    assert before < set(entries_in(grown)) and len(entries_in(grown)) == 6
    after = arrays_in(grown / "search.npz")
    np.testing.assert_array_equal(after["archs"][:5], first["archs"])
    assert after["counts"].tolist() == [3, 4, 5, 6]
    out, _ = house.done(*run_command("grown", budget=5), "--algorithm", "us+beam")
    assert "6 candidates by us+beam" in out, "a run never becomes shorter"
    assert (
        len(entries_in(grown)) == 6
        and json.loads((grown / "ensemble.json").read_text())["method"] == "beam"
    )
    config = load(house, "grown").config
    monkeypatch.chdir(house.folder)
    bqnes_jax.search(config, family=mlp.flax_family, out=grown)
    assert load(house, "grown").config.family == FAMILY, "who it is stays"
    code, _, err = house.call("report", "grown")
    assert f"--family {FAMILY}" in err and code == 1
    code, _, err = house.call(*run_command("grown"), "--seed", 1)
    assert "has seed = 0, not 1" in err and code == 1


def load(house, name):
    return bqnes_jax.Run.load(house.folder / name, family=mlp.flax_family)


@pytest.mark.slow
def test_other_commands_are_told_the_family(house, finished):
    assert "depth=" in finished[0] and "5 candidates by BQ-L" in finished[0]
    out, _ = house.done("reselect", "whole", "--method", "top", "--size", 2, *OF_FAMILY)
    assert out.count("depth=") == 2
    out, _ = house.done("predict", "whole", "--input", "new.npy", *OF_FAMILY)
    rows = np.loadtxt(out.splitlines()[1:], delimiter=",")
    run = load(house, "whole")
    ensemble = run.saved_ensemble()
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-4)
    same = from_split(run)
    np.testing.assert_allclose(ensemble.predict(same), np.exp(ensemble.test_log_probs), atol=2e-3)
    house.done("report", "whole", *OF_FAMILY)
    page = (house.folder / "whole" / "report.html").read_text()
    assert "flax-mlp (product)" in page and "activation" in page


def from_split(run):
    """Return the test inputs as the command has cut them."""
    from bqnes_jax.runs import load_data

    config = run.config
    path = str(run.directory.parent / config.data)
    return load_data(type(config)(**{**vars(config), "data": path})).test.inputs


@pytest.mark.slow
def test_algorithms_are_compared_live(house, finished):
    search = [*SEARCH, "--budget", 5]
    more = ["--algorithms", "Random", "BQ-S", "--seeds", 2, "--sizes", 2]
    out, _ = house.done("compare", "--live", *TASK, *search, *more)
    assert "mean ± standard error over 2 seeds" in out
    folder = house.folder / "runs" / f"compare-{FAMILY.replace(':', '-')}-my"
    assert (folder / "comparison.csv").read_text().count("BQ-S") == 2


@pytest.mark.slow
def test_warnings_reach_people(house, finished):
    """The noise of the surrogate sits at a bound: one line says so, and the report."""
    warnings = [line for line in finished[1].splitlines() if line.startswith("warning: ")]
    run = load(house, "whole")
    assert Status.AT_BOUND in run.status, "otherwise this test shows nothing"
    assert len(warnings) == 1 and run.status.explain() in warnings[0]
    page = (house.folder / "whole" / "report.html").read_text()
    assert "Can it be trusted?" in page and run.status.explain().split(";")[0] in page


@pytest.mark.slow
def test_from_python(tmp_path):
    family, data, seen = mlp.family, mlp.cancer(), []
    result = bqnes_jax.search(
        family=family,
        data=data,
        budget=5,  # as in the run above, with most of its programs
        initial=3,
        batch=1,
        ensemble_size=2,
        out=tmp_path / "mine",
        progress=lambda *said: seen.append(said),
    )
    assert seen[-1] == (5, 5, "training")
    ensemble = result.ensemble(size=2)
    assert ensemble.metrics.accuracy > 0.85
    predicted = ensemble.predict(data.test.inputs)
    np.testing.assert_allclose(predicted, np.exp(ensemble.test_log_probs), atol=3e-3)
    page = write_report(result).read_text()
    assert "bqnes_jax.search(family=family, data=data, budget=5, …)" in page
    again = bqnes_jax.Run.load(tmp_path / "mine", family=family)
    assert again.ensemble(size=2).texts == ensemble.texts
    with pytest.raises(BQNESError, match=r"is of the family .*Run\.load\(directory, family="):
        bqnes_jax.Run.load(tmp_path / "mine")
    with pytest.raises(BQNESError, match=r"inputs have shape \(2, 7\); it must be \(n, 30\)"):
        ensemble.predict(np.zeros((2, 7)))


@pytest.mark.slow
def test_a_run_is_read_with_its_own_family(tmp_path):
    """Another space is refused; what trains otherwise is noticed, and can still be read."""

    def mine(space, train=mlp.train, pair=(1, 2)):
        return from_functions(space, train, mlp.predict, name="mine", manifest={"a pair": pair})

    def longer(key, choices, data):
        return mlp.train(key, choices, data)

    family, out = mine(mlp.SPACE), tmp_path / "mine"
    search = {"data": mlp.cancer(), "initial": 2, "out": out, **FAST}
    bqnes_jax.search(family=family, budget=2, ensemble_size=1, **search)
    with pytest.raises(BQNESError, match=r"is of Product.*, but the family 'mine' is of Product"):
        bqnes_jax.Run.load(out, family=mine(Product(depth=(1, 2), width=(8, 64)), pair=(3, 4)))
    with pytest.raises(BQNESError, match=r"is of the space .product., but .* is of .nats."):
        bqnes_jax.Run.load(out, family=families.CellFamily())
    with pytest.warns(UserWarning, match=r"trained with code_of_train = '\w+', the family that"):
        other = bqnes_jax.Run.load(out, family=mine(mlp.SPACE, longer))
    assert other.ensemble(1).texts == bqnes_jax.Run.load(out, family=family).ensemble(1).texts
    with pytest.raises(BQNESError, match="code_of_train"):
        bqnes_jax.search(family=mine(mlp.SPACE, longer), budget=3, ensemble_size=1, **search)


@pytest.mark.slow
def test_a_random_ensemble_stays_random_when_its_run_grows(tmp_path):
    from tests.families.test_families import FAMILIES

    family, data = FAMILIES["host"]
    search = {"family": family, "data": data, "algorithm": "Random", **FAST}
    small = bqnes_jax.search(**search, ensemble_size=2, out=tmp_path / "run")
    large = bqnes_jax.search(**search, ensemble_size=4, out=tmp_path / "run")
    assert len(large.record.archs) == 4 and set(large.ensemble().members) == {0, 1, 2, 3}
    assert large.ensemble(size=2).texts == small.ensemble().texts


@pytest.mark.slow
def test_a_built_in_family_as_an_object(tmp_path):
    """It is resumed as it was, and asked for when the run is read."""
    from tests.families.test_families import FAMILIES

    family, data = FAMILIES["cells"]
    search = {"family": family, "data": data, "initial": 2, "out": tmp_path / "run", **FAST}
    search["calibrate"] = "off"  # a temperature would magnify the rounding of the store
    run = bqnes_jax.search(budget=2, ensemble_size=1, **search)
    grown = bqnes_jax.search(budget=3, ensemble_size=1, **search)
    np.testing.assert_array_equal(grown.record.archs[:2], run.record.archs)
    with pytest.raises(BQNESError, match=r"is of the family '<nats>'"):
        bqnes_jax.Run.load(tmp_path / "run")
    again = bqnes_jax.Run.load(tmp_path / "run", family=family).saved_ensemble()
    np.testing.assert_allclose(
        again.predict(data.test.inputs), np.exp(again.test_log_probs), atol=3e-3
    )
    assert len(repr(again)) < 400 and again.run == again.run


@pytest.mark.slow
def test_an_estimator_of_scikit_learn(tmp_path):
    from tests.families.test_families import POINTS, SPACE, predict_sklearn, train_sklearn

    family = from_functions(SPACE, train_sklearn, predict_sklearn, jit=False)
    run = bqnes_jax.search(
        family=family, data=POINTS, budget=5, initial=3, out=tmp_path / "run", **FAST
    )
    ensemble = run.ensemble(size=2)
    assert ensemble.metrics.accuracy > 0.8
    assert "it cannot predict anew" in " ".join(ensemble.warnings())
    with pytest.raises(BQNESError, match="only what it predicted, and cannot predict anew"):
        ensemble.predict(POINTS.test.inputs)


BAD = {
    'search("digits")': "config is 'digits'; it must be a RunConfig: for a data set write data=",
    "search(dataset=(x, y))": "'dataset' is not a field of a run (did you mean 'data'?)",
    "search(data=(x, y))": "data is a tuple; it must be a name, the path of an .npz, or what",
    'search(train={"steps": 5})': "train is {'steps': 5}; it must be a TrainConfig",
    "search(family=3)": "family is a int; it must be a name, or a NetworkFamily",
    "search(prior=3)": "prior is 3; it must be a function of architectures, or its name",
    "search(bugdet=3)": "'bugdet' is not a field of a run (did you mean 'budget'?)",
    'search(family="no.such:family")': "there is no module 'no'",
    'search(data="none.npz")': "none.npz does not exist",
    "search(family=family, data=data, split=(1, 1, 1))": "data are arrays that are cut already",
    "search(family=family, data=data, train=3)": "the family decides how it trains",
    "search(data=data)": "they must be uint8 of shape (n, height, width, channels)",
    "search(family=family, data=data, budget=1000)": "has 24 architectures: ask for at most",
    "search(family=family, data=data, budget=12, executor=3, workers=2)": "executor is a int; it",
    "from_arrays(x, y.astype(str))": "labels are text",
    "from_arrays(x, y + 1)": "labels are from 1 to 2",
    "from_arrays(x, y, split=(300, 0, 100))": "the size of valid is 0",
    "from_functions(NATS, len, len)": "it must have decode(arch)",
    "from_functions(mlp.SPACE, None, len)": "train is None; it must be a function",
    'from_flax(mlp.SPACE, len, {"epochs": 3})': "it must be a bqnes_jax.training.Recipe",
}


@pytest.mark.slow
def test_bad_input_gets_a_sentence(tmp_path):
    """As users call it: without the checks of types that the other tests run under."""
    code = f"""
import sys, warnings
from bqnes_jax import BQNESError, search
from bqnes_jax.data import from_arrays
from bqnes_jax.families import from_flax, from_functions
from bqnes_jax.spaces import NATS
from tests.helpers import mlp
from tests.helpers.commands import call, start
data, family = mlp.cancer(), mlp.family
x, y = data.train
for call in {list(BAD)}:
    try:
        eval(call)
    except BQNESError as error:
        print(str(error).replace(chr(10), " "))
    else:
        print("nothing")
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.returncode == 0, process.stderr
    for (typed, says), said in zip(BAD.items(), process.stdout.splitlines(), strict=True):
        assert says in said, typed
