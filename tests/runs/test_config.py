"""Configs: presets, files, and what is refused before anything is done."""

import dataclasses
import json

import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.families import families
from bqnes_jax.runs import (
    PRESETS,
    RunConfig,
    configure,
    load_data,
    make_family,
    preset_config,
)
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.training import SupernetConfig, TrainConfig

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def test_a_file_changes_a_preset_and_fields_change_both(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "seed: 3\nsearch: {budget: 60, temperature: 64}\n"
        "image_size: 4\nsplit: [100, 0.1, 50]\ntrain: {learning_rate: 1, network: {cells: 2}}\n"
    )
    config = configure("tiny", path, seed=4, batch=2)
    assert (config.seed, config.search.budget, config.search.batch) == (4, 60, 2)
    assert config.search.initial == PRESETS["tiny"].run.search.initial
    assert config.search.temperature == 64 and config.split == (100, 0.1, 50)
    assert config.image_size == 4
    assert config.train.network.cells == 2 and config.train.network.channels == 4
    path.write_text("train: {learning_rate: 1e-3, weight_decay: 5E-04}")
    assert configure("tiny", path).train.learning_rate == 0.001
    (tmp_path / "empty.yaml").write_text("")
    assert configure("paper", tmp_path / "empty.yaml") == preset_config("paper")


def test_the_options_of_training_are_those_of_the_family(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("family: slimmable\ntrain: {steps: 7}\n")
    config = configure("tiny", path)
    assert isinstance(config.train, SupernetConfig) and config.train.steps == 7
    assert config.train.network == PRESETS["tiny"].train["slimmable"].network
    assert preset_config("paper", "slimmable").train == SupernetConfig()
    assert preset_config("paper").train == TrainConfig()
    assert preset_config("tiny").train == PRESETS["tiny"].train["nats"]
    with pytest.raises(BQNESError, match="train has 'random_slices'"):
        replace_fields(preset_config("tiny"), {"train": {"random_slices": 2}}, where="train")


def test_the_sizes_of_a_split_are_those_of_the_data_set_of_the_preset(tmp_path):
    assert configure("tiny").split == (300, 600, 600)
    assert configure("tiny", data="digits").split == (300, 600, 600)
    assert configure("tiny", data="cifar10_subset").split is None
    (tmp_path / "c.yaml").write_text("data: own.npz\nsplit: [1, 2, 3]")
    assert configure("tiny", tmp_path / "c.yaml").split == (1, 2, 3)


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("preset", PRESETS)
def test_a_config_survives_json(preset, family, tmp_path):
    config = preset_config(preset, family)
    content = json.loads(json.dumps(dataclasses.asdict(config)))
    assert replace_fields(RunConfig(train=type(config.train)()), content) == config
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert configure("tiny", tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sed: 3", r"c\.yaml has 'sed'; allowed are family, data, data_directory"),
        ("seed: [1]", r"c\.yaml: seed is \(1,\); it must be a whole number"),
        ("seed: true", r"seed is True; it must be a whole number"),
        ("search: {budget: 0.5}", r"search\.budget is 0\.5; it must be a whole number"),
        ("search: {budget: 3}", r"budget is 3"),
        ("split: [1, 2]", r"c\.yaml: split is \(1, 2\); it must be a list of 3"),
        ("data: {split: [1, 2, 3]}", r"data is \{'split': .*\}; it must be text"),
        ("supernet: {steps: 3}", r"c\.yaml has 'supernet'; allowed are"),
        ("train: {network: {layout: fast}}", r"layout is 'fast'; it must be 'auto' or"),
        ("train: 3", r"train is 3; it must be fields: network, seeds"),
        (
            "family: moon",
            "family is 'moon'; allowed are 'nats', 'slimmable', 'shared', 'darts', or 'package",
        ),
        ("family: 3", r"c\.yaml: family is 3; it must be text"),
        ("family: []", r"c\.yaml: family is \(\); it must be text"),
        ("data: [1]", r"c\.yaml: data is \(1,\); it must be text"),
        ("- seed", r"c\.yaml holds no fields"),
        ("seed: [", r"c\.yaml is neither YAML nor JSON"),
        ("{train.steps: 3, train: {steps: 4}}", r"c\.yaml has 'steps' twice; write it once"),
        ("search.kernel.nome: wl", r"c\.yaml: search\.kernel has 'nome'; allowed are name"),
        ("seed" + ".a" * 400 + ": 3", r"c\.yaml: seed is \{'a'.*; it must be a whole number"),
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
    with pytest.raises(BQNESError, match="did you mean 'budget'"):
        configure("tiny", bugdet=3)
    with pytest.raises(BQNESError, match="cannot be read"):
        configure("tiny", tmp_path / "none.yaml")
    with pytest.raises(BQNESError, match="ensemble_size is 0"):
        configure("tiny", ensemble_size=0)
    config = replace_fields(preset_config("tiny"), {"train": {"seeds": 2}})
    with pytest.raises(BQNESError, match=r"train\.seeds is 2"):
        make_family(config).check(load_data(config))


@pytest.mark.parametrize("family", families())
def test_the_number_of_classes_is_that_of_the_data(family):
    changes = {"train": {"network": {"classes": 77}}, "image_size": 4}
    config = replace_fields(preset_config("tiny", family), changes)
    data = load_data(config)
    assert data.classes == 10 and data.name == "digits"
    assert make_family(config).manifest(10)["network"]["classes"] == 10
    assert data.train.inputs.shape == (300, 4, 4, 1) and len(data.test.labels) == 600
