"""The DARTS space: canonical pairs of cells, their texts, their graphs, and the kernel on them."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF, WL, KernelConfig, make_kernel
from bqnes_jax.spaces import DARTS, ChoiceSpace, CoordinateSpace, GraphSpace, Space
from bqnes_jax.spaces.darts import OPERATIONS

pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

# As they are printed with their paper, and in the code that came with it.
DARTS_V1 = (
    "DARTS_V1 = Genotype(normal=[('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 0), "
    "('sep_conv_3x3', 1), ('skip_connect', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), "
    "('skip_connect', 2)], normal_concat=[2, 3, 4, 5], reduce=[('max_pool_3x3', 0), "
    "('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 0), ('max_pool_3x3', 0), "
    "('skip_connect', 2), ('skip_connect', 2), ('avg_pool_3x3', 0)], reduce_concat=[2, 3, 4, 5])"
)
DARTS_V2 = """DARTS_V2 = Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1),
('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 1), ('skip_connect', 0),
('skip_connect', 0), ('dil_conv_3x3', 2)], normal_concat=[2, 3, 4, 5], reduce=[('max_pool_3x3', 0),
('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1), ('max_pool_3x3', 0),
('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat=[2, 3, 4, 5])"""
MANY = np.asarray(DARTS.sample(jax.random.key(0), 10_000))


def neighbours(arch):
    """Return everything that one other operation or one other source makes of an architecture."""
    found = set()
    for entry, options in enumerate(DARTS.options):
        for value in range(options):
            other = np.array(arch)
            other[entry] = value
            sources = other.reshape(8, 2, 2)[:, :, 0]
            if value != arch[entry] and (sources[:, 0] != sources[:, 1]).all():
                pairs = [sorted(pair) for pair in other.reshape(8, 2, 2).tolist()]
                found.add(tuple(np.array(pairs).ravel().tolist()))
    return found


def test_it_is_a_space():
    for kind in (Space, GraphSpace, CoordinateSpace, ChoiceSpace):
        assert isinstance(DARTS, kind)
    pairs = [len(list(itertools.combinations(range(n), 2))) for n in (2, 3, 4, 5)]
    assert DARTS.count == (np.prod(pairs) * 7**8) ** 2 == 1_076_746_950_455_072_400
    assert DARTS.size is None and len(DARTS.options) == 32


def test_draws_are_canonical_and_every_choice_is_equally_likely():
    assert bool(jnp.all(DARTS.is_canonical(MANY)))
    np.testing.assert_array_equal(DARTS.repair(MANY), MANY)
    edges = MANY.reshape(-1, 2, 4, 2, 2)
    for cell, node in itertools.product(range(2), range(4)):
        sources = edges[:, cell, node, :, 0]
        counts = collections.Counter(map(tuple, sources.tolist()))
        assert set(counts) == set(itertools.combinations(range(node + 2), 2))
        if len(counts) > 1:
            assert stats.chisquare(list(counts.values())).pvalue > 1e-4
        for edge in range(2):
            counts = np.bincount(edges[:, cell, node, edge, 1], minlength=7)
            assert stats.chisquare(counts).pvalue > 1e-4
    assert len(np.unique(MANY, axis=0)) == len(MANY)


def test_a_mutation_is_any_neighbour():
    arch = DARTS.from_string(DARTS_V2)
    keys = jax.random.split(jax.random.key(1), 6_000)
    found = collections.Counter(
        map(tuple, np.asarray(jax.vmap(DARTS.mutate, (0, None))(keys, arch)).tolist())
    )
    assert set(found) == neighbours(np.asarray(arch)) and len(found) == 120
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


def test_texts_are_those_of_papers():
    arch = DARTS.from_string(DARTS_V2)
    assert DARTS.decode(arch)["normal"][4:6] == [("skip_connect", 0), ("sep_conv_3x3", 1)]
    text = DARTS.to_string(arch)
    assert text.startswith("Genotype(normal=[('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ")
    assert text.endswith("('skip_connect', 2)], reduce_concat=range(2, 6))")
    other = DARTS.decode(DARTS.from_string(DARTS_V1))
    assert other["normal"][:2] == [("sep_conv_3x3", 0), ("sep_conv_3x3", 1)]
    assert other["reduce"][6:] == [("avg_pool_3x3", 0), ("skip_connect", 2)]
    for one in MANY[:50]:
        np.testing.assert_array_equal(DARTS.from_string(DARTS.to_string(one)), one)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has 0 edges of the normal cell; it must have 8"),
        (DARTS_V2.replace("('sep_conv_3x3', 1),\n", "", 1), "has 7 edges of the normal cell"),
        (DARTS_V2.replace("dil_conv_3x3", "none"), "operation 'none' in .* does not exist"),
        (DARTS_V2.replace("('dil_conv_3x3', 2)", "('dil_conv_3x3', 5)"), "comes from its own node"),
        (DARTS_V2.replace("('dil_conv_3x3', 2)", "('dil_conv_3x3', 0)"), "from different places"),
        (DARTS_V2.replace("[2, 3, 4, 5]", "[4, 5]", 1), r"joins the nodes \[4, 5\]"),
        (DARTS_V2.replace("[2, 3, 4, 5]", "[2, 6]", 1), r"joins the nodes \[2, 6\]"),
        (DARTS_V2.replace("[2, 3, 4, 5]", "range(2, 5)", 1), r"joins the nodes range\(2, 5\)"),
        (DARTS_V2.replace("[2, 3, 4, 5]", "(4, 5)", 1), r"joins the nodes \(4, 5\)"),
        (f"{DARTS_V1}\n{DARTS_V2}", "has 2 normal cells; it must be one Genotype"),
        (DARTS_V1.partition(", normal_concat")[0] + DARTS_V2, "has 2 normal cells"),
        (DARTS_V2.replace("2)], n", "2), ('sep_conv_7x7', -1)], n"), "7x7', -1.* is no edge"),
    ],
)
def test_texts_that_are_none_are_refused(text, says):
    with pytest.raises(BQNESError, match=says):
        DARTS.from_string(text)


def test_what_is_not_canonical_is_refused_and_repaired():
    arch = DARTS.from_string(DARTS_V2)
    swapped = arch.at[:4].set(arch[jnp.array([2, 3, 0, 1])])
    assert not bool(DARTS.is_canonical(swapped))
    with pytest.raises(BQNESError, match="the earlier one first; `repair`"):
        DARTS.to_string(swapped)
    np.testing.assert_array_equal(DARTS.repair(swapped), arch)
    with pytest.raises(BQNESError, match="of space 'darts'"):
        DARTS.graph(arch.at[0].set(2))


def as_sets(arch):
    """Return the labels of the graph's nodes and its edges, by loops over the definition."""
    labels, edges = {}, set()
    for cell, pairs in enumerate(arch.reshape(2, 4, 2, 2)):
        labels |= {(cell, "in", i): (cell, "in", i) for i in range(2)}
        labels[cell, "out"] = (cell, "out")
        for node, edge in itertools.product(range(4), range(2)):
            source, operation = pairs[node, edge]
            own = (cell, node, edge)
            labels[own] = (cell, OPERATIONS[operation])
            edges.add((own, (cell, "out")))
            if source < 2:
                edges.add(((cell, "in", source), own))
            else:
                edges |= {((cell, source - 2, other), own) for other in range(2)}
    return labels, edges


def refine(labels, edges, iterations):
    """Return the labels of every iteration, as nested tuples: nothing is hashed."""
    layers = [labels]
    for _ in range(iterations):
        before = layers[-1]
        layers.append(
            {
                node: (label, tuple(sorted(str(before[b]) for a, b in edges if a == node)))
                for node, label in before.items()
            }
        )
    return layers


def histogram(arch, iterations):
    layers = refine(*as_sets(arch), iterations)
    return collections.Counter(
        (t, label) for t, layer in enumerate(layers) for label in layer.values()
    )


def test_the_graph_is_that_of_the_definition():
    for arch in [np.asarray(DARTS.from_string(DARTS_V2)), *MANY[:20]]:
        graph = DARTS.graph(arch)
        labels, edges = as_sets(arch)
        assert graph.n_node.tolist() == [len(labels), 1] == [22, 1]
        assert graph.n_edge.tolist() == [len(edges), 48 - len(edges)]
        real = int(graph.n_edge[0])
        ends = [
            (s, r) for s, r in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
        ]
        assert all(s < 22 and r < 22 for s, r in ends[:real])
        assert set(ends[real:]) <= {(22, 22)} and len(set(ends[:real])) == real
        kinds = collections.defaultdict(set)
        names = sorted(labels, key=lambda name: (name[0], str(name[1]) == "out", position(name)))
        for number, name in enumerate(names):
            kinds[int(graph.nodes[number])].add(labels[name])
        assert all(len(kind) == 1 for kind in kinds.values()), "one label, one kind"
        number_of = {name: number for number, name in enumerate(names)}
        assert {(number_of[a], number_of[b]) for a, b in edges} == set(ends[:real])


def position(name):
    return (0, name[2], 0) if name[1] == "in" else (1, *name[1:]) if len(name) == 3 else (2, 0, 0)


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_kernel_is_that_of_labels_without_hashing(iterations):
    archs = np.concatenate([MANY[:12], [DARTS.from_string(DARTS_V2)]])
    counts = [histogram(arch, iterations) for arch in archs]
    product = np.array([[sum(a[x] * b[x] for x in a) for b in counts] for a in counts], float)
    length = np.sqrt(np.diag(product))
    for buckets, tolerance in ((4096, 0.05), (2**20, 1e-5)):  # in so many no two share one
        ours = WL(DARTS, iterations, buckets=buckets).gram(archs)
        np.testing.assert_allclose(ours, product / length / length[:, None], atol=tolerance)


def test_kernels_are_chosen_as_for_other_spaces():
    assert isinstance(make_kernel(DARTS, KernelConfig()), WL)
    assert isinstance(make_kernel(DARTS, KernelConfig("rbf")), RBF)
    coordinates = DARTS.coordinates(MANY[:3])
    assert coordinates.shape == (3, 168)
    np.testing.assert_array_equal(coordinates.sum(axis=1), 32)


@pytest.mark.slow
def test_few_of_ten_thousand_draws_share_their_features():
    """Hashing into 4,096 buckets hardly loses anything beyond what labels tell apart."""
    hashed = WL(DARTS, 1, buckets=4096)
    features = np.concatenate([np.asarray(hashed.features(some)) for some in np.split(MANY, 20)])
    exact = {frozenset(histogram(arch, 1).items()) for arch in MANY}
    assert len(np.unique(features, axis=0)) >= len(exact) - 10
    assert len(exact) > 9_990
