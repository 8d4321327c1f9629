"""The published archives of NATS-Bench: read, imported, refused, and never trusted."""

import bz2
import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqnes_jax import nats_bench, tables
from bqnes_jax.cli import main
from bqnes_jax.data.archives import damaged_means_refused
from bqnes_jax.errors import BQNESError
from bqnes_jax.nats_bench import importing, open_archive
from bqnes_jax.nats_bench.archive import numbers_by_text
from bqnes_jax.nats_bench.results import empty, read_results, write_results
from bqnes_jax.spaces import NATS
from tests import published
from tests.pictures import images

# Nothing here depends on JAX's precision.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)

TEXTS = published.texts(6)
SEEDS = [(777, 888, 999), (777, 888), (777, 888), (888,), (777, 888, 999), (777, 888)]


def scores(text):
    """Make up losses and accuracies, different for all that is in an archive."""

    def of(dataset, seed, images):
        place = list(published.SETS).index(dataset), seed, len(images), numbers_by_text()[text]
        return tuple(np.random.default_rng(place).uniform((0.5, 10), (5, 90)).tolist())

    return of


def simple(folder, count=6, **replaced):
    """Write the first files of an archive without weights; some may be replaced."""
    files = [
        published.content(text, scores=scores(text), seeds=seeds)
        for text, seeds in zip(TEXTS[:count], SEEDS, strict=False)
    ]
    return published.write_archive(folder, files, **replaced)


@pytest.fixture
def archive(tmp_path):
    return simple(tmp_path / "NATS-tss-v1_0-3ffb9-simple")


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
        assert list(opened.archs[:6]) == TEXTS
        for number, text in enumerate(TEXTS):
            found = opened.read(number, dataset)
            assert tuple(found) == SEEDS[number]
            for seed, training in found.items():
                valid, tested = (scores(text)(name, seed, of) for of in ("x-valid", test))
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
    text, epochs = TEXTS[0], 200
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


class TestRefusals:
    """What is wrong is said in one sentence, before anything is written."""

    @staticmethod
    def refused(path, says, number=0, dataset="cifar100"):
        with pytest.raises(BQNESError, match=says) as error, open_archive(path) as opened:
            opened.read(number, dataset)
        assert "\n" not in str(error.value)

    def test_wrong_paths(self, tmp_path):
        self.refused(tmp_path / "absent", "absent does not exist; get NATS-tss")
        self.refused(tmp_path, "has no meta.pickle.pbz2: it is not an archive of NATS-Bench")
        for name in ("NATS-tss-v1_0-3ffb9.pickle.pbz2", "NAS-Bench-201-v1_1-096897.pth"):
            (tmp_path / name).write_bytes(b"BZh9")
            self.refused(tmp_path / name, "is a single file of all results")
        (tmp_path / "some.tar").write_bytes(b"not a tar")
        self.refused(tmp_path / "some.tar", "is cut short, altered or in another format")
        (tmp_path / "some.tar.gz").write_bytes(b"\x1f\x8b")
        self.refused(tmp_path / "some.tar.gz", "is compressed.* unpack it and give the directory")

    def test_lists_that_are_not_of_the_topology_space(self, archive):
        sizes = [f"{8 * i}:8:8:8:8" for i in range(8)]
        for meta in (sizes, published.texts(1000), [*published.texts(), TEXTS[0]]):
            published.write_archive(archive, [], meta)
            self.refused(archive, "does not list the 15,625 architectures of the topology space")

    @pytest.mark.parametrize("cut", [0, 5, 0.5, 0.99])
    def test_half_downloaded(self, archive, cut):
        path = archive / "000000.pickle.pbz2"
        whole = path.read_bytes()
        path.write_bytes(whole[: int(cut * len(whole)) if isinstance(cut, float) else cut])
        self.refused(archive, "000000.pickle.pbz2 is cut short, altered or in another format")

    @pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
    def test_half_downloaded_tars(self, archive, cut):
        tar = published.as_tar(archive)
        content = tar.read_bytes()
        somewhere = int(cut * len(content.rstrip(b"\0")))
        for end in (somewhere, somewhere // 512 * 512):
            tar.write_bytes(content[:end])
            with pytest.raises(BQNESError, match=r"is cut short|in part"), open_archive(tar) as one:
                one.check_complete(6)

    def test_missing_files(self, archive, tmp_path):
        (archive / "000002.pickle.pbz2").unlink()
        self.refused(archive, "000002.pickle.pbz2 does not exist", number=2)
        says = r"has 5 of 6 architectures, 000002.pickle.pbz2 is not there: .* give --count 2"
        with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
            nats_bench.import_archive(opened, "cifar100", tmp_path / "t.npz", count=6)
        says = "has 5 of 15,625 architectures"
        with open_archive(archive) as opened, pytest.raises(BQNESError, match=says):
            nats_bench.import_archive(opened, "cifar100", tmp_path / "t.npz")
        assert not (tmp_path / "t.npz").exists()

    def test_files_in_each_others_places(self, archive):
        shutil.copy(archive / "000001.pickle.pbz2", archive / "000000.pickle.pbz2")
        self.refused(archive, "is of .* and not of .* as meta.pickle.pbz2 says")

    def test_missing_results(self, archive, tmp_path):
        content = published.content(TEXTS[0])
        of_cifar100 = [key for key in content["200"]["all_results"] if key[0] == "cifar100"]
        for key in of_cifar100:
            del content["200"]["all_results"][key]
        published.write_archive(archive, [content])
        self.refused(archive, "has no results of cifar100 after 200 epochs")
        for broken in (
            {"12": content["12"]},
            [content],
            {"200": {"arch_str": TEXTS[0], "all_results": None}},
            {"200": {"arch_str": TEXTS[0], "all_results": {("cifar100", 777): {"epochs": 200}}}},
        ):
            published.write_archive(archive, [broken])
            self.refused(archive, "is cut short, altered or in another format")
        with open_archive(archive) as opened, pytest.raises(BQNESError, match="dataset is 'mnist'"):
            opened.read(0, "mnist")


class TestPickles:
    """Nothing but tensors, numbers and plain containers is made of a pickle."""

    class Bomb:
        def __reduce__(self):
            return os.system, ("touch exploded",)

    def test_a_file_that_calls_anything_is_refused(self, archive, monkeypatch):
        monkeypatch.chdir(archive)
        for bomb in ([self.Bomb()], {"200": self.Bomb()}):
            content = bz2.compress(pickle.dumps(bomb, 4))
            (archive / "000000.pickle.pbz2").write_bytes(content)
            says = r"asks for \w+\.system, which no file of NATS-Bench needs; it is not safe"
            TestRefusals.refused(archive, says)
        (archive / "meta.pickle.pbz2").write_bytes(content)
        TestRefusals.refused(archive, says)
        assert not (archive / "exploded").exists()

    def test_a_tensor_that_calls_anything_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        class Disguised(published.Storage):
            def __reduce__(self):
                return published.FROM_BYTES, (pickle.dumps(TestPickles.Bomb(), 2),)

        class Tensor(published.Tensor):
            def __reduce__(self):
                return published.REBUILD, (Disguised(None), 0, (1,), (1,), False, {})

        tensor = nats_bench.unpickle(io.BytesIO(published.dump(Tensor(None))))
        with pytest.raises(BQNESError, match=r"asks for \w+\.system"):
            tensor.array()
        assert not (tmp_path / "exploded").exists()

    def test_what_an_object_wants_to_be_set_to_is_left_out(self):
        class Sly:
            def __reduce__(self):
                return published.FROM_BYTES, (b"",), {"content": 1, "numbers": 2}

        found = nats_bench.unpickle(io.BytesIO(published.dump([Sly()])))
        assert found[0].content == b"" and callable(found[0].numbers)
        # A function as the object: {"a": 1} does not become its attributes.
        stream = published.dump(published.REBUILD)[:-1] + b"}\x8c\x01aK\x01sb."
        assert not hasattr(nats_bench.unpickle(io.BytesIO(stream)), "a")

    def test_tensors_are_read_as_they_were_written(self):
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=s).astype(np.float32) for s in ((2, 3, 1, 1), (4,), ())]
        arrays.append(np.arange(3))
        stream = published.dump([published.Tensor(array) for array in arrays])
        for tensor, array in zip(nats_bench.unpickle(io.BytesIO(stream)), arrays, strict=True):
            np.testing.assert_array_equal(tensor.array(), array)
            assert tensor.array().dtype == array.dtype

    @pytest.mark.parametrize(
        ("claims", "says"),
        [
            ((0, (3,), (1,)), "larger than its numbers"),
            ((1, (2,), (1,)), "larger than its numbers"),
            ((-1, (2,), (1,)), "larger than its numbers"),
            ((0, (-1, -2), (1, 1)), "larger than its numbers"),
            ((0, (1 << 62, 4), (4, 1)), "larger than its numbers"),
            ((0, ("2",), (1,)), "larger than its numbers"),
            ((0, (2,), (1 << 40,)), "out of order"),
            ((0, (1, 2), (1, 0)), "out of order"),
        ],
    )
    def test_tensors_that_claim_memory_they_do_not_have(self, claims, says):
        class Lying(published.Tensor):
            def __reduce__(self):
                storage = published.Storage(np.arange(2, dtype=np.float32))
                return published.REBUILD, (storage, *claims, False, {})

        tensor = nats_bench.unpickle(io.BytesIO(published.dump(Lying(None))))
        with pytest.raises(pickle.UnpicklingError, match=says):
            tensor.array()

    @given(st.data())
    def test_any_altered_pickle_is_read_or_refused(self, data):
        state = {"w": published.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), "x": 1.5}
        content = bytearray(published.dump({"200": state, "n": np.float64(2)}))
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        del content[data.draw(st.integers(len(content) // 2, 2 * len(content))) :]
        try:
            with damaged_means_refused(Path("file")):
                found = nats_bench.unpickle(io.BytesIO(content))
                found["200"]["w"].array()
        except BQNESError as error:
            assert "get it again" in str(error)


class TestTable:
    """Losses and accuracies of all seeds in one file."""

    def test_it_holds_what_the_archive_says(self, archive, tmp_path):
        with open_archive(archive) as opened:
            nats_bench.import_archive(opened, "cifar100", tmp_path / "new" / "t.npz", count=6)
        results = read_results(tmp_path / "new" / "t.npz")
        assert results.dataset == "cifar100"
        rows = [numbers_by_text()[text] for text in TEXTS]
        assert np.flatnonzero(results.imported).tolist() == sorted(rows)
        there = np.isfinite(results.valid_losses)
        for row, text, seeds in zip(rows, TEXTS, SEEDS, strict=True):
            assert tuple(np.array(nats_bench.SEEDS)[there[row]]) == seeds
            for column in np.flatnonzero(there[row]):
                loss, accuracy = scores(text)("cifar100", nats_bench.SEEDS[column], "x-valid")
                np.testing.assert_allclose(results.valid_losses[row, column], loss, rtol=1e-6)
                np.testing.assert_allclose(
                    results.valid_accuracies[row, column], accuracy / 100, rtol=1e-6
                )
        assert there.sum() == sum(map(len, SEEDS))

        table = tables.nats_bench(tmp_path / "new" / "t.npz", seed=888)
        outcome = tables.evaluator(table, NATS)(NATS.from_index(np.array(rows)))
        expected = [-5000 * scores(text)("cifar100", 888, "x-valid")[0] for text in TEXTS]
        np.testing.assert_allclose(outcome.log_likelihoods, expected, rtol=1e-6)
        assert np.isnan(table.log_likelihoods).sum() == NATS.size - 6
        with pytest.raises(BQNESError, match="seed is 111; allowed are 777, 888, 999"):
            tables.nats_bench(tmp_path / "new" / "t.npz", seed=111)
        with pytest.raises(BQNESError, match="has losses of NATS-Bench and no predictions"):
            tables.read(tmp_path / "new" / "t.npz")

    def test_it_goes_on_where_it_was_stopped(self, archive, tmp_path, monkeypatch):
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

    def test_what_is_not_a_table_is_refused(self, tmp_path):
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


def whole_table(path, log_evidence, accuracy, dataset="cifar100"):
    """Write a table of equal architectures that comes down to these figures."""
    results = empty(dataset)
    points = {"cifar100": 5000, "imagenet16-120": 3000, "cifar10": 25_000}[dataset]
    results.valid_losses[:] = -log_evidence * 128 / points
    results.test_accuracies[:, :2] = 0.3
    results.test_accuracies[7, :2] = accuracy - 0.01, accuracy + 0.01
    results.imported[:] = True
    write_results(path, results)
    return str(path)


class TestCommands:
    def run(self, capsys, *arguments):
        code = main(["nats", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    @pytest.mark.parametrize(
        ("dataset", "figures"),
        [("cifar100", (-50.043, 0.7351)), ("imagenet16-120", (-53.367, 0.4731))],
    )
    def test_check(self, tmp_path, capsys, dataset, figures):
        path = whole_table(tmp_path / "t.npz", *figures, dataset)
        code, out, err = self.run(capsys, "check", path)
        assert code == 0 and err == "" and out.count("ok") == 2 and "differs" not in out
        assert f"{figures[0]:.3f}" in out and f"{figures[1]:.2%}" in out
        for wrong in ((figures[0] + 0.002, figures[1]), (figures[0], figures[1] - 0.0002)):
            path = whole_table(tmp_path / "t.npz", *wrong, dataset)
            code, out, err = self.run(capsys, "check", path)
            assert code == 1 and out.count("ok") == 1 and out.count("differs") == 1
            assert "differs from the benchmark; import it again" in err

    def test_check_of_what_cannot_be_checked(self, tmp_path, capsys):
        results = empty("cifar100")
        results.imported[:3] = True
        write_results(tmp_path / "t.npz", results)
        code, _, err = self.run(capsys, "check", tmp_path / "t.npz")
        assert code == 1 and "has 3 of 15,625 architectures; import the rest" in err
        path = whole_table(tmp_path / "t.npz", -10, 0.9, "cifar10")
        code, _, err = self.run(capsys, "check", path)
        assert code == 1 and "is of cifar10; only cifar100 and imagenet16-120 are known" in err
        missing = read_results(Path(whole_table(tmp_path / "u.npz", -50.043, 0.7351)))
        missing.valid_losses[5, 0] = np.nan
        write_results(tmp_path / "u.npz", missing)
        code, out, _ = self.run(capsys, "check", tmp_path / "u.npz")
        assert code == 1 and "nan" in out

    def test_import(self, archive, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = self.run(
            capsys, "import", "--archive", archive, "--dataset", "cifar100", "--count", 6
        )
        assert code == 0 and "reading: 6 of 6" in err
        assert out == (
            "table: nats-cifar100.npz (6 architectures; with seed 777: 5, 888: 6, 999: 2)\n"
        )
        assert read_results(tmp_path / "nats-cifar100.npz").imported.sum() == 6

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            ((), "has 6 of 15,625 architectures, 000006.pickle.pbz2 is not there"),
            (("--count", 6, "--table", "t.npy"), "table is t.npy; it must end in .npz"),
            (("--count", 6, "--seed", 888), "are about predictions; give --store"),
            (("--count", 6, "--store", "s", "--directory", "d"), "is not in d; get it with: curl"),
        ],
    )
    def test_imports_that_cannot_be_done(self, archive, tmp_path, capsys, monkeypatch, flags, says):
        monkeypatch.chdir(tmp_path)
        code, out, err = self.run(
            capsys, "import", "--archive", archive, "--dataset", "cifar100", *flags
        )
        assert code == 1 and out == "" and err.count("\n") == 1 and says in err
        assert os.listdir(tmp_path) == [archive.name]

    def test_the_half_that_cifar10_was_trained_on_must_be_known(self, archive, tmp_path, capsys):
        flags = ("--archive", archive, "--dataset", "cifar10", "--store", tmp_path / "s")
        code, _, err = self.run(capsys, "import", *flags)
        assert code == 1 and "cifar10 needs --split-file" in err

    def test_predictions_need_weights(self, archive, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        train, test = images(20, 8, 3), images(10, 8, 3)
        np.savez("cifar100.npz", x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
        flags = ("--dataset", "cifar100", "--store", "s", "--directory", ".", "--count", 6)
        code, _, err = self.run(capsys, "import", "--archive", archive, *flags)
        assert code == 1 and "has no trained weights, which predictions need" in err
