"""The table that strategies, selection methods and algorithms are kept in."""

import pytest

from bqnes_jax import algorithms, candidates, selection
from bqnes_jax.errors import BQNESError
from bqnes_jax.registry import Registry

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.fixture
def shapes():
    return Registry("shape", {"circle": 0, "square": 4})


def test_what_was_added_is_found_after_what_is_built_in(shapes):
    shapes.register("triangle", 3)
    assert shapes.names() == ("circle", "square", "triangle")
    assert shapes.built_in == ("circle", "square")
    assert [shapes.find(name) for name in shapes.names()] == [0, 4, 3]
    assert "triangle" in shapes
    assert "line" not in shapes


def test_what_was_added_can_be_replaced_and_what_is_built_in_cannot(shapes):
    shapes.register("triangle", 2)
    shapes.register("triangle", 3)
    assert shapes.find("triangle") == 3
    with pytest.raises(BQNESError, match=r"shape 'circle' is built in .* other than 'circle', 's"):
        shapes.register("circle", 1)
    assert shapes.find("circle") == 0


def test_the_mapping_given_stays_as_it_is():
    given = {"circle": 0}
    Registry("shape", given).register("line", 1)
    assert given == {"circle": 0}


def test_what_does_not_exist_is_refused(shapes):
    with pytest.raises(BQNESError, match=r"shape is 'line'; allowed are 'circle', 'square'\."):
        shapes.find("line")


@pytest.mark.parametrize(
    ("module", "names", "taken"),
    [
        (candidates, candidates.strategies, "us"),
        (selection, selection.methods, "beam"),
        (algorithms, algorithms.algorithms, "BQ-S"),
    ],
)
def test_each_stage_keeps_its_names_in_one(module, names, taken):
    assert taken in names()
    with pytest.raises(BQNESError, match=f"'{taken}' is built in"):
        module.register(taken, print)
