"""What a store keeps: its manifest, its entries, and how both look on disk.

An entry is

    magic (8 bytes) | length of header (4) | header, JSON | sha256 of all before
    | log-probabilities | variables

where the header describes the variables and holds the sha256 of each of the two, so that a listing
reads headers only.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from bqnes_jax.errors import BQNESError, check_choice, check_shape, check_whole
from bqnes_jax.files import load_json, size_of_file, trees
from bqnes_jax.files.trees import Tree
from bqnes_jax.identity import canonical, digest, first_difference

FORMAT = 2
OK, FAILED = "ok", "failed"

_MAGIC = b"BQNES\x00\r\n"  # a transfer that translates line ends or drops zeros shows at once
_HEADER_LIMIT = 1 << 20
_NUMBERS_LIMIT = 1 << 30  # in an entry: 4 GB; a million points of a thousand classes fit
_DIGEST = hashlib.sha256().digest_size
NUMBERS = ("train_loss", "valid_loss", "test_loss", "seconds", "train_log_likelihood")


class DamagedError(Exception):
    """Why an entry cannot be used, as the rest of a sentence that starts with its path."""


class Key(NamedTuple):
    """What an entry is filed under, within a store."""

    arch: str
    seed: int


class Entry(NamedTuple):
    """One trained network, or one training that failed.

    Attributes:
        arch: the architecture as text (`space.to_string`).
        seed: of the training.
        status: "ok" or "failed".
        valid_log_probs: of all classes at each validation point; None if the training failed.
        test_log_probs: of all classes at each test point; None if the training failed.
        train_loss: mean loss at the end of the training; NaN where it is not known.
        valid_loss: mean loss on the validation points, before log-probabilities were rounded.
        test_loss: mean loss on the test points, likewise.
        seconds: wall time of the training.
        variables: everything that was trained, as a tree of arrays (`files.trees`); None where
            it is not kept.
        train_log_likelihood: of the labels of the training points, summed; NaN where it is not
            known, as in entries that were written before it was kept.
    """

    arch: str
    seed: int
    status: str = OK
    valid_log_probs: Float[np.ndarray, "n classes"] | None = None
    test_log_probs: Float[np.ndarray, "m classes"] | None = None
    train_loss: float = math.nan
    valid_loss: float = math.nan
    test_loss: float = math.nan
    seconds: float = math.nan
    variables: Tree = None
    train_log_likelihood: float = math.nan

    @property
    def key(self) -> Key:
        """Architecture and seed."""
        return Key(self.arch, self.seed)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What all entries of a store have in common.

    Args:
        space: name of the search space.
        dataset: name of the data set.
        config: of the training; a dict or dataclass that JSON can express.
        valid_points: how many validation points are predicted.
        test_points: how many test points are predicted.
        classes: how many classes a prediction has.
        dtype: "float16" (half the disk, log-probabilities to a relative 2⁻¹¹) or "float32".

    Example:
        >>> manifest = Manifest("nats", "digits", {"epochs": 3}, 300, 300, 10)
        >>> manifest.config_hash[:8]
        'cc6325ab'
    """

    space: str
    dataset: str
    config: object
    valid_points: int
    test_points: int
    classes: int
    _: dataclasses.KW_ONLY
    dtype: str = "float16"

    def __post_init__(self):
        for field in ("space", "dataset"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise BQNESError(f"{field} is {value!r}; it must be a name.")
        for field in ("valid_points", "test_points", "classes"):
            check_whole(field, getattr(self, field), 1)
        if (self.valid_points + self.test_points) * self.classes > _NUMBERS_LIMIT:
            raise BQNESError(
                f"{self.valid_points + self.test_points:,} points of {self.classes:,} classes are "
                f"more than the {_NUMBERS_LIMIT:,} numbers an entry may have; predict fewer."
            )
        check_choice("dtype", self.dtype, ("float16", "float32"))
        object.__setattr__(self, "config", _plain(self.config))

    @property
    def config_hash(self) -> str:
        """The sha256 of the training config, independent of the order of its fields."""
        return digest(self.config)

    @property
    def fingerprint(self) -> str:
        """The sha256 of everything in the manifest; each entry carries it."""
        return digest(self.content())

    def content(self) -> dict[str, object]:
        """Return the fields and the version of the format."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"format": FORMAT, **fields}


def encode(entry: Entry, manifest: Manifest) -> bytes:
    """Check an entry and write it out; log-probabilities are rounded to the manifest's type."""
    if not isinstance(entry.arch, str) or not entry.arch:
        raise BQNESError(f"arch is {entry.arch!r}; it must be the architecture as text.")
    check_whole("seed", entry.seed, 0)
    check_choice("status", entry.status, (OK, FAILED))
    ok = entry.status == OK
    predictions = b"".join(_encode_predictions(entry, manifest)) if ok else b""
    kept = _kept(entry) if ok else None
    variables = trees.to_bytes(kept)
    header = {
        "arch": entry.arch,
        "seed": int(entry.seed),
        "status": entry.status,
        "store": manifest.fingerprint,
        "sha256": hashlib.sha256(predictions).hexdigest(),
        "variables": trees.describe(kept),
        "variables_sha256": hashlib.sha256(variables).hexdigest(),
        **{name: _number(getattr(entry, name)) for name in NUMBERS},
    }
    text = canonical(header)
    if len(text) > _HEADER_LIMIT:
        raise BQNESError(
            f"the name and the variables of {entry.arch[:40]!r} take {len(text):,} bytes to "
            f"describe; {_HEADER_LIMIT:,} is the most: put variables into fewer arrays."
        )
    head = _MAGIC + struct.pack("<I", len(text)) + text
    return head + hashlib.sha256(head).digest() + predictions + variables


Part = Literal["header", "predictions", "variables"]


def decode(file: io.BufferedReader, manifest: Manifest, *, part: Part = "predictions") -> Entry:
    """Read the header of an entry and one part of the rest, or raise `DamagedError`.

    What the file claims about itself is compared with its size before memory is set aside.
    """
    size = size_of_file(file)
    header, start = _read_header(file, size)
    entry = _entry(header)
    if header.get("store") != manifest.fingerprint:
        raise DamagedError("belongs to another store")
    ok = entry.status == OK
    rows = manifest.valid_points + manifest.test_points if ok else 0
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    of_predictions = rows * manifest.classes * dtype.itemsize
    of_variables = _size_of_variables(header) if ok else 0
    expected = of_predictions + of_variables
    if size - start != expected:
        raise DamagedError(
            f"holds {size - start:,} bytes of predictions and variables instead of {expected:,}"
        )
    if part == "header" or not ok:
        return entry
    if part == "variables":
        file.seek(of_predictions, os.SEEK_CUR)
        content = np.empty(of_variables, np.uint8)
        _fill(content, file, header["variables_sha256"], part)
        tree = trees.from_bytes(header.get("variables"), content.tobytes())
        return entry._replace(variables=tree)
    predictions = np.empty((rows, manifest.classes), dtype)
    _fill(predictions, file, header["sha256"], part)
    valid, test = np.split(predictions, [manifest.valid_points])
    return entry._replace(valid_log_probs=valid, test_log_probs=test)


def _fill(array: np.ndarray, file: io.BufferedReader, sha256: str, part: Part) -> None:
    file.readinto(array.data)
    if hashlib.sha256(array.data).hexdigest() != sha256:
        raise DamagedError(f"has been altered: the checksum of its {part} differs")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a store."""
    try:
        content = load_json(path, follow=False)
    except OSError as error:
        raise BQNESError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError:
        content = None
    content = content if isinstance(content, dict) else {}
    version = content.pop("format", FORMAT)
    if version != FORMAT:
        raise BQNESError(
            f"store {path.parent} has format {version!r}; this version of bqnes reads {FORMAT}."
        )
    fingerprint = content.pop("sha256", None)
    try:
        manifest = Manifest(**content)
    except (TypeError, BQNESError):
        manifest = None
    if manifest is None or manifest.fingerprint != fingerprint:
        raise BQNESError(
            f"{path} has been altered; remove it and open the store with the space, data set and "
            "config it was made with: the entries know whether they belong to it."
        )
    return manifest


def write_manifest(manifest: Manifest) -> bytes:
    """Write a manifest out."""
    return json.dumps({**manifest.content(), "sha256": manifest.fingerprint}, indent=2).encode()


def check_same(directory: Path, there: Manifest, here: Manifest) -> None:
    """Refuse a store that was made for something else, and say what."""
    for field in dataclasses.fields(Manifest):
        name, old, new = field.name, getattr(there, field.name), getattr(here, field.name)
        if old == new:
            continue
        if name == "config":
            name, old, new = first_difference(old, new, prefix="config.")  # type: ignore[misc]
        raise BQNESError(
            f"store {directory} was made with {name} = {old!r}, not {new!r}; use another directory "
            f"for this one, or the same {name}."
        )


def _encode_predictions(entry: Entry, manifest: Manifest) -> Iterator[bytes]:
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    for name, points in (
        ("valid_log_probs", manifest.valid_points),
        ("test_log_probs", manifest.test_points),
    ):
        given, label = getattr(entry, name), f"{name} of {entry.arch!r}"
        if given is None:
            raise BQNESError(f"{label} is missing; only a failed training has none.")
        array = np.asarray(given)
        check_shape(label, array, (points, manifest.classes))
        if not array.max() <= 1e-3:  # also refuses NaN
            raise BQNESError(
                f"{label} has a maximum of {array.max()}; log-probabilities are at most 0: apply a "
                "log-softmax, and record a training that diverged as failed."
            )
        # An infinite loss would spoil every average; the lowest number says as much.
        yield np.clip(array, np.finfo(dtype).min, 0).astype(dtype).tobytes()


def _kept(entry: Entry) -> Tree:
    try:
        return trees.as_tree(entry.variables)
    except TypeError as error:
        raise BQNESError(
            f"variables of {entry.arch!r} cannot be kept ({error}); they must be dicts, lists and "
            "tuples of arrays."
        ) from None


def _size_of_variables(header: dict) -> int:
    try:
        size = trees.size_of(header.get("variables"))
    except ValueError as error:
        raise DamagedError(f"has a header with variables that cannot be: {error}") from None
    if size > 4 * _NUMBERS_LIMIT:
        raise DamagedError(f"claims {size:,} bytes of variables")
    return size


def _read_header(file: io.BufferedReader, size: int) -> tuple[dict, int]:
    """Return the header and where the predictions start."""
    start = len(_MAGIC) + 4
    head = file.read(start)
    if len(head) < start or not head.startswith(_MAGIC):
        raise DamagedError("does not start like an entry")
    (length,) = struct.unpack("<I", head[len(_MAGIC) :])
    if length > min(_HEADER_LIMIT, size - start - _DIGEST):
        raise DamagedError(f"is cut short ({size:,} bytes) or has been altered")
    text, digest = file.read(length), file.read(_DIGEST)
    if hashlib.sha256(head + text).digest() != digest:
        raise DamagedError("has been altered: the checksum of its header differs")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamagedError("has a header that is not a JSON object")
    return header, start + length + _DIGEST


def _entry(header: dict) -> Entry:
    """Read a header whose checksum is right; another program may still have meant another thing."""
    arch, seed, status = (header.get(name) for name in ("arch", "seed", "status"))
    numbers = {name: header.get(name) for name in NUMBERS}
    if not (
        isinstance(arch, str)
        and type(seed) is int
        and status in (OK, FAILED)
        and isinstance(header.get("sha256"), str)
        and isinstance(header.get("variables_sha256"), str)
        and all(number is None or type(number) is float for number in numbers.values())
    ):
        raise DamagedError("has a header with other fields than an entry")
    values = {name: math.nan if number is None else number for name, number in numbers.items()}
    return Entry(arch, seed, status)._replace(**values)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None  # JSON has no NaN


def _plain(config: object) -> object:
    """Reduce a config to what JSON gives back, so that it compares equal after reading."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    if not isinstance(config, Mapping):
        raise BQNESError(f"config is {config!r}; it must be a dict or a dataclass.")
    try:
        return json.loads(canonical(dict(config)))
    except (TypeError, ValueError) as error:
        raise BQNESError(f"config cannot be written as JSON ({error}): {config!r}.") from None
