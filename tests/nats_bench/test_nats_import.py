"""Trained networks of NATS-Bench's archives at work: their predictions, into a store."""

import functools

import numpy as np
import pytest

from bqnes_jax import nats_bench
from bqnes_jax.data import Dataset, split, write_split
from bqnes_jax.data.splits import split_indices
from bqnes_jax.errors import BQNESError
from bqnes_jax.models import NATSNetworkConfig
from bqnes_jax.nats_bench import open_archive
from bqnes_jax.nats_bench.archive import numbers_by_text
from bqnes_jax.runs import make_family, preset_config
from bqnes_jax.storage import Store
from bqnes_jax.storage.entries import manifest_of
from tests.helpers import published
from tests.helpers.pictures import images
from tests.helpers.published import SEEDS, TEXTS

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

NETWORK = NATSNetworkConfig(channels=2, cells=1, classes=5, layout="convolution")
DATASET = Dataset("cifar100", 5, images(12, 8, classes=5), images(10, 8, classes=5, seed=1))


def said(state, text, part):
    """Return the log-probabilities of a published network, and its mean loss."""
    moments = np.array([[129.3, 124.1, 112.4], [68.2, 65.4, 70.4]])[:, :, None, None]
    seen = (part.inputs.transpose(0, 3, 1, 2) - moments[0]) / moments[1]
    x = published.logits(state, text, seen)
    x = x - x.max(axis=1, keepdims=True)
    log_probs = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return log_probs, -log_probs[np.arange(len(x)), part.labels].mean()


SEEN = np.random.default_rng(0).normal(size=(9, 3, 8, 8))
HALVES = split(DATASET, seed=3)  # not the one that predictions are made for
PARTS = {"x-valid": HALVES.valid, "x-test": HALVES.test, "ori-test": DATASET.test}


@functools.cache
def trained(text, seed):
    """Return the weights of a network, and its loss on each part of the test set."""
    number = numbers_by_text()[text] + seed
    state = published.settled(text, SEEN, channels=2, cells=1, classes=5, seed=number)
    return state, {of: said(state, text, part)[1] for of, part in PARTS.items()}


def full(folder, off_by=0.0, numbers=()):
    """Write an archive with weights; the published losses of some networks may be off."""
    files = []
    for number, (text, seeds) in enumerate(zip(TEXTS, SEEDS, strict=True)):
        wrong = off_by if number in numbers else 0.0

        def score(_, seed, of, text=text, wrong=wrong):
            return trained(text, seed)[1][of] + wrong, 50.0

        def weights(_, seed, text=text):
            return published.StateDict(trained(text, seed)[0])

        files.append(published.content(text, scores=score, weights=weights, seeds=seeds))
    return published.write_archive(folder, files)


class TestNetworks:
    """Trained networks at work, into a store."""

    def predictions(self, tmp_path, seed=777):
        data = split(DATASET)
        task = nats_bench.make_task(DATASET, data, NETWORK)
        store = Store.open(tmp_path / "store", nats_bench.store_manifest(task))
        return nats_bench.Destination(task, store, seed)

    @pytest.mark.slow
    def test_predictions_are_those_of_the_published_networks(self, tmp_path, monkeypatch):
        archive = full(tmp_path / "full")
        predictions = self.predictions(tmp_path)
        read, real = [], nats_bench.Archive.read

        def counted(opened, number, dataset):
            read.append(number)
            return real(opened, number, dataset)

        monkeypatch.setattr(nats_bench.Archive, "read", counted)
        with open_archive(published.as_tar(archive)) as opened:
            table = tmp_path / "t.npz"
            nats_bench.import_archive(opened, "cifar100", table, count=2, predictions=predictions)
            assert len(predictions.store.keys()) == 2
            nats_bench.import_archive(opened, "cifar100", table, count=6, predictions=predictions)
            assert read == [0, 1, 2, 3, 4, 5]
            nats_bench.import_archive(opened, "cifar100", table, count=6, predictions=predictions)
            assert read == [0, 1, 2, 3, 4, 5]  # 3 is known to have no training of this seed
        data = predictions.task.data
        assert len(predictions.store.keys()) == 5
        for text, seeds in zip(TEXTS, SEEDS, strict=True):
            entry = predictions.store.get(text, 777)
            if 777 not in seeds:
                assert entry is None
                continue
            state = trained(text, 777)[0]
            (valid, valid_loss), (test, test_loss) = (
                said(state, text, part) for part in (data.valid, data.test)
            )
            np.testing.assert_allclose(entry.valid_log_probs, valid, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(entry.test_log_probs, test, rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(
                [entry.valid_loss, entry.test_loss], [valid_loss, test_loss], atol=1e-4
            )
            assert entry.train_loss == 0.5

    def test_damaged_weights_are_refused(self, tmp_path):
        class Short(published.Tensor):
            def __reduce__(self):
                rebuild, (storage, _, shape, *rest) = super().__reduce__()
                return rebuild, (storage, 1, shape, *rest)

        def weights(*_):
            return {"stem.0.weight": Short(np.zeros((2, 3, 3, 3), np.float32))}

        content = published.content(TEXTS[0], weights=weights)
        archive = published.write_archive(tmp_path / "full", [content])
        says = r"000000.pickle.pbz2 is cut short, altered .* larger than its numbers"
        with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
            target = self.predictions(tmp_path)
            nats_bench.import_archive(
                opened, "cifar100", tmp_path / "t.npz", count=1, predictions=target
            )

    @pytest.mark.slow
    def test_a_network_with_other_losses_than_published_is_not_used(self, tmp_path):
        archive = full(tmp_path / "full", 0.1, [1, 4, 5])
        predictions = self.predictions(tmp_path, seed=888)
        with open_archive(archive) as opened:
            for count in (4, 6):  # the second time all that is new is off
                nats_bench.import_archive(
                    opened, "cifar100", tmp_path / "t.npz", count=count, predictions=predictions
                )
        status = [predictions.store.get(text, 888).status for text in TEXTS]
        assert status == ["ok", "failed", "ok", "ok", "failed", "failed"]

    @pytest.mark.slow
    def test_what_was_read_before_a_damaged_file_is_kept(self, tmp_path):
        archive = full(tmp_path / "full")
        (archive / "000002.pickle.pbz2").write_bytes(b"BZh9")
        with open_archive(archive) as opened, pytest.raises(BQNESError, match=r"000002\.pickle"):
            nats_bench.import_archive(opened, "cifar100", tmp_path / "t.npz", count=6)
        imported = nats_bench.read_results(tmp_path / "t.npz").imported
        assert set(np.flatnonzero(imported)) == {numbers_by_text()[text] for text in TEXTS[:2]}

    @pytest.mark.slow
    def test_other_images_are_noticed_at_once(self, tmp_path):
        archive = full(tmp_path / "full", 0.1, range(6))
        predictions = self.predictions(tmp_path, seed=888)
        says = "predicts with mean losses of .* published are .* are not the benchmark's"
        with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
            nats_bench.import_archive(
                opened, "cifar100", tmp_path / "t.npz", count=6, predictions=predictions
            )
        assert predictions.store.keys() == []

    def test_what_was_imported_counts_as_trained(self):
        """A comparison with the preset of the paper opens the same store."""
        data = split(DATASET)
        network = NATSNetworkConfig(classes=DATASET.classes)
        task = nats_bench.make_task(DATASET, data, network)
        paper = make_family(preset_config("paper", data="cifar100"))
        assert nats_bench.store_manifest(task) == manifest_of(paper, data)

    def test_splits_that_leave_images_out_are_refused(self, tmp_path):
        write_split(tmp_path / "s.json", split_indices(DATASET, (12, 4, 4), valid_from="test"))
        data = split(DATASET, file=tmp_path / "s.json")
        says = "uses 12 of 12 training and 8 of 10 test images, and the benchmark all"
        with pytest.raises(BQNESError, match=says):
            nats_bench.make_task(DATASET, data, NETWORK)
        ten = DATASET._replace(name="cifar10")
        assert nats_bench.make_task(ten, split(ten), NETWORK).dataset == "cifar10"
        with pytest.raises(BQNESError, match="training and 5 of 10 test"):
            nats_bench.make_task(ten, split(ten, (1.0, 0.5, 0.5), valid_from="test"), NETWORK)
