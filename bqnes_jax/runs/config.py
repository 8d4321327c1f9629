"""Everything that decides the outcome of a run, in one value.

A config file is YAML or JSON with the fields that differ from the preset, nested as they are here:

    data: cifar10_subset
    image_size: 8
    split: [2000, 1000, 1000]
    search: {budget: 60}
    train: {steps: 300, network: {channels: 8}}
"""

import dataclasses
import inspect
from pathlib import Path
from typing import Any, cast

from bqnes_jax import algorithms, families
from bqnes_jax.calibration import WHEN
from bqnes_jax.candidates import Prior, SearchConfig
from bqnes_jax.data import Split, load, split
from bqnes_jax.errors import BQNESError, check_choice, check_whole
from bqnes_jax.families import NetworkFamily, SharingFamily
from bqnes_jax.families.registry import import_named
from bqnes_jax.identity import EXTENT, SELECTION, SPEED, field, identity
from bqnes_jax.kernels import KernelConfig
from bqnes_jax.surrogates import FitConfig, WarpConfig
from bqnes_jax.training import TrainConfig

EVALUATE = ("alone", "shared")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What networks are trained on, and how.

    Attributes:
        family: nats, slimmable, shared, darts, or package.module:family for one of your own.
        data: a name that `bqnes data list` shows, or the path of an .npz with x and y.
        data_directory: where data sets are; by default $BQNES_DATA_DIR.
        image_size: shrink images to size × size; by default they stay as they are.
        split: how many examples to train, validate and test with, as counts or fractions; by
            default as in NAS-Bench-201 for its data sets.
        split_file: a JSON file with lists of places train, valid and test, instead of `split`.
        split_seed: of the shuffling before the split.
        seed: of the weights, and of the search.
        train: how the family trains; it has as many classes as the data, whatever is said here.
    """

    family: str = "nats"
    data: str = "digits"
    _: dataclasses.KW_ONLY
    data_directory: str | None = field(SPEED, default=None)
    image_size: int | None = None
    split: tuple[int | float, int | float, int | float] | None = None
    split_file: str | None = field(SPEED, default=None)  # what is in it, the store knows
    split_seed: int = 777
    seed: int = 0
    train: Any = dataclasses.field(default_factory=TrainConfig)

    def __post_init__(self):
        check_whole("seed", self.seed, 0, 2**31 - 1)

    @property
    def data_name(self) -> str:
        """The name of the data set, without the folder that a file is in."""
        return Path(self.data).stem if self.data.endswith(".npz") else self.data

    @property
    def label(self) -> str:
        """The family, unless it is the default, and the data set: for the name of a directory."""
        parts = [self.family.replace(":", "-")] if self.family != TaskConfig.family else []
        return "-".join([*parts, self.data_name])


@dataclasses.dataclass(frozen=True)
class RunConfig(TaskConfig):
    """A search, the training of its candidates, and the ensemble that is selected in the end.

    Attributes:
        algorithm: BQ-L, BQ-S, BQ-R, NES-RE, Random, or any "strategy+method": "us+corrective".
            Another method selects from the same networks: with the same --out, or by `reselect`.
            With several seeds also BQ-W (what BQ-S is then) and Deep ensemble.
        ensemble_size: how many members the ensemble has.
        calibrate: whether one temperature follows the pool of the members: on, off, or auto, if it
            lowers the loss of validation points that were left out when it was fitted.
        prior: which function of architectures returns the logarithm of their prior, as
            package.module:function; by default they are equally likely.
        seeds: with how many weight seeds an architecture can be trained: `seed` and those after it.
            With more than one, a candidate is an architecture with one of them.
        evaluate: how candidates are evaluated: alone, each trained on its own; or shared, as parts
            of one network that is trained once, after which only a shortlist is trained alone.
        shortlist: how many are trained alone after a search with shared weights; by default twice
            as many as members.
        search: which architectures are tried.
    """

    _: dataclasses.KW_ONLY
    algorithm: str = field(SELECTION, default="BQ-L")
    ensemble_size: int = field(SELECTION, default=3)
    calibrate: str = field(SELECTION, default="auto")
    prior: str | None = None
    seeds: int = 1
    evaluate: str = "alone"
    shortlist: int | None = field(EXTENT, default=None)
    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)

    def __post_init__(self):
        super().__post_init__()
        check_whole("ensemble_size", self.ensemble_size, 1)
        check_choice("calibrate", self.calibrate, WHEN)
        check_whole("seeds", self.seeds, 1)
        check_choice("evaluate", self.evaluate, EVALUATE)
        if self.shortlist is not None:
            check_whole("shortlist", self.shortlist, self.ensemble_size)
        if self.evaluate == "shared" and self.seeds != 1:
            raise BQNESError(
                f"seeds is {self.seeds}, but cells that share weights are trained once; leave it "
                "out, or evaluate candidates alone."
            )

    @property
    def shortlisted(self) -> int:
        """How many candidates of a search with shared weights are trained alone."""
        return 2 * self.ensemble_size if self.shortlist is None else self.shortlist

    def identity(self) -> dict[str, Any]:
        """Return what decides which networks are trained: all fields that are marked as such.

        Of the algorithm that is its strategy; the method only selects. What the family is, the
        manifest of the store knows better than its name.
        """
        strategy = algorithms.find_trainable(self.algorithm).strategy
        decides = {**identity(self), "data": self.data_name, "strategy": strategy}
        return {name: value for name, value in decides.items() if name != "family"}


def describe_fields() -> str:
    """Say what each field of a run means, and of the configs in its search: from docstrings."""
    parts = (
        ("a run", (TaskConfig, RunConfig)),
        ("its search", (SearchConfig,)),
        ("kernel, a kernels.KernelConfig", (KernelConfig,)),
        ("warp, a surrogates.WarpConfig", (WarpConfig,)),
        ("fit, a surrogates.FitConfig", (FitConfig,)),
    )
    return "\n\n".join(
        "\n".join([f"Fields of {name}:", *map(_describe_attributes, kinds)])
        for name, kinds in parts
    )


def _describe_attributes(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].rstrip()


def load_data(config: TaskConfig) -> Split:
    """Load the data set of a task, and cut it."""
    dataset = load(config.data, config.data_directory, size=config.image_size)
    sizes = None if config.split_file else config.split
    return split(dataset, sizes, seed=config.split_seed, file=config.split_file)


def make_prior(name: str | None) -> Prior | None:
    """Import the prior of that name; None for the uniform one."""
    if name is None:
        return None
    found = import_named("prior", name)
    if not callable(found):
        raise BQNESError(
            f"prior is {name!r}, which is no function; give package.module:function, or the "
            "function itself to bqnes_jax.search."
        )
    return cast(Prior, found)


def make_family(config: TaskConfig) -> NetworkFamily:
    """Make the family that a config names, with its options."""
    return families.find(config.family).make(config.train)


def first_stage(config: RunConfig, family: NetworkFamily) -> tuple[RunConfig, NetworkFamily]:
    """Return config and family of the search with shared weights that comes before a run."""
    if not isinstance(family, SharingFamily):
        raise BQNESError(
            f"evaluate is 'shared', but the family {family.name!r} knows no network that its "
            "candidates could be parts of; leave it out, or use the family 'nats'."
        )
    name, options = family.shared_family()
    own = dataclasses.replace(config, family=name, train=options, evaluate="alone", shortlist=None)
    return own, families.find(name).make(options)
