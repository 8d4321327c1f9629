"""Losses and accuracies of NATS-Bench, of all seeds, in one file."""

import numpy as np
import pytest

from bqnes_jax import nats_bench, tables
from bqnes_jax.errors import BQNESError
from bqnes_jax.nats_bench import importing, open_archive
from bqnes_jax.nats_bench.archive import numbers_by_text
from bqnes_jax.nats_bench.results import empty, read_results, write_results
from bqnes_jax.spaces import NATS
from tests.helpers import published

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.slow
def test_it_holds_what_the_archive_says(archive, tmp_path):
    with open_archive(archive) as opened:
        nats_bench.import_archive(opened, "cifar100", tmp_path / "new" / "t.npz", count=6)
    results = read_results(tmp_path / "new" / "t.npz")
    assert results.dataset == "cifar100"
    rows = [numbers_by_text()[text] for text in published.TEXTS]
    assert np.flatnonzero(results.imported).tolist() == sorted(rows)
    there = np.isfinite(results.valid_losses)
    for row, text, seeds in zip(rows, published.TEXTS, published.SEEDS, strict=True):
        assert tuple(np.array(nats_bench.SEEDS)[there[row]]) == seeds
        for column in np.flatnonzero(there[row]):
            loss, accuracy = published.scores(text)("cifar100", nats_bench.SEEDS[column], "x-valid")
            np.testing.assert_allclose(results.valid_losses[row, column], loss, rtol=1e-6)
            np.testing.assert_allclose(
                results.valid_accuracies[row, column], accuracy / 100, rtol=1e-6
            )
    assert there.sum() == sum(map(len, published.SEEDS))

    table = tables.nats_bench(tmp_path / "new" / "t.npz", seed=888)
    outcome = tables.evaluator(table, NATS)(NATS.from_index(np.array(rows)))
    expected = [
        -5000 * published.scores(text)("cifar100", 888, "x-valid")[0] for text in published.TEXTS
    ]
    np.testing.assert_allclose(outcome.log_likelihoods, expected, rtol=1e-6)
    assert np.isnan(table.log_likelihoods).sum() == NATS.size - 6
    with pytest.raises(BQNESError, match="seed is 111; allowed are 777, 888, 999"):
        tables.nats_bench(tmp_path / "new" / "t.npz", seed=111)
    with pytest.raises(BQNESError, match="has losses of NATS-Bench and no predictions"):
        tables.read(tmp_path / "new" / "t.npz")


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_SAVE_EVERY", 0.0)
    read, table = [], tmp_path / "t.npz"
    real = nats_bench.Archive.read

    def counted(opened, number, dataset):
        read.append(number)
        return real(opened, number, dataset)

    monkeypatch.setattr(nats_bench.Archive, "read", counted)

    class StopError(Exception):
        pass

    def stop(done, total):
        if done == 3:
            raise StopError

    with open_archive(archive) as opened:
        with pytest.raises(StopError):
            nats_bench.import_archive(opened, "cifar100", table, count=6, report=stop)
        assert read == [0, 1, 2] and read_results(table).imported.sum() == 3
        stopped = nats_bench.import_archive(opened, "cifar100", table, count=6)
        assert read == [0, 1, 2, 3, 4, 5]
        again = nats_bench.import_archive(opened, "cifar100", table, count=6)
        assert read == [0, 1, 2, 3, 4, 5]
        at_once = nats_bench.import_archive(opened, "cifar100", tmp_path / "u.npz", count=6)
        for one in (stopped, again):
            for a, b in zip(one[1:], at_once[1:], strict=True):
                np.testing.assert_array_equal(a, b)
        with pytest.raises(BQNESError, match="is of cifar100, and not of cifar10; give anothe"):
            nats_bench.import_archive(opened, "cifar10", table, count=6)
        with pytest.raises(BQNESError, match="count is 0; it must be a whole number, from 1"):
            nats_bench.import_archive(opened, "cifar100", table, count=0)


def test_what_is_not_a_table_is_refused(tmp_path):
    with pytest.raises(BQNESError, match="make it with: bqnes nats import"):
        read_results(tmp_path / "none.npz")
    write_results(tmp_path / "good.npz", empty("cifar100"))
    whole = (tmp_path / "good.npz").read_bytes()
    bad = {"a": b"", "b": b"PK", "c": whole[:-40], "d": whole[: len(whole) // 2]}
    for name, content in bad.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
    np.save(tmp_path / "e.npy", np.arange(3))
    write_results(tmp_path / "f.npz", empty("mnist"))
    short = empty("cifar10")
    write_results(tmp_path / "g.npz", short._replace(imported=short.imported[:9]))
    names = [*(f"{name}.npz" for name in bad), "e.npy", "f.npz", "g.npz"]
    for name in names:
        with pytest.raises(BQNESError, match="is not a table of NATS-Bench, or damaged"):
            read_results(tmp_path / name)
