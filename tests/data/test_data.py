"""Data sets prepared, found by name and read back; real images."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from bqnes_jax.data import (
    Examples,
    available,
    channel_moments,
    check_images,
    downsample,
    load,
    prepare,
    prepared,
    split,
    split_indices,
)
from bqnes_jax.errors import BQNESError
from bqnes_jax.families import CellFamily
from tests.helpers.pictures import damage, images, same, toy

# Next to nothing here is computed by JAX.
pytestmark = pytest.mark.parametrize("precision", ["float32"], indirect=True)
REAL = os.environ.get("BQNES_DATA_DIR")
needs_real_images = pytest.mark.skipif(
    not REAL, reason="BQNES_DATA_DIR is not set: it names the directory with cifar10_subset.npz"
)


@pytest.fixture(scope="module")
def prepared_toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    source = folder / "source.npz"
    own = toy()
    np.savez(source, x=own.train.inputs, y=own.train.labels)
    prepare("own-set", source, folder)
    return folder, own


def test_an_npz_is_prepared(prepared_toy):
    folder, own = prepared_toy
    dataset = load("own-set", folder)
    same(dataset.train, own.train)
    assert dataset.test.inputs.shape == (0, 4, 4, 3) and dataset.classes == 10


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
    same_image = (dataset.train.inputs[:, None] == part.inputs).all((2, 3, 4))
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
    damage(path, place, mask)
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
        ({"x": np.array(["a", "b"]), "y": np.arange(2)}, "inputs have type <U1"),
        ({"x": np.array(3.0), "y": np.arange(3)}, r"inputs have type float64 and shape \(\)"),
        ({"x": np.array([[np.nan], [0]]), "y": np.arange(2)}, "inputs hold NaN or infinity"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": np.arange(4)}, "one for each of the 3 inputs"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": np.ones(3)}, "labels have type float64"),
        ({"x": np.zeros((2, 4), np.uint8), "y": np.array([-1, 0])}, "labels are from -1 to 0"),
        ({"x": np.zeros((2, 4), np.uint8), "y": np.array([0, 2**32])}, "labels are from 0 to 4294"),
        ({"x": np.zeros((2, 4), np.uint8), "y": np.array([0, 2**31 - 1])}, "class 1 of 0 to 2147"),
        ({"x": np.zeros((2, 4), np.uint8), "y": np.array(["a", "b"])}, "labels are text"),
        ({"x": np.zeros((0, 4, 4), np.uint8), "y": np.arange(0)}, "there are no training examples"),
        (
            {"x": np.zeros((2, 4, 4), np.uint8), "y": np.arange(2), "classes": np.array(["a"])},
            "has the label 1; labels go from 0 to 0",
        ),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.array([{}, {}])}, "in another format"),
    ],
)
def test_npz_files_of_other_things_are_refused(tmp_path, arrays, says):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(BQNESError, match=says) as refused:
        load(str(tmp_path / "own.npz"))
    assert str(tmp_path / "own.npz") in str(refused.value)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (np.eye(6).reshape(6, 3, 2), r"train\.inputs have type float64 and shape \(4, 3, 2\)"),
        (np.arange(24, dtype=np.uint8).reshape(6, 4), r"uint8 of shape \(n, height, width, chan"),
        (np.eye(6).reshape(6, 3, 2, 1), "scale them to 0 … 255 and round"),
    ],
)
def test_an_npz_of_any_numbers_is_loaded_but_only_images_are_images(tmp_path, inputs, says):
    """Tables and sequences are data for families of one's own; cells and slices refuse them."""
    np.savez(tmp_path / "own.npz", x=inputs, y=np.arange(6) % 2)
    dataset = load(str(tmp_path / "own.npz"))
    np.testing.assert_array_equal(dataset.train.inputs, inputs)
    assert dataset.train.inputs.dtype == inputs.dtype and dataset.classes == 2
    assert dataset.test.inputs.shape == (0, *inputs.shape[1:])
    data = split(dataset, (4, 1, 1))
    for check in (lambda: check_images(data, 2), lambda: CellFamily().check(data)):
        with pytest.raises(BQNESError, match=says):
            check()
    with pytest.raises(BQNESError, match=r"only images, uint8.*use the file as it is"):
        prepare("own", tmp_path / "own.npz", tmp_path / "data")
    with pytest.raises(BQNESError, match=r"are no images that can be shrunk; leave size out"):
        load(str(tmp_path / "own.npz"), size=2)


def test_pictures_without_channels_have_one(tmp_path):
    pictures = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    np.savez(tmp_path / "own.npz", x=pictures, y=np.arange(6) % 2)
    dataset = load(str(tmp_path / "own.npz"))
    np.testing.assert_array_equal(dataset.train.inputs, pictures[..., None])
    check_images(split(dataset, (4, 1, 1)), 2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), mask=st.integers(0, 255))
def test_an_altered_npz_is_refused_or_harmless(tmp_path, place, mask):
    own = toy()
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=own.train.inputs, y=own.train.labels)
    damage(path, place, mask)
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
    np.savez(tmp_path / "cifar10_subset.npz", x=toy().train.inputs, y=toy().train.labels)
    with pytest.raises(BQNESError, match=r"only 'cifar10_subset', which is not the same.*curl"):
        load("cifar10", tmp_path)


def test_a_data_directory_that_cannot_be_written(tmp_path):
    np.savez(tmp_path / "own.npz", x=toy().train.inputs, y=toy().train.labels)
    with pytest.raises(BQNESError, match="own cannot be written to"):
        prepare("own", tmp_path / "own.npz", tmp_path / "own.npz" / "data")


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """A limit of the system on the size of files stops a write half-way."""
    np.savez(tmp_path / "own.npz", x=images(500).inputs, y=images(500).labels)
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
        cwd=Path(__file__).parents[2],
    ).stdout
    assert "own cannot be written to" in said and "File too large" in said
    assert os.listdir(tmp_path / "data") == [".prepare.lock"]


def test_digits_are_those_of_scikit_learn(monkeypatch):
    pixels, labels = load_digits(return_X_y=True)
    for there in (True, False):  # with its file, and by importing it
        if not there:
            monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        digits = load("digits")
        np.testing.assert_array_equal(digits.train.labels, labels)
        np.testing.assert_allclose(digits.train.inputs.reshape(-1, 64), pixels * 255 / 16, atol=0.5)


def test_digits():
    digits = load("digits")
    assert digits.train.inputs.shape == (1797, 8, 8, 1) and not len(digits.test.labels)
    assert digits.train.inputs.max() == 255


@pytest.mark.parametrize(("side", "size"), [(32, 16), (32, 8), (28, 16), (8, 8), (5, 1)])
def test_downsampling_averages_over_areas(side, size):
    part = images(3, side).inputs
    fine = np.repeat(np.repeat(part.astype(float), size, 1), size, 2)  # divides, whatever the side
    means = fine.reshape(3, size, side, size, side, 3).mean((2, 4))
    assert abs(downsample(part, size) - means).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("change", [lambda images: downsample(images, 4), channel_moments])
def test_images_without_pixels_are_refused(change):
    with pytest.raises(BQNESError, match="pixel"):
        change(jnp.zeros((2, 0, 0, 3), jnp.uint8))
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
    assert tuple(len(part.labels) for part in split(dataset).parts.values()) == sizes
    assert split_indices(dataset).valid_from == valid_from


@needs_real_images
def test_real_images_survive_preparing(tmp_path):
    whole = load("cifar10_subset")
    np.savez(
        tmp_path / "small.npz",
        **{"x_train": whole.train.inputs[:500], "y_train": whole.train.labels[:500]},
        **{"x_test": whole.test.inputs[:100], "y_test": whole.test.labels[:100]},
    )
    prepare("small", tmp_path / "small.npz", tmp_path)
    small = load("small", tmp_path)
    same(small.train, Examples(*(array[:500] for array in whole.train)))
    same(small.test, Examples(*(array[:100] for array in whole.test)))
