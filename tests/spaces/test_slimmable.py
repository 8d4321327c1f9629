"""The slimmable space: brute force over a small one, properties of all."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bqnes_jax.candidates import Outcome, SearchConfig, make
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import RBF
from bqnes_jax.spaces import (
    SLIMMABLE,
    CoordinateSpace,
    EnumerableSpace,
    GraphSpace,
    SlimmableSpace,
    Space,
)

SMALL = SlimmableSpace(blocks=2, layers=2, widths=2)
single = pytest.mark.parametrize("precision", ["float32"], indirect=True)  # no floats


def block_is_canonical(block):
    present = [width > 0 for width in block]
    return present[0] and present == sorted(present, reverse=True)


@functools.cache
def everything(space=SMALL):
    """All canonical architectures, by trying all arrays."""
    blocks = [
        block
        for block in itertools.product(range(space.widths + 1), repeat=space.layers)
        if block_is_canonical(block)
    ]
    return [sum(chosen, ()) for chosen in itertools.product(blocks, repeat=space.blocks)]


def neighbours(arch, among):
    return {other for other in among if sum(abs(a - b) for a, b in zip(arch, other)) == 1}  # noqa: B905


def rows(archs):
    return [tuple(arch) for arch in np.asarray(archs).tolist()]


@single
@pytest.mark.parametrize(
    "space", [SMALL, SlimmableSpace(1, 3, widths=2), SlimmableSpace(2, 2, widths=1)]
)
def test_count_and_canonical_forms(space):
    archs = everything(space)
    assert space.count == len(archs)
    every = np.array(list(itertools.product(range(space.widths + 1), repeat=len(archs[0]))))
    assert rows(every[np.asarray(space.is_canonical(every))]) == sorted(archs)
    assert tuple(space.largest.tolist()) in archs and tuple(space.smallest.tolist()) in archs
    sizes = [sum(arch) for arch in archs]
    assert space.largest.sum() == max(sizes) and space.smallest.sum() == min(sizes)


@single
def test_the_default_space():
    assert SLIMMABLE.count == 120**7 == 358_318_080_000_000
    assert SLIMMABLE.size is None and SLIMMABLE.options == (4,) * 28
    assert SLIMMABLE.largest.tolist() == [3] * 28
    assert SLIMMABLE.smallest.tolist() == [1, 0, 0, 0] * 7
    for protocol in (Space, CoordinateSpace):
        assert isinstance(SLIMMABLE, protocol)
    for protocol in (EnumerableSpace, GraphSpace):
        assert not isinstance(SLIMMABLE, protocol)
    assert hash(SLIMMABLE) == hash(SlimmableSpace())


@single
def test_sampling_is_uniform(key):
    draws = rows(SMALL.sample(key, 36_000))
    counts = np.array([draws.count(arch) for arch in everything()])
    assert len(counts) == 36 and counts.sum() == 36_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 66.6  # chi-square, 35 degrees, p = 0.001
    assert SMALL.sample(key, 0).shape == (0, 4)


@single
def test_sampling_the_default_space(key):
    draws = SLIMMABLE.sample(key, 10_000)
    assert draws.dtype == jnp.int32 and SLIMMABLE.is_canonical(draws).all()
    depths = (draws.reshape(-1, 4) > 0).sum(1)
    for depth in range(1, 5):
        expected = 3**depth / 120
        error = 5 * math.sqrt(expected * (1 - expected) / 70_000)
        assert abs(float((depths == depth).mean()) - expected) < error


@single
def test_mutation_reaches_all_neighbours_equally_often(key):
    archs = jnp.array(everything(), jnp.int32)
    mutate = jax.jit(jax.vmap(jax.vmap(SMALL.mutate, (0, None)), (None, 0)))
    mutants = mutate(jax.random.split(key, 2000), archs)
    for arch, found in zip(everything(), mutants, strict=True):
        expected = neighbours(arch, everything())
        places, counts = np.unique(np.asarray(found), axis=0, return_counts=True)
        assert set(rows(places)) == expected
        mean = 2000 / len(expected)
        assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)


@single
def test_distance_is_the_number_of_mutations_between():
    archs = everything()
    between = np.asarray(SMALL.distance(np.array(archs)[:, None], np.array(archs)[None]))
    for i, start in enumerate(archs):
        found, border = {start: 0}, [start]
        while border:
            border = [
                found.setdefault(other, found[arch] + 1) and other
                for arch in border
                for other in neighbours(arch, archs)
                if other not in found
            ]
        assert between[i].tolist() == [found[arch] for arch in archs]


@single
@given(arrays(np.int32, 28, elements=st.integers(-3, 7)))
def test_repair_gives_the_canonical_form_and_keeps_it(arch):
    repaired = SLIMMABLE.repair(arch)
    assert SLIMMABLE.is_canonical(repaired)
    np.testing.assert_array_equal(SLIMMABLE.repair(repaired), repaired)
    for before, after in zip(arch.reshape(7, 4), repaired.reshape(7, 4).tolist(), strict=True):
        kept = [min(int(width), 3) for width in before if width > 0] or [1]
        assert after == kept + [0] * (4 - len(kept))


@single
def test_repair_is_the_identity_on_canonical_ones(key):
    draws = SLIMMABLE.sample(key, 500)
    np.testing.assert_array_equal(jax.jit(SLIMMABLE.repair)(draws), draws)
    broken = jnp.array([0, 2, 2, 0], jnp.int32)
    assert rows(jax.vmap(SMALL.repair)(broken[None])) == [(2, 0, 2, 0)]
    assert SMALL.is_canonical(SMALL.mutate(key, broken))


@single
@given(st.integers(0, 2**32 - 1))
def test_strings_round_trip(seed):
    arch = SLIMMABLE.sample(jax.random.key(seed), 1)[0]
    text = SLIMMABLE.to_string(arch)
    np.testing.assert_array_equal(SLIMMABLE.from_string(text), arch)
    assert len(text) == 34


@single
def test_strings_of_the_small_space():
    assert len({SMALL.to_string(np.array(arch)) for arch in everything()}) == 36
    assert SMALL.to_string(np.array([2, 1, 1, 0])) == "21-10"
    assert SMALL.from_string(" 21-10\n").tolist() == [2, 1, 1, 0]


@single
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("21-30", "'21-30' is not an architecture; .* 2 blocks of 2 digits from 0 to 2"),
        ("21", "not an architecture"),
        ("2110", "not an architecture"),
        ("", "not an architecture"),
        ("01-10", "canonical form"),
        ("00-10", "canonical form"),
    ],
)
def test_malformed_strings_are_refused(text, says):
    with pytest.raises(BQNESError, match=says):
        SMALL.from_string(text)


@single
@pytest.mark.parametrize(
    ("arch", "says"),
    [
        (np.array([1, 0, 3, 0]), "entry 2 .* is 3; it must be from 0 to 2"),
        (np.array([1, 0]), r"shape \(2,\)"),
        (np.ones(4), "float64; they must be integers"),
        (np.array([[1, 0, 1, 0]]), r"architecture has shape \(1, 4\)"),
    ],
)
def test_what_is_not_an_architecture_is_refused(arch, says, key):
    with pytest.raises(BQNESError, match=says):
        SMALL.to_string(arch)
    with pytest.raises(BQNESError, match=says):
        SMALL.mutate(key, arch)
    if (arch.ndim == 1 and len(arch) != 4) or arch.dtype == float:
        for function in (SMALL.repair, SMALL.is_canonical):
            with pytest.raises(BQNESError, match=says):
                function(arch)


@single
@pytest.mark.parametrize(
    "wrong", [{"blocks": 0}, {"layers": 0}, {"widths": 10}, {"layers": 1, "widths": 1}]
)
def test_bad_spaces_are_refused(wrong):
    with pytest.raises(BQNESError, match=next(iter(wrong))):
        dataclasses.replace(SLIMMABLE, **wrong)


def test_coordinates_are_fractions_of_the_largest(precision, tolerance):
    coordinates = jax.jit(SLIMMABLE.coordinates)(jnp.stack([SLIMMABLE.largest, SLIMMABLE.smallest]))
    assert coordinates.dtype == precision
    np.testing.assert_array_equal(coordinates[0], 1)
    np.testing.assert_allclose(coordinates[1].reshape(7, 4)[:, 0], 1 / 3, rtol=tolerance(1e-6, 0))
    np.testing.assert_array_equal(coordinates[1].reshape(7, 4)[:, 1:], 0)
    assert RBF(SLIMMABLE).gram(jnp.stack([SLIMMABLE.largest] * 2)).shape == (2, 2)


@pytest.mark.slow
@single
@pytest.mark.parametrize("name", ["us", "evolution", "random", "ei", "posterior"])
def test_strategies_search_it(name, key):
    """Wider is better here: each strategy spends its budget on different, canonical ones."""
    config = SearchConfig(
        initial=6, budget=14, batch=4, population=6, parents=3, pool=32, mutated=16, samples=32
    )

    def evaluate(archs):
        return Outcome(archs, 50.0 * SLIMMABLE.coordinates(archs).sum(1))

    run = functools.partial(scan, make(name, SLIMMABLE, config=config), config)
    history, _ = jax.jit(run, static_argnums=1)(key, evaluate)
    assert history.count == 14 and len(set(rows(history.archs))) == 14
    assert SLIMMABLE.is_canonical(history.archs).all()
    assert jnp.isfinite(history.log_likelihoods).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64"], indirect=True)
def test_local_search_climbs_to_better_ones(key):
    """Far above what a small pool of draws has to offer, in a space that cannot be listed."""

    def evaluate(archs):
        log_likelihoods = -3.0 * jnp.sum((3 - archs) ** 2, axis=1).astype(float)
        return Outcome(archs, log_likelihoods)

    def best_score(climbs):
        config = SearchConfig(initial=20, budget=24, pool=16, mutated=4, climbs=climbs, samples=16)
        strategy = make("us", SLIMMABLE, config=config)
        state, info = jax.jit(strategy.init)(key)
        _, info = jax.jit(strategy.step)(key, state, evaluate(info.archs))
        assert SLIMMABLE.is_canonical(info.archs[0])
        return float(info.scores[0])

    without, little, much = map(best_score, (0, 5, 30))
    assert without < little < much
