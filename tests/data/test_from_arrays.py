"""Data sets from arrays of one's own: cut, checked, or refused in a sentence."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.data import (
    Examples,
    check_images,
    check_split,
    fingerprint,
    from_arrays,
    split_indices,
)
from bqnes_jax.errors import BQNESError
from tests.helpers.pictures import images, toy

# Next to nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
TABLE = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
CLASS = np.arange(30) % 3


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        (TABLE, CLASS),
        (TABLE.tolist(), CLASS.tolist()),
        (TABLE.astype(np.float16), CLASS.astype(np.uint8)),
        (TABLE[:, 0], CLASS),
        (TABLE.reshape(30, 5, 1, 1, 1), CLASS),
        (TABLE > 0, CLASS > 0),
        (np.arange(30)[:, None], CLASS),
        (jnp.asarray(TABLE), jnp.asarray(CLASS)),
        (TABLE[:, ::2], CLASS.astype(">i2")),
    ],
)
def test_arrays_of_any_shape_are_cut(inputs, labels):
    """Each example is in one part, with its own label, and the same seed cuts the same."""
    data, again = (from_arrays(inputs, labels, split=(12, 6, 9), seed=3) for _ in range(2))
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    assert [len(part.labels) for part in data.parts.values()] == [12, 6, 9]
    assert (data.classes, data.name) == (len(np.unique(labels)), "arrays")
    rows = [tuple(row.ravel().tolist()) for row in inputs]
    seen = []
    for name, part in data.parts.items():
        assert part.inputs.dtype == inputs.dtype and part.labels.dtype == np.int32
        assert part.inputs.flags.c_contiguous and part.inputs.shape[1:] == inputs.shape[1:]
        np.testing.assert_array_equal(part.inputs, again.parts[name].inputs)
        np.testing.assert_array_equal(part.labels, again.parts[name].labels)
        for row, label in zip(part.inputs, part.labels, strict=True):
            places = [i for i, one in enumerate(rows) if one == tuple(row.ravel().tolist())]
            assert label in labels[places]
            seen += places
    if len(set(rows)) == 30:
        assert len(seen) == len(set(seen)) == 27
    assert fingerprint(data) == fingerprint(again)
    assert fingerprint(data) != fingerprint(from_arrays(inputs, labels, split=(12, 6, 9)))


def test_without_sizes_three_fifths_are_trained_on():
    data = from_arrays(TABLE, CLASS, name="table")
    assert [len(part.labels) for part in data.parts.values()] == [18, 6, 6]
    assert data.name == "table"


@pytest.mark.parametrize(
    ("inputs", "labels", "says"),
    [
        (TABLE, CLASS + 1, "labels are from 1 to 3; .*: subtract 1"),
        (TABLE, CLASS + 5, "labels are from 5 to 7; .*: subtract 5"),
        (TABLE, CLASS - 1, "labels are from -1 to 1; .*: number the classes from 0"),
        (TABLE, CLASS * 2, r"class 1 of 0 to 4 has no training example \(2 such\)"),
        (TABLE, CLASS * 0, "all labels are 0; there must be at least two classes"),
        (TABLE, CLASS + 2**32, "labels are from 4294967296 to 4294967298"),
        (TABLE, CLASS.astype(np.uint64) + np.uint64(2**63), "labels are from 9223372036854775808"),
        (TABLE, np.array(["cat", "dog", "eel"])[CLASS], "labels are text.*return_inverse=True"),
        (TABLE, np.array([None] * 30), "labels are text or objects such as None"),
        (TABLE, np.eye(3, dtype=int)[CLASS], r"labels have type int64 and shape \(30, 3\)"),
        (TABLE, CLASS[:, None], r"shape \(30, 1\); they must be whole numbers, one for each"),
        (TABLE, CLASS.astype(float), "labels have type float64"),
        (TABLE, CLASS[:29], "one for each of the 30 inputs"),
        (TABLE[:0], CLASS[:0], "there are no training examples; give some of each class"),
        (TABLE * 0 + 7, CLASS, "the training inputs are all the same"),
        (np.append(TABLE[:29], [[0, 0, np.nan, 0, 0]], 0), CLASS, "inputs hold NaN or infinity"),
        (np.append(TABLE[:29], [[0, -np.inf, 0, 0, 0]], 0), CLASS, "inputs hold NaN or infinity"),
        (TABLE + 1j, CLASS, "inputs have type complex64 .* must be real numbers"),
        (TABLE.astype(str), CLASS, "inputs have type <U"),
        ([[1, 2], [3]], [0, 1], "inputs are not all of one shape"),
        (TABLE, [[0], *[[0, 1]] * 29], "labels are not all of one shape"),
        (np.float32(3), CLASS, r"shape \(\); they must be real numbers with a leading axis"),
    ],
)
def test_arrays_that_nothing_can_be_learnt_from_are_refused(inputs, labels, says):
    with pytest.raises(BQNESError, match=says):
        from_arrays(inputs, labels)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((20, 10, 0), "the size of test is 0"),
        ((20, 0.01, 5), "the size of valid is 0.01"),
        ((20, 10, 1), "test needs 1 examples, and 0 of the 30"),
        ((1, 10, 10), "class .* of 0 to 2 has no training example"),
    ],
)
def test_arrays_of_which_a_part_would_be_empty_are_refused(sizes, says):
    with pytest.raises(BQNESError, match=says):
        from_arrays(TABLE, CLASS, split=sizes)


def test_sizes_are_three():
    """Annotations forbid others; without a type checker they are refused by a sentence."""
    for sizes in ((0.8, 0.2), 0.8, (5, 5, 5, 5)):
        with pytest.raises(BQNESError, match=r"they must be three: \(train, valid, test\)"):
            inspect.unwrap(split_indices)(toy(), sizes)


def test_a_split_of_ones_own_is_checked():
    """As `search` does with what it is given."""
    data = from_arrays(TABLE, CLASS)
    check_split(data)
    nothing = Examples(data.test.inputs[:0], data.test.labels[:0])
    narrow = Examples(data.test.inputs[:, :2], data.test.labels)
    others = Examples(data.test.inputs, data.test.labels + 1)
    twos = Examples(data.train.inputs, np.where(data.train.labels == 2, 1, data.train.labels))
    for changed, says in (
        ({"test": nothing}, "the part test of the data is empty"),
        ({"valid": narrow}, r"valid\.inputs have shape \(6, 2\) .* they must be \(6, 5\)"),
        ({"valid": others}, r"valid\.labels are from 1 to 3; they must be from 0 to 2"),
        ({"train": twos}, "class 2 of 0 to 2 has no training example"),
        ({"classes": 4}, "class 3 of 0 to 3 has no training example"),
    ):
        with pytest.raises(BQNESError, match=says):
            check_split(dataclasses.replace(data, **changed))


def test_images_with_channels_first_are_told_how_to_turn():
    part = images(30, 8)
    check_images(from_arrays(part.inputs, part.labels), 10)
    first = from_arrays(part.inputs.transpose(0, 3, 1, 2), part.labels)
    with pytest.raises(BQNESError, match=r"channels first; .* images\.transpose\(0, 2, 3, 1\)"):
        check_images(first, 10)
    with pytest.raises(BQNESError, match=r"labels are from 0 to 9; .* needs more classes"):
        check_images(from_arrays(part.inputs, part.labels), 9)


def test_a_split_is_a_tree_of_six_arrays():
    data = from_arrays(TABLE, CLASS, name="table")
    leaves, structure = jax.tree.flatten(data)
    assert len(leaves) == 6
    again = jax.tree.unflatten(structure, leaves)
    assert (again.classes, again.name) == (3, "table")
    count = jax.jit(lambda data: jnp.zeros(data.classes).at[data.train.labels].add(1))
    assert count(data).sum() == 18
