"""Every kind of file that is read: a valid one, and what reads it."""

import bz2
import dataclasses
import functools
import gzip
import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bqnes_jax import tables
from bqnes_jax.cli.run import _read_array
from bqnes_jax.data import Dataset, Examples, Split, archives, prepared, read_split
from bqnes_jax.data.shifted import read_corrupted as published_shift
from bqnes_jax.data.splits import SplitIndices
from bqnes_jax.files import as_json, open_file, write_bound, write_json
from bqnes_jax.files.digests import DIGESTS, note
from bqnes_jax.files.trees import write_tree
from bqnes_jax.nats_bench import Archive, read_results, write_results
from bqnes_jax.nats_bench.archive import _read_list
from bqnes_jax.nats_bench.results import empty
from bqnes_jax.runs import Ensemble, Record, Run, configure, make_family, preset_config
from bqnes_jax.runs.journal import Journal, events_of
from bqnes_jax.runs.layout import read_config
from bqnes_jax.runs.record import read_record, write_record
from bqnes_jax.spaces import NATS
from bqnes_jax.storage import Entry, Manifest, Predictions, Store, records
from bqnes_jax.studies import robustness
from tests.helpers import published
from tests.helpers.pictures import images

ARCH = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"
MANIFEST = Manifest("nats", "toy", {"epochs": 3, "rate": 0.5}, 4, 3, 3)
VARIABLES = {"dense": [np.arange(5.0), None], "norm": (np.ones((2, 3), np.float32), np.array(7))}
OWN = Dataset("own", 10, images(12, 4), images(10, 4, seed=1))


class Loader(NamedTuple):
    """How a file is read.

    Attributes:
        path: of the file.
        read: reads it, and what belongs to it.
        content: what is valid.
        pack: compresses content, where it is compressed in the file.
    """

    path: Path
    read: Callable[[], object]
    content: bytes
    pack: Callable[[bytes], bytes] = bytes

    def load(self, content):
        """Read a file with another content, whose digest is right where there are digests."""
        packed = self.pack(content)
        if (self.path.parent / DIGESTS).is_file():
            note(self.path.parent, self.path.name, hashlib.sha256(packed).hexdigest())
        self.path.write_bytes(packed)
        return self.read()


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        make: from an empty folder to a loader.
        form: which alterations make sense.
        cases: how many of them are tried.
    """

    make: Callable[[Path], Loader]
    form: str
    cases: int


KINDS: dict[str, Kind] = {}


def kind(name, form, cases=500):
    """Enter a function that makes a loader into `KINDS`."""

    def enter(make):
        KINDS[name] = Kind(make, form, cases)
        return make

    return enter


def plain(path, read):
    return Loader(path, read, path.read_bytes())


@kind("run/config.json", "json")
def of_run_config(folder):
    run = a_run(folder)
    read = lambda: (read_config(folder), run.versions)  # noqa: E731
    return plain(folder / "config.json", read)


@kind("run/search.npz", "npz", 1000)
def of_search(folder):
    a_run(folder)
    path = folder / "search.npz"
    return plain(path, lambda: read_record(path, NATS))


@kind("run/ensemble.json", "json")
def of_ensemble(folder):
    return plain(folder / "ensemble.json", a_run(folder).saved_ensemble)


@kind("run/robustness.json", "json")
def of_robustness(folder):
    run = a_run(folder)
    return plain(folder / "robustness.json", lambda: robustness.read_study(run))


@kind("run/shared.bqt", "tree")
def of_shared(folder):
    run = a_run(folder)
    return plain(folder / "shared.bqt", run._shared)


@kind("run", "npz", 50)
def of_run(folder):
    a_run(folder)

    def read():
        run = Run.load(folder)
        return run.saved_ensemble().texts, run.store.variables(ARCH, 0)

    return plain(folder / "search.npz", read)


def read_store(folder):
    store = Store.open(folder)
    store.summaries()
    store.find_damaged()
    store.predictions([ARCH, "failed"], 0)
    return store.variables(ARCH, 0)


@kind("store/manifest.json", "manifest")
def of_manifest(folder):
    a_store(folder)
    return plain(folder / "manifest.json", lambda: read_store(folder))


@kind("store/entry", "entry", 700)
def of_entry(folder):
    path = a_store(folder)._path(records.Key(ARCH, 0))
    return plain(path, lambda: read_store(folder))


@kind("table", "npz", 700)
def of_table(folder):
    path = folder / "table.npz"
    a_table(path)
    return plain(path, lambda: tables.read(path))


@kind("table of NATS-Bench", "npz", 100)
def of_results(folder):
    path = folder / "nats.npz"
    write_results(path, empty("cifar100"))
    return plain(path, lambda: read_results(path))


@kind("images", "npy", 700)
def of_images(folder):
    path = folder / "x.npy"
    np.save(path, OWN.test.inputs)
    return plain(path, lambda: _read_array(path, "inputs"))


@kind("data set", "npz", 600)
def of_data(folder):
    path = folder / "own.npz"
    arrays = {"x_train": OWN.train.inputs, "y_train": OWN.train.labels, "x_test": OWN.test.inputs}
    arrays |= {"y_test": OWN.test.labels, "classes": np.array(list("abcdefghij"))}
    np.savez_compressed(path, **arrays)
    return plain(path, lambda: archives.read_npz("own", path))


def read_shifted(folder):
    places = SplitIndices(np.arange(2), np.arange(2, 4), np.array([1, 4]), "train")
    return published_shift(folder, OWN, places)("fog", 2)


@kind("shifted/labels", "npy", 300)
def of_shifted_labels(folder):
    shifted_folder(folder)
    return plain(folder / "labels.npy", lambda: read_shifted(folder))


@kind("shifted/images", "npy", 300)
def of_shifted_images(folder):
    shifted_folder(folder)
    return plain(folder / "fog.npy", lambda: read_shifted(folder))


@kind("split", "json")
def of_split(folder):
    path = folder / "split.json"
    write_json(path, {"train": [0, 1, 5], "valid": [2, 3], "test": [4]})
    return plain(path, lambda: read_split(path, OWN))


def of_prepared(name, folder):
    prepared._write(OWN, folder)
    made = folder / "own" / prepared.VERSION
    (made / prepared._CHECKSUM).write_text(prepared._digest(OWN))
    (path,) = made.glob(name)
    return plain(path, lambda: prepared.read_prepared("own", made))


kind("prepared/info", "json", 100)(functools.partial(of_prepared, "dataset_info.json"))
kind("prepared/features", "json", 100)(functools.partial(of_prepared, "features.json"))
kind("prepared/records", "bytes", 100)(functools.partial(of_prepared, "*train*"))


@kind("pickled images", "pickle", 1000)
def of_pickles(folder):
    """Eleven pickles of two small images each."""
    part = images(2, 16)
    rows = np.ascontiguousarray(part.inputs.transpose(0, 3, 1, 2)).reshape(2, -1)
    content = pickle.dumps({"data": rows, "labels": [1, 2], "mean": np.zeros(4)}, 2)
    first, *others = archives.PUBLISHED["imagenet16-120"].checksums
    for name in (first, *others):
        (folder / name).write_bytes(content)
    read = functools.partial(archives.read_published, "imagenet16-120", folder, verify=False)
    return plain(folder / first, read)


def of_idx(folder):
    part = images(3, 28, 1)
    pixels = struct.pack(">4I", 0x803, *part.inputs.shape[:3]) + part.inputs.tobytes()
    labels = struct.pack(">2I", 0x801, len(part.labels)) + part.labels.astype("u1").tobytes()
    for prefix in ("train", "t10k"):
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    read = functools.partial(archives.read_published, "fashion_mnist", folder, verify=False)
    path = folder / "train-images-idx3-ubyte.gz"
    return plain(path, read), Loader(path, read, pixels, lambda one: gzip.compress(one, 1))


kind("idx, compressed", "bytes", 200)(lambda folder: of_idx(folder)[0])
kind("idx", "bytes", 300)(lambda folder: of_idx(folder)[1])


def of_nats(content, read, folder):
    path = folder / "000000.pickle.pbz2"
    opened = Archive(folder, (ARCH,), lambda name: open_file(path), frozenset())
    return Loader(path, lambda: read(opened), content, lambda one: bz2.compress(one, 1))


@kind("NATS-Bench", "pickle", 1000)
def of_nats_file(folder):
    def read(opened):
        return [opened.weights(0, one) for one in opened.read(0, "cifar100").values()]

    return of_nats(nats_file(), read, folder)


@kind("NATS-Bench's list", "pickle", 10)
def of_nats_list(folder):
    texts = published.texts()
    return of_nats(pickle.dumps({"meta_archs": texts}, 4), _read_list, folder)


@kind("config.yaml", "text", 700)
def of_yaml(folder):
    path = folder / "c.yaml"
    path.write_text("seed: 3\nfamily: nats\nsearch: {budget: 60}\nsplit: [20, 0.5, 7]\n")
    return plain(path, lambda: configure("tiny", path))


@kind("config in JSON", "json", 100)
def of_config(folder):
    path = folder / "c.json"
    path.write_text(json.dumps(dataclasses.asdict(preset_config())))
    return plain(path, lambda: configure("tiny", path))


def log_probs(*shape):
    logits = np.random.default_rng(0).normal(size=shape)
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def a_run(folder):
    """Write a run as `search` leaves it, of four candidates."""
    generator = np.random.default_rng(0)
    record = Record(
        archs=generator.integers(0, 5, (4, 6)).astype(np.int32),
        log_likelihoods=np.array([-1.0, np.nan, -3.0, -2.0], np.float32),
        log_probs=log_probs(4, 4, 3)[..., 0],
        scores=np.zeros(4, np.float32),
        gram=np.eye(4, dtype=np.float32),
        log_prior=np.zeros(4, np.float32),
        temperature=np.array(7.5, np.float32),
        rule=np.full(4, 0.25, np.float32),
        counts=np.array([2, 4], np.int32),
        effective_sizes=np.array([1.5, 2.5], np.float32),
        log_evidence=np.zeros(2, np.float32),
        evidence_sd=np.ones(2, np.float32),
        statuses=np.array([0, 2], np.int32),
        test_labels=np.array([0, 1, 2], np.int32),
        input_shape=np.array([2, 2, 1]),
        classes=np.array(3),
    )
    write_record(folder / "search.npz", record)
    Journal(folder / "arrivals.log", NATS).begin_as(events_of(record.beginning, 2))
    config = preset_config()
    content = {"config": dataclasses.asdict(config), "versions": {"jax": "0.5"}}
    write_bound(folder / "config.json", as_json(content))
    write_tree(folder / "shared.bqt", VARIABLES)
    family = make_family(config)
    a_store(folder / "store", dataclasses.replace(MANIFEST, config=family.manifest(3)))
    run = Run(folder, config, family, record)
    ensemble = Ensemble(run, "restack", 3, np.array([0, 3]), np.array([0.25, 0.75]))
    ensemble.save()
    under = robustness.conditions(("fog", "snow"), (1, 3))
    measured = {condition: np.full((2, 3), 0.5) for condition in under}
    setting = robustness._setting(ensemble) | {"images": robustness.OWN}
    robustness._write(run, setting, under, measured)
    return run


def a_store(folder, manifest=MANIFEST):
    store = Store.open(folder, manifest)
    said = log_probs(7, 3)
    store.put(Entry(ARCH, 0, "ok", said[:4], said[4:], variables=VARIABLES))
    store.put(Entry("failed", 0, "failed"))
    return store


def a_table(path):
    said = log_probs(3, 5, 4)
    numbers = np.full(3, np.nan)
    stored = Predictions(np.ones(3, bool), said, said, numbers, numbers, numbers, numbers, numbers)
    part = Examples(np.zeros((5, 2, 2, 1), np.uint8), np.arange(5, dtype=np.int32) % 4)
    tables.pack(path, np.array([9504, 777, 1234]), stored, Split(part, part, part, classes=4))


def shifted_folder(folder):
    np.save(folder / "labels.npy", np.tile(OWN.test.labels, 5).astype(np.int64))
    np.save(folder / "fog.npy", np.concatenate([OWN.test.inputs] * 5))


def nats_file():
    tensor = published.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    scores = {"x-valid@199": np.float64(1.5), "x-test@199": 2.5}
    result = {
        "epochs": 200,
        "eval_losses": scores,
        "eval_acc1es": scores,
        "train_losses": {199: 0.5},
        "net_state_dict": {"w": tensor},
    }
    return published.dump({"200": {"arch_str": ARCH, "all_results": {("cifar100", 777): result}}})
