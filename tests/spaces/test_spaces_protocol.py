"""What every search space keeps: those of `tests/helpers/spaces.py`; no kind is missing there.

A space of yours is tested by adding it there.
"""

import functools
import importlib
import inspect
import pickle
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.key_reuse._core import check_key_reuse
from scipy import stats

from bqnes_jax import spaces
from bqnes_jax.candidates import Outcome, SearchConfig, make, strategies
from bqnes_jax.drivers import loop
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import make_kernel
from bqnes_jax.spaces import CoordinateSpace, GraphSpace, Space, split_seeds
from tests.helpers.spaces import SPACES, is_numbered

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

every = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
quick = ("DARTS", "Product", "a small slimmable")
all_but_some = pytest.mark.parametrize(
    "space",
    [
        pytest.param(space, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, space in SPACES.items()
    ],
)
numbered = pytest.mark.parametrize(
    "space", [pytest.param(s, id=name) for name, s in SPACES.items() if is_numbered(s)]
)
_FEW, _MANY = 16, 3_000  # of which each has been a neighbour, if there are at most two hundred


@functools.cache
def draws(space):
    return np.asarray(space.sample(jax.random.key(0), _FEW))


def check_member(space, archs):
    """Check that architectures are of a space, and written in the one way that counts."""
    archs = np.asarray(archs)
    assert archs.dtype == np.int32 and archs.shape[-1] == len(space.options)
    assert (archs >= 0).all() and (archs < np.array(space.options)).all()
    own = archs[..., :-1] if isinstance(space, spaces.Seeded) else archs
    base = space.base if isinstance(space, spaces.Seeded) else space
    if hasattr(base, "is_canonical"):
        assert np.all(base.is_canonical(own))
        np.testing.assert_array_equal(base.repair(own), own)


def kinds_of_the_package():
    """Return every class of the package that is a space."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(spaces.__path__, "bqnes_jax.spaces.")
    ]
    parts = ("sample", "mutate", "to_string", "from_string")
    return {
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
        and not getattr(kind, "_is_protocol", False)
        and all(hasattr(kind, part) for part in parts)
    }


def test_no_kind_of_space_is_forgotten():
    kinds = kinds_of_the_package()
    assert len(kinds) > 5
    assert kinds == {type(space) for space in SPACES.values()}, "add it to tests/helpers/spaces.py"


@every
def test_it_is_a_space_that_can_be_an_argument_of_compiled_functions(space):
    assert isinstance(space, Space) and isinstance(space, GraphSpace | CoordinateSpace)
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space and hash(copy) == hash(space)
    assert space.name and space.name == space.name.strip()
    assert space.options and all(isinstance(n, int) and n > 0 for n in space.options)
    with pytest.raises((AttributeError, TypeError)):
        space.name = "another"


@every
def test_draws_are_architectures_and_depend_on_the_key_alone(space):
    archs = draws(space)
    assert archs.shape == (_FEW, len(space.options))
    check_member(space, archs)
    np.testing.assert_array_equal(space.sample(jax.random.key(0), _FEW), archs)
    assert (np.asarray(space.sample(jax.random.key(1), _FEW)) != archs).any()
    assert space.sample(jax.random.key(0), 0).shape == (0, len(space.options))
    with pytest.raises(BQNESError, match="n is -1"):
        space.sample(jax.random.key(0), -1)


@every
def test_a_mutation_is_a_neighbour_and_neighbours_are_so_both_ways(space):
    arch = draws(space)[0]
    mutate = jax.jit(jax.vmap(space.mutate, (0, None)))
    found = np.asarray(mutate(jax.random.split(jax.random.key(1), _MANY), arch))
    check_member(space, found)
    assert (found != arch).any(axis=1).all(), "it differs from what it is a mutation of"
    others = np.unique(found, axis=0)
    assert 1 < len(others) < _MANY / 12, "few of all, and all of them"
    for other in (others[0], others[-1]):
        back = np.asarray(mutate(jax.random.split(jax.random.key(2), _MANY), other))
        assert (back == arch).all(axis=1).any()


@every
def test_texts_come_back(space):
    archs = np.unique(draws(space), axis=0)
    texts = [space.to_string(arch) for arch in archs]
    assert len(set(texts)) == len(texts), "two architectures have the same text"
    for arch, text in zip(archs, texts, strict=True):
        assert text == text.strip() != "" and "\n" not in text
        read = space.from_string(text)
        assert read.dtype == jnp.int32
        np.testing.assert_array_equal(read, arch)


@every
@pytest.mark.parametrize("text", ["", "no architecture", "1, 2, 3", "[]", "𝟛" * 40])
def test_texts_that_are_none_are_refused(space, text):
    with pytest.raises(BQNESError):
        space.from_string(text)


@every
def test_what_is_no_architecture_is_refused(space):
    arch = draws(space)[0]
    too_large = np.where(np.arange(len(arch)) == 0, space.options[0], arch)
    for wrong in (arch[:-1], too_large, arch - 99, arch.astype(float)):
        with pytest.raises(BQNESError):
            space.to_string(wrong)


@numbered
def test_numbers_come_back(space):
    numbers = np.arange(space.size)
    archs = space.from_index(numbers)
    check_member(space, archs)
    np.testing.assert_array_equal(space.index(archs), numbers)
    assert len(np.unique(archs, axis=0)) == space.size
    assert space.index(draws(space).reshape(4, 4, -1)).shape == (4, 4)
    assert space.from_index(numbers[:4].reshape(2, 2)).shape == (2, 2, len(space.options))


@numbered
def test_draws_are_uniform(space):
    archs = space.sample(jax.random.key(3), 20 * space.size)
    counts = np.bincount(np.asarray(space.index(archs)), minlength=space.size)
    assert stats.chisquare(counts).pvalue > 1e-4


@every
def test_graphs_are_padded_to_one_shape(space):
    if not isinstance(space, GraphSpace):
        assert isinstance(space, CoordinateSpace)
        return
    shapes = set()
    for arch in draws(space)[:4]:
        graph = space.graph(arch)
        shapes.add(str(jax.tree.map(jnp.shape, graph)))
        assert jnp.issubdtype(graph.nodes.dtype, jnp.integer) and graph.nodes.ndim == 1
        assert graph.n_node.shape == graph.n_edge.shape == (2,), "its own, and the padding"
        assert graph.n_node.sum() == len(graph.nodes)
        assert graph.n_edge.sum() == len(graph.senders) == len(graph.receivers)
        (nodes, edges), ends = (graph.n_node[0], graph.n_edge[0]), np.stack(graph[2:4])
        assert (ends[:, :edges] < nodes).all() and (ends[:, edges:] >= nodes).all()
        assert (ends >= 0).all() and (ends < len(graph.nodes)).all()
    assert len(shapes) == 1


@every
def test_coordinates_are_points_of_a_cube(space):
    if not isinstance(space, CoordinateSpace):
        assert isinstance(space, GraphSpace)
        return
    archs = draws(space)
    points = np.asarray(space.coordinates(archs))
    assert np.issubdtype(points.dtype, np.floating)
    assert points.ndim == 2 and points.min() >= 0 and points.max() <= 1
    assert space.coordinates(archs.reshape(4, 4, -1)).shape == (4, 4, points.shape[1])
    own = split_seeds(space, archs).archs  # weight seeds have none
    assert len(np.unique(points, axis=0)) == len(np.unique(own, axis=0))


@all_but_some
def test_the_default_kernel_is_one(space):
    gram = np.asarray(make_kernel(space).gram(draws(space)))
    np.testing.assert_allclose(gram, gram.T)
    np.testing.assert_allclose(np.diag(gram), gram[0, 0], rtol=1e-5)
    assert np.linalg.eigvalsh(gram).min() > -1e-4 * gram[0, 0]
    assert len(np.unique(gram.round(5))) > 2, "it tells architectures apart"


@all_but_some
def test_compiled_and_mapped_it_is_the_same(space):
    keys, archs = jax.random.split(jax.random.key(4), 3), jnp.asarray(draws(space)[:3])
    calls = {
        "sample": (lambda key: space.sample(key, 4), (keys,)),
        "mutate": (space.mutate, (keys, archs)),
    }
    of_one = ("graph", "coordinates", "index", "repair", "is_canonical")
    wanted = [name for name in of_one if hasattr(space, name)]
    calls |= {name: (getattr(space, name), (archs,)) for name in wanted}
    if not is_numbered(space):
        calls.pop("index", None)
    else:
        calls["from_index"] = space.from_index, (np.array([0, 1, space.size - 1]),)
    for name, (function, arguments) in calls.items():
        alone = [function(*(part[i] for part in arguments)) for i in range(3)]
        together = jax.jit(jax.vmap(function))(*arguments)
        expected = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-6, err_msg=name),
            together,
            expected,
        )


@every
def test_each_key_is_used_once(space):
    key = jax.random.key(0)
    check_key_reuse(lambda key: space.sample(key, 3), key)
    check_key_reuse(lambda key: space.mutate(key, jnp.asarray(draws(space)[0])), key)


CONFIG = SearchConfig(
    initial=4, budget=8, batch=2, population=4, parents=2, pool=32, mutated=8, climbs=2, samples=16
)


def evaluate(archs):
    """Tell what networks of architectures say, without training any."""
    best = -0.02 * jnp.sum(jnp.asarray(archs), axis=1, keepdims=True)
    log_probs = best - 0.1 - 0.05 * jnp.arange(5.0)
    return Outcome(archs, jnp.sum(log_probs, axis=1), log_probs)


SEARCHES = [("us", name) for name in SPACES] + [
    (strategy, "DARTS") for strategy in strategies() if strategy != "us"
]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "name"), SEARCHES)
def test_strategies_search_it(strategy, name):
    space = SPACES[name]
    strategy = make(strategy, space, config=CONFIG)
    history, trace = loop(strategy, CONFIG, jax.random.key(0), evaluate)
    assert int(history.count) == CONFIG.budget and np.isfinite(history.log_likelihoods).all()
    check_member(space, history.archs)
    assert np.isfinite(trace.evidence.log_evidence[-1])
