"""The NATS-Bench space, over all of it."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax.errors import BQNESError
from bqnes_jax.spaces import (
    NATS,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    Space,
    enumerate_space,
)
from bqnes_jax.spaces.nats import OPERATIONS
from tests.helpers.toy import GRID


def reference_graph(arch):
    """The labelled graph by sets of edges: an independent way to the same."""
    labels = {"in": 5, "out": 6, **{f"e{i}": int(op) for i, op in enumerate(arch)}}
    text = "in-e0 in-e1 in-e3 e0-e2 e0-e4 e1-e5 e2-e5 e3-out e4-out e5-out"
    edges = {tuple(edge.split("-")) for edge in text.split()}
    for node in ["e0", "e1", "e2", "e3", "e4", "e5"]:
        if labels[node] == 1:
            before = {a for a, b in edges if b == node}
            after = {b for a, b in edges if a == node}
            edges |= set(itertools.product(before, after))
        if labels[node] in (0, 1):
            edges = {edge for edge in edges if node not in edge}
    while True:  # drop dead ends until there are none
        starts, ends = {a for a, _ in edges}, {b for _, b in edges}
        kept = {
            (a, b) for a, b in edges if (a == "in" or a in ends) and (b == "out" or b in starts)
        }
        if kept == edges:
            return labels, edges
        edges = kept


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_whole_space():
    archs = enumerate_space(NATS)
    assert NATS.size == 15_625 == len(archs) == len(np.unique(archs, axis=0))
    assert (NATS.index(archs) == jnp.arange(15_625)).all()
    graphs = jax.jit(jax.vmap(NATS.graph))(archs)
    assert int((graphs.n_node[:, 0] > 0).sum()) == 15_284
    assert graphs.nodes.shape == (15_625, 9)
    assert (graphs.n_node.sum(1) == 9).all()
    assert (graphs.n_edge.sum(1) == 10).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)  # no floats
def test_strings_round_trip_over_the_whole_space():
    archs = np.asarray(enumerate_space(NATS))
    texts = [NATS.to_string(arch) for arch in archs]
    assert len(set(texts)) == 15_625
    assert (np.stack([np.asarray(NATS.from_string(text)) for text in texts]) == archs).all()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_string_is_nas_bench_201s():
    text = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|nor_conv_1x1~0|none~1|avg_pool_3x3~2|"
    arch = NATS.from_string(text)
    assert arch.tolist() == [3, 0, 1, 2, 0, 4]
    assert NATS.to_string(arch) == text


@pytest.mark.parametrize("precision", ["float32"], indirect=True)  # no floats
def test_graphs_equal_the_reference_over_the_whole_space():
    archs = np.asarray(enumerate_space(NATS))
    graphs = jax.tree.map(np.asarray, jax.jit(jax.vmap(NATS.graph))(archs))
    for i, arch in enumerate(archs):
        labels, edges = reference_graph(arch)
        nodes, n_edge = graphs.nodes[i], graphs.n_edge[i, 0]
        ours = zip(graphs.senders[i][:n_edge], graphs.receivers[i][:n_edge], strict=True)
        assert sorted((nodes[a], nodes[b]) for a, b in ours) == sorted(
            (labels[a], labels[b]) for a, b in edges
        )
        real = nodes[: graphs.n_node[i, 0]]
        assert sorted(real) == sorted(labels[node] for node in {n for edge in edges for n in edge})
        assert (graphs.senders[i][n_edge:] == graphs.n_node[i, 0]).all()  # padding joins padding


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("text", "labels"),
    [
        # three skips in a row: input → output
        ("|skip_connect~0|+|none~0|skip_connect~1|+|none~0|none~1|skip_connect~2|", [5, 6]),
        # skip → skip → convolution
        ("|skip_connect~0|+|none~0|skip_connect~1|+|none~0|none~1|nor_conv_3x3~2|", [5, 3, 6]),
        # pooling → skip → convolution
        ("|avg_pool_3x3~0|+|none~0|skip_connect~1|+|none~0|none~1|nor_conv_3x3~2|", [5, 4, 3, 6]),
    ],
)
def test_chains_of_skips_survive_contraction(text, labels):
    graph = NATS.graph(NATS.from_string(text))
    n_node, n_edge = int(graph.n_node[0]), int(graph.n_edge[0])
    assert graph.nodes[:n_node].tolist() == labels
    pairs = zip(graph.senders[:n_edge].tolist(), graph.receivers[:n_edge].tolist(), strict=True)
    assert list(pairs) == [(i, i + 1) for i in range(len(labels) - 1)]


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_mutation_changes_one_edge_to_each_other_operation_equally_often(key):
    arch = jnp.array([0, 1, 2, 3, 4, 0], jnp.int32)
    mutants = jax.jit(jax.vmap(NATS.mutate, (0, None)))(jax.random.split(key, 24_000), arch)
    assert (jnp.sum(mutants != arch, axis=1) == 1).all()
    found, counts = np.unique(np.asarray(mutants), axis=0, return_counts=True)
    assert len(found) == 24
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_sampling_is_uniform(key):
    draws = NATS.sample(key, 20_000)
    counts = jax.nn.one_hot(draws, 5).sum(0)
    assert draws.shape == (20_000, 6)
    assert jnp.abs(counts - 4000).max() < 5 * np.sqrt(4000 * 0.8)
    assert NATS.sample(key, 0).shape == (0, 6)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_coordinates_are_one_hot():
    coordinates = NATS.coordinates(jnp.array([[0, 1, 2, 3, 4, 0]]))
    assert coordinates.shape == (1, 30)
    assert np.flatnonzero(coordinates[0]).tolist() == [0, 6, 12, 18, 24, 25]
    assert NATS.coordinates(np.zeros((0, 6), np.int32)).shape == (0, 30)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_protocols():
    for protocol in (Space, EnumerableSpace, GraphSpace, CoordinateSpace):
        assert isinstance(NATS, protocol)
    assert isinstance(GRID, EnumerableSpace)
    assert not isinstance(GRID, GraphSpace)
    assert hash(NATS) == hash(type(NATS)())


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("|nor_conv_5x5~0|+|none~0|none~1|+|none~0|none~1|none~2|", "'nor_conv_5x5'.*nor_conv_3x3"),
        ("|none~0|+|none~0|none~0|+|none~0|none~1|none~2|", "not an architecture"),
        ("|none~0|+|none~0|none~1|", "not an architecture"),
        ("", "not an architecture"),
    ],
)
def test_malformed_strings_are_refused(text, says):
    with pytest.raises(BQNESError, match=says):
        NATS.from_string(text)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("arch", "says"),
    [
        (np.array([0, 0, 0, 0, 0, 5]), "entry 5 .* is 5; it must be from 0 to 4"),
        (np.array([0, -1, 0, 0, 0, 0]), "is -1"),
        (np.array([0, 0, 0]), r"shape \(3,\)"),
        (np.zeros(6), "float64; they must be integers"),
    ],
)
@pytest.mark.parametrize("function", [NATS.index, NATS.graph, NATS.to_string, NATS.coordinates])
def test_what_is_not_an_architecture_is_refused(function, arch, says):
    with pytest.raises(BQNESError, match=says):
        function(arch)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("index", [-1, 15_625])
def test_index_out_of_range_is_refused(index):
    with pytest.raises(BQNESError, match=f"index {index} "):
        NATS.from_index(index)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("function", [NATS.graph, NATS.to_string])
def test_one_architecture_is_asked_for(function, key):
    batch = NATS.sample(key, 2)
    with pytest.raises(BQNESError, match=r"architecture has shape \(2, 6\)"):
        function(batch)
    with pytest.raises(BQNESError, match=r"architecture has shape \(2, 6\)"):
        NATS.mutate(key, batch)
    with pytest.raises(BQNESError, match="index is of type float"):
        NATS.from_index(1.5)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_space_that_cannot_be_listed_says_so():
    class Endless(type(NATS)):
        size = None

    with pytest.raises(BQNESError, match="cannot be listed"):
        enumerate_space(Endless())


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_operations_are_in_the_benchmarks_order():
    assert OPERATIONS == ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
