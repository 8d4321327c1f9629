"""Data sets in the form their authors publish: read, refused, and never trusted."""

import gzip
import io
import os
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bqnes_jax.data import (
    Examples,
    archives,
    available,
    load,
    prepare,
)
from bqnes_jax.errors import BQNESError
from tests.helpers.pictures import images, same

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)


def rows(part):
    """Three planes in one row, as CIFAR and ImageNet16 have them."""
    return np.ascontiguousarray(part.inputs.transpose(0, 3, 1, 2)).reshape(len(part.labels), -1)


class Python2Pickler(pickle._Pickler):
    """Write text and bytes as Python 2 did, in which CIFAR was published."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value):
        value = value.encode("latin1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(value)) + value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(content):
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(content)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def write_tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def cifar10(path, dump=python2_pickle, n=20):
    parts = [images(n, seed=seed) for seed in range(6)]
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {"cifar-10-batches-py/readme.html": b"<html>"}
    for name, part in zip(names, parts, strict=True):
        batch = {"batch_label": name, "labels": part.labels.tolist(), "data": rows(part)}
        batch["filenames"] = [f"{i}.png" for i in range(n)]
        files[f"cifar-10-batches-py/{name}"] = dump(batch)
    train = Examples(*(np.concatenate(arrays) for arrays in zip(*parts[:5], strict=True)))
    return write_tar(path / "cifar-10-python.tar.gz", files), train, parts[5]


def cifar100(path):
    train, test = images(300, classes=100), images(100, classes=100, seed=1)
    files = {
        f"cifar-100-python/{name}": python2_pickle(
            {"data": rows(part), "fine_labels": part.labels.tolist(), "coarse_labels": [0]}
        )
        for name, part in (("test", test), ("train", train))
    }
    return write_tar(path / "cifar-100-python.tar.gz", files), train, test


def imagenet16(path):
    """Labels of a thousand classes, counted from 1; 120 of them are used."""
    folder = path / "ImageNet16"
    folder.mkdir()
    kept = {}
    names = [*(f"train_data_batch_{i}" for i in range(1, 11)), "val_data"]
    for seed, name in enumerate(names):
        part = images(400, 16, classes=200, seed=seed)
        batch = {"data": rows(part), "labels": (part.labels + 1).tolist(), "mean": np.zeros(768)}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2 + seed % 3))
        kept[name] = Examples(*(array[part.labels < 120] for array in part))
    test = kept.pop("val_data")
    train = Examples(*(np.concatenate(arrays) for arrays in zip(*kept.values(), strict=True)))
    return folder, train, test


def fashion(path):
    folder = path / "fashion"
    folder.mkdir()
    train, test = images(60, 28, 1), images(30, 28, 1, seed=1)
    for prefix, part in (("train", train), ("t10k", test)):
        pixels = struct.pack(">4I", 0x803, *part.inputs.shape[:3]) + part.inputs.tobytes()
        labels = struct.pack(">2I", 0x801, len(part.labels)) + part.labels.astype("u1").tobytes()
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder, train, test


PUBLISHED = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet16-120": imagenet16,
    "fashion_mnist": fashion,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_prepared_and_loaded_in_their_order(tmp_path, name, capsys):
    source, train, test = PUBLISHED[name](tmp_path)
    folder = prepare(name, source, tmp_path / "data", verify=False)
    dataset = load(name, tmp_path / "data")
    same(dataset.train, train)
    same(dataset.test, test)
    assert (dataset.name, dataset.classes) == (name, archives.PUBLISHED[name].classes)
    assert (name, "prepared", folder) in available(tmp_path / "data")
    assert {*os.listdir(tmp_path / "data")} == {".prepare.lock", name.replace("-", "_")}
    assert capsys.readouterr().out == ""
    assert "tensorflow" not in sys.modules
    with pytest.raises(BQNESError, match="is there already; remove it to prepare"):
        prepare(name, source, tmp_path / "data", verify=False)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python_3_are_read_too(tmp_path, protocol):
    path, train, _ = cifar10(tmp_path, lambda batch: pickle.dumps(batch, protocol))
    same(archives.read_published("cifar10", path, verify=False).train, train)


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_that_are_not_the_published_ones_are_refused(tmp_path, name):
    source, *_ = PUBLISHED[name](tmp_path)
    with pytest.raises(BQNESError, match=r"the published file [0-9a-f]+: it is cut short or alter"):
        prepare(name, source, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", PUBLISHED)
def test_checksums_and_commands_are_complete(name):
    published = archives.PUBLISHED[name]
    assert all(len(bytes.fromhex(digest)) in (16, 32) for digest in published.checksums.values())
    assert len(set(published.checksums.values())) == len(published.checksums)
    with pytest.raises(BQNESError, match=f"bqnes data prepare {name} --from {published.source}$"):
        load(name, "/nowhere")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_that_calls_anything_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, *_ = cifar10(tmp_path, lambda batch: pickle.dumps({**batch, "labels": Bomb()}, 2))
    with pytest.raises(BQNESError, match=r"asks for \w+\.mkdir, which no published data set needs"):
        prepare("cifar10", path, tmp_path / "data", verify=False)
    assert not (tmp_path / "exploded").exists()
    for content in (np.array([None]), np.array(["text"])):
        path, *_ = cifar10(tmp_path, lambda batch, c=content: pickle.dumps({**batch, "data": c}, 2))
        with pytest.raises(BQNESError, match="it holds an array of type"):
            prepare("cifar10", path, tmp_path / "data", verify=False)


@given(st.data())
def test_any_altered_pickle_is_read_or_refused(data):
    batch = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2, 3], "x": "y"}
    dump = data.draw(st.sampled_from([python2_pickle, pickle.dumps]))
    content = bytearray(dump(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, 2 * len(content))) :]
    try:
        with archives.refuse_damaged(Path("batch")):
            archives.unpickle(io.BytesIO(content))
    except BQNESError as error:
        assert "get it again" in str(error)


@pytest.mark.parametrize("cut", [0, 10, 0.3, 0.9, -1])
@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_archives_cut_short_are_refused(tmp_path, name, cut):
    source, *_ = PUBLISHED[name](tmp_path)
    path = source if source.is_file() else source / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(BQNESError, match="is cut short, altered or in another format"):
        archives.read_published(name, source, verify=False)


def test_an_archive_of_another_data_set_is_refused(tmp_path):
    path, *_ = cifar100(tmp_path)
    with pytest.raises(BQNESError, match="has no cifar-10-batches-py/data_batch_1"):
        prepare("cifar10", path, tmp_path, verify=False)
    with pytest.raises(BQNESError, match="is not a file; get it with: curl"):
        prepare("cifar10", tmp_path / "absent", tmp_path)
    with pytest.raises(BQNESError, match="is 'faces'; allowed are 'cifar10'"):
        prepare("faces", path, tmp_path)
    with pytest.raises(BQNESError, match="it must be of small letters"):
        prepare("../faces", path, tmp_path)
