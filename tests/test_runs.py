"""Runs on the slimmable space: a supernet is trained, searched, and its slices predict."""

import dataclasses

import numpy as np
import pytest

import bqnes_jax
from bqnes_jax import robustness, runs
from bqnes_jax.cli import main
from bqnes_jax.config import PRESETS, load_data, updated
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_json
from bqnes_jax.runs import measure

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CONFIG = updated(
    PRESETS["tiny"],
    {
        "space": "slimmable",
        "algorithm": "NES-RE",
        "ensemble_size": 2,
        "search": {"initial": 3, "budget": 6, "batch": 3, "population": 3, "samples": 8},
        "data": {"size": 8, "split": [40, 20, 30]},
        "supernet": {
            "steps": 6,
            "batch": 20,
            "save_every": 3,
            "network": {
                "space": {"blocks": 2, "layers": 2, "widths": 2},
                "channels": [3, 4],
                "strides": [1, 2],
                "expansion": 2,
                "stem": 3,
                "head": 5,
            },
        },
    },
)


def test_slices_are_searched_and_the_ensemble_predicts(tmp_path):
    seen, trained = [], []
    run = bqnes_jax.search(
        CONFIG,
        tmp_path / "run",
        lambda done, total: trained.append((done, total)),
        lambda done, total: seen.append((done, total)),
    )
    assert seen == [(3, 6), (6, 6)] and trained[-1] == (6, 6)
    texts = {run.space.to_string(arch) for arch in run.found.archs}
    assert len(texts) == 6 == len(run.store.keys())
    assert all(run.space.is_canonical(arch) for arch in run.found.archs)

    again = runs.Run.load(tmp_path / "run")
    ensemble = again.saved_ensemble()
    test = load_data(CONFIG)[1].test
    predicted = ensemble.predict(test.images)
    np.testing.assert_allclose(predicted, ensemble.test_probabilities, atol=2e-3)  # float16 stored
    assert ensemble.weights.tolist() == [0.5, 0.5]

    study = robustness.of_run(again, ("contrast",), (5,))
    of_clean = [measure(predicted, test.labels), again.ensemble(1, "top").metrics]
    np.testing.assert_allclose(study.clean, np.array(of_clean), atol=0.02)
    assert study.shifted.shape == (2, 1, 1, 3) and np.isfinite(study.shifted).all()

    steps = []
    other = dataclasses.replace(CONFIG, algorithm="random+beam")
    bqnes_jax.search(
        other,
        tmp_path / "other",
        supernet_progress=lambda done, total: steps.append(done),
        supernet=tmp_path / "run" / "supernet",
    )
    assert not steps, "the supernet was not trained again"
    (tmp_path / "run" / "supernet.npy").unlink()
    with pytest.raises(BQNESError, match=r"supernet\.npy is damaged or not there"):
        ensemble.predict(test.images)
    other = dataclasses.replace(CONFIG, seed=1)
    with pytest.raises(BQNESError, match="has seed = 0, not 1"):
        bqnes_jax.search(other, tmp_path / "run")


def test_algorithms_are_compared_on_slices(tmp_path, capsys):
    """From the command line, with a config file."""
    differing = {name: dataclasses.asdict(CONFIG)[name] for name in ("data", "search", "supernet")}
    write_json(tmp_path / "config.json", differing)
    command = ["compare", "--space", "slimmable", "--config", str(tmp_path / "config.json")]
    command += ["--algorithms", "Random", "NES-RE", "--sizes", "2", "--seeds", "2"]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 0
    lines = (tmp_path / "out" / "comparison.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["Random", "2", "0"],
        ["Random", "2", "1"],
        ["NES-RE", "2", "0"],
        ["NES-RE", "2", "1"],
    ]
    assert "over 2 seeds" in capsys.readouterr().out


def test_both_a_config_and_fields_are_refused():
    with pytest.raises(BQNESError, match="both a config and 'seed' are given"):
        bqnes_jax.search(CONFIG, seed=3)
