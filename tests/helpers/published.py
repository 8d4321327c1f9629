"""Files in the format of NATS-Bench's archives, and its network, written without PyTorch."""

import bz2
import collections
import functools
import io
import pickle
import struct
import tarfile

import numpy as np

from bqnes_jax.nats_bench.archive import numbers_by_text
from bqnes_jax.spaces.nats import EDGES, OPERATIONS

NORM = ("weight", "bias", "running_mean", "running_var")
SETS = {
    "cifar10-valid": ("x-valid", "ori-test"),
    "cifar10": ("ori-test",),
    "cifar100": ("ori-test", "x-valid", "x-test"),
    "ImageNet16-120": ("ori-test", "x-valid", "x-test"),
}


def operations(text):
    """Read the operations of an architecture's six edges."""
    return [part.split("~")[0] for part in text.replace("+", "").strip("|").split("|") if part]


def architecture(text):
    return np.array([OPERATIONS.index(name) for name in operations(text)])


def texts(count=None, seed=88):
    """Return all architectures in a random order, as the archive lists them."""
    every = list(numbers_by_text())
    order = np.random.default_rng(seed).permutation(len(every))[:count]
    return [every[i] for i in order]


def state_dict(text, channels=16, cells=5, classes=10, seed=0):
    """Return random weights and statistics under the published names."""
    generator = np.random.default_rng(seed)
    state = collections.OrderedDict()

    def conv(name, out, into, size):
        bound = 1 / np.sqrt(into * size**2)
        state[name] = generator.uniform(-bound, bound, (out, into, size, size))

    def batch_norm(name, width):
        state[f"{name}.weight"] = generator.uniform(0.5, 1.5, width)
        state[f"{name}.bias"] = generator.uniform(-0.5, 0.5, width)
        state[f"{name}.running_mean"] = generator.normal(0, 0.3, width)
        state[f"{name}.running_var"] = generator.uniform(0.3, 2.0, width)
        state[f"{name}.num_batches_tracked"] = np.array(39_200)

    conv("stem.0.weight", channels, 3, 3)
    batch_norm("stem.1", channels)
    width = channels
    for i in range(3 * cells + 2):
        if i in (cells, 2 * cells + 1):
            conv(f"cells.{i}.conv_a.op.1.weight", 2 * width, width, 3)
            batch_norm(f"cells.{i}.conv_a.op.2", 2 * width)
            conv(f"cells.{i}.conv_b.op.1.weight", 2 * width, 2 * width, 3)
            batch_norm(f"cells.{i}.conv_b.op.2", 2 * width)
            conv(f"cells.{i}.downsample.1.weight", 2 * width, width, 1)
            width *= 2
            continue
        for edge, name in enumerate(operations(text)):
            if name.startswith("nor_conv"):
                conv(f"cells.{i}.layers.{edge}.op.1.weight", width, width, int(name[-1]))
                batch_norm(f"cells.{i}.layers.{edge}.op.2", width)
    batch_norm("lastact.0", width)
    bound = 1 / np.sqrt(width)
    state["classifier.weight"] = generator.uniform(-bound, bound, (classes, width))
    state["classifier.bias"] = generator.uniform(-bound, bound, classes)
    return collections.OrderedDict(
        (name, array.astype(np.int64 if name.endswith("tracked") else np.float32))
        for name, array in state.items()
    )


def settled(text, images, **size):
    """Return random weights whose last batch norm has the statistics of images, as if trained.

    With other statistics logits are in the millions wherever skips add up from cell to cell.
    """
    state = state_dict(text, **size)
    last = features(state, text, images)
    state["lastact.0.running_mean"] = last.mean((0, 2, 3)).astype(np.float32)
    state["lastact.0.running_var"] = last.var((0, 2, 3)).astype(np.float32)
    return state


def logits(state, text, images):
    """Compute the published network, from images (n, 3, h, w), in NumPy and float64."""
    x = np.maximum(norm(state, features(state, text, images), "lastact.0"), 0).mean((2, 3))
    return x @ state["classifier.weight"].T.astype(float) + state["classifier.bias"]


def norm(state, x, name):
    weight, bias, mean, var = (state[f"{name}.{leaf}"][:, None, None] for leaf in NORM)
    return (x - mean) / np.sqrt(var.astype(float) + 1e-5) * weight + bias


def features(state, text, images):
    """Compute what the last batch norm sees."""

    def conv(x, kernel, stride=1):
        around = kernel.shape[-1] // 2
        x = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)))
        seen = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[2:], (2, 3))
        seen = seen[:, :, ::stride, ::stride]
        return np.tensordot(seen, kernel, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    def relu_conv_norm(x, name, stride=1):
        return norm(state, conv(np.maximum(x, 0), state[f"{name}.1.weight"], stride), f"{name}.2")

    def average(x):
        ones = np.ones((1, 1, *x.shape[2:]))
        kernel = np.ones((1, 1, 3, 3))
        n, c = x.shape[:2]
        total = conv(x.reshape(n * c, 1, *x.shape[2:]), kernel).reshape(x.shape)
        return total / conv(ones, kernel)

    x = norm(state, conv(images.astype(float), state["stem.0.weight"]), "stem.1")
    cells = min(int(name.split(".")[1]) for name in state if "downsample" in name)
    for i in range(3 * cells + 2):
        own = f"cells.{i}"
        if f"{own}.downsample.1.weight" in state:
            n, c, h, w = x.shape
            halved = x.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5))
            y = relu_conv_norm(x, f"{own}.conv_a.op", 2)
            x = relu_conv_norm(y, f"{own}.conv_b.op") + conv(
                halved, state[f"{own}.downsample.1.weight"]
            )
            continue
        nodes = [x, 0, 0, 0]
        for edge, ((source, target), name) in enumerate(zip(EDGES, operations(text), strict=True)):
            x = nodes[source]
            if name.startswith("nor_conv"):
                x = relu_conv_norm(x, f"{own}.layers.{edge}.op")
            elif name == "avg_pool_3x3":
                x = average(x)
            elif name == "none":
                x = np.zeros_like(x)
            nodes[target] = nodes[target] + x
        x = nodes[3]
    return x


def results(text, scores=None, weights=None, seeds=(777, 888), epochs=200):
    """Return what a file says of one architecture after so many epochs.

    `scores` is a function (data set, seed, images) -> (loss, accuracy in per cent), `weights` one
    (data set, seed) -> state dict. The first epoch is there beside the last.
    """
    scores = scores or (lambda *_: (2.0, 50.0))
    last = epochs - 1
    every = {}
    for name, sets in SETS.items():
        for seed in seeds:
            found = {images: scores(name, seed, images) for images in sets}
            every[name, seed] = {
                "name": name,
                "net_state_dict": None if weights is None else weights(name, seed),
                "train_acc1es": {0: 10.0, last: 99.0},
                "train_acc5es": {0: 10.0, last: 99.0},
                "train_losses": {0: 4.0, last: 0.5},
                "train_times": collections.OrderedDict.fromkeys(range(epochs), 1.0),
                "arch_config": {"channel": 16, "num_cells": 5, "arch_str": text, "class_num": 100},
                "params": np.float64(0.8),
                "flop": 113.9,
                "seed": f"{seed:04d}",
                "epochs": epochs,
                "latency": [0.01],
                "eval_names": list(sets),
                "eval_acc1es": {f"{images}@{last}": found[images][1] for images in sets},
                "eval_times": {f"{of}@{i}": 1.0 for of in sets for i in range(epochs)},
                "eval_losses": {f"{images}@{last}": found[images][0] for images in sets},
            }
    return {
        "arch_index": 0,
        "arch_str": text,
        "all_results": every,
        "dataset_seed": {name: list(seeds) for name in SETS},
        "clear_net_done": weights is None,
    }


def content(text, **of_results):
    """Return the content of a file."""
    few = results(text, seeds=(111, 777), epochs=12)
    return collections.OrderedDict({"12": few, "200": results(text, **of_results)})


def write_archive(folder, files, meta=None):
    """Write an archive: its list, and the contents of its first files."""
    folder.mkdir(exist_ok=True)
    (folder / "meta.pickle.pbz2").write_bytes(listed(tuple(meta or texts())))
    for number, one in enumerate(files):
        (folder / f"{number:06d}.pickle.pbz2").write_bytes(bz2.compress(dump(one)))
    return folder


@functools.cache
def listed(archs):
    meta = {
        "meta_archs": list(archs),
        "total_archs": len(archs),
        "arch2infos": None,
        "evaluated_indexes": set(),
    }
    return bz2.compress(dump(meta))


def as_tar(folder):
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as tar:
        tar.add(folder, folder.name)
    return path


class Named:
    """A function that a pickle calls by its name."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self):
        raise AssertionError("never called")


REBUILD = Named("torch._utils", "_rebuild_tensor_v2")
FROM_BYTES = Named("torch.storage", "_load_from_bytes")
STORAGES = {
    np.dtype(np.float32): Named("torch", "FloatStorage"),
    np.dtype(np.int64): Named("torch", "LongStorage"),
}


class Tensor:
    """An array that is pickled as PyTorch pickles a tensor of its own."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        strides = tuple(step // self.array.itemsize for step in self.array.strides)
        storage = Storage(self.array.ravel())
        return REBUILD, (storage, 0, self.array.shape, strides, False, collections.OrderedDict())


class Storage:
    def __init__(self, numbers):
        self.numbers = numbers

    def __reduce__(self):
        file = io.BytesIO()
        for header in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(header, file, 2)
        pickler = Pickler(file, 2)
        pickler.persistent_id = lambda thing: thing.described() if thing is self else None
        pickler.dump(self)
        pickle.dump(["94197513239584"], file, 2)
        file.write(struct.pack("<q", self.numbers.size) + self.numbers.tobytes())
        return FROM_BYTES, (file.getvalue(),)

    def described(self):
        kind = STORAGES[self.numbers.dtype]
        return "storage", kind, "94197513239584", "cpu", self.numbers.size, None


class StateDict(collections.OrderedDict):
    """PyTorch's state dicts are ordered dicts with an attribute beside their items."""

    def __reduce__(self):
        items = [(name, Tensor(array)) for name, array in self.items()]
        state = {"_metadata": collections.OrderedDict({"": {"version": 1}})}
        return collections.OrderedDict, (), state, None, iter(items)


class Pickler(pickle._Pickler):
    """Writes names of functions that are not there."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_named(self, thing):
        if self.proto >= 4:
            self.save(thing.module)
            self.save(thing.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{thing.module}\n{thing.name}\n".encode())
        self.memoize(thing)

    dispatch[Named] = save_named


def dump(thing):
    file = io.BytesIO()
    Pickler(file, 4).dump(thing)
    return file.getvalue()


TEXTS = texts(6)
SEEDS = [(777, 888, 999), (777, 888), (777, 888), (888,), (777, 888, 999), (777, 888)]


def scores(text):
    """Make up losses and accuracies, different for all that is in an archive."""

    def of(dataset, seed, images):
        place = list(SETS).index(dataset), seed, len(images), numbers_by_text()[text]
        return tuple(np.random.default_rng(place).uniform((0.5, 10), (5, 90)).tolist())

    return of


def simple(folder, count=6, **replaced):
    """Write the first files of an archive without weights; some may be replaced."""
    files = [
        content(text, scores=scores(text), seeds=seeds)
        for text, seeds in zip(TEXTS[:count], SEEDS, strict=False)
    ]
    return write_archive(folder, files, **replaced)
