"""What a function does, as a hash of its code and of what it refers to."""

import dataclasses
import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bqnes_jax.identity import (
    SPEED,
    describe_code,
    field,
    identity,
)
from tests.test_identity import Inner, Outer

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def module_of(folder, source):
    """Import a module from its source, and return what it defines."""
    folder.mkdir(exist_ok=True)
    path = folder / "own.py"
    path.write_text(textwrap.dedent(source))
    space = {"__name__": "own"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space


def code_of(folder, source, name="train"):
    """Describe a function in a file of its own, as another program has it."""
    return describe_code(module_of(folder, source)[name])


PLAIN = """
def train(key, choices, data):
    rate = 0.5
    return {"w": rate * choices["depth"]}
"""
SAME = [
    """
    import os

    # how it is trained
    def train(key,choices,
              data):
        '''Train.'''
        rate = .5  # a guess

        return { 'w' : rate*choices['depth'], }
    """,
    """
    if True:
        def train(key, choices, data):
            rate = 0.5; return {"w": (rate * choices["depth"])}
    """,
]
OTHERS = [
    PLAIN.replace("0.5", "0.25"),
    PLAIN.replace("depth", "width"),
    PLAIN.replace("rate *", "rate +"),
    PLAIN.replace("key, choices", "choices, key"),
    PLAIN.replace("    return", "    rate = 2 * rate\n    return"),
]


def test_layout_and_comments_do_not_count_and_all_else_does(tmp_path):
    described = code_of(tmp_path / "plain", PLAIN)
    for i, source in enumerate(SAME):
        assert code_of(tmp_path / f"same{i}", source) == described, source
    others = [code_of(tmp_path / f"other{i}", source) for i, source in enumerate(OTHERS)]
    assert len({described, *others}) == 1 + len(OTHERS)


def test_functions_without_a_file_are_described_by_what_they_compile_to():
    def typed(source):
        space = {}
        exec(source, space)
        return describe_code(space["train"])

    assert typed(PLAIN) == typed(PLAIN.replace("0.5", "0.5  # a guess\n"))
    for other in OTHERS[:3]:
        assert typed(PLAIN) != typed(other)
    inner = "def train():\n    def g():\n        return 1\n    return g"
    assert typed(inner) == typed("\n\n" + inner) != typed(inner.replace("1", "2"))


def test_lambdas_in_one_line_are_different():
    # fmt: off
    one, two, again = lambda x: x + 1, lambda x: x + 2, lambda x: x + 1
    outer = lambda x: lambda y: x if y else 3; inner = outer(0)  # noqa: E702, E731
    # fmt: on
    x = 0
    assert describe_code(one) == describe_code(again) != describe_code(two)
    assert describe_code(inner) == describe_code(lambda y: x if y else 3)
    assert describe_code(inner) != describe_code(outer(1))
    assert describe_code(outer) != describe_code(inner)


USER = """
import numpy as np
import flax.linen as nn

RATE, GRID = 0.5, np.arange(3)

def scale(x):
    return RATE * x if x > 0 else scale(-x)

class Net(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(scale(x))

def made(power, base=2):
    def inner(key, choices, data):
        return [Net(**choices).apply(x) for x in GRID] + [base ** power]
    return inner

train = made(3)
"""


def test_what_a_function_refers_to_is_part_of_it(tmp_path):
    """Values and functions beside it, those that they refer to, closures and defaults."""
    changes = [
        ("RATE, GRID = 0.5", "RATE, GRID = 0.25"),
        ("arange(3)", "arange(4)"),
        ("RATE * x", "RATE + x"),
        ("width: int = 3", "width: int = 4"),
        ("nn.Dense(self.width)(scale(x))", "nn.Dense(self.width)(x)"),
        ("made(3)", "made(4)"),
        ("base=2", "base=3"),
    ]
    described = code_of(tmp_path / "a", USER)
    assert code_of(tmp_path / "b", USER + "# the end") == described
    others = [
        code_of(tmp_path / f"other{i}", USER.replace(old, new))
        for i, (old, new) in enumerate(changes)
    ]
    assert len({described, *others}) == 1 + len(changes)


def test_the_object_of_a_method_is_part_of_it():
    assert describe_code(Trainer().train) != describe_code(Trainer(0.2).train)
    assert describe_code(Trainer().train) == describe_code(Trainer(chunk=4).train)


def test_settings_of_an_optimiser_are_part_of_it():
    one, same, other = (
        functools.partial(train, options=optax.adam(rate)) for rate in (0.1, 0.1, 0.2)
    )
    assert describe_code(one) == describe_code(same) != describe_code(other)


def test_a_lambda_does_not_depend_on_where_it_stands(tmp_path):
    described = code_of(tmp_path / "a", "train = lambda choices: choices['width'] + 1")
    for i, source in enumerate(
        (
            "train = (  # here\n    lambda choices: choices['width']+1)",
            "äöü, train, other = 'äöü', lambda choices: choices['width'] + 1, lambda choices: 3",
            'train = list([lambda choices: choices["width"] + 1])[0]',
            "train = max([\n\n  lambda choices: (choices\n   ['width']\n  + 1), ], key=id)",
        )
    ):
        assert code_of(tmp_path / str(i), source) == described
    changed = code_of(tmp_path / "b", "train = lambda choices: choices['width'] + 2")
    assert changed != described


def train(key, choices, data, rate=0.1, options=None):
    return rate


def other(key, choices, data, rate=0.1, options=None):
    return 2 * rate


def test_what_is_bound_is_part_of_it():
    """Values, functions, dataclasses and arrays; by position and by name; none by its address."""
    partial = functools.partial
    large = np.zeros(10_000)
    changed = large.copy()
    changed[5000] = 1  # between what NumPy prints
    different = [
        train,
        partial(train),
        partial(train, rate=0.1),
        partial(train, rate=0.2),
        partial(train, 0.1),
        partial(train, other),
        partial(train, train),
        partial(train, options=other),
        partial(train, options=train),
        partial(train, partial(train, 1)),
        partial(train, partial(train, 2)),
        partial(train, options=Outer()),
        partial(train, options=Outer(epochs=3)),
        partial(train, options=Inner()),
        partial(train, options={"act": jax.nn.relu}),
        partial(train, options={"act": jax.nn.gelu}),
        partial(train, options={"act": [train, Inner(5)]}),
        partial(train, {"act": [train, Inner(6)]}),
        partial(train, options=large),
        partial(train, options=changed),
        partial(train, options=large.astype(np.float32)),
        partial(train, options=large.reshape(100, 100)),
        partial(train, np.add),
        partial(train, np.multiply),
        partial(train, len),
        partial(train, sum),
        partial(train, jnp.add),
        partial(train, jnp.multiply),
        partial(train, nn.Dense),
        partial(train, nn.Conv),
        partial(train, nn.Dense(8)),
        partial(train, nn.Dense(16)),
        partial(train, {1, 2}),
        partial(train, {1, 3}),
        partial(train, None),
        partial(train, "None"),
        partial(other),
    ]
    described = list(map(describe_code, different))
    assert len(set(described)) == len(different)
    assert described == list(map(describe_code, different))
    same = [
        (partial(train, options=Outer()), partial(train, options=Outer(chunk=9, budget=4))),
        (partial(train, options=1, rate=2), partial(train, rate=2, options=1)),
        (partial(train, {"a": 1, "b": 2}), partial(train, {"b": 2, "a": 1})),
        (partial(train, np.arange(3)), partial(train, np.arange(3))),
        (partial(train, object()), partial(train, object())),
        (partial(train, jax.random.key(1)), partial(train, jax.random.key(1))),
        (jax.jit(train), train),
        (functools.wraps(train)(lambda *arguments: train(*arguments)), train),
        (nn.Dense(8), nn.Dense(8)),
    ]
    for one, two in same:
        assert describe_code(one) == describe_code(two)


@dataclasses.dataclass
class Trainer:
    rate: float = 0.1
    chunk: int = field(SPEED, default=3)

    def __call__(self, key, choices, data):
        return self.rate

    def train(self, key, choices, data):
        return -self.rate


class Plain:
    def __call__(self, key, choices, data):
        return 3


class Other:
    def __call__(self, key, choices, data):
        return 4


def test_objects_that_can_be_called():
    assert describe_code(Trainer()) == describe_code(Trainer(chunk=4))
    different = [Trainer(), Trainer(0.2), Trainer().train, Trainer, Plain(), Other(), Plain, len]
    assert len(set(map(describe_code, different))) == len(different)
    assert describe_code(Plain()) == describe_code(Plain())
    assert identity(Outer(inner=Trainer()))["inner"] == describe_code(Trainer())


SCRIPT = """
import functools, sys
sys.path.insert(0, sys.argv[1])
import own
from bqnes_jax.identity import describe_code
for name in sorted(vars(own)):
    if name.startswith("train"):
        print(name, describe_code(getattr(own, name)))
exec("def typed(x): return x in {'a', 'b', 'c', 'd'}")
print(describe_code(typed))
print(describe_code(functools.partial(typed, {"x", "y", "z"}, object(), {"k": typed})))
"""
OWN = """
import dataclasses, functools
import flax.linen as nn
import jax

@dataclasses.dataclass
class Config:
    names: frozenset = frozenset({"a", "b", "c", "d"})
    act: object = jax.nn.relu
    thing: object = object()

def train(key, choices, data):
    return choices["a"] in {"a", "b", "c", "d"}

train_all, train_none = lambda c: c in {"a", "b", "c", "d"}, lambda c: None
train_bound = functools.partial(train, Config(), {"x": Config()}, act=jax.nn.gelu)
train_dense = nn.Dense(3)
"""


@pytest.mark.slow
def test_it_is_the_same_in_every_process(tmp_path):
    """Whatever the order of sets and the addresses of objects are there."""
    (tmp_path / "own.py").write_text(OWN)
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    ]
    assert said[0] == said[1] == said[2]
    assert len(set(said[0].split("\n"))) == 8
