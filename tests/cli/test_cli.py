"""The command line as a person uses it: a small run, stopped as a process, and what follows."""

import json
import shutil
import signal
import time

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax.cli import main
from bqnes_jax.errors import BQNESError
from bqnes_jax.runs import Run, load_data
from bqnes_jax.storage import DamagedEntryWarning
from bqnes_jax.studies import robustness
from bqnes_jax.tables import numbers_of
from tests.conftest import KEEP_NOTHING
from tests.helpers.commands import call, finish, start

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

# The small run of several files, each with the programs that the first of them has compiled.
TASK = {
    "image_size": 4,
    "split": [40, 50, 60],
    "train": {"steps": 4, "batch": 20, "chunk": 2, "network": {"channels": 1}},
}
SEARCH = {"initial": 4, "budget": 8, "batch": 2, "fit": {"kernel_steps": 0}}  # half of a step
SMALL = {"search": SEARCH, **TASK}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a directory with a config file."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "small.yaml").write_text(json.dumps(SMALL))  # JSON is YAML
    return folder


def home(folder):
    """Return an environment in which programs are kept where users have theirs."""
    return {"JAX_COMPILATION_CACHE_DIR": None, "XDG_CACHE_HOME": str(folder / "cache")}


@pytest.fixture(scope="module")
def finished(folder):
    """Return what a run prints here; that of a process is compared with it below."""
    code, out, err = call(folder, "run", "--config", "small.yaml", "--out", "run")
    assert code == 0, err
    return out, err


def test_a_run_prints_its_table_and_leaves_everything_behind(folder, finished):
    out, err = finished
    for name in ("Best single", "BQ-S", "BQ-R", "beam", "corrective"):
        assert name in out
    assert "training: 8 of 8" in err and "training" not in out.replace("training data", "")
    assert "report: run/report.html" in out and (folder / "run" / "report.html").is_file()
    run = Run.load(folder / "run")
    assert run.config.search.budget == 8 == len(run.record.archs) == len(run.store.keys())
    assert run.versions["bqnes-jax"] == bqnes_jax.__version__


@pytest.mark.slow
def test_the_ensemble_predicts_what_it_said_about_the_test_images(folder, finished):
    run = Run.load(folder / "run")
    ensemble = run.saved_ensemble()
    assert ensemble.method == "logpool" and ensemble.size == 3
    np.testing.assert_array_equal(ensemble.members, run.ensemble().members)
    test = load_data(run.config).test
    predicted = ensemble.predict(test.inputs)
    np.testing.assert_allclose(
        predicted, np.exp(ensemble.test_log_probs), atol=2e-3
    )  # float16 stored
    np.testing.assert_array_equal(ensemble.predict(test.inputs[..., 0].astype(float)), predicted)

    np.save(folder / "x.npy", test.inputs[:7])
    assert (
        main(
            [
                "predict",
                str(folder / "run"),
                "--input",
                str(folder / "x.npy"),
                "--out",
                str(folder / "p.npy"),
            ]
        )
        == 0
    )
    np.testing.assert_allclose(np.load(folder / "p.npy"), predicted[:7], atol=1e-6)
    code, out, err = finish(start(folder, "predict", "run", "--input", "x.npy", **home(folder)))
    assert code == 0, err
    printed = np.genfromtxt(out.splitlines(), delimiter=",", skip_header=1)
    np.testing.assert_allclose(printed, predicted[:7], atol=1e-6)
    assert any((folder / "cache" / "bqnes-jax").iterdir()), "programs are kept for users"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((3, 5, 5)), r"shape \(3, 5, 5, 1\); it must be \(n, 4, 4, 1\)"),
        (np.zeros((0, 4, 4)), "it must be"),
        (np.full((1, 4, 4), np.nan), "not a real number"),
        (np.full((1, 4, 4), 256.0), "from 256 to 256; they must be from 0 to 255"),
        (np.full((1, 4, 4), 1j), "not a real number"),
        (np.array(["a"] * 16).reshape(1, 4, 4), "not a real number"),
    ],
)
def test_images_that_are_refused(folder, finished, images, says):
    run = Run.load(folder / "run")
    shrunk = images.shape[1] == 5
    ensemble = run.saved_ensemble()
    if shrunk:  # this run shrinks images itself
        assert ensemble.predict(images + 200).shape == (3, 10)
        ensemble = bqnes_jax.Ensemble(
            bqnes_jax.Run(run.directory, bqnes_jax.configure("tiny"), run.family, run.record),
            *(getattr(ensemble, name) for name in ("method", "size", "members", "weights")),
        )
    with pytest.raises(BQNESError, match=says):
        ensemble.predict(images)


def test_dark_images_are_asked_about(folder, finished):
    ensemble = Run.load(folder / "run").saved_ensemble()
    with pytest.warns(UserWarning, match="were they scaled to 0 … 255"):
        ensemble.predict(np.full((1, 4, 4), 16.0))


@pytest.mark.slow
def test_the_ensemble_is_tested_on_corrupted_images(folder, finished, capsys, monkeypatch):
    """A second time only what is new is measured, unless the ensemble is another."""
    shutil.copytree(folder / "run", folder / "shifted")
    asked = []
    measure = robustness.study

    def counted(predict, weights, shifted, under, **options):
        asked.append(list(under))
        return measure(predict, weights, shifted, under, **options)

    monkeypatch.setattr(robustness, "study", counted)
    command = ["robustness", str(folder / "shifted"), "--severities", "5", "--corruptions"]
    robustness.of_run(Run.load(folder / "shifted"), ("contrast",), severities=(5,))
    assert main([*command, "contrast", "gaussian_noise"]) == 0
    assert asked == [[("clean", 0), ("contrast", 5)], [("gaussian_noise", 5)]]
    out = capsys.readouterr().out
    assert "averaged over 2 corruptions" in out and "gaussian_noise" in out
    page = (folder / "shifted" / "report.html").read_text()
    assert "How good is it on other images?" in page and ">gaussian noise</th>" in page
    assert (folder / "shifted" / "plots" / "shift-ece.png").is_file()
    run = Run.load(folder / "shifted")
    own = run.saved_ensemble().metrics
    study, of_images = robustness.read_study(run)
    np.testing.assert_allclose(study.clean[0], own, rtol=1e-2, atol=0.02)
    assert study.corruptions == ("contrast", "gaussian_noise") and of_images == "corrupted here"
    whole = (folder / "shifted" / "robustness.json").read_text()
    (folder / "shifted" / "robustness.json").write_text(whole[:-20])
    with pytest.warns(DamagedEntryWarning, match="counts as not measured"):
        assert robustness.read_study(run) is None
    (folder / "shifted" / "robustness.json").write_text(whole)

    run.ensemble(2, "top").save()
    assert robustness.read_study(run) is None
    assert main([*command, "rain"]) == 1
    assert "corruption is 'rain'; allowed are" in capsys.readouterr().err


@pytest.mark.slow
def test_another_ensemble_is_selected_without_training(folder, finished, capsys):
    shutil.copytree(folder / "run", folder / "copy")
    before = {path: path.stat().st_mtime_ns for path in (folder / "copy" / "store").rglob("*")}
    assert main(["reselect", str(folder / "copy"), "--method", "beam", "--size", "2"]) == 0
    assert "beam" in capsys.readouterr().out
    assert Run.load(folder / "copy").saved_ensemble().method == "logpool"
    assert (
        main(["reselect", str(folder / "copy"), "--method", "beam", "--size", "2", "--save"]) == 0
    )
    saved = Run.load(folder / "copy").saved_ensemble()
    assert saved.method == "beam" and saved.weights.tolist() == [0.5, 0.5]
    assert main(["report", str(folder / "copy")]) == 0
    assert "beam" in (folder / "copy" / "report.html").read_text()
    assert before == {
        path: path.stat().st_mtime_ns for path in (folder / "copy" / "store").rglob("*")
    }


@pytest.mark.slow
def test_ctrl_c_stops_and_the_same_command_goes_on_to_the_same_result(folder, finished):
    for attempt in range(3):  # a process may be done before this one looks
        name = f"stopped-{attempt}"
        command = ("run", "--config", "small.yaml", "--out", name)
        process = start(folder, *command, **KEEP_NOTHING)
        entries, deadline = folder / name / "store" / "entries", time.time() + 300
        while not list(entries.glob("*.bqe")) and time.time() < deadline:
            time.sleep(0.02)
        done = (folder / name / "report.html").exists()
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process, timeout=60)
        if not done:
            break
    assert code == 130
    assert f"Stopped. What was trained is in {name}; the same command goes on" in err
    assert "Traceback" not in err
    stored = len(list(entries.glob("*.bqe")))
    assert 0 < stored < 8

    code, out, err = finish(start(folder, *command))
    assert code == 0, err
    assert out.replace(name, "run") == finished[0]
    a, b = (Run.load(folder / which).record for which in (name, "run"))
    for field in a._fields:
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    ensembles = [(folder / which / "ensemble.json").read_bytes() for which in (name, "run")]
    assert ensembles[0] == ensembles[1]


def said(capsys, *arguments):
    """Return what a command that fails says, one line."""
    assert main(list(arguments)) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    return captured.err


def test_errors_are_one_line_with_what_to_do(folder, finished, capsys):
    run = str(folder / "run")
    config = str(folder / "small.yaml")
    assert "is not a run: it has no config.json" in said(capsys, "report", str(folder / "none"))
    assert "has seed = 0, not 1; use another directory" in said(
        capsys, "run", "--config", config, "--out", run, "--seed", "1"
    )
    assert "is there already" in said(
        capsys, "run", "--config", config, "--out", run, "--no-resume"
    )
    assert "data set 'moon' is not known" in said(capsys, "run", "--data", "moon", "--out", run)
    assert "algorithm is 'NES-BS', which needs results" in said(
        capsys, "run", "--algorithm", "NES-BS", "--out", str(folder / "new")
    )
    assert not (folder / "new").exists()
    assert "method is 'best'; allowed are" in said(capsys, "reselect", run, "--method", "best")
    huge = said(capsys, "reselect", run, "--size", str(10**9))
    assert f"size is {10**9}; it must be a whole number, from 1 to" in huge
    assert "is not there" in said(capsys, "predict", run, "--input", "none.npy")
    assert "must end in .npy or .csv" in said(
        capsys, "predict", run, "--input", "x.npy", "--out", "x.txt"
    )
    assert "preset is 'huge'" in said(capsys, "run", "--preset", "huge")
    with pytest.raises(BQNESError):
        main(["report", str(folder / "none"), "--debug"])
    assert "batch is 512 but there are 300" in said(
        capsys, "run", "--train.batch", "512", "--out", str(folder / "new")
    )
    assert "batch is 0; it must be" in said(capsys, "run", "--train.batch", "0")
    assert not (folder / "new").exists()
    with pytest.raises(SystemExit) as exit_code:
        main(["run", "--bugdet", "3"])
    assert exit_code.value.code == 2


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"bqnes {bqnes_jax.__version__}\n"


def test_what_was_renamed_or_is_wrong_is_refused_as_a_flag(capsys):
    """With a code of 2, and without anything done."""
    for flags in (
        ["run", "--dataset", "digits"],
        ["run", "--pretrained", "here"],
        ["run", "--data.size", "4"],
        ["spaces"],
    ):
        with pytest.raises(SystemExit) as exit_code:
            main(flags)
        assert exit_code.value.code == 2, flags
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--family", "moon"],
            "family is 'moon'; allowed are 'nats', 'slimmable', 'shared', 'darts', or 'package.",
        ),
        (["--family", "moon.light:family"], "there is no module 'moon'"),
        (["--family", "json:loads"], "the module holds a function there"),
        (["--image-size", "9"], "size is 9; it must be a whole number, from 1 to 8"),
        (["--split", "1000", "1000", "1000"], "valid needs 1000 examples, and 797 of the 1797"),
        (["--split-file", "none.json"], "none.json cannot be read"),
        (["--split-file", "none.json", "--split", "1", "2", "3"], "none.json cannot be read"),
        (["--train.seeds", "2"], "train.seeds is 2"),
        (
            ["--family", "slimmable", "--train.pretrained", "here", "--train.batch", "512"],
            "batch is 512 but there are 300",
        ),
    ],
)
def test_what_is_trained_is_checked_before_anything_is_done(flags, says, tmp_path, capsys):
    assert says in said(capsys, "run", *flags, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["config.json", "search.npz", "ensemble.json"])
def test_a_damaged_run_is_refused(folder, finished, tmp_path, name):
    shutil.copytree(folder / "run", tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BQNESError, match=name):
        Run.load(tmp_path / "run").saved_ensemble()
    path.unlink()
    with pytest.raises(BQNESError):
        Run.load(tmp_path / "run").saved_ensemble()


def test_data_are_prepared_and_listed(tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 1)).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(20) % 4)
    place = ["--directory", str(tmp_path / "data")]
    assert main(["data", "prepare", "mine", "--from", str(tmp_path / "mine.npz"), *place]) == 0
    assert "prepared: " in capsys.readouterr().out
    assert main(["data", "list", *place]) == 0
    out = capsys.readouterr().out
    assert "mine" in out and "prepared" in out and "bqnes data prepare cifar10 --from" in out
    assert "is there already" in said(
        capsys, "data", "prepare", "mine", "--from", str(tmp_path / "mine.npz"), *place
    )
    assert main(["families"]) == 0
    out = capsys.readouterr().out
    assert "15,625" in out and "slimmable" in out and "--family package.module:family" in out


@pytest.mark.slow
def test_a_table_is_made_and_compared_on(folder, finished, tmp_path, capsys):
    """With the program of the run, which is in the cache already."""
    (folder / "task.yaml").write_text(json.dumps(TASK))
    tabulate = ("tabulate", "--config", "task.yaml", "--count", "6", "--best", "2")
    where = ("--store", "store", "--table", "table.npz")
    code, out, err = call(folder, *tabulate, *where)
    assert code == 0, err
    assert "table: table.npz" in out and "training: 6 of 6" in err
    code, _, err = call(folder, *tabulate, *where)
    assert code == 0 and err.strip() == "training: 6 of 6", "all were there"
    known = ("--known", "table.npz", "--store", "more", "--table", "larger.npz")
    code, out, err = call(folder, *tabulate, "--count", "8", *known)
    assert code == 0 and "training: 2 of 2" in err, "what is known is not trained again"
    assert len(numbers_of(folder / "larger.npz")) == 8
    code, _, err = call(folder, *tabulate, *known)
    assert code == 1 and "the known tables have all of the 6 cells" in err
    again = ("--again", "table.npz", "--count", "3", "--seed", "5", "--store", "store")
    code, _, err = call(folder, *tabulate, *again, "--table", "again.npz")
    assert code == 0 and "training: 3 of 3" in err, "from other weights"
    assert set(numbers_of(folder / "again.npz")) < set(numbers_of(folder / "table.npz"))
    code, _, err = call(folder, *tabulate, *where, "--points", "1000")
    assert code == 1 and "points is 1000; it must be a whole number, from 1 to 50" in err
    compare = ["compare", "--table", str(folder / "table.npz"), "--algorithms", "Random"]
    compare += ["--sizes", "2", "--seeds", "2", "--initial", "2", "--budget", "4"]
    assert main([*compare, "--out", str(tmp_path / "out")]) == 0
    assert "Random" in capsys.readouterr().out
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == [f"comparison.{ending}" for ending in ("csv", "md", "tex", "txt")]
    assert "are those of the table" in said(capsys, "compare", "--data", "mnist")
    refused = said(capsys, "tabulate", "--family", "slimmable")
    assert "of the space 'slimmable'; a table is of the space 'nats'" in refused
    assert "must end in .npz" in said(capsys, "tabulate", "--table", "digits")
