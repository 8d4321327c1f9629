"""Trees of arrays: whatever is written is read, and whatever was altered is refused."""

import collections
import hashlib
import json
import struct
import tracemalloc
import types

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from bqnes_jax.files import trees
from bqnes_jax.identity import canonical
from tests.helpers.alterations import Choices, altered_bytes, altered_json

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
DTYPES = st.sampled_from([kind for code in "?bhiqBHIQefd" for kind in (f"<{code}", f">{code}")])
BFLOAT16 = arrays_of.arrays("u2", SHAPES).map(lambda bits: bits.view(ml_dtypes.bfloat16))
ARRAYS = DTYPES.flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES)) | BFLOAT16
TREES = st.recursive(
    st.none() | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
PLAIN = {"b": [np.arange(6, dtype=np.int16).reshape(2, 3), None], "a": (np.array(2.5),)}


def in_a_folder(cases=50):
    """Allow a test of many cases to use one folder."""
    return settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=cases)


def same(ours, theirs):
    """Compare bit for bit, structures with arrays in the byte order of this machine."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == sorted(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif theirs is not None:
        native = theirs.astype(theirs.dtype.newbyteorder("="))
        assert (ours.dtype, ours.shape) == (native.dtype, native.shape)
        assert ours.tobytes() == native.tobytes()


def through_bytes(tree):
    kept = trees.as_tree(tree)
    description = json.loads(canonical(trees.describe(kept)))
    content = trees.to_bytes(kept)
    assert trees.size_of(description) == len(content)
    return trees.from_bytes(description, content)


def through_a_file(path, tree):
    trees.write_tree(path, tree)
    return trees.read_tree(path)


@in_a_folder(200)
@given(TREES)
@example({"z": np.zeros((0, 3)), "a": {}, "": [(), [], None]})
@example(None)
@example(np.zeros((3, 0, 2), bool))
def test_any_tree_survives(tmp_path, tree):
    same(through_bytes(tree), tree)
    same(through_a_file(tmp_path / "tree.bqt", tree), tree)
    assert sum(leaf.nbytes for leaf in trees.leaves(tree)) == len(trees.to_bytes(tree))


@given(st.dictionaries(st.text(max_size=3), ARRAYS), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(tree, random):
    keys = list(tree)
    random.shuffle(keys)
    turned = {key: tree[key] for key in keys}
    kept, again = trees.as_tree(tree), trees.as_tree(turned)
    assert canonical(trees.describe(kept)) == canonical(trees.describe(again))
    assert trees.to_bytes(kept) == trees.to_bytes(again)
    same(through_bytes(turned), tree)


class Pair(collections.namedtuple("Pair", "left right")):
    pass


def test_what_is_like_a_tree_becomes_one(tmp_path):
    numbers = jnp.arange(3, dtype=jnp.bfloat16)
    given = Pair(types.MappingProxyType({"b": 1, "a": True}), [2.5, np.float16(3), numbers])
    kept = trees.as_tree(given)
    expected = (
        {"a": np.array(True), "b": np.array(1)},
        [np.array(2.5), np.array(3, np.float16), np.asarray(numbers)],
    )
    same(kept, expected)
    same(through_a_file(tmp_path / "a.bqt", given), expected)
    columns = np.asfortranarray(np.arange(12.0).reshape(3, 4))[::2]
    same(through_a_file(tmp_path / "a.bqt", columns), columns)


def nested(levels, leaf):
    for _ in range(levels):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ("text", "it holds str"),
        ({"a": object()}, "it holds object"),
        ([1j], "it holds complex"),
        ({1: np.zeros(2)}, "keys that are not text"),
        (np.zeros(2, np.longdouble), "no array of numbers"),
        (np.array([None]), "no array of numbers"),
        (np.array(["a"]), "no array of numbers"),
        ([10**30], "it holds int"),
        ({3}, "it holds set"),
        (nested(32, np.zeros(2)), "nested too deep"),
        (nested(5000, np.zeros(2)), "nested too deep"),
        (np.zeros((0, 2**41), np.uint8), "shape"),
    ],
)
def test_what_cannot_be_read_again_is_not_written(tmp_path, tree, says):
    with pytest.raises(TypeError, match=says):
        trees.as_tree(tree)
    with pytest.raises(TypeError, match=says):
        trees.write_tree(tmp_path / "tree.bqt", tree)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_deepest_and_the_widest_tree(tmp_path):
    deep = nested(31, np.arange(3))
    same(through_a_file(tmp_path / "tree.bqt", deep), deep)
    wide = {f"layer_{i}": np.zeros(i % 3, np.float32) for i in range(20_000)}
    same(through_a_file(tmp_path / "tree.bqt", wide), wide)
    with pytest.raises(TypeError, match=r"80,000 arrays, .* more than a header holds"):
        trees.write_tree(tmp_path / "tree.bqt", [np.zeros(1)] * 80_000)
    same(trees.read_tree(tmp_path / "tree.bqt"), wide)


def refused_or_read(read, *arguments):
    """Return what is read, or None where it is refused by a ValueError; nothing else is raised."""
    tracemalloc.start()
    try:
        return read(*arguments)
    except ValueError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20e6


@in_a_folder(300)
@given(st.binary(min_size=60, max_size=60))
def test_altered_bytes_are_refused(tmp_path, tape):
    path = tmp_path / "tree.bqt"
    trees.write_tree(path, PLAIN)
    whole = path.read_bytes()
    content = altered_bytes(Choices(tape), whole)
    path.write_bytes(content)
    read = refused_or_read(trees.read_tree, path)
    assert (read is not None) == (content == whole)


@pytest.mark.parametrize("cut", [0, 7, 11, 40, -33, -1])
def test_files_cut_short_or_longer_are_refused(tmp_path, cut):
    path = tmp_path / "tree.bqt"
    trees.write_tree(path, PLAIN)
    whole = path.read_bytes()
    for content in (whole[:cut], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"it does not start|checksum|cut short"):
            trees.read_tree(path)


def signed(header, content):
    """Write a file whose checksum of the header is right, whatever the header is."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    head = trees._MAGIC + struct.pack("<I", len(text)) + text
    return head + hashlib.sha256(head).digest() + content


@in_a_folder(500)
@given(st.binary(min_size=60, max_size=60))
def test_altered_descriptions_are_refused(tmp_path, tape):
    """With checksums that are right, and numbers as many as before or fewer."""
    choose, kept = Choices(tape), trees.as_tree(PLAIN)
    content = trees.to_bytes(kept)
    content = content[: choose.of([len(content), choose.below(len(content))])]
    header = {"tree": trees.describe(kept), "sha256": hashlib.sha256(content).hexdigest()}
    altered = altered_json(choose, json.dumps(header).encode())
    (tmp_path / "tree.bqt").write_bytes(signed(altered, content))
    refused_or_read(trees.read_tree, tmp_path / "tree.bqt")
    description = altered.get("tree") if isinstance(altered, dict) else altered
    read = refused_or_read(trees.from_bytes, description, content)
    if read is not None:
        assert trees.describe(read) == description


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["bool", "float32"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dict", "list", "tuple", "a"]), inner, max_size=2)
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(JSON, st.binary(max_size=20))
@example({"dict": [["float32", []]]}, b"1234")
@example({"list": {"a": ["float32", []]}}, b"1234")
@example({"tuple": {"a": None}}, b"")
@example(["float32", [0, 2**39, 2**39]], b"")
@example(["float32", [2**39, 2**39, 0]], b"")
@example(["float32", [-1]], b"1234")
@example(["float32", [True]], b"1234")
@example(["float32", [10**400]], b"1234")
@example(["float32", [1.0]], b"1234")
@example(["object", [1]], b"12345678")
@example(["|O", [1]], b"12345678")
@example([["float32"], [1]], b"1234")
@example(["float32", [1]], b"12345")
@example({"dict": {"a": ["float32", [2]]}}, b"1234")
def test_any_json_describes_a_tree_or_is_refused(description, content):
    read = refused_or_read(trees.from_bytes, description, content)
    if read is not None:
        assert trees.describe(read) == description
        assert trees.to_bytes(read) == content


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"tree":' * 1000,
        b"\xff",
        b"",
        b"NaN",
        b"3",
        b"[]",
        b"{}",
        b'{"tree": null}',
        b'{"tree": null, "sha256": 3}',
        b'{"sha256": ""}',
        b'{"tree": ["float32", [1' + b"0" * 5000 + b"]]}",
    ],
)
def test_any_header_with_a_right_checksum_is_read_or_refused(tmp_path, header):
    (tmp_path / "tree.bqt").write_bytes(signed(header, b""))
    with pytest.raises(ValueError, match="it "):
        trees.read_tree(tmp_path / "tree.bqt")


def test_what_a_header_claims_takes_no_memory(tmp_path):
    path = tmp_path / "tree.bqt"
    path.write_bytes(trees._MAGIC + b"\xff" * 4 + b"{}" * 40)
    refused_or_read(trees.read_tree, path)
    sha256 = hashlib.sha256(b"").hexdigest()
    for shape in ([2**38], [2**20, 2**20], [2**39] * 5, [2**39] * 30):
        path.write_bytes(signed({"tree": ["float64", shape], "sha256": sha256}, b""))
        assert refused_or_read(trees.read_tree, path) is None


def test_a_file_that_is_not_there_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        trees.read_tree(tmp_path / "tree.bqt")
