"""Data sets in the form their authors publish, prepared and read back; splits without overlap."""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bqnes_jax.data import (
    Dataset,
    Images,
    archives,
    available,
    downsample,
    load,
    prepare,
    prepared,
    read_split,
    split,
    split_indices,
    write_split,
)
from bqnes_jax.errors import BQNESError

# Nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
REAL = os.environ.get("BQNES_DATA_DIR")
needs_real_images = pytest.mark.skipif(
    not REAL, reason="BQNES_DATA_DIR is not set: it names the directory with cifar10_subset.npz"
)


def images(n, side=32, channels=3, classes=10, seed=0):
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    return Images(pixels, generator.permutation(np.arange(n) % classes).astype(np.int32))


def toy(name="own", train=100, test=40):
    return Dataset(name, 10, images(train, 4), images(test, 4, seed=1))


def same(a, b):
    np.testing.assert_array_equal(a.images, b.images)
    np.testing.assert_array_equal(a.labels, b.labels)
    assert (a.images.dtype, a.labels.dtype) == (np.uint8, np.int32)


def rows(part):
    """Three planes in one row, as CIFAR and ImageNet16 have them."""
    return np.ascontiguousarray(part.images.transpose(0, 3, 1, 2)).reshape(len(part.labels), -1)


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
    train = Images(*(np.concatenate(arrays) for arrays in zip(*parts[:5], strict=True)))
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
        kept[name] = Images(*(array[part.labels < 120] for array in part))
    test = kept.pop("val_data")
    train = Images(*(np.concatenate(arrays) for arrays in zip(*kept.values(), strict=True)))
    return folder, train, test


def fashion(path):
    folder = path / "fashion"
    folder.mkdir()
    train, test = images(60, 28, 1), images(30, 28, 1, seed=1)
    for prefix, part in (("train", train), ("t10k", test)):
        pixels = struct.pack(">4I", 0x803, *part.images.shape[:3]) + part.images.tobytes()
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
    assert os.listdir(tmp_path / "data") == [name.replace("-", "_")]
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
        with archives.damaged_means_refused(Path("batch")):
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


@pytest.fixture(scope="module")
def prepared_toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    source = folder / "source.npz"
    own = toy()
    np.savez(source, x=own.train.images, y=own.train.labels)
    prepare("own-set", source, folder)
    return folder, own


def test_an_npz_is_prepared(prepared_toy):
    folder, own = prepared_toy
    dataset = load("own-set", folder)
    same(dataset.train, own.train)
    assert dataset.test.images.shape == (0, 4, 4, 3) and dataset.classes == 10


def test_a_set_that_tfds_itself_prepared(tmp_path):
    """It has encoded images, further features, and an order of its own."""
    import tensorflow_datasets as tfds

    part = images(30)

    def png(image):
        file = io.BytesIO()
        PIL.Image.fromarray(image).save(file, "png")
        file.seek(0)
        return file

    with tfds.core.registered.skip_registration():

        class Cifar10(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("3.0.2")

            def _info(self):
                features = {
                    "id": tfds.features.Text(),
                    "image": tfds.features.Image(shape=(32, 32, 3)),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(features)
                )

            def _split_generators(self, dl_manager):
                return {"train": self._generate_examples(), "test": self._generate_examples()}

            def _generate_examples(self):
                for place, (image, label) in enumerate(zip(*part, strict=True)):
                    example = {"id": str(place), "image": png(image), "label": int(label)}
                    yield place, example

    Cifar10(data_dir=tmp_path, file_format="array_record").download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=False)
    )
    dataset = load("cifar10", tmp_path)
    same_image = (dataset.train.images[:, None] == part.images).all((2, 3, 4))
    order = same_image.argmax(1).tolist()
    assert sorted(order) == list(range(30))
    np.testing.assert_array_equal(dataset.train.labels, part.labels[order])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    file=st.sampled_from(["*array_record*", "dataset_info.json", "features.json", "*.sha256"]),
    place=st.floats(0, 1, exclude_max=True),
    mask=st.integers(0, 15),
)
def test_an_altered_prepared_set_is_refused_or_harmless(prepared_toy, tmp_path, file, place, mask):
    """A mask of 0 cuts the file short; small ones make other digits of digits."""
    original, own = prepared_toy
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original / "own_set", folder / "own_set")
    (path,) = folder.glob("*/*/" + file)
    content = bytearray(path.read_bytes())
    if mask:
        content[int(place * len(content))] ^= mask
    else:
        del content[int(place * len(content)) :]
    path.write_bytes(content)
    try:
        dataset = load("own-set", folder)
    except BQNESError as error:
        assert str(folder) in str(error)
    else:
        same(dataset.train, own.train)
        assert dataset.classes == own.classes


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("dataset_info.json", '"100"', '"90"'),
        ("features.json", '"numClasses": "10"', '"numClasses": "19"'),
    ],
)
def test_a_changed_description_of_a_prepared_set_shows(prepared_toy, tmp_path, file, old, new):
    shutil.copytree(prepared_toy[0] / "own_set", tmp_path / "own_set")
    path = tmp_path / "own_set" / prepared.VERSION / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BQNESError, match="the checksum of its content differs"):
        load("own-set", tmp_path)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"fileFormat": "array_record"}'])
def test_a_prepared_set_without_its_description_is_refused(prepared_toy, tmp_path, file, content):
    shutil.copytree(prepared_toy[0] / "own_set", tmp_path / "own_set")
    (tmp_path / "own_set" / prepared.VERSION / file).write_text(content)
    with pytest.raises(BQNESError):
        load("own-set", tmp_path)


def test_a_set_that_needs_tensorflow_says_so(prepared_toy, tmp_path):
    shutil.copytree(prepared_toy[0] / "own_set", tmp_path / "cifar10")
    path = tmp_path / "cifar10" / prepared.VERSION / "dataset_info.json"
    path.write_text(path.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(BQNESError, match=r"prepared as tfrecord.*bqnes data prepare cifar10"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((3, 4, 4), np.uint8)}, "has no y; it must hold x_train"),
        ({"x_train": np.zeros((3, 4, 4), np.uint8)}, "has no y_train"),
        ({"x": np.zeros((3, 4, 4)), "y": np.arange(3)}, "images of type float64"),
        ({"x": np.zeros((3, 4), np.uint8), "y": np.arange(3)}, r"shape \(3, 4\)"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": np.arange(4)}, "one for each of the 3 images"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": np.ones(3)}, "labels of type float64"),
        ({"x": np.zeros((1, 4, 4), np.uint8), "y": np.array([-1])}, "has the label -1"),
        ({"x": np.zeros((0, 4, 4), np.uint8), "y": np.arange(0)}, "has no training images"),
        (
            {"x": np.zeros((2, 4, 4), np.uint8), "y": np.arange(2), "classes": np.array(["a"])},
            "has the label 1; labels go from 0 to 0",
        ),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.array([{}, {}])}, "in another format"),
    ],
)
def test_npz_files_of_other_things_are_refused(tmp_path, arrays, says):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(BQNESError, match=says):
        load(str(tmp_path / "own.npz"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), mask=st.integers(0, 255))
def test_an_altered_npz_is_refused_or_harmless(tmp_path, place, mask):
    own = toy()
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=own.train.images, y=own.train.labels)
    content = bytearray(path.read_bytes())
    if mask:
        content[int(place * len(content))] ^= mask
    else:
        del content[int(place * len(content)) :]
    path.write_bytes(content)
    try:
        dataset = load(str(path))
    except BQNESError:
        return
    same(dataset.train, own.train)


def test_unknown_and_missing_sets_say_what_there_is(tmp_path):
    with pytest.raises(BQNESError, match="'mnist' is not known; there are digits in"):
        load("mnist", tmp_path)
    with pytest.raises(BQNESError, match=r"absent.npz does not exist"):
        load(str(tmp_path / "absent.npz"))
    np.savez(tmp_path / "cifar10_subset.npz", x=toy().train.images, y=toy().train.labels)
    with pytest.raises(BQNESError, match=r"only 'cifar10_subset', which is not the same.*curl"):
        load("cifar10", tmp_path)


def test_a_data_directory_that_cannot_be_written(tmp_path):
    np.savez(tmp_path / "own.npz", x=toy().train.images, y=toy().train.labels)
    with pytest.raises(BQNESError, match="own cannot be written to"):
        prepare("own", tmp_path / "own.npz", tmp_path / "own.npz" / "data")


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """A limit of the system on the size of files stops a write half-way."""
    np.savez(tmp_path / "own.npz", x=images(500).images, y=images(500).labels)
    script = """
import resource, signal, sys
from bqnes_jax.data import prepare
from bqnes_jax.errors import BQNESError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    prepare("own", *sys.argv[1:])
except BQNESError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "own.npz", tmp_path / "data"],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    ).stdout
    assert "own cannot be written to" in said and "File too large" in said
    assert os.listdir(tmp_path / "data") == []


def test_digits():
    digits = load("digits")
    assert digits.train.images.shape == (1797, 8, 8, 1) and not len(digits.test.labels)
    assert digits.train.images.max() == 255


@pytest.mark.parametrize(("side", "size"), [(32, 16), (32, 8), (28, 16), (8, 8), (5, 1)])
def test_downsampling_averages_over_areas(side, size):
    part = images(3, side).images
    fine = np.repeat(np.repeat(part.astype(float), size, 1), size, 2)  # divides, whatever the side
    means = fine.reshape(3, size, side, size, side, 3).mean((2, 4))
    assert abs(downsample(part, size) - means).max() <= 0.5 + 1e-4
    with pytest.raises(BQNESError, match="size is 9; it must be a whole number, from 1 to 8"):
        load("digits", size=9)


@needs_real_images
@pytest.mark.parametrize(
    ("name", "classes", "sizes", "valid_from"),
    [
        ("cifar10_subset", 10, (5000, 5000, 5000), "train"),
        ("cifar100_subset", 100, (10_000, 2500, 2500), "test"),
        ("tinyimagenet16_120", 120, (12_000, 3000, 3000), "test"),
    ],
)
def test_real_images(name, classes, sizes, valid_from):
    assert name in [item.name for item in available()]
    dataset = load(name, size=8)
    assert dataset.classes == classes
    counts = np.bincount(dataset.train.labels, minlength=classes)
    assert counts.min() == counts.max()
    assert tuple(len(part.labels) for part in split(dataset)) == sizes
    assert split_indices(dataset).valid_from == valid_from


@needs_real_images
def test_real_images_survive_preparing(tmp_path):
    whole = load("cifar10_subset")
    np.savez(
        tmp_path / "small.npz",
        **{"x_train": whole.train.images[:500], "y_train": whole.train.labels[:500]},
        **{"x_test": whole.test.images[:100], "y_test": whole.test.labels[:100]},
    )
    prepare("small", tmp_path / "small.npz", tmp_path)
    small = load("small", tmp_path)
    same(small.train, Images(*(array[:500] for array in whole.train)))
    same(small.test, Images(*(array[:100] for array in whole.test)))


@pytest.mark.parametrize(
    ("name", "sizes", "valid_from"),
    [
        ("cifar10", (50, 50, 40), "train"),
        ("cifar100", (100, 20, 20), "test"),
        ("imagenet16-120", (100, 20, 20), "test"),
        ("fashion_mnist", (80, 20, 40), "train"),
    ],
)
def test_splits_by_name(name, sizes, valid_from):
    parts = split_indices(toy(name))
    assert tuple(map(len, parts[:3])) == sizes and parts.valid_from == valid_from


@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["cifar10", "cifar100", "own"]),
    test=st.sampled_from([0, 41]),
)
def test_splits_are_disjoint_complete_and_repeatable(seed, name, test):
    dataset = toy(name, train=101, test=test)
    one, again = (split_indices(dataset, seed=seed) for _ in range(2))
    pools = {"train": [one.train], "test": []}
    pools[one.valid_from].append(one.valid)
    pools["test" if test else "train"].append(one.test)
    for pool, length in (("train", 101), ("test", test)):
        places = np.concatenate([*pools[pool], np.arange(0)])
        assert len(np.unique(places)) == len(places) and length - 2 <= len(places) <= length
    for a, b in zip(one[:3], again[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    other = split_indices(dataset, seed=(seed + 1) % 2**32)
    assert any(not np.array_equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


def test_the_split_of_a_seed_never_changes():
    assert split_indices(toy(), (3, 3, 3), seed=777).train.tolist() == [26, 75, 90]


def test_the_images_are_those_of_the_indices():
    dataset = toy("cifar100")
    parts, places = split(dataset, (9, 8, 7)), split_indices(dataset, (9, 8, 7))
    same(parts.train, Images(*(array[places.train] for array in dataset.train)))
    same(parts.valid, Images(*(array[places.valid] for array in dataset.test)))
    same(parts.test, Images(*(array[places.test] for array in dataset.test)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"sizes": (90, 20, 10)}, "valid needs 20 images, and 10 of the 100 of the train set are"),
        ({"sizes": (0.5, 0.6, 1.0)}, "valid needs 60 images, and 50"),
        ({"sizes": (0, 5, 5)}, "the size of train is 0; it must be a count, at least 1"),
        ({"sizes": (5, 1.5, 5)}, "the size of valid is 1.5"),
        ({"sizes": (5, 0.001, 5)}, "the size of valid is 0.001"),
        ({"seed": -1}, "seed is -1"),
        ({"valid_from": "nowhere"}, "valid_from is 'nowhere'; allowed are 'train', 'test'"),
        ({"sizes": (5, 5, 5), "file": "split.json"}, "both a split file and sizes"),
    ],
)
def test_impossible_splits_are_refused(arguments, says):
    with pytest.raises(BQNESError, match=says):
        split(toy(), **arguments)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "own"])
def test_split_files(tmp_path, name):
    dataset = toy(name)
    path = tmp_path / "split.json"
    write_split(path, split_indices(dataset, seed=5))
    for a, b in zip(split(dataset, file=path), split(dataset, seed=5), strict=True):
        same(a, b)


def test_split_files_of_the_benchmark(tmp_path):
    path = tmp_path / "cifar-split.txt"
    path.write_text('{"train": ["int", ["0", "5"]], "valid": ["int", ["1", "7", "9"]]}')
    parts = read_split(path, toy("cifar10"))
    assert parts.train.tolist() == [0, 5] and parts.valid.tolist() == [1, 7, 9]
    assert len(parts.test) == 40 and parts.valid_from == "train"
    path.write_text('{"xvalid": ["int", ["1"]], "xtest": ["int", ["0", "2"]]}')
    parts = read_split(path, toy("own"))
    assert (parts.valid.tolist(), parts.test.tolist()) == ([1], [0, 2])
    assert len(parts.train) == 100 and parts.valid_from == "test"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not a split file"),
        ("[1, 2]", "is not a split file"),
        ('{"train": [1]}', "is not a split file"),
        ('{"valid": [0.5]}', "is not a split file"),
        ('{"valid": [[1]]}', "is not a split file"),
        ('{"valid": 3}', "is not a split file"),
        ('{"valid": {"a": 1}}', "is not a split file"),
        ('{"valid": [1], "rest": [2]}', "is not a split file"),
        ("[" * 100_000, "is not a split file"),
        (
            '{"train": [1], "valid": [100], "test": [1]}',
            "valid indices outside the train set, 0 to",
        ),
        ('{"train": [1], "valid": [-1], "test": [1]}', "valid indices outside"),
        ('{"train": [], "valid": [1]}', "train indices outside the train set, 0 to 99, or none"),
        ('{"train": [1, 2], "valid": [2], "test": [2]}', "image of the train set more than once"),
        ('{"valid": [2]}', "image of the train set more than once"),
        ('{"train": [1], "valid": [3], "test": [2, 2]}', "image of the test set more than once"),
        ('{"valid": [1], "valid_from": "here"}', "valid_from in .* is 'here'"),
        ('{"valid": [1], "valid_from": []}', "valid_from in"),
    ],
)
def test_bad_split_files_are_refused(tmp_path, content, says):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(BQNESError, match=says):
        read_split(path, toy())
    with pytest.raises(BQNESError, match="cannot be read"):
        read_split(tmp_path / "absent.json", toy())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["train", "valid", "xtest", "valid_from"]), inner)
        ),
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_a_split_file_or_refused(tmp_path, content):
    path = tmp_path / "split.json"
    path.write_text(json.dumps(content))
    try:
        split(toy(), file=path)
    except BQNESError as error:
        assert str(path) in str(error)
