"""Runs of slices: a supernet is trained, searched, and its slices predict; runs that grow."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import bqnes_jax
from bqnes_jax.cli import main
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_json
from bqnes_jax.quadrature import effective_size, log_posterior, scale_temperature
from bqnes_jax.runs import Run, load_data, measure, preset_config
from bqnes_jax.runs.fields import replace_fields
from bqnes_jax.runs.layout import read_config
from bqnes_jax.studies import robustness

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

CONFIG = replace_fields(
    preset_config("tiny", "slimmable"),
    {
        "algorithm": "NES-RE",
        "ensemble_size": 2,
        "search": {
            "initial": 3,
            "budget": 6,
            "batch": 3,
            "population": 3,
            "samples": 8,
            "fit": {"kernel_steps": 0},  # half of a step's program, and not what is tested here
        },
        "image_size": 8,
        "split": [40, 20, 30],
        "train": {
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


def listen(seen):
    """Return a function that notes what `search` tells it, by what is done."""

    def progress(done, total, what):
        seen.setdefault(what, []).append((done, total))

    return progress


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the directory of a finished run, and what it told of its progress."""
    directory, seen = tmp_path_factory.mktemp("runs") / "run", {}
    bqnes_jax.search(CONFIG, out=directory, progress=listen(seen))
    return directory, seen


@pytest.fixture
def copied(finished, tmp_path):
    """Return a copy of the finished run, to be changed."""
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_an_ensemble_is_selected_once(finished, monkeypatch):
    run, selected = Run.load(finished[0]), []
    select = Run._select
    monkeypatch.setattr(Run, "_select", lambda *asked: selected.append(asked) or select(*asked))
    first, again = run.ensemble(2, "top"), run.ensemble(2, "top")
    np.testing.assert_array_equal(first.members, again.members)
    assert len(selected) == 1
    run.ensemble(2, "top", calibrate="off")
    assert len(selected) == 2


@pytest.mark.slow
def test_slices_are_searched_and_the_ensemble_predicts(finished, tmp_path):
    directory, seen = finished
    assert list(seen) == ["training the supernet", "training"]
    assert seen["training the supernet"] == [(3, 6), (6, 6)] and seen["training"][-1] == (6, 6)
    run = Run.load(directory)
    assert run.config == CONFIG and run.status == run.record.statuses[-1]
    texts = {run.space.to_string(arch) for arch in run.record.archs}
    assert len(texts) == 6 == len(run.store.keys())
    assert all(run.space.is_canonical(arch) for arch in run.record.archs)
    points = run.record.log_probs.shape[1]
    np.testing.assert_allclose(run.record.temperature, scale_temperature(points), rtol=1e-6)
    posterior = log_posterior(run.record.log_likelihoods, temperature=run.record.temperature)
    worth = run.record.effective_sizes[-1]
    np.testing.assert_allclose(worth, effective_size(posterior), rtol=1e-3)

    ensemble = run.saved_ensemble()
    test = load_data(CONFIG).test
    predicted = ensemble.predict(test.inputs)
    np.testing.assert_allclose(
        predicted, np.exp(ensemble.test_log_probs), atol=2e-3
    )  # float16 stored
    assert ensemble.weights.tolist() == [0.5, 0.5]

    study = robustness.of_run(run, ("contrast",), severities=(5,))
    of_clean = [measure(np.log(predicted), test.labels), run.ensemble(1, "top").metrics]
    np.testing.assert_allclose(study.clean, np.array(of_clean), atol=0.02)
    assert study.shifted.shape == (2, 1, 1, 3) and np.isfinite(study.shifted).all()

    seen = {}
    pretrained = dataclasses.replace(CONFIG.train, pretrained=str(directory / "supernet"))
    other = dataclasses.replace(CONFIG, algorithm="random+beam", train=pretrained)
    bqnes_jax.search(other, out=tmp_path / "other", progress=listen(seen))
    assert list(seen) == ["training"], "the supernet was not trained again"


@pytest.mark.slow
def test_a_log_pool_is_selected_saved_and_predicts_in_log_space(copied):
    run = Run.load(copied)
    ensemble = run.ensemble(2, "logpool")
    assert ensemble.pool == "log"
    ensemble.save()
    saved = run.saved_ensemble()
    np.testing.assert_allclose(saved.weights, ensemble.weights, rtol=1e-6)
    test = load_data(CONFIG).test
    predicted = saved.predict(test.inputs)
    np.testing.assert_allclose(predicted, np.exp(saved.test_log_probs), atol=5e-3)
    members = run.predictor(saved.members)(run.as_inputs(test.inputs))
    scores = np.einsum("m,mnc->nc", saved.weights, np.maximum(members, -12))
    pooled = np.maximum(log_softmax(scores, axis=1), -12)
    by_hand = np.exp(log_softmax(pooled / saved.temperature, axis=1))
    np.testing.assert_allclose(predicted, by_hand, atol=1e-5)
    study = robustness.of_run(run, ("contrast",), severities=(5,))
    expected = measure(np.log(predicted), test.labels).log_likelihood
    np.testing.assert_allclose(study.clean[0, 2], expected, rtol=1e-3)


@pytest.mark.slow
def test_what_all_slices_share_is_needed_to_predict(copied):
    ensemble = Run.load(copied).saved_ensemble()
    test, shared = load_data(CONFIG).test, copied / "shared.bqt"
    before, whole = ensemble.predict(test.inputs), shared.read_bytes()
    for content in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        shared.write_bytes(content)
        with pytest.raises(BQNESError, match=r"shared\.bqt has been altered.*give the command"):
            ensemble.predict(test.inputs)
    shared.unlink()
    with pytest.raises(BQNESError, match=r"shared\.bqt cannot be read \(No such.*give the comm"):
        ensemble.predict(test.inputs)
    bqnes_jax.search(CONFIG, out=copied)  # which heals it, and trains nothing
    np.testing.assert_array_equal(ensemble.predict(test.inputs), before)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": 1}, "has seed = 0, not 1"),
        ({"algorithm": "BQ-S"}, "has strategy = 'evolution', not 'us'"),
        ({"search": {"batch": 2}}, r"has search\.batch = 3, not 2"),
        ({"train": {"learning_rate": 0.3}}, r"has train\.learning_rate = 0\.1, not 0\.3"),
        ({"split_seed": 3}, "has split_seed = 777, not 3"),
        ({"image_size": 4}, "has image_size = 8, not 4"),
    ],
)
def test_a_run_of_something_else_is_refused(finished, changes, says):
    before = {path: path.stat().st_mtime_ns for path in finished[0].rglob("*")}
    with pytest.raises(BQNESError, match=says):
        bqnes_jax.search(replace_fields(CONFIG, changes), out=finished[0])
    after = {path: path.stat().st_mtime_ns for path in finished[0].rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= {finished[0] / "lock"}


@pytest.mark.slow
def test_a_run_of_another_family_is_refused(finished):
    other = replace_fields(
        preset_config("tiny"),
        {name: dataclasses.asdict(CONFIG)[name] for name in ("search", "image_size", "split")}
        | {"train": {"batch": 20}},
    )
    other = dataclasses.replace(other, algorithm=CONFIG.algorithm, ensemble_size=2)
    with pytest.raises(BQNESError, match=r"has train\.network\.space = .*, not '\(absent\)'"):
        bqnes_jax.search(other, out=finished[0])
    assert read_config(finished[0]) == CONFIG


def without_training(directory, config):
    """Give the command of a run again, and see that nothing is trained."""
    stored = {path: path.stat().st_mtime_ns for path in (directory / "store").rglob("*.bqe")}
    run = bqnes_jax.search(config, out=directory)
    again = {path: path.stat().st_mtime_ns for path in (directory / "store").rglob("*.bqe")}
    assert again == stored and len(stored) == 6
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"ensemble_size": 3},
        {"algorithm": "evolution+corrective"},
        {"algorithm": "evolution+restack", "ensemble_size": 4},
        {"train": {"save_every": 2}},
        {"data_directory": "/elsewhere"},
        {"search": {"budget": 4}},  # what it has is kept
    ],
)
def test_what_only_selects_or_speeds_up_is_the_same_run(copied, changes):
    config = replace_fields(CONFIG, changes)
    before = Run.load(copied)
    run = without_training(copied, config)
    jax.tree.map(np.testing.assert_array_equal, run.record, before.record)
    saved, expected = Run.load(copied).saved_ensemble(), run.ensemble()
    assert (saved.method, saved.size) == (expected.method, config.ensemble_size)
    np.testing.assert_array_equal(saved.members, expected.members)
    longest = dataclasses.replace(config.search, budget=6)
    assert read_config(copied) == dataclasses.replace(config, search=longest)


@pytest.mark.slow
def test_another_chunk_is_the_same_run(tmp_path):
    """Of networks that are trained each on its own."""
    small = {"steps": 2, "batch": 20, "chunk": 2, "network": {"channels": 1}}
    config = replace_fields(
        preset_config("tiny"),
        {
            "search": {"initial": 6, "budget": 6, "batch": 3},
            "image_size": 4,
            "split": [40, 20, 30],
            "algorithm": "random+top",
            "train": small,
        },
    )
    before = bqnes_jax.search(config, out=tmp_path)
    for chunk in (3, None):
        again = without_training(tmp_path, replace_fields(config, {"train": {"chunk": chunk}}))
        jax.tree.map(np.testing.assert_array_equal, again.record, before.record)


LONGER = replace_fields(CONFIG, {"search": {"budget": 10}})


@pytest.fixture(scope="module")
def grown(finished, tmp_path_factory):
    """Return the directory of the run after it was continued, and what it told."""
    directory, seen = tmp_path_factory.mktemp("grown") / "run", {}
    shutil.copytree(finished[0], directory)
    bqnes_jax.search(LONGER, out=directory, progress=listen(seen))
    return directory, seen


def entries(directory):
    return {path.name: path.read_bytes() for path in (directory / "store").rglob("*.bqe")}


@pytest.mark.slow
def test_a_finished_run_is_continued_with_a_larger_budget(finished, grown, tmp_path):
    """It trains exactly what is missing, and ends where a run of that budget does at once."""
    (short, _), (long, seen) = finished, grown
    assert list(seen) == ["training"], "the supernet is there"
    assert seen["training"][0] == (3, 10) and seen["training"][-1] == (10, 10)
    before, after = Run.load(short), Run.load(long)
    assert len(before.record.archs) == 6 and len(after.record.archs) == 10
    for name in ("archs", "log_likelihoods", "log_probs", "scores"):
        first = getattr(after.record, name)[:6]
        np.testing.assert_array_equal(first, getattr(before.record, name), err_msg=name)
    kept, all_of_them = entries(short), entries(long)
    assert len(all_of_them) == 10 and kept.items() <= all_of_them.items()
    assert after.config == LONGER and before.config == CONFIG
    assert after.record.counts.tolist() == [3, 6, 9, 10]
    assert after.versions == before.versions

    pretrained = dataclasses.replace(CONFIG.train, pretrained=str(short / "supernet"))
    at_once = dataclasses.replace(LONGER, train=pretrained)
    same_run(long, bqnes_jax.search(at_once, out=tmp_path / "once").directory)


def same_run(one, other):
    one, other = Run.load(one), Run.load(other)
    for name in one.record._fields:
        ours, theirs = getattr(one.record, name), getattr(other.record, name)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    a, b = one.saved_ensemble(), other.saved_ensemble()
    assert a.texts == b.texts and a.metrics == b.metrics
    np.testing.assert_array_equal(a.weights, b.weights)


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 6, 9])
def test_a_run_interrupted_in_growing_goes_on_to_the_same_ensemble(copied, grown, at):
    before = Run.load(copied).saved_ensemble().texts

    def interrupt(done, total, what):
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bqnes_jax.search(LONGER, out=copied, progress=interrupt)
    assert len(entries(copied)) == {3: 6, 6: 6, 9: 9}[at]
    meanwhile = Run.load(copied)  # as it was
    assert len(meanwhile.record.archs) == 6 and meanwhile.saved_ensemble().texts == before
    assert meanwhile.config == CONFIG
    bqnes_jax.search(LONGER, out=copied)
    same_run(copied, grown[0])


def test_a_damaged_record_is_searched_anew_without_training(copied):
    path = copied / "search.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(BQNESError, match=r"search\.npz has been altered.* remove it and give the"):
        bqnes_jax.search(CONFIG, out=copied)
    path.unlink()
    run = without_training(copied, CONFIG)
    path.write_bytes(whole)
    jax.tree.map(np.testing.assert_array_equal, run.record, Run.load(copied).record)


@pytest.mark.slow
def test_algorithms_are_compared_on_slices(tmp_path, capsys):
    """From the command line, with a config file."""
    names = ("image_size", "split", "search", "train")
    differing = {name: dataclasses.asdict(CONFIG)[name] for name in names}
    write_json(tmp_path / "config.json", differing)
    command = ["compare", "--family", "slimmable", "--config", str(tmp_path / "config.json")]
    command += ["--algorithms", "Random", "NES-RE", "--sizes", "2", "--seeds", "2"]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert "to train something else give --live" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--live"]) == 0
    lines = (tmp_path / "out" / "comparison.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["Random", "2", "0"],
        ["Random", "2", "1"],
        ["NES-RE", "2", "0"],
        ["NES-RE", "2", "1"],
    ]
    assert "over 2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize("given", [{"seed": 3}, {"budget": 7}, {"data": "digits"}])
def test_both_a_config_and_fields_are_refused(given):
    (name,) = given
    with pytest.raises(BQNESError, match=f"both a config and '{name}' are given"):
        bqnes_jax.search(CONFIG, **given)
