"""WL features and kernels against GraKeL, exact counts and closed forms."""

import dataclasses

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process.kernels import RBF as SklearnRBF  # noqa: N811

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import (
    RBF,
    WL,
    FeatureRBF,
    FiniteKernel,
    GeneralKernel,
    Kernel,
    Linear,
    Words,
    vocabulary,
    wl_histograms,
)
from bqnes_jax.spaces import DARTS, NATS, enumerate_space
from tests.conftest import all_but_slow
from tests.helpers.toy import GRID, Grid, Overlap, Polynomial


def to_grakel(grakel, graph):
    n_node, n_edge = int(graph.n_node[0]), int(graph.n_edge[0])
    edges = {node: [] for node in range(n_node)}
    for sender, receiver in zip(graph.senders[:n_edge], graph.receivers[:n_edge], strict=True):
        edges[int(sender)].append(int(receiver))
    return grakel.Graph(edges, node_labels=dict(enumerate(graph.nodes[:n_node].tolist())))


graphs_of = jax.jit(jax.vmap(NATS.graph))


def connected(key, n):
    archs = NATS.sample(key, 2 * n)
    kept = np.asarray(graphs_of(archs).n_node[:, 0]) > 0
    return archs[kept][:n]


@pytest.mark.slow("float64")
@pytest.mark.parametrize("iterations", all_but_slow([0, 1, 2, 3], 0, 1))
def test_gram_equals_grakels(key, iterations):
    reason = "GraKeL cannot be imported: its newest release for Python 3.13 needs NumPy 1"
    grakel = pytest.importorskip("grakel", reason=reason, exc_type=ImportError)
    archs = connected(key, 60)
    # GraKeL refuses zero iterations; that would be its base kernel.
    theirs = (
        grakel.WeisfeilerLehman(n_iter=iterations, normalize=True)
        if iterations
        else (grakel.VertexHistogram(normalize=True))
    )
    graphs = jax.tree.map(np.asarray, graphs_of(archs))
    each = (jax.tree.map(lambda x, i=i: x[i], graphs) for i in range(len(archs)))
    expected = theirs.fit_transform([to_grakel(grakel, graph) for graph in each])
    np.testing.assert_allclose(WL(NATS, iterations=iterations).gram(archs), expected, atol=1e-6)
    hashed = WL(NATS, iterations=iterations, buckets=2**16)  # enough for a dozen graphs
    np.testing.assert_allclose(hashed.gram(archs[:12]), expected[:12, :12], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("iterations", "features", "vectors"), [(0, 5, 84), (1, 99, 4_914), (2, 2_515, 5_256)]
)
def test_features_of_the_whole_space(iterations, features, vectors):
    psi = np.asarray(jax.jit(WL(NATS, iterations=iterations).features)(enumerate_space(NATS)))
    real = psi[psi[:, -1] == 0, :-1]
    assert real.shape == (15_284, features)
    assert (real.any(axis=0)).all()
    assert len({row.tobytes() for row in real}) == vectors
    np.testing.assert_allclose((psi**2).sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_vocabulary_does_not_collide_but_1024_buckets_do():
    words, layers = vocabulary(NATS, 1)
    assert len(words) == 99
    assert np.bincount(layers).tolist() == [5, 94]
    used = np.asarray(WL(NATS, buckets=1024).features(enumerate_space(NATS))).any(axis=0)[:-1]
    assert used.sum() < 99


def random_graph(rng, nodes, edges):
    return jraph.GraphsTuple(
        nodes=rng.integers(0, 3, nodes),
        senders=rng.integers(0, nodes, edges),
        receivers=rng.integers(0, nodes, edges),
        n_node=np.array([nodes]),
        n_edge=np.array([edges]),
        edges=None,
        globals=None,
    )


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@given(st.integers(0, 2**31), st.integers(0, 3))
def test_histograms_do_not_depend_on_the_order_of_nodes_and_edges(seed, iterations):
    rng, nodes, edges = np.random.default_rng(seed), 6, 9
    graph = random_graph(rng, nodes, edges)
    place, order = rng.permutation(nodes), rng.permutation(edges)
    shuffled = graph._replace(
        nodes=graph.nodes[np.argsort(place)],
        senders=place[graph.senders][order],
        receivers=place[graph.receivers][order],
    )
    ours, theirs = (wl_histograms(g, iterations, buckets=64) for g in (graph, shuffled))
    assert (ours == theirs).all()
    assert ours.sum() == (iterations + 1) * nodes


@pytest.mark.slow("float64")
def test_batched_and_padded_tuples_give_each_graph_its_own_features(tolerance):
    rng = np.random.default_rng(0)
    graphs = [random_graph(rng, n, 2 * n) for n in (3, 1, 6)]
    alone = [wl_histograms(graph, 2, buckets=128)[0] for graph in graphs]
    batch = jraph.pad_with_graphs(jraph.batch_np(graphs), n_node=16, n_edge=40, n_graph=5)
    together = jax.jit(lambda g: wl_histograms(g, 2, buckets=128))(batch)
    assert jraph.get_graph_padding_mask(batch).tolist() == [True, True, True, False, False]
    np.testing.assert_array_equal(together[:3], jnp.stack(alone))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_direction_of_edges_counts():
    """A label is refined by what comes after the node, not before it."""
    fork = {"nodes": np.array([0, 1, 2]), "n_node": np.array([3]), "n_edge": np.array([2])}
    ends = np.array([0, 0]), np.array([1, 2])
    out = jraph.GraphsTuple(**fork, senders=ends[0], receivers=ends[1], edges=None, globals=None)
    back = out._replace(senders=ends[1], receivers=ends[0])
    assert not (wl_histograms(out, 1) == wl_histograms(back, 1)).all()


@dataclasses.dataclass(frozen=True)
class Labelled(Grid):
    """Grid as graphs: a path of three nodes whose two edges have the labels (row, column)."""

    def graph(self, arch):
        return jraph.GraphsTuple(
            nodes=jnp.array([0, 1, 2, 0]),
            edges=jnp.append(jnp.asarray(arch), 0),
            senders=jnp.array([0, 1, 3]),
            receivers=jnp.array([1, 2, 3]),
            n_node=jnp.array([3, 1]),
            n_edge=jnp.array([2, 1]),
            globals=None,
        )


@pytest.mark.slow("float64")
@pytest.mark.parametrize("buckets", [None, 4096])
def test_labels_of_edges_count(buckets, tolerance):
    """Against counts by hand: a node's label after one refinement is its own edge's, too."""
    archs = np.stack(np.divmod(np.arange(9), 3), axis=-1)

    def words(arch, depth):
        row, column = map(int, arch)
        layers = [["0", "1", "2"], [f"0-{row}-1", f"1-{column}-2", "2"]]
        layers += [[f"0-{row}-(1-{column}-2)", f"1-{column}-2", "2"]]
        return {f"{i}: {word}" for i, layer in enumerate(layers[: depth + 1]) for word in layer}

    for depth in (0, 1, 2):
        each = [words(arch, depth) for arch in archs]
        expected = [[len(a & b) / (3 * (depth + 1)) for b in each] for a in each]
        gram = WL(Labelled(3), iterations=depth, buckets=buckets).gram(archs)
        np.testing.assert_allclose(gram, expected, atol=tolerance(1e-6, 1e-12))


def test_labels_of_edges_that_are_no_integers_are_refused():
    graph = random_graph(np.random.default_rng(0), 3, 4)
    for edges, says in (
        ({"label": np.zeros(4, int)}, "graph.edges is of type dict; it must be None"),
        (np.zeros(4), r"graph.edges has type float64 and shape \(4,\)"),
        (np.zeros((4, 1), int), r"graph.edges has type int64 and shape \(4, 1\)"),
    ):
        with pytest.raises(BQNESError, match=says):
            wl_histograms(graph._replace(edges=edges))


@pytest.mark.slow("float64")
def test_the_empty_graph_is_like_itself_only():
    empty = NATS.from_index(jnp.array([0, 1]))  # both have no path to the output
    others = NATS.from_index(jnp.array([9504, 15_001]))
    kernel = WL(NATS)
    assert (kernel.gram(empty) == 1).all()
    assert (kernel.cross(empty, others) == 0).all()
    assert (kernel.diag(empty) == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [None, 4096])
def test_gradient_by_layer_weights(key, buckets, tolerance):
    archs = jnp.concatenate([NATS.sample(key, 8), jnp.zeros((1, 6), jnp.int32)])

    @jax.jit
    def total(weights):
        kernel = WL(NATS, iterations=2, buckets=buckets, layer_weights=weights)
        return jnp.sum(jnp.sin(kernel.gram(archs)))

    weights = jnp.array([0.5, 1.0, 2.0])
    gradient = jax.jit(jax.grad(total))(weights)
    step = tolerance(1e-2, 1e-5)
    for i in range(3):
        shift = step * jnp.eye(3)[i]
        numerical = (total(weights + shift) - total(weights - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[i], numerical, atol=tolerance(5e-3, 1e-8))


@pytest.mark.slow("float64")
def test_layer_weights_interpolate_between_depths(key):
    archs = connected(key, 20)
    shallow = WL(NATS, iterations=1, layer_weights=jnp.array([1.0, 1e-6])).gram(archs)
    np.testing.assert_allclose(shallow, WL(NATS, iterations=0).gram(archs), atol=1e-6)
    ones = WL(NATS, iterations=1, layer_weights=jnp.ones(2)).gram(archs)
    np.testing.assert_allclose(ones, WL(NATS, iterations=1).gram(archs), atol=1e-6)


@pytest.mark.slow("float64")
def test_rbf_equals_sklearns(tolerance):
    archs, others = enumerate_space(GRID)[:20], enumerate_space(GRID)[10:]
    for scales in (0.3, np.array([0.2, 1.5])):
        expected = SklearnRBF(scales)(GRID.coordinates(archs), GRID.coordinates(others))
        ours = RBF(GRID, length_scales=scales)
        np.testing.assert_allclose(ours.cross(archs, others), expected, atol=tolerance(1e-6, 1e-14))
        assert (jnp.diagonal(ours.gram(archs)) == 1).all()


@pytest.mark.slow("float64")
@pytest.mark.parametrize(
    "kernel",
    [
        WL(NATS),
        WL(NATS, buckets=256),
        RBF(NATS, 0.7),
        FeatureRBF(WL(NATS), 0.7),
        Polynomial(),
        Overlap(),
    ],
)
def test_every_kernel_is_consistent(kernel, key, tolerance):
    assert isinstance(kernel, Kernel)
    archs = kernel.space.sample(key, 30)
    gram = kernel.gram(archs)
    np.testing.assert_allclose(gram, kernel.cross(archs, archs), atol=1e-6)
    np.testing.assert_allclose(jnp.diagonal(gram), kernel.diag(archs), rtol=1e-5)
    np.testing.assert_allclose(gram, gram.T, atol=1e-6)
    assert jnp.linalg.eigvalsh(gram).min() > -tolerance(1e-4, 1e-10)
    if kernel.finite:
        psi = kernel.features(archs)
        np.testing.assert_allclose(gram, psi @ psi.T, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: WL(NATS, iterations=-1),
            "iterations is -1; it must be a whole number, at least 0",
        ),
        (lambda: WL(NATS, buckets=0), "buckets is 0"),
        (lambda: WL(NATS, layer_weights=np.ones(3)), r"layer_weights has shape \(3,\).*\(2\)"),
        (lambda: WL(NATS, layer_weights=np.array([1.0, -1.0])), "layer_weights .* positive"),
        (lambda: RBF(NATS, length_scales=0.0), "length_scales .* positive"),
        (lambda: RBF(Grid(), np.ones(3)).gram(np.zeros((1, 2), int)), "each of the 2 coordinates"),
        (lambda: WL(NATS).gram(np.full((2, 6), 7)), "is 7; it must be from 0 to 4"),
        (lambda: wl_histograms(random_graph(np.random.default_rng(0), 2, 2), -1), "iterations"),
        (
            lambda: wl_histograms(
                random_graph(np.random.default_rng(0), 2, 2)._replace(nodes=np.ones(2))
            ),
            "one integer label for each node",
        ),
    ],
)
def test_bad_input_is_refused(make, says):
    with pytest.raises(BQNESError, match=says):
        make()


@pytest.mark.slow("float64")
def test_feature_rbf_equals_sklearns(key, tolerance):
    archs = NATS.sample(key, 20)
    features = np.asarray(WL(NATS).features(archs), float)
    ours = FeatureRBF(WL(NATS), 0.6).gram(archs)
    np.testing.assert_allclose(ours, SklearnRBF(0.6)(features), atol=tolerance(1e-5, 1e-10))
    with pytest.raises(BQNESError, match="inner is RBF; it must be a finite kernel"):
        FeatureRBF(RBF(NATS))


@pytest.mark.slow("float64")
@pytest.mark.parametrize(
    ("kernel", "on_views"),
    [
        (WL(NATS), Linear),
        (WL(NATS, buckets=256), Words),
        (WL(NATS, buckets=8), Words),
        (WL(NATS, buckets=256, layer_weights=(1.0, 2.0)), Linear),
        (WL(DARTS, 2, buckets=4096), Words),
        (FeatureRBF(WL(NATS), 0.6), FeatureRBF),
        (FeatureRBF(WL(DARTS, buckets=4096), 0.6), FeatureRBF),
        (WL(NATS, layer_weights=jnp.ones(2)), WL),
        (RBF(NATS, 0.7), RBF),
        (Polynomial(), Linear),
        (Overlap(), Overlap),
    ],
)
def test_a_split_kernel_is_the_same_kernel(kernel, on_views, key):
    none = jnp.zeros_like(kernel.space.sample(key, 2))  # of NATS, the empty graph
    archs = jnp.concatenate([kernel.space.sample(key, 10), none])
    view, inner = kernel.split()
    assert type(inner) is on_views
    rows, gram = view(archs), kernel.gram(archs)
    np.testing.assert_allclose(inner.gram(rows), gram, atol=1e-5)
    np.testing.assert_allclose(inner.cross(rows[:3], rows), gram[:3], atol=1e-5)
    np.testing.assert_allclose(inner.diag(rows), jnp.diagonal(gram), rtol=1e-5)
    np.testing.assert_allclose(inner.features(rows), kernel.features(archs), atol=1e-6)
    if isinstance(inner, FiniteKernel):
        weights = jnp.arange(12.0)
        added = inner.add_features(rows, weights)
        np.testing.assert_allclose(added, weights @ inner.features(rows), atol=1e-4)


@pytest.mark.slow("float64")
@pytest.mark.parametrize("kernel", [RBF, FeatureRBF])
def test_length_scales_may_be_as_small_as_numbers_are(kernel, precision):
    """Nothing is alike to another then; less than that is 0 to XLA, and refused."""
    inner = NATS if kernel is RBF else WL(NATS)
    archs = NATS.sample(jax.random.key(0), 4)
    least = float(jnp.finfo(precision).tiny)
    gram = kernel(inner, least).gram(archs)
    np.testing.assert_array_equal(gram, np.diag(np.diagonal(gram)))
    assert jnp.isin(jnp.diagonal(gram), jnp.array([0, 1])).all(), "1, or 0 after rounding"
    for scale in (least / 8, jnp.asarray(least / 8), 1e-320):
        with pytest.raises(BQNESError, match=f"positive and finite(.| in {precision})"):
            kernel(inner, scale)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("kernel", [Linear(), FeatureRBF(Linear())])
def test_a_kernel_on_plain_rows_has_no_space(kernel):
    assert isinstance(kernel, Kernel)
    assert kernel.space is None


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_lacks_a_part_is_no_kernel():
    class Forgetful:
        finite, space = False, None

        def cross(self, archs, others):
            return jnp.ones((len(archs), len(others)))

    assert not isinstance(Forgetful(), Kernel)
    with pytest.raises(TypeError, match="features"):
        FiniteKernel()
    with pytest.raises(TypeError, match="cross"):
        GeneralKernel()
