"""The commands `bqnes nats import` and `bqnes nats check`."""

import os
from pathlib import Path

import numpy as np
import pytest

from bqnes_jax.cli import main
from bqnes_jax.nats_bench.results import empty, read_results, write_results
from tests.helpers.pictures import images

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def whole_table(path, log_evidence, accuracy, dataset="cifar100"):
    """Write a table of equal architectures that comes down to these figures."""
    results = empty(dataset)
    points = {"cifar100": 5000, "imagenet16-120": 3000, "cifar10": 25_000}[dataset]
    results.valid_losses[:] = -log_evidence * 128 / points
    results.test_accuracies[:, :2] = 0.3
    results.test_accuracies[7, :2] = accuracy - 0.01, accuracy + 0.01
    results.imported[:] = True
    write_results(path, results)
    return str(path)


def run(capsys, *arguments):
    code = main(["nats", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("dataset", "figures"),
    [("cifar100", (-50.043, 0.7351)), ("imagenet16-120", (-53.367, 0.4731))],
)
def test_check(tmp_path, capsys, dataset, figures):
    path = whole_table(tmp_path / "t.npz", *figures, dataset)
    code, out, err = run(capsys, "check", path)
    assert code == 0 and err == "" and out.count("ok") == 2 and "differs" not in out
    assert f"{figures[0]:.3f}" in out and f"{figures[1]:.2%}" in out
    for wrong in ((figures[0] + 0.002, figures[1]), (figures[0], figures[1] - 0.0002)):
        path = whole_table(tmp_path / "t.npz", *wrong, dataset)
        code, out, err = run(capsys, "check", path)
        assert code == 1 and out.count("ok") == 1 and out.count("differs") == 1
        assert "differs from the benchmark; import it again" in err


def test_check_of_what_cannot_be_checked(tmp_path, capsys):
    results = empty("cifar100")
    results.imported[:3] = True
    write_results(tmp_path / "t.npz", results)
    code, _, err = run(capsys, "check", tmp_path / "t.npz")
    assert code == 1 and "has 3 of 15,625 architectures; import the rest" in err
    path = whole_table(tmp_path / "t.npz", -10, 0.9, "cifar10")
    code, _, err = run(capsys, "check", path)
    assert code == 1 and "is of cifar10; only cifar100 and imagenet16-120 are known" in err
    missing = read_results(Path(whole_table(tmp_path / "u.npz", -50.043, 0.7351)))
    missing.valid_losses[5, 0] = np.nan
    write_results(tmp_path / "u.npz", missing)
    code, out, _ = run(capsys, "check", tmp_path / "u.npz")
    assert code == 1 and "nan" in out


@pytest.mark.slow
def test_import(archive, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        capsys, "import", "--archive", archive, "--dataset", "cifar100", "--count", 6
    )
    assert code == 0 and "reading: 6 of 6" in err
    assert out == ("table: nats-cifar100.npz (6 architectures; with seed 777: 5, 888: 6, 999: 2)\n")
    assert read_results(tmp_path / "nats-cifar100.npz").imported.sum() == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "has 6 of 15,625 architectures, 000006.pickle.pbz2 is not there"),
        (("--count", 6, "--table", "t.npy"), "table is t.npy; it must end in .npz"),
        (("--count", 6, "--seed", 888), "are about predictions; give --store"),
        (("--count", 6, "--store", "s", "--directory", "d"), "is not in d; get it with: curl"),
    ],
)
def test_imports_that_cannot_be_done(archive, tmp_path, capsys, monkeypatch, flags, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "import", "--archive", archive, "--dataset", "cifar100", *flags)
    assert code == 1 and out == "" and err.count("\n") == 1 and says in err
    assert os.listdir(tmp_path) == [archive.name]


def test_the_half_that_cifar10_was_trained_on_must_be_known(archive, tmp_path, capsys):
    flags = ("--archive", archive, "--dataset", "cifar10", "--store", tmp_path / "s")
    code, _, err = run(capsys, "import", *flags)
    assert code == 1 and "cifar10 needs --split-file" in err


def test_predictions_need_weights(archive, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, test = images(20, 8, 3), images(10, 8, 3)
    np.savez("cifar100.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    flags = ("--dataset", "cifar100", "--store", "s", "--directory", ".", "--count", 6)
    code, _, err = run(capsys, "import", "--archive", archive, *flags)
    assert code == 1 and "has no trained weights, which predictions need" in err
