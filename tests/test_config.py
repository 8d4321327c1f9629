"""Configs: presets, files, and what is refused before anything is done."""

import dataclasses
import json

import pytest

from bqnes_jax.config import PRESETS, RunConfig, configure, load_data, train_config, updated
from bqnes_jax.errors import BQNESError

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def test_a_file_changes_a_preset_and_fields_change_both(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "seed: 3\nsearch: {budget: 60, warp: {temperature: 64}}\n"
        "data: {size: 4, split: [100, 0.1, 50]}\ntrain: {learning_rate: 1, network: {cells: 2}}\n"
    )
    config = configure("tiny", path, seed=4, batch=2)
    assert (config.seed, config.search.budget, config.search.batch) == (4, 60, 2)
    assert config.search.initial == PRESETS["tiny"].search.initial
    assert config.search.warp.temperature == 64 and config.data.split == (100, 0.1, 50)
    assert config.train.network.cells == 2 and config.train.network.channels == 4
    path.write_text("train: {learning_rate: 1e-3, weight_decay: 5E-04}")
    assert configure("tiny", path).train.learning_rate == 0.001
    (tmp_path / "empty.yaml").write_text("")
    assert configure("paper", tmp_path / "empty.yaml") == PRESETS["paper"]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_config_survives_json(preset, tmp_path):
    config = PRESETS[preset]
    content = json.loads(json.dumps(dataclasses.asdict(config)))
    assert updated(RunConfig(), content) == config
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert configure("tiny", tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sed: 3", r"c\.yaml has 'sed'; allowed are space, dataset, seed"),
        ("seed: [1]", r"c\.yaml: seed is \(1,\); it must be a whole number"),
        ("seed: true", r"seed is True; it must be a whole number"),
        ("search: {budget: 0.5}", r"search\.budget is 0\.5; it must be a whole number"),
        ("search: {budget: 3}", r"budget is 3"),
        ("data: {split: [1, 2]}", r"data\.split is \(1, 2\); it must be a list of 3"),
        ("train: {network: {layout: fast}}", r"layout is 'fast'; it must be 'auto' or"),
        ("train: 3", r"train is 3; it must be fields: network, seeds"),
        ("space: moon", "space is 'moon'; allowed are 'nats', 'slimmable'"),
        ("- seed", r"c\.yaml holds no fields"),
        ("seed: [", r"c\.yaml is neither YAML nor JSON"),
    ],
)
def test_files_that_are_refused(tmp_path, text, says):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(BQNESError, match=says):
        configure("tiny", path)


def test_other_things_that_are_refused(tmp_path):
    with pytest.raises(BQNESError, match="preset is 'huge'; allowed are 'tiny'"):
        configure("huge")
    with pytest.raises(BQNESError, match="'bugdet' is not a field of a run"):
        configure("tiny", bugdet=3)
    with pytest.raises(BQNESError, match="cannot be read"):
        configure("tiny", tmp_path / "none.yaml")
    config = updated(PRESETS["tiny"], {"train": {"seeds": 2}})
    with pytest.raises(BQNESError, match=r"train\.seeds is 2"):
        train_config(config, 10)


def test_the_number_of_classes_is_that_of_the_data():
    config = updated(PRESETS["tiny"], {"train": {"network": {"classes": 77}}, "data": {"size": 4}})
    dataset, data = load_data(config)
    assert train_config(config, dataset.classes).network.classes == 10
    assert data.train.images.shape == (300, 4, 4, 1) and len(data.test.labels) == 600
