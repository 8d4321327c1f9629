"""What was altered or damaged in a store is not used, and is reported."""

import dataclasses
import hashlib
import json
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqnes_jax.errors import BQNESError
from bqnes_jax.storage import (
    DamagedEntryWarning,
    Key,
    Store,
    records,
)
from tests.storage.test_store import MANIFEST, entry

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000, '{"format": 2}', "\xff"])
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
    for version in (1, 3, None):
        path.write_text(json.dumps({"format": version, "rows": 3}))
        with pytest.raises(
            BQNESError, match=f"has format {version}; this version of bqnes reads 2"
        ):
            Store.open(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(data=st.data())
def test_no_altered_entry_is_ever_used(tmp_path, data):
    made = Store.open(tmp_path, MANIFEST)
    made.put(entry())  # without variables: all of it belongs to the predictions
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
        assert made.find_missing([entry().arch], [0]) == [entry().key]
    with pytest.warns(DamagedEntryWarning), pytest.raises(BQNESError, match="1 of 1"):
        made.predictions([entry().arch], 0)
    assert list(made.find_damaged()) == [path]
    made.put(entry())
    assert not made.find_damaged()


DESCRIPTIONS = [
    {"dict": [["float32", []]]},
    {"list": {"a": ["float32", []]}},
    {"tuple": [["float32", [0]], None]},
    ["float32", [10**12, 10**12]],
    ["object", [1]],
    {"a": 1},
    3,
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
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
            "variables_sha256": st.text() | st.none(),
            "variables": st.none() | st.sampled_from(DESCRIPTIONS),
            **dict.fromkeys(("train_loss", "valid_loss", "test_loss", "seconds"), st.none()),
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
    assert list(made.find_damaged()) == [tmp_path / "entries" / "fuzz.bqe"]


@pytest.mark.parametrize("description", [*DESCRIPTIONS, "(absent)"])
def test_variables_that_cannot_be_are_damage(tmp_path, description):
    """The header is otherwise right, and filed under its name; numbers are those of predictions."""
    made = Store.open(tmp_path, MANIFEST)
    made.put(entry())
    path = made._path(entry().key)
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[8:12])
    header, body = json.loads(content[12 : 12 + length]), content[12 + length + 32 :]
    header["variables"] = description
    if description == "(absent)":
        del header["variables"]
    text = records.canonical(header)
    head = records._MAGIC + len(text).to_bytes(4, "little") + text
    path.write_bytes(head + hashlib.sha256(head).digest() + body)
    if description in ("(absent)", {"tuple": [["float32", [0]], None]}):  # take no bytes
        assert not made.find_damaged() and made.get(*entry().key) is not None
        return
    assert list(made.find_damaged()) == [path]
    with pytest.warns(DamagedEntryWarning):
        assert made.find_missing([entry().arch], [0]) == [entry().key]
    with pytest.warns(DamagedEntryWarning), pytest.raises(BQNESError, match="no variables of"):
        made.variables(*entry().key)


def test_a_huge_size_in_a_header_takes_no_memory(tmp_path):
    made = Store.open(tmp_path, MANIFEST)
    (tmp_path / "entries" / "a.bqe").write_bytes(records._MAGIC + b"\xff" * 4 + b"{}" * 40)
    assert "is cut short" in next(iter(made.find_damaged().values()))


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
