"""The choice of a kernel: the same from a config as by hand, and refused before work starts."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, Affine, FeatureRBF, KernelConfig, make_kernel, wl_histograms
from bqnes_jax.runs import configure
from bqnes_jax.spaces import NATS, SlimmableSpace

ARCHS = NATS.from_index(jnp.array([9504, 777, 0, 4321, 9504]))


@pytest.mark.slow
def test_fixed_layer_weights_scale_the_histograms(tolerance):
    weights = (1.0, 0.3, 2.0)
    kernel = WL(NATS, 2, layer_weights=weights)
    # Unnormalised histograms of one layer: those of h iterations without those of h − 1.
    whole = [np.asarray(_histogram(h)) for h in range(3)]
    layers = [whole[0], whole[1] - whole[0], whole[2] - whole[1]]
    products = sum(w**2 * layer for w, layer in zip(weights, layers, strict=True))
    scale = np.sqrt(np.diag(products))
    empty = scale == 0
    scale = np.where(empty, 1, scale)
    expected = products / scale[:, None] / scale
    expected[np.ix_(empty, empty)] = 1
    np.testing.assert_allclose(kernel.gram(ARCHS), expected, atol=tolerance(1e-5, 1e-12))


def _histogram(iterations):
    """Return ⟨φ, φ'⟩ of unnormalised histograms, from hashed ones without collisions here."""
    graphs = [NATS.graph(arch) for arch in ARCHS]
    counts = [
        wl_histograms(
            graph._replace(
                nodes=graph.nodes[: int(graph.n_node[0])],
                senders=graph.senders[: int(graph.n_edge[0])],
                receivers=graph.receivers[: int(graph.n_edge[0])],
                n_node=graph.n_node[:1],
                n_edge=graph.n_edge[:1],
            ),
            iterations,
            buckets=1 << 16,
        )[0]
        for graph in graphs
    ]
    return np.asarray(jnp.stack(counts) @ jnp.stack(counts).T)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_numbers_in_a_tuple_are_fixed_and_an_array_is_fitted():
    fixed, fitted = (WL(NATS, layer_weights=one) for one in ((1.0, 0.5), jnp.array([1.0, 0.5])))
    assert not jax.tree.leaves(fixed) and len(jax.tree.leaves(fitted)) == 1
    assert jax.tree.map(lambda leaf: leaf, fixed) == fixed
    np.testing.assert_allclose(fixed.gram(ARCHS), fitted.gram(ARCHS), rtol=1e-5)
    gram = jax.jit(lambda kernel, archs: kernel.gram(archs))
    np.testing.assert_allclose(gram(fixed, ARCHS), fixed.gram(ARCHS), rtol=1e-5)
    mapped = jax.vmap(lambda weights: WL(NATS, layer_weights=weights).gram(ARCHS))
    np.testing.assert_allclose(
        mapped(jnp.array([[1.0, 0.5]]))[0], fixed.gram(ARCHS), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(BQNESError, match=r"layer_weights .* positive"):
        WL(NATS, layer_weights=(1.0, 0.0))


def test_an_affine_kernel_is_a_cosine_of_coordinates(tolerance):
    x = np.asarray(NATS.coordinates(ARCHS), float)
    phi = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    kernel = Affine(NATS)
    np.testing.assert_allclose(kernel.gram(ARCHS), phi @ phi.T, atol=tolerance(1e-5, 1e-12))
    np.testing.assert_allclose(kernel.diag(ARCHS), np.ones(len(x)), atol=tolerance(1e-5, 1e-12))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (KernelConfig(), WL(NATS)),
        (KernelConfig("wl", iterations=2), WL(NATS, 2)),
        (KernelConfig(layer_weights=(1.0, 0.5)), WL(NATS, layer_weights=(1.0, 0.5))),
        (KernelConfig(layer_weights="fitted"), WL(NATS, layer_weights=np.ones(2))),
        (KernelConfig("wl_rbf"), FeatureRBF(WL(NATS))),
        (KernelConfig("rbf"), RBF(NATS, np.ones(30))),
        (KernelConfig("affine"), Affine(NATS)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_config_makes_the_kernel_that_it_names(chosen, expected):
    made = make_kernel(NATS, chosen)
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    np.testing.assert_array_equal(made.gram(ARCHS), expected.gram(ARCHS))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_search_believes_in_the_kernel_of_its_config():
    chosen = KernelConfig("wl", iterations=2, layer_weights=(1.0, 0.5, 0.25))
    config = SearchConfig(initial=6, budget=10, kernel=chosen)
    by_config = make("us", NATS, config=config)
    by_hand = make("us", NATS, kernel=make_kernel(NATS, chosen), config=SearchConfig(6, 10))
    other = make("us", NATS, config=SearchConfig(6, 10))
    first, second, third = (_two_steps(strategy) for strategy in (by_config, by_hand, other))
    chex.assert_trees_all_equal(first.archs, second.archs)
    chex.assert_trees_all_equal(first.evidence, second.evidence)
    assert float(first.evidence.log_evidence) != float(third.evidence.log_evidence)


def _two_steps(strategy):
    state, info = strategy.init(jax.random.key(0))
    outcome = Outcome(info.archs, -500.0 * jnp.sum(info.archs != 3, axis=1))
    return strategy.step(jax.random.key(1), state, outcome)[1]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: KernelConfig(iterations=-1), "kernel.iterations is -1"),
        (lambda: KernelConfig(layer_weights=(1.0,)), "are 1 numbers; 1 iterations have 2 layers"),
        (lambda: KernelConfig(layer_weights=(1.0, -1.0)), "layer_weights .* positive"),
        (
            lambda: make_kernel(SlimmableSpace(), KernelConfig("wl")),
            "kernel.name, for space 'slimmable.*', is 'wl'; allowed are 'auto', 'rbf', 'affine'",
        ),
        (
            lambda: make("us", SlimmableSpace(), config=SearchConfig(kernel=KernelConfig("wl"))),
            "is 'wl'; allowed are 'auto', 'rbf', 'affine'",
        ),
    ],
)
def test_what_is_refused(make_it, says):
    with pytest.raises(BQNESError, match=says):
        make_it()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_files_and_keywords_choose_it_and_a_run_is_another_by_it(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "search: {kernel: {name: wl, iterations: 2, layer_weights: [1, 0.5, 2]}}"
    )
    chosen = KernelConfig("wl", iterations=2, layer_weights=(1.0, 0.5, 2.0))
    read = configure("tiny", tmp_path / "c.yaml")
    assert read.search.kernel == chosen
    assert configure("tiny", kernel=chosen) == read
    assert read.identity() != configure("tiny").identity()
    with pytest.raises(BQNESError, match=r"kernel is \{'depth': 2\}; it must be a KernelConfig"):
        configure("tiny", kernel={"depth": 2})
    (tmp_path / "c.yaml").write_text("search: {kernel: {depth: 2}}")
    with pytest.raises(BQNESError, match="kernel has 'depth'; allowed are name, iterations"):
        configure("tiny", tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("search: {kernel: {name: cosine}}")
    with pytest.raises(BQNESError, match=r"kernel\.name is 'cosine'; it must be 'auto' or 'wl' or"):
        configure("tiny", tmp_path / "c.yaml")
    budget = dataclasses.replace(read.search, budget=50)
    assert dataclasses.replace(read, search=budget).identity() == read.identity()
