"""Predictions survive kills, bit rot, full disks and each other's writers, or are not used."""

import dataclasses
import errno
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqnes_jax import records, store
from bqnes_jax.errors import BQNESError
from bqnes_jax.store import DamagedEntryWarning, Entry, Key, Manifest, Store, merge

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
    assert opened.missing(["a", "b", "c"], [0, 1]) == [Key("b", 0), Key("c", 0), Key("c", 1)]
    assert opened.get("c", 0) is None
    assert not opened.damaged() and not temporary_files(tmp_path)


def test_loading_stacks_in_the_order_asked_for(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    made.put([entry("a"), entry("b", valid_loss=0.7), Entry("c", 0, "failed", seconds=2.0)])
    loaded = made.load(["b", "c", "a"], seed=0)
    assert loaded.ok.tolist() == [True, False, True]
    np.testing.assert_array_equal(loaded.valid_log_probs[0], made.get("b", 0).valid_log_probs)
    assert np.isnan(loaded.valid_log_probs[1]).all() and np.isnan(loaded.test_log_probs[1]).all()
    assert loaded.valid_losses[[0, 2]].tolist() == [0.7, 0.2] and loaded.seconds[1] == 2.0
    assert loaded.test_log_probs.dtype == np.float32
    assert made.load([], seed=0).valid_log_probs.shape == (0, 7, 4)
    with pytest.raises(BQNESError, match=r"1 of 2 architectures have no entry with seed 0.*'d'"):
        made.load(["a", "d"], seed=0)


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


def test_weights_are_kept_apart_from_predictions(tmp_path):
    manifest = dataclasses.replace(MANIFEST, weights=3)
    made = Store.open(tmp_path / "a", manifest)
    weights = np.array([1.0, -2.5, 1e-30])
    made.put([entry("a", weights=weights), Entry("b", 0, "failed"), entry("c", weights=-weights)])
    np.testing.assert_array_equal(made.weights("a", 0), weights.astype(np.float32))
    assert made.get("a", 0).weights is None and made.get("b", 0).status == "failed"
    same(made.get("a", 0), entry("a"))
    for arch in ("b", "d"):
        with pytest.raises(BQNESError, match=f"no weights of {arch!r} with seed 0"):
            made.weights(arch, 0)
    with pytest.raises(BQNESError, match="weights of 'd' are missing"):
        made.put(entry("d"))
    with pytest.raises(BQNESError, match=r"weights of 'd' has shape \(2,\)"):
        made.put(entry("d", weights=weights[:2]))

    other = Store.open(tmp_path / "b", manifest)
    assert merge(other, made) == 3
    np.testing.assert_array_equal(other.weights("c", 0), -weights.astype(np.float32))

    path = made._path(Key("a", 0))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    same(made.get("a", 0), entry("a"))  # the predictions are sound
    with pytest.warns(DamagedEntryWarning, match="checksum of its weights differs"):
        assert made.missing(["a", "b", "c"], [0]) == [Key("a", 0)]
    assert "weights" in made.damaged()[path]
    with pytest.warns(DamagedEntryWarning):
        assert merge(Store.open(tmp_path / "c", manifest), made) == 2, "all but the damaged one"
    with pytest.warns(DamagedEntryWarning):
        assert merge(made, other) == 1, "what is damaged is healed"
    np.testing.assert_array_equal(made.weights("a", 0), weights.astype(np.float32))
    path.write_bytes(content)
    with (
        pytest.warns(DamagedEntryWarning),
        pytest.raises(BQNESError, match="no weights of 'a'"),
    ):
        made.weights("a", 0)


def test_the_last_writer_of_a_key_wins_and_failed_is_not_missing(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    made.put(Entry("a", 0, "failed"))
    assert made.get("a", 0).status == "failed" and made.missing(["a"], [0]) == []
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


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000, '{"format": 1}', "\xff"])
def test_an_altered_manifest_is_refused_and_can_be_restored(tmp_path, text):
    Store.open(tmp_path, MANIFEST).put(entry())
    path = tmp_path / "manifest.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(BQNESError, match="has been altered; remove it and open"):
        Store.open(tmp_path)
    path.unlink()
    assert Store.open(tmp_path, MANIFEST).get(entry().arch, 0) is not None


def test_a_changed_field_of_the_manifest_shows(tmp_path):
    Store.open(tmp_path, MANIFEST)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"epochs": 3', '"epochs": 5'))
    with pytest.raises(BQNESError, match="has been altered"):
        Store.open(tmp_path)
    path.write_text('{"format": 2, "rows": 3}')
    with pytest.raises(BQNESError, match="has format 2; this version of bqnes reads 1"):
        Store.open(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(data=st.data())
def test_no_altered_entry_is_ever_used(tmp_path, data):
    made = Store.open(tmp_path, MANIFEST)
    made.put(entry())
    (path,) = (tmp_path / "entries").glob("*.bqe")
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    elif data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content += data.draw(st.binary(min_size=1, max_size=9))
    path.write_bytes(content)
    with pytest.warns(DamagedEntryWarning, match="it is treated as missing"):
        assert made.get(entry().arch, 0) is None
    with pytest.warns(DamagedEntryWarning):
        assert made.missing([entry().arch], [0]) == [entry().key]
    with pytest.warns(DamagedEntryWarning), pytest.raises(BQNESError, match="1 of 1"):
        made.load([entry().arch], 0)
    assert list(made.damaged()) == [path]
    made.put(entry())
    assert not made.damaged()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
    | st.fixed_dictionaries(
        {
            "arch": st.text() | st.integers(),
            "seed": st.integers() | st.text(),
            "status": st.sampled_from(["ok", "failed", None]),
            "store": st.just(MANIFEST.fingerprint) | st.none(),
            "sha256": st.text() | st.none(),
        }
    ),
    body=st.binary(max_size=120),
)
def test_any_header_with_a_right_checksum_is_read_or_reported(tmp_path, header, body):
    made = Store.open(tmp_path, MANIFEST)
    text = records.canonical(header)
    head = records._MAGIC + len(text).to_bytes(4, "little") + text
    content = head + hashlib.sha256(head).digest() + body
    (tmp_path / "entries" / "fuzz.bqe").write_bytes(content)
    with pytest.warns(DamagedEntryWarning):
        assert made.keys() == []


def test_a_huge_size_in_a_header_takes_no_memory(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    (tmp_path / "entries" / "a.bqe").write_bytes(records._MAGIC + b"\xff" * 4 + b"{}" * 40)
    assert "is cut short" in next(iter(made.damaged().values()))


def test_an_entry_under_another_name_or_of_another_store_is_not_used(tmp_path):
    made = Store.open(tmp_path / "a", MANIFEST)
    other = Store.open(tmp_path / "b", dataclasses.replace(MANIFEST, dataset="other"))
    made.put(entry("a"))
    other.put(entry("a"))
    content = made._path(Key("a", 0)).read_bytes()
    made._path(Key("b", 0)).write_bytes(content)
    with pytest.warns(DamagedEntryWarning, match="filed under the name of another entry"):
        assert made.get("b", 0) is None
    other._path(Key("a", 0)).write_bytes(content)
    with pytest.warns(DamagedEntryWarning, match="belongs to another store"):
        assert other.get("a", 0) is None


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
    old, young = (tmp_path / "entries" / name for name in ("old.tmp", "young.tmp"))
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
