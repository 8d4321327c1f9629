"""Predictions survive kills, bit rot, full disks and each other's writers, or are not used."""

import dataclasses
import errno
import os
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.storage import (
    DamagedEntryWarning,
    Entry,
    Key,
    Manifest,
    Store,
    merge,
    store,
)

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
MANIFEST = Manifest("nats", "digits", {"epochs": 3, "optimizer": {"lr": 0.1}}, 7, 5, 4)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def entry(arch="|a~0|", seed=0, manifest=MANIFEST, scale=3.0, **fields):
    random = np.random.default_rng([seed, *arch.encode()])
    valid, test = (
        log_softmax(scale * random.normal(size=(n, manifest.classes)))
        for n in (manifest.valid_points, manifest.test_points)
    )
    numbers = {"train_loss": 0.1, "valid_loss": 0.2, "test_loss": 0.3, "seconds": 1.5}
    return Entry(arch, seed, "ok", valid, test, **{**numbers, **fields})


def same(a, b):
    for left, right in zip(a, b, strict=True):
        if isinstance(left, np.ndarray):
            np.testing.assert_allclose(left, right, rtol=2**-11, atol=2**-25)
        else:
            assert left == right or (left != left and right != right)


def temporary_files(directory):
    return list(Path(directory).rglob("*.tmp"))


def test_what_is_put_is_got(tmp_path):
    made = Store.open(tmp_path / "deep" / "store", MANIFEST)
    entries = [entry("b", 1), entry("a", 1), entry("a", 0, test_loss=float("nan"))]
    made.put(entries)
    opened = Store.open(tmp_path / "deep" / "store")
    assert opened.manifest == MANIFEST
    for one in entries:
        same(opened.get(one.arch, one.seed), one)
    assert opened.keys() == [Key("a", 0), Key("a", 1), Key("b", 1)]
    assert opened.summaries()[0].valid_log_probs is None
    assert opened.find_missing(["a", "b", "c"], [0, 1]) == [Key("b", 0), Key("c", 0), Key("c", 1)]
    assert opened.get("c", 0) is None
    assert not opened.find_damaged() and not temporary_files(tmp_path)


def test_loading_stacks_in_the_order_asked_for(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    made.put([entry("a"), entry("b", valid_loss=0.7), Entry("c", 0, "failed", seconds=2.0)])
    loaded = made.predictions(["b", "c", "a"], seed=0)
    assert loaded.ok.tolist() == [True, False, True]
    np.testing.assert_array_equal(loaded.valid_log_probs[0], made.get("b", 0).valid_log_probs)
    assert np.isnan(loaded.valid_log_probs[1]).all() and np.isnan(loaded.test_log_probs[1]).all()
    assert loaded.valid_losses[[0, 2]].tolist() == [0.7, 0.2] and loaded.seconds[1] == 2.0
    assert loaded.test_log_probs.dtype == np.float32
    assert made.predictions([], seed=0).valid_log_probs.shape == (0, 7, 4)
    with pytest.raises(BQNESError, match=r"1 of 2 architectures have no entry with seed 0.*'d'"):
        made.predictions(["a", "d"], seed=0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounding(tmp_path, dtype):
    """Half precision keeps log-probabilities to a relative 2⁻¹¹; infinities become finite."""
    manifest = dataclasses.replace(MANIFEST, dtype=dtype)
    one = entry(manifest=manifest, scale=30.0)
    one.valid_log_probs[0] = [0.0, -1e-6, -1e5, -np.inf]
    made = Store.open(tmp_path, manifest)
    made.put(one)
    got = made.get(one.arch, 0).valid_log_probs
    lowest, relative = (-65504, 2**-11) if dtype == "float16" else (-np.inf, 2**-24)
    expected = np.maximum(one.valid_log_probs, lowest)
    finite = np.isfinite(expected)
    assert np.isfinite(got).all()
    assert (abs(got - expected)[finite] <= relative * abs(expected)[finite] + 2**-25).all()
    assert got[0, 3] == np.finfo(dtype).min


VARIABLES = {
    "dense": [np.array([1.0, -2.5, 1e-30]), np.arange(6, dtype=np.int8).reshape(2, 3)],
    "scale": np.float32(3),
    "nothing": None,
}


def same_variables(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow
def test_variables_are_kept_apart_from_predictions(tmp_path):
    """Each entry has its own, of whatever shape, to the last bit; or none."""
    made = Store.open(tmp_path / "a", MANIFEST)
    others = (np.arange(9.0), {})
    made.put(
        [
            entry("a", variables=VARIABLES),
            Entry("b", 0, "failed"),
            entry("c", variables=others),
            entry("without"),
        ]
    )
    same_variables(made.variables("a", 0), VARIABLES)
    same_variables(made.variables("c", 0), others)
    assert made.variables("a", 0)["dense"][1].dtype == np.int8
    assert made.get("a", 0).variables is None and made.get("b", 0).status == "failed"
    same(made.get("a", 0), entry("a"))
    for arch in ("b", "d", "without"):
        with pytest.raises(BQNESError, match=f"no variables of {arch!r} with seed 0"):
            made.variables(arch, 0)
    assert made.find_missing(["a", "b", "c", "without"], [0]) == []
    made.put(Entry("b", 0, "failed", variables=VARIABLES))  # of no use
    with pytest.raises(BQNESError, match="no variables of 'b'"):
        made.variables("b", 0)
    for wrong, says in (
        ({"w": "text"}, r"variables of 'd' cannot be kept \(it holds str"),
        ({3: np.zeros(2)}, "keys that are not text"),
        (object(), "they must be dicts, lists and tuples of arrays"),
        ([np.zeros(1)] * 80_000, "bytes to describe; .* fewer arrays"),
    ):
        with pytest.raises(BQNESError, match=says):
            made.put(entry("d", variables=wrong))
    assert Key("d", 0) not in made.keys()  # noqa: SIM118

    other = Store.open(tmp_path / "b", MANIFEST)
    assert merge(other, made) == 4
    same_variables(other.variables("c", 0), others)

    path = made._path(Key("a", 0))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    same(made.get("a", 0), entry("a"))  # the predictions are sound
    with pytest.warns(DamagedEntryWarning, match="checksum of its variables differs"):
        assert made.find_missing(["a", "b", "c"], [0]) == [Key("a", 0)]
    assert "variables" in made.find_damaged()[path]
    with pytest.warns(DamagedEntryWarning):
        assert merge(Store.open(tmp_path / "c", MANIFEST), made) == 3, "all but the damaged one"
    with pytest.warns(DamagedEntryWarning):
        assert merge(made, other) == 1, "what is damaged is healed"
    same_variables(made.variables("a", 0), VARIABLES)
    path.write_bytes(content)
    with (
        pytest.warns(DamagedEntryWarning),
        pytest.raises(BQNESError, match="no variables of 'a'"),
    ):
        made.variables("a", 0)


def test_the_last_writer_of_a_key_wins_and_failed_is_not_missing(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    made.put(Entry("a", 0, "failed"))
    assert made.get("a", 0).status == "failed" and made.find_missing(["a"], [0]) == []
    made.put(entry("a"))
    assert made.get("a", 0).status == "ok" and len(made.keys()) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"arch": ""}, "arch is ''"),
        ({"seed": -1}, "seed is -1"),
        ({"status": "fine"}, "status is 'fine'; allowed are 'ok', 'failed'"),
        ({"valid_log_probs": None}, "only a failed training has none"),
        ({"valid_log_probs": np.zeros((7, 5))}, r"has shape \(7, 5\); it must have shape \(7, 4\)"),
        ({"test_log_probs": np.full((5, 4), np.nan)}, "record a training that diverged as failed"),
        ({"test_log_probs": np.full((5, 4), 0.25)}, "log-probabilities are at most 0"),
    ],
)
def test_bad_entries_are_refused(tmp_path, fields, says):
    made = Store.open(tmp_path, MANIFEST)
    with pytest.raises(BQNESError, match=says):
        made.put(entry()._replace(**fields))
    assert made.keys() == []


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    epochs: int = 3
    betas: tuple[float, float] = (0.9, 0.999)


def test_the_hash_of_a_config_does_not_depend_on_its_form():
    hashes = {
        dataclasses.replace(MANIFEST, config=config).config_hash
        for config in (
            TrainConfig(),
            {"epochs": 3, "betas": [0.9, 0.999]},
            {"betas": (0.9, 0.999), "epochs": 3},
        )
    }
    assert len(hashes) == 1
    assert MANIFEST.config_hash not in hashes


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("space", "", "space is ''"),
        ("classes", 0, "classes is 0; it must be a whole number, at least 1"),
        ("dtype", "int8", "dtype is 'int8'; allowed are 'float16', 'float32'"),
        ("config", {"f": print}, "config cannot be written as JSON"),
        ("config", {"f": float("nan")}, "config cannot be written as JSON"),
        ("config", 3, "config is 3; it must be a dict or a dataclass"),
    ],
)
def test_bad_manifests_are_refused(field, value, says):
    with pytest.raises(BQNESError, match=says):
        dataclasses.replace(MANIFEST, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("config", {"epochs": 4, "optimizer": {"lr": 0.1}}, "config.epochs = 3, not 4"),
        ("config", {"epochs": 3, "optimizer": {"lr": 0.2}}, "config.optimizer.lr = 0.1, not 0.2"),
        ("config", {"epochs": 3}, r"config.optimizer = .* not '\(absent\)'"),
        ("dataset", "cifar10", "dataset = 'digits', not 'cifar10'"),
        ("space", "slimmable", "space = 'nats', not 'slimmable'"),
        ("dtype", "float32", "dtype = 'float16', not 'float32'"),
        ("valid_points", 8, "valid_points = 7, not 8"),
    ],
)
def test_a_store_of_something_else_is_refused(tmp_path, field, value, says):
    made, other = (
        Store.open(tmp_path / "a", MANIFEST),
        dataclasses.replace(MANIFEST, **{field: value}),
    )
    with pytest.raises(BQNESError, match=says):
        Store.open(tmp_path / "a", other)
    with pytest.raises(BQNESError, match="was made with"):
        merge(made, Store.open(tmp_path / "b", other))


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(BQNESError, match=r"is not a store: it has no manifest\.json"):
        Store.open(tmp_path)


def test_merging(tmp_path):
    target, one, two = (Store.open(tmp_path / name, MANIFEST) for name in "tab")
    target.put([entry("a", train_loss=0.5), Entry("b", 0, "failed"), Entry("c", 0, "failed")])
    one.put([entry("a"), entry("b"), Entry("c", 0, "failed"), entry("d")])
    two.put([entry("d"), entry("e"), entry("broken")])
    path = two._path(Key("broken", 0))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(DamagedEntryWarning):
        assert merge(target, one, two) == 3
    assert [(e.arch, e.status) for e in target.summaries()] == [
        ("a", "ok"),
        ("b", "ok"),
        ("c", "failed"),
        ("d", "ok"),
        ("e", "ok"),
    ]
    assert target.get("a", 0).train_loss == 0.5
    np.testing.assert_array_equal(target.get("b", 0)[3], one.get("b", 0)[3])
    assert merge(target, one) == 0


def test_abandoned_temporary_files_are_ignored_and_removed_when_old(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    old, young = (
        tmp_path / "entries" / name for name in (f"old-{16 * 'a'}.tmp", f"young-{16 * 'b'}.tmp")
    )
    for path in (old, young):
        path.write_bytes(b"half an ent")
    os.utime(old, (0, time.time() - 7200))
    assert made.keys() == []
    Store.open(tmp_path, MANIFEST)
    assert temporary_files(tmp_path) == [young]


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.ENOSPC, "No space left on device.*free some space"), (errno.EROFS, "Read-only file")],
)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_or_read_only_disk_is_one_sentence(tmp_path, monkeypatch, call, number, says):
    made = Store.open(tmp_path, MANIFEST)
    made.put(entry("a"))

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store.os, call, fail)
    with pytest.raises(BQNESError, match=says + ".*"):
        made.put([entry("a", train_loss=9.0), entry("b")])
    monkeypatch.undo()
    assert made.keys() == [Key("a", 0)] and made.get("a", 0).train_loss == 0.1
    assert not temporary_files(tmp_path)


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BQNESError, match=r"cannot be written .*choose a directory"):
        Store.open(tmp_path / "file" / "store", MANIFEST)
