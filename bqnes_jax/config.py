"""Everything that decides the outcome of a run, in one value; presets, and files that change them.

A config file is YAML or JSON with the fields that differ from the preset, nested as they are here:

    dataset: cifar10_subset
    search: {budget: 60}
    data: {size: 8, split: [2000, 1000, 1000]}
    train: {steps: 300, network: {channels: 8}}
"""

import contextlib
import dataclasses
import os
import re
import types
import typing
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
import yaml

from bqnes_jax.candidates import SearchConfig
from bqnes_jax.data import NO_AUGMENTATION, Dataset, Split, load, split
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.files import check_plain, read_small
from bqnes_jax.models import MobileNetConfig, NATSNetworkConfig
from bqnes_jax.spaces import NATS, Space
from bqnes_jax.training import SupernetConfig, TrainConfig

SPACES = ("nats", "slimmable")
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which part of a data set is used, and for what.

    Attributes:
        directory: where data sets are; by default $BQNES_DATA_DIR.
        size: shrink images to size × size; by default they stay as they are.
        split: how many images to train, validate and test with, as counts or fractions; by default
            as in NAS-Bench-201 for its data sets.
        split_file: a JSON file with lists of places train, valid and test, instead of `split`.
        split_seed: of the shuffling before the split.
    """

    directory: str | None = None
    size: int | None = None
    split: tuple[int | float, int | float, int | float] | None = None
    split_file: str | None = None
    split_seed: int = 777


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What networks are trained on, and how.

    Attributes:
        space: the search space.
        dataset: a name that `bqnes data list` shows, or the path of an .npz with x and y.
        seed: of the weights, and of the search.
        data: which images are used for what.
        train: how each network of the space nats is trained. It has as many classes as the data
            set, whatever is said here.
        supernet: how the one network of the space slimmable is trained, of which all others are
            slices; likewise.
    """

    space: str = "nats"
    dataset: str = "digits"
    seed: int = 0
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    supernet: SupernetConfig = dataclasses.field(default_factory=SupernetConfig)

    def __post_init__(self):
        check_choice("space", self.space, SPACES)
        check_whole("seed", self.seed, 0, 2**31 - 1)


@dataclasses.dataclass(frozen=True)
class RunConfig(TaskConfig):
    """A search, the training of its candidates, and the ensemble that is selected in the end.

    Attributes:
        algorithm: BQ-S, BQ-R, NES-RE, Random, or any "strategy+method", such as "us+corrective".
        ensemble_size: how many members the ensemble has.
        search: which architectures are tried.
    """

    algorithm: str = "BQ-S"
    ensemble_size: int = 3
    # On the command line without a prefix: --budget, and not --search.budget.
    search: Annotated[SearchConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=SearchConfig
    )

    def __post_init__(self):
        super().__post_init__()
        check_whole("ensemble_size", self.ensemble_size, 1)


# Few training images, so that the best single network leaves room for an ensemble.
_FEW_DIGITS = DataConfig(split=(300, 600, 600))

# The strides of 8×8 images; the space is as large as ever.
_TINY_SUPERNET = SupernetConfig(
    MobileNetConfig(
        channels=(8, 8, 12, 12, 16, 16, 24),
        strides=(1, 2, 1, 2, 1, 1, 1),
        expansion=2,
        stem=8,
        head=64,
    ),
    steps=800,
    batch=64,
    augment=NO_AUGMENTATION,
    recalibration_batches=4,
    save_every=100,
)

PRESETS: dict[str, RunConfig] = {
    "tiny": RunConfig(
        supernet=_TINY_SUPERNET,
        search=SearchConfig(initial=10, budget=40, batch=4, population=20),
        data=_FEW_DIGITS,
        train=TrainConfig(
            NATSNetworkConfig(channels=4, cells=1), steps=150, batch=64, augment=NO_AUGMENTATION
        ),
    ),
    "small": RunConfig(
        supernet=_TINY_SUPERNET,
        search=SearchConfig(initial=10, budget=100, batch=4),
        data=_FEW_DIGITS,
        train=TrainConfig(
            NATSNetworkConfig(channels=8, cells=1), steps=300, batch=64, augment=NO_AUGMENTATION
        ),
    ),
    "paper": RunConfig(dataset="cifar100"),
}


def configure(
    preset: str = "tiny", file: str | os.PathLike[str] | None = None, **fields: object
) -> RunConfig:
    """Return a preset, changed by a config file and then by fields of `RunConfig`.

    The fields of `SearchConfig` may be given directly, as on the command line.

    Example:
        >>> config = configure("tiny", budget=20, ensemble_size=5)
        >>> config.search.budget, config.search.initial, config.ensemble_size
        (20, 10, 5)
    """
    check_choice("preset", preset, tuple(PRESETS))
    config = PRESETS[preset]
    if file is not None:
        config = updated(config, read_fields(file), str(file))
    of_run = {field.name for field in dataclasses.fields(RunConfig)}
    of_search = {field.name for field in dataclasses.fields(SearchConfig)}
    unknown = sorted(set(fields) - of_run - of_search)
    if unknown:
        raise BQNESError(
            f"{unknown[0]!r} is not a field of a run; allowed are {', '.join(sorted(of_run))} and, "
            f"of the search, {', '.join(sorted(of_search))}."
        )
    in_search = {name: value for name, value in fields.items() if name not in of_run}
    fields = {name: value for name, value in fields.items() if name in of_run}
    config = dataclasses.replace(config, **fields)
    return dataclasses.replace(config, search=dataclasses.replace(config.search, **in_search))


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 as a number, as JSON does; to YAML 1.1 it is text, for want of a point.

    Aliases, of which a few lines can stand for gigabytes, are refused.
    """

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """Read one value."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*); write out what that stands for")
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def read_fields(path: str | os.PathLike[str]) -> dict:
    """Read a YAML or JSON file with fields of a config."""
    path = Path(path)
    try:
        content = yaml.load(read_small(path), _Loader)
        check_plain(content)
    except OSError as error:
        raise BQNESError(f"config file {path} cannot be read ({error.strerror}).") from None
    except Exception as error:  # PyYAML has errors of many kinds
        reason = " ".join(str(error).split())[:160]
        raise BQNESError(f"config file {path} is neither YAML nor JSON: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BQNESError(f"config file {path} holds no fields; write lines such as 'seed: 3'.")
    return content


def updated(config: Config, fields: dict, where: str = "config") -> Config:
    """Return a config (a dataclass) with some fields changed, nested ones too, each type checked.

    Example:
        >>> updated(RunConfig(), {"seed": 3, "train": {"epochs": 2}}).train.epochs
        2
    """
    hints = typing.get_type_hints(type(config))
    values = {}
    for name, value in fields.items():
        if name not in hints:
            raise BQNESError(f"{where} has {name!r}; allowed are {', '.join(hints)}.")
        here = (
            f"{where}: {name}" if where.endswith((".yaml", ".yml", ".json")) else f"{where}.{name}"
        )
        old = getattr(config, name)
        if dataclasses.is_dataclass(old) and isinstance(value, dict):
            values[name] = updated(old, value, here)
            continue
        value = tuple(value) if isinstance(value, list) else value
        try:
            values[name] = _fitted(hints[name], value)
        except TypeError:
            described = _described(hints[name])
            raise BQNESError(f"{here} is {value!r}; it must be {described}.") from None
    return dataclasses.replace(config, **values)


def load_data(config: TaskConfig) -> tuple[Dataset, Split]:
    """Load the data set of a task, and cut it."""
    dataset = load(config.dataset, config.data.directory, config.data.size)
    data = config.data
    sizes = None if data.split_file else data.split
    return dataset, split(dataset, sizes, seed=data.split_seed, file=data.split_file)


def space_of(config: TaskConfig) -> Space:
    """Return the search space of a task."""
    return NATS if config.space == "nats" else config.supernet.network.space


def train_config(config: TaskConfig, classes: int) -> TrainConfig:
    """Return how networks are trained: with as many classes as the data set has."""
    if config.train.seeds != 1:
        raise BQNESError(
            f"train.seeds is {config.train.seeds}; a search trains each architecture once: leave "
            "it at 1, and change seed to train from other weights."
        )
    network = dataclasses.replace(config.train.network, classes=classes)
    return dataclasses.replace(config.train, network=network)


def supernet_config(config: TaskConfig, classes: int) -> SupernetConfig:
    """Return how the supernet is trained: with as many classes as the data set has."""
    network = dataclasses.replace(config.supernet.network, classes=classes)
    return dataclasses.replace(config.supernet, network=network)


def _fitted(hint: object, value: object) -> object:
    """Return a value as a field of that type holds it; TypeError if it does not fit."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        for part in parts:
            with contextlib.suppress(TypeError):
                return _fitted(part, value)
        raise TypeError
    if origin is typing.Literal and value in parts:
        return value
    if origin is tuple and isinstance(value, tuple):
        parts = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(parts) == len(value):
            return tuple(map(_fitted, parts, value))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not (type(None) if hint is None else hint):
        raise TypeError
    return value


def _described(hint: object) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if part is type(None) else _described(part) for part in parts)
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        length = "" if parts[-1] is ... else f" of {len(parts)}"
        return f"a list{length}, each {_described(parts[0])}"
    if dataclasses.is_dataclass(hint):
        return "fields: " + ", ".join(field.name for field in dataclasses.fields(hint))
    return names.get(hint, str(hint))
