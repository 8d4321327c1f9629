"""The published archives of NATS-Bench: read one architecture at a time, or refused."""

import shutil

import numpy as np
import pytest

from bqnes_jax import nats_bench
from bqnes_jax.errors import BQNESError
from bqnes_jax.nats_bench import open_archive
from bqnes_jax.nats_bench.archive import numbers_by_text
from bqnes_jax.spaces import NATS
from tests.helpers import published

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["directory", "tar"])
@pytest.mark.parametrize(
    ("dataset", "name", "test"),
    [
        ("cifar10", "cifar10-valid", "ori-test"),
        ("cifar100", "cifar100", "x-test"),
        ("imagenet16-120", "ImageNet16-120", "x-test"),
    ],
)
def test_an_archive_is_read_one_architecture_at_a_time(archive, form, dataset, name, test):
    if form == "tar":
        path = published.as_tar(archive)
        shutil.rmtree(archive)
        archive = path
    with open_archive(archive) as opened:
        assert list(opened.archs[:6]) == published.TEXTS
        for number, text in enumerate(published.TEXTS):
            found = opened.read(number, dataset)
            assert tuple(found) == published.SEEDS[number]
            for seed, training in found.items():
                valid, tested = (published.scores(text)(name, seed, of) for of in ("x-valid", test))
                expected = (valid[0], valid[1] / 100, tested[0], tested[1] / 100, 0.5)
                np.testing.assert_allclose(training[:5], expected)
                assert training.weights is None


def test_the_benchmarks_own_package_reads_the_same(archive):
    theirs = pytest.importorskip("nats_bench", reason="NATS-Bench's own package is not installed")
    api = theirs.create(str(archive), "tss", fast_mode=True, verbose=False)
    with open_archive(archive) as opened:
        for number in (0, 1):
            for seed, training in opened.read(number, "cifar100").items():
                info = api.get_more_info(number, "cifar100", hp="200", is_random=seed)
                assert training.valid_loss == info["valid-loss"]
                assert training.valid_accuracy == info["valid-accuracy"] / 100
                assert training.test_loss == info["test-loss"]
                assert training.test_accuracy == info["test-accuracy"] / 100
                assert training.train_loss == info["train-loss"]


def test_files_that_the_benchmarks_own_package_writes_are_read(archive):
    theirs = pytest.importorskip("nats_bench", reason="NATS-Bench's own package is not installed")
    text, epochs = published.TEXTS[0], 200
    every = range(epochs)
    shape = {"channel": 16, "num_cells": 5, "arch_str": text, "class_num": 100}
    together = theirs.ArchResults(0, text)
    for seed in (777, 888):
        falling = {i: 3 - i / 100 for i in every}
        one = theirs.ResultsCount(
            "cifar100", None, falling, falling, np.float64(0.8), 1.0, shape, str(seed), epochs, None
        )
        by_name = {f"{of}@{i}": seed / 100 for of in ("x-valid", "x-test") for i in every}
        one.update_train_info(falling, falling, falling, falling)
        one.update_eval(by_name, by_name, by_name)
        together.update("cifar100", seed, one)
    state = together.state_dict()
    theirs.pickle_save({"12": state, "200": state}, str(archive / "000000.pickle"))
    with open_archive(archive) as opened:
        found = opened.read(0, "cifar100")
    assert found[888] == (8.88, 0.0888, 8.88, 0.0888, pytest.approx(1.01), None)
    assert list(found) == [777, 888]


def test_text_and_number_of_every_architecture():
    numbers = numbers_by_text()
    assert len(numbers) == NATS.size
    some = np.random.default_rng(0).integers(NATS.size, size=50)
    for arch, number in zip(np.asarray(NATS.from_index(some)), some, strict=True):
        assert numbers[NATS.to_string(arch)] == number


def refused(path, says, number=0, dataset="cifar100"):
    with pytest.raises(BQNESError, match=says) as error, open_archive(path) as opened:
        opened.read(number, dataset)
    assert "\n" not in str(error.value)


def test_wrong_paths(tmp_path):
    refused(tmp_path / "absent", "absent does not exist; get NATS-tss")
    refused(tmp_path, "has no meta.pickle.pbz2: it is not an archive of NATS-Bench")
    for name in ("NATS-tss-v1_0-3ffb9.pickle.pbz2", "NAS-Bench-201-v1_1-096897.pth"):
        (tmp_path / name).write_bytes(b"BZh9")
        refused(tmp_path / name, "is a single file of all results")
    (tmp_path / "some.tar").write_bytes(b"not a tar")
    refused(tmp_path / "some.tar", "is cut short, altered or in another format")
    (tmp_path / "some.tar.gz").write_bytes(b"\x1f\x8b")
    refused(tmp_path / "some.tar.gz", "is compressed.* unpack it and give the directory")


def test_lists_that_are_not_of_the_topology_space(archive):
    sizes = [f"{8 * i}:8:8:8:8" for i in range(8)]
    for meta in (sizes, published.texts(1000), [*published.texts(), published.TEXTS[0]]):
        published.write_archive(archive, [], meta)
        refused(archive, "does not list the 15,625 architectures of the topology space")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0, 5, 0.5, 0.99])
def test_half_downloaded(archive, cut):
    path = archive / "000000.pickle.pbz2"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole)) if isinstance(cut, float) else cut])
    refused(archive, "000000.pickle.pbz2 is cut short, altered or in another format")


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_half_downloaded_tars(archive, cut):
    tar = published.as_tar(archive)
    content = tar.read_bytes()
    somewhere = int(cut * len(content.rstrip(b"\0")))
    for end in (somewhere, somewhere // 512 * 512):
        tar.write_bytes(content[:end])
        with pytest.raises(BQNESError, match=r"is cut short|in part"), open_archive(tar) as one:
            one.check_complete(6)


def test_missing_files(archive, tmp_path):
    (archive / "000002.pickle.pbz2").unlink()
    refused(archive, "000002.pickle.pbz2 does not exist", number=2)
    says = r"has 5 of 6 architectures, 000002.pickle.pbz2 is not there: .* give --count 2"
    with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
        nats_bench.import_archive(opened, "cifar100", tmp_path / "t.npz", count=6)
    says = "has 5 of 15,625 architectures"
    with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
        nats_bench.import_archive(opened, "cifar100", tmp_path / "t.npz")
    assert not (tmp_path / "t.npz").exists()


def test_files_in_each_others_places(archive):
    shutil.copy(archive / "000001.pickle.pbz2", archive / "000000.pickle.pbz2")
    refused(archive, "is of .* and not of .* as meta.pickle.pbz2 says")


@pytest.mark.slow
def test_missing_results(archive, tmp_path):
    content = published.content(published.TEXTS[0])
    of_cifar100 = [key for key in content["200"]["all_results"] if key[0] == "cifar100"]
    for key in of_cifar100:
        del content["200"]["all_results"][key]
    published.write_archive(archive, [content])
    refused(archive, "has no results of cifar100 after 200 epochs")
    for broken in (
        {"12": content["12"]},
        [content],
        {"200": {"arch_str": published.TEXTS[0], "all_results": None}},
        {
            "200": {
                "arch_str": published.TEXTS[0],
                "all_results": {("cifar100", 777): {"epochs": 200}},
            }
        },
    ):
        published.write_archive(archive, [broken])
        refused(archive, "is cut short, altered or in another format")
    with open_archive(archive) as opened, pytest.raises(BQNESError, match="dataset is 'mnist'"):
        opened.read(0, "mnist")
