"""The published archives of NATS-Bench's topology space, one architecture at a time.

An archive is a directory, or a tar of it, of 15,625 files 000000.pickle.pbz2 … and a list of the
architectures, meta.pickle.pbz2, in whose random order the files are numbered. A file holds every
training of its architecture: by number of epochs ("12", "200"), then by (data set, seed). The
archive "full" has the trained weights as well, the archive "simple" has None in their place.
"""

import bz2
import contextlib
import functools
import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bqnes_jax.errors import BQNESError, check_choice
from bqnes_jax.files import open_file, refuse_damaged
from bqnes_jax.files.tars import open_tar
from bqnes_jax.nats_bench.pickles import Tensor, unpickle
from bqnes_jax.spaces.nats import OPERATIONS

SEEDS = (777, 888, 999)
_EPOCHS = "200"
_META = "meta.pickle.pbz2"
_GET = (
    "get NATS-tss-v1_0-3ffb9-simple.tar, or the full archive with trained weights, from "
    "https://github.com/D-X-Y/NATS-Bench"
)


class Published(NamedTuple):
    """What the benchmark made of a data set.

    Attributes:
        name: of the data set, in the files.
        valid: name of the validation images.
        test: name of the test images.
        valid_points: how many validation images.
        test_points: how many test images.
        mean: of each channel, in the units of the images, which networks were trained with.
        deviation: likewise.
    """

    name: str
    valid: str
    test: str
    valid_points: int
    test_points: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


# Of CIFAR-10 the networks that were trained on one half of the training set and validated on the
# other; those that the benchmark files under "cifar10" were trained on both.
DATASETS = {
    "cifar10": Published(
        "cifar10-valid",
        "x-valid",
        "ori-test",
        25_000,
        10_000,
        (125.3, 123.0, 113.9),
        (63.0, 62.1, 66.7),
    ),
    "cifar100": Published(
        "cifar100", "x-valid", "x-test", 5_000, 5_000, (129.3, 124.1, 112.4), (68.2, 65.4, 70.4)
    ),
    "imagenet16-120": Published(
        "ImageNet16-120",
        "x-valid",
        "x-test",
        3_000,
        3_000,
        (122.68, 116.66, 104.01),
        (63.22, 61.26, 65.09),
    ),
}


class Training(NamedTuple):
    """What was published of one network after 200 epochs; accuracies are from 0 to 1.

    Attributes:
        valid_loss: mean negative log-likelihood on the validation images.
        valid_accuracy: on the validation images.
        test_loss: likewise on the test images.
        test_accuracy: on the test images.
        train_loss: on the training images, augmented, during the last epoch.
        weights: PyTorch's state dict; None in the archive "simple".
    """

    valid_loss: float
    valid_accuracy: float
    test_loss: float
    test_accuracy: float
    train_loss: float
    weights: Mapping[str, Tensor] | None


class Archive(NamedTuple):
    """An archive that is open; make one with `open_archive`.

    Attributes:
        path: of the directory or tar.
        archs: the architectures as text, in the order of the files.
        open_file: from the name of a file to its content; FileNotFoundError if there is none.
        files: the names of what is there.
    """

    path: Path
    archs: tuple[str, ...]
    open_file: Callable[[str], io.BufferedIOBase]
    files: frozenset[str]

    def check_complete(self, count: int) -> None:
        """Refuse an archive that lacks one of the first files."""
        names = [_file_name(number) for number in range(count)]
        first = next((i for i, name in enumerate(names) if name not in self.files), None)
        if first is not None:
            there = sum(name in self.files for name in names)
            first_ones = f", or give --count {first} for the first ones" if first else ""
            raise BQNESError(
                f"{self.path} has {there:,} of {count:,} architectures, {names[first]} is not "
                f"there: it was downloaded or unpacked in part; get it again{first_ones}."
            )

    def read(self, number: int, dataset: str) -> dict[int, Training]:
        """Read the trainings of one architecture on a data set, by their seeds."""
        check_choice("dataset", dataset, tuple(DATASETS))
        name, published = _file_name(number), DATASETS[dataset]
        where = self.path / name
        content = _unpickle(self, name)
        with refuse_damaged(where):
            trained = content[_EPOCHS]
            arch = trained["arch_str"]
            if not isinstance(arch, str):
                raise TypeError("its architecture is not a text")
            if arch != self.archs[number]:
                raise BQNESError(
                    f"{where} is of {arch}, and not of {self.archs[number]} as {_META} says; get "
                    "both from one archive."
                )
            found = {
                seed: _training(trained["all_results"][published.name, seed], published)
                for seed in SEEDS
                if (published.name, seed) in trained["all_results"]
            }
        if not found:
            raise BQNESError(f"{where} has no results of {published.name} after {_EPOCHS} epochs.")
        return found

    def weights(self, number: int, training: Training) -> dict[str, np.ndarray]:
        """Return the trained weights of one network, as arrays by their published names."""
        if training.weights is None:
            raise BQNESError(
                f"{self.path} has no trained weights, which predictions need: it is the archive "
                "'simple'; get NATS-tss-v1_0-3ffb9-full, or leave --store out."
            )
        with refuse_damaged(self.path / _file_name(number)):
            return {name: tensor.array() for name, tensor in training.weights.items()}


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open the directory of an archive, or its tar without unpacking it."""
    with contextlib.ExitStack() as stack:
        if path.is_dir():
            with refuse_damaged(path):
                files = frozenset(file.name for file in path.iterdir())
            archive = Archive(path, (), lambda name: open_file(path / name), files)
        else:
            archive = _open_tar(path, stack)
        if _META not in archive.files:
            raise BQNESError(
                f"{path} has no {_META}: it is not an archive of NATS-Bench, or was downloaded or "
                f"unpacked in part; {_GET}."
            )
        yield archive._replace(archs=_read_list(archive))


@functools.cache
def numbers_by_text() -> dict[str, int]:
    """Return the number that each architecture has in the space NATS, by its text.

    Example:
        >>> numbers_by_text()[
        ...     "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|none~0|none~1|avg_pool_3x3~2|"
        ... ]
        9504
    """
    form = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|"
    cells = itertools.product(OPERATIONS, repeat=6)
    return {form.format(*cell): number for number, cell in enumerate(cells)}


def _open_tar(path: Path, stack: contextlib.ExitStack) -> Archive:
    if not path.is_file():
        raise BQNESError(f"{path} does not exist; {_GET}.")
    if path.name.endswith((".pbz2", ".pth")):
        raise BQNESError(
            f"{path} is a single file of all results, which is read only as a whole, or not of "
            f"NATS-Bench; {_GET}."
        )
    if path.name.endswith((".gz", ".tgz", ".bz2", ".xz")):
        raise BQNESError(
            f"{path} is compressed, so that no file of it can be read alone; unpack it and give "
            "the directory."
        )
    with refuse_damaged(path):
        tar = stack.enter_context(open_tar(stack.enter_context(open_file(path)), "r:"))
        members = {Path(member.name).name: member for member in tar if member.isfile()}

    def open_member(name: str) -> io.BufferedIOBase:
        if name not in members:
            raise FileNotFoundError(name)
        file = tar.extractfile(members[name])
        assert isinstance(file, io.BufferedIOBase)  # the members are files
        return file

    return Archive(path, (), open_member, frozenset(members))


def _read_list(archive: Archive) -> tuple[str, ...]:
    """Read the list of architectures, and check that it is the list of the space."""
    meta = _unpickle(archive, _META)
    archs = meta.get("meta_archs") if isinstance(meta, dict) else None
    texts = archs if isinstance(archs, list) and all(isinstance(a, str) for a in archs) else []
    if sorted(texts) != sorted(numbers_by_text()):
        raise BQNESError(
            f"{archive.path / _META} does not list the 15,625 architectures of the topology space, "
            f"each once: it is of another benchmark; {_GET}."
        )
    return tuple(texts)


def _unpickle(archive: Archive, name: str) -> Any:
    with (
        refuse_damaged(archive.path / name),
        archive.open_file(name) as compressed,
        bz2.BZ2File(compressed) as file,
    ):
        return unpickle(file)


def _file_name(number: int) -> str:
    return f"{number:06d}.pickle.pbz2"


def _training(result: dict, published: Published) -> Training:
    last = result["epochs"] - 1

    def of(images: str) -> tuple[float, float]:
        key = f"{images}@{last}"
        return float(result["eval_losses"][key]), float(result["eval_acc1es"][key]) / 100

    return Training(
        *of(published.valid),
        *of(published.test),
        float(result["train_losses"][last]),
        result["net_state_dict"],
    )
