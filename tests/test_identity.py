"""What identifies a piece of work: the roles of fields, and differences."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.identity import (
    EXTENT,
    SELECTION,
    SPEED,
    canonical,
    digest,
    field,
    first_difference,
    identity,
)
from bqnes_jax.runs import RunConfig, preset_config
from bqnes_jax.training import SupernetConfig, TrainConfig

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@dataclasses.dataclass(frozen=True)
class Inner:
    width: int = 3
    pair: tuple[float, float] = (0.5, 1.0)
    place: str = field(SPEED, default="here")


@dataclasses.dataclass(frozen=True)
class Outer:
    epochs: int = 200
    inner: Inner = dataclasses.field(default_factory=Inner)
    several: tuple[Inner, ...] = (Inner(), Inner(4))
    budget: int = field(EXTENT, default=10)
    chunk: int | None = field(SPEED, default=None)
    size: int = field(SELECTION, default=3)
    hidden: Inner = field(SPEED, default=Inner())  # noqa: RUF009 (immutable)


def test_only_fields_without_a_role_identify():
    of_inner = {"width": 3, "pair": [0.5, 1.0]}
    assert identity(Outer()) == {
        "epochs": 200,
        "inner": of_inner,
        "several": [of_inner, {"width": 4, "pair": [0.5, 1.0]}],
    }
    inner = Inner(place="there")
    same = Outer(inner=inner, budget=99, chunk=7, size=1, hidden=Inner(77))
    assert identity(same) == identity(Outer())
    for other in (Outer(epochs=3), Outer(inner=Inner(4)), Outer(several=(Inner(),))):
        assert identity(other) != identity(Outer())
    with pytest.raises(TypeError):
        identity(3)


def test_a_field_with_a_role_is_otherwise_like_any():
    assert Outer(chunk=4).chunk == 4 and Outer().hidden == Inner()
    with pytest.raises(ValueError, match="cannot specify both"):
        field(SPEED, default=3, default_factory=list)


@given(st.integers(), st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.just(1.0)))
def test_an_identity_survives_json(width, pair):
    found = identity(Outer(inner=Inner(width, pair)))
    assert json.loads(canonical(found)) == found
    assert first_difference(json.loads(canonical(found)), found) is None


CHANGES = {  # of each config: what is the same work, and what is another
    SearchConfig: ({"budget": 199, "samples": 5}, {"initial": 5, "batch": 7}),
    TrainConfig: (
        {"seeds": 2, "chunk": 3, "memory": 1e9, "keep_weights": True},
        {"epochs": 3, "steps": 4, "batch": 5, "learning_rate": 0.3, "momentum": 0.1},
    ),
    SupernetConfig: (
        {"save_every": 7, "pretrained": "elsewhere"},
        {"steps": 4, "batch": 5, "random_slices": 1, "recalibration_batches": 3},
    ),
    RunConfig: (
        {
            "data_directory": "/there",
            "split_file": "a.json",
            "algorithm": "us+beam",
            "ensemble_size": 7,
        },
        {"seed": 1, "split_seed": 1, "image_size": 4, "split": (1, 2, 3)},
    ),
}


def test_how_predictions_are_made_is_no_part_of_a_training():
    one, other = SupernetConfig(), SupernetConfig(recalibration_batches=3)
    assert identity(one, predicts=False) == identity(other, predicts=False)


@pytest.mark.parametrize("kind", CHANGES)
def test_the_roles_of_the_configs(kind):
    same, other = CHANGES[kind]
    config = preset_config() if kind is RunConfig else kind()
    for name, value in same.items():
        changed = dataclasses.replace(config, **{name: value})
        assert changed != config and identity(changed) == identity(config)
    for name, value in other.items():
        changed = dataclasses.replace(config, **{name: value})
        assert first_difference(identity(config), identity(changed))[0] == name


def test_of_an_algorithm_the_strategy_identifies_and_of_a_file_its_name():
    config = preset_config()
    found = config.identity()
    assert (found["strategy"], found["data"]) == ("us", "digits")
    for same in ("BQ-R", "us+corrective"):
        assert dataclasses.replace(config, algorithm=same).identity() == found
    other = dataclasses.replace(config, algorithm="NES-RE").identity()
    assert first_difference(found, other) == ("strategy", "us", "evolution")
    here, there = (dataclasses.replace(config, data=f"{x}/own.npz").identity() for x in "ab")
    assert here == there and here["data"] == "own"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, None),
        ({"a": 1, "b": {"c": [1]}}, {"b": {"c": [1]}, "a": 1}, None),
        ({"a": 1}, {"a": 2}, ("a", 1, 2)),
        ({"a": 1}, {}, ("a", 1, "(absent)")),
        ({}, {"a": None}, ("a", "(absent)", None)),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1, "d": 3}}}, ("a.b.d", 2, 3)),
        ({"a": {"b": 1}}, {"a": {}}, ("a.b", 1, "(absent)")),
        ({"a": {"b": 1}}, {"a": 3}, ("a", {"b": 1}, 3)),
        ({"a": 1, "b": 1}, {"a": 2, "b": 2}, ("a", 1, 2)),
        ({"a": [1, 2]}, {"a": [1, 3]}, ("a", [1, 2], [1, 3])),
    ],
)
def test_the_first_difference(old, new, expected):
    assert first_difference(old, new) == expected
    prefixed = expected and (f"config.{expected[0]}", *expected[1:])
    assert first_difference(old, new, prefix="config.") == prefixed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=2), JSON), st.dictionaries(st.text(max_size=2), JSON))
def test_there_is_a_difference_where_contents_differ(old, new):
    found = first_difference(old, new)
    assert (found is None) == (old == new)
    assert first_difference(old, dict(reversed(old.items()))) is None
    if old == json.loads(json.dumps(new)):
        assert digest(old) == digest(new)


def test_contents_are_written_in_one_way():
    assert canonical({"b": [1, 2.5], "a": None}) == b'{"a":null,"b":[1,2.5]}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))
