"""What the commands take and print, without training: config files, flags, progress, completion."""

import ast
import dataclasses
import importlib
import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import bqnes_jax
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.cli import main, shell
from bqnes_jax.cli.compare import CompareCommand
from bqnes_jax.cli.run import RunCommand, summarise
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import KernelConfig
from bqnes_jax.runs import RunConfig, TaskConfig, configure
from bqnes_jax.surrogates import FitConfig, WarpConfig
from tests.helpers.reported import make_run

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parsed(monkeypatch):
    """Return a function from flags to the command that they make, which is not called."""
    made = []
    for kind in (RunCommand, CompareCommand):
        monkeypatch.setattr(kind, "__call__", lambda command: made.append(command))

    def parse(*flags):
        assert main(list(map(str, flags))) == 0
        return made.pop()

    return parse


def test_a_config_file_takes_what_flags_take(parsed, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "preset: small\nout: there\nworkers: 2\nbudget: 30\nkernel: {iterations: 2}\n"
        "algorithm: us+beam\nseed: 4\ntrain: {steps: 9}\n"
    )
    told = parsed("run", "--config", path)
    flags = ["--preset", "small", "--out", "there", "--workers", 2, "--budget", 30]
    flags += ["--kernel.iterations", 2, "--algorithm", "us+beam", "--seed", 4, "--train.steps", 9]
    given = parsed("run", *flags)
    assert (told.search, told.task, told.preset) == (given.search, given.task, given.preset)
    assert (told.out, told.workers, told.algorithm) == (Path("there"), "2", "us+beam")
    assert told.search.budget == 30 and told.task.train.steps == 9
    path.write_text(
        "kernel.iterations: 2\nkernel: {layer-weights: fitted}\nimage-size: 6\ntrain.steps: 9\n"
    )
    flags = ["--kernel.iterations", 2, "--kernel.layer-weights", "fitted", "--image-size", 6]
    named, given = parsed("run", "--config", path), parsed("run", *flags, "--train.steps", 9)
    assert named == dataclasses.replace(given, config=path)
    path.write_text("budget: 30\npreset: small")
    stronger = parsed("run", "--config", path, "--budget", 40, "--preset", "tiny")
    assert stronger.search.budget == 40 and stronger.preset == "tiny"


def test_a_config_file_of_a_comparison_has_its_flags(parsed, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("algorithms: [BQ-S, Random]\nsizes: [2, 3]\nseeds: 4\ncalibrate: false\n")
    told = parsed("compare", "--config", path)
    assert (told.algorithms, told.sizes) == (("BQ-S", "Random"), (2, 3))
    assert told.seeds == 4 and told.calibrate is False and told.search.budget == 150
    path.write_text("budget: 60")
    assert parsed("compare", "--config", path).search.budget == 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("search: {budget: x}", "search.budget is 'x'"),
        ("search: {budget: 5}", "search.budget is 5, less than the 10"),
        ("budget: 5", "search.budget is 5, less than the 10"),
        ("kernel: {iterations: -1}", "search.kernel.iterations is -1"),
        ("fit: {noise_bounds: [3, 1]}", "search.fit.noise_bounds is (3.0, 1.0)"),
        ("train: {network: {channels: 0}}", "train.network.channels is 0"),
        ("ensemble_size: 0", "ensemble_size is 0"),
        ("preset: smal", "preset is 'smal'"),
        ("out: 5", "out is 5; it must be a path or null"),
        ("{budget: 30, search: {budget: 3}}", "'budget' beside search; write it once"),
    ],
)
def test_errors_of_a_config_file_name_the_whole_path(text, says, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main(["run", "--config", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}") and says in error


def test_from_python_a_file_may_have_fields_of_a_search_too(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("budget: 30")
    assert configure("tiny", path).search.budget == 30
    path.write_text("budget: 3")
    with pytest.raises(BQNESError, match=r"c\.yaml: search\.budget is 3, less than"):
        configure("tiny", path)


def test_the_flags_that_the_documents_name_exist(capsys):
    """Of the commands; flags of other programs are listed."""
    known = {"help", "version", "debug", "space", "completion"}
    for command in ("run", "compare", "combine", "reselect", "predict", "report", "robustness"):
        known |= _help_of(capsys, command)
    known |= _help_of(capsys, "tabulate") | _help_of(capsys, "nats", "import")
    known |= _help_of(capsys, "data", "prepare")
    known |= _help_of(capsys, "run", "--family", "slimmable")
    others = {"all", "cov", "seeded", "python", "packages"}  # of pytest and scripts
    others |= {"nodes", "ntasks-per-node", "gpus-per-node"}  # of srun
    for name in ("README.md", "notebooks/README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9.-]*[a-z0-9])", text))
        assert not named - known - others, name


def _help_of(capsys, *command):
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return set(re.findall(r"--(?:no-)?([a-z][a-z0-9.-]*[a-z0-9])", capsys.readouterr().out))


def test_help_of_a_search_has_every_field():
    text = bqnes_jax.search.__doc__
    titles = re.findall(r"^Fields of .*:$", text, re.MULTILINE)
    assert len(titles) == len(set(titles)) == 5
    for kind in (TaskConfig, RunConfig, SearchConfig, KernelConfig, WarpConfig, FitConfig):
        for name in kind.__dataclass_fields__:
            assert re.search(rf"^ +{name}: \w", text, re.MULTILINE) or name == "_", name


@pytest.mark.parametrize("name", ["", *(f".{package}" for package in bqnes_jax._PACKAGES)])
def test_completion_shows_nothing_that_is_imported_from_elsewhere(name):
    module = importlib.import_module(f"bqnes_jax{name}")
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and not node.module.startswith("bqnes_jax"))
        for alias in node.names
    }
    shown = {one for one in dir(module) if not one.startswith("_")} - {"jaxtyping"}  # by the tests
    assert shown and not shown & imported
    for one in shown:
        value = getattr(module, one)
        own = not isinstance(value, types.ModuleType) or value.__name__.startswith("bqnes_jax")
        assert own, one


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_the_shell_can_complete(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--completion", name])
    printed = capsys.readouterr().out
    assert ended.value.code in (0, None) and "ensemble-size" in printed
    assert main(["--completion"]) == main(["--completion", "fishy"]) == 2
    assert "bash, zsh, tcsh" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--completion" in capsys.readouterr().out


def test_what_is_left_is_told_by_what_was_done_since_the_first():
    assert shell.estimate_left(None, None, None, 50.0) is None
    assert shell.estimate_left((10, 30.0), (10, 30.0), 40.0, 31.0) is None
    assert shell.estimate_left((10, 30.0), (20, 40.0), 40.0, 40.0) == 20
    assert shell.estimate_left((10, 30.0), (20, 40.0), 40.0, 45.0) == 15, "it counts down"
    assert shell.estimate_left((10, 30.0), (20, 40.0), 40.0, 99.0) is None, "it is overdue"
    assert shell.estimate_left((10, 30.0), (40, 60.0), 40.0, 60.0) == 0


def test_progress_in_a_terminal(monkeypatch):
    """While a program is compiled nothing is said to be left; the count comes with the first."""
    out = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(shell, "console", lambda stderr: out)
    with shell.progress_bar("training") as progress:
        before = out.export_text()
        progress(4, 8)
        progress(8, 8, "training")
    after = out.export_text()
    assert "compiling" in before and "?" not in before and " left" not in before
    assert "8/8" in after and "0:00:00 left" in after and "compiling" not in after.split("8/8")[1]


def test_classes_are_told_with_confidence_and_entropy():
    shown = summarise(np.array([[0.25] * 4, [0.0, 0.0, 1.0, 0.0]], np.float32))
    np.testing.assert_allclose(shown, [[0, 0.25, np.log(4)], [2, 1, 0]], rtol=1e-6)
    assert not np.signbit(shown).any()


@pytest.mark.slow
def test_runs_and_ensembles_are_written_in_a_line(tmp_path):
    run = make_run(tmp_path)
    assert repr(run) == f"Run({str(tmp_path)!r}, BQ-S on toy, 9 networks of nats)"
    text = repr(run.saved_ensemble())
    assert text.startswith("Ensemble(restack, #") and "temperature" in text and len(text) < 120


def test_xla_is_silent_about_slow_compiling():
    code = (
        "import os, sys; sys.argv = ['bqnes', '--version']; from bqnes_jax.entry import main; "
        "main(); print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.split()[-1] == "3"
