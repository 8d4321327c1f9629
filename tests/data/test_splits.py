"""Training, validation and test images without overlap."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqnes_jax.data import (
    Examples,
    read_split,
    split,
    split_indices,
    write_split,
)
from bqnes_jax.errors import BQNESError
from tests.helpers.pictures import same, toy

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.parametrize(
    ("name", "sizes", "valid_from"),
    [
        ("cifar10", (50, 50, 40), "train"),
        ("cifar100", (100, 20, 20), "test"),
        ("imagenet16-120", (100, 20, 20), "test"),
        ("fashion_mnist", (80, 20, 40), "train"),
    ],
)
def test_splits_by_name(name, sizes, valid_from):
    parts = split_indices(toy(name))
    assert tuple(map(len, parts[:3])) == sizes and parts.valid_from == valid_from


@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["cifar10", "cifar100", "own"]),
    test=st.sampled_from([0, 41]),
)
def test_splits_are_disjoint_complete_and_repeatable(seed, name, test):
    dataset = toy(name, train=101, test=test)
    one, again = (split_indices(dataset, seed=seed) for _ in range(2))
    pools = {"train": [one.train], "test": []}
    pools[one.valid_from].append(one.valid)
    pools["test" if test else "train"].append(one.test)
    for pool, length in (("train", 101), ("test", test)):
        places = np.concatenate([*pools[pool], np.arange(0)])
        assert len(np.unique(places)) == len(places) and length - 2 <= len(places) <= length
    for a, b in zip(one[:3], again[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    other = split_indices(dataset, seed=(seed + 1) % 2**32)
    assert any(not np.array_equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


def test_the_split_of_a_seed_never_changes():
    assert split_indices(toy(), (3, 3, 3), seed=777).train.tolist() == [26, 75, 90]


def test_the_images_are_those_of_the_indices():
    dataset = toy("cifar100")
    parts, places = split(dataset, (9, 8, 7)), split_indices(dataset, (9, 8, 7))
    same(parts.train, Examples(*(array[places.train] for array in dataset.train)))
    same(parts.valid, Examples(*(array[places.valid] for array in dataset.test)))
    same(parts.test, Examples(*(array[places.test] for array in dataset.test)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"sizes": (90, 20, 10)},
            "valid needs 20 examples, and 10 of the 100 of the train set",
        ),
        ({"sizes": (0.5, 0.6, 1.0)}, "valid needs 60 examples, and 50"),
        ({"sizes": (0, 5, 5)}, "the size of train is 0; it must be a count, at least 1"),
        ({"sizes": (5, 1.5, 5)}, "the size of valid is 1.5"),
        ({"sizes": (5, 0.001, 5)}, "the size of valid is 0.001"),
        ({"seed": -1}, "seed is -1"),
        ({"valid_from": "nowhere"}, "valid_from is 'nowhere'; allowed are 'train', 'test'"),
        ({"sizes": (5, 5, 5), "file": "split.json"}, "both a split file and sizes"),
    ],
)
def test_impossible_splits_are_refused(arguments, says):
    with pytest.raises(BQNESError, match=says):
        split(toy(), **arguments)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "own"])
def test_split_files(tmp_path, name):
    dataset = toy(name)
    path = tmp_path / "split.json"
    write_split(path, split_indices(dataset, seed=5))
    from_file, from_seed = split(dataset, file=path), split(dataset, seed=5)
    assert (from_file.classes, from_file.name) == (10, name)
    for part, examples in from_file.parts.items():
        same(examples, from_seed.parts[part])


def test_split_files_of_the_benchmark(tmp_path):
    path = tmp_path / "cifar-split.txt"
    path.write_text('{"train": ["int", ["0", "5"]], "valid": ["int", ["1", "7", "9"]]}')
    parts = read_split(path, toy("cifar10"))
    assert parts.train.tolist() == [0, 5] and parts.valid.tolist() == [1, 7, 9]
    assert len(parts.test) == 40 and parts.valid_from == "train"
    path.write_text('{"xvalid": ["int", ["1"]], "xtest": ["int", ["0", "2"]]}')
    parts = read_split(path, toy("own"))
    assert (parts.valid.tolist(), parts.test.tolist()) == ([1], [0, 2])
    assert len(parts.train) == 100 and parts.valid_from == "test"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not a split file"),
        ("[1, 2]", "is not a split file"),
        ('{"train": [1]}', "is not a split file"),
        ('{"valid": [0.5]}', "is not a split file"),
        ('{"valid": [[1]]}', "is not a split file"),
        ('{"valid": 3}', "is not a split file"),
        ('{"valid": {"a": 1}}', "is not a split file"),
        ('{"valid": [1], "rest": [2]}', "is not a split file"),
        ("[" * 100_000, "is not a split file"),
        (
            '{"train": [1], "valid": [100], "test": [1]}',
            "valid indices outside the train set, 0 to",
        ),
        ('{"train": [1], "valid": [-1], "test": [1]}', "valid indices outside"),
        ('{"train": [], "valid": [1]}', "train indices outside the train set, 0 to 99, or none"),
        ('{"train": [1, 2], "valid": [2], "test": [2]}', "image of the train set more than once"),
        ('{"valid": [2]}', "image of the train set more than once"),
        ('{"train": [1], "valid": [3], "test": [2, 2]}', "image of the test set more than once"),
        ('{"valid": [1], "valid_from": "here"}', "valid_from in .* is 'here'"),
        ('{"valid": [1], "valid_from": []}', "valid_from in"),
    ],
)
def test_bad_split_files_are_refused(tmp_path, content, says):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(BQNESError, match=says):
        read_split(path, toy())
    with pytest.raises(BQNESError, match="cannot be read"):
        read_split(tmp_path / "absent.json", toy())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["train", "valid", "xtest", "valid_from"]), inner)
        ),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_a_split_file_or_refused(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    try:
        split(toy(), file=path)
    except BQNESError as error:
        assert str(path) in str(error)
