"""A family whose networks are trained from several weight seeds each."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Int32

from bqnes_jax.data import Split
from bqnes_jax.families.base import (
    CountingFamily,
    Evaluation,
    NetworkFamily,
    Setting,
    Trainer,
    Variables,
)
from bqnes_jax.spaces import Seeded, Space, split_seeds


def with_seeds(family: NetworkFamily, seeds: int) -> NetworkFamily:
    """Return the family, with candidates (architecture, weight seed) if there are several seeds."""
    return family if seeds == 1 else SeededFamily(family, seeds)


def count_parameters(
    family: NetworkFamily,
    archs: Int32[np.ndarray, "M length"],
    variables: Sequence[Variables],
    *,
    classes: int,
    input_shape: tuple[int, ...],
) -> Int[np.ndarray, " M"]:
    """Return how many numbers each network predicts by: what the family counts, or all it keeps."""
    if isinstance(family, SeededFamily):
        _, archs, _ = split_seeds(family.space, archs)
        family = family.family
    if isinstance(family, CountingFamily):
        return family.count_parameters(archs, classes, input_shape)
    return np.array([sum(map(np.size, jax.tree.leaves(own))) for own in variables], int)


@dataclasses.dataclass(frozen=True)
class SeededFamily:
    """The networks of another family, each trained from weights of several seeds.

    The i-th seed of an architecture is trained as the other family would with the seed of the
    setting plus i. What that family prepares once, it prepares once for each seed.
    """

    family: NetworkFamily
    seeds: int

    @property
    def name(self) -> str:
        """The name of the other family."""
        return self.family.name

    @property
    def space(self) -> Space:
        """Its architectures, each with every seed."""
        return Seeded(self.family.space, self.seeds)

    def check(self, data: Split) -> None:
        """Refuse what the other family does."""
        self.family.check(data)

    def manifest(self, classes: int) -> Mapping[str, object]:
        """Describe the training, which is the same with any seed."""
        return self.family.manifest(classes)

    def prepare(self, data: Split, setting: Setting) -> Trainer:
        """Let the other family prepare itself for each seed."""
        trainers = [self.family.prepare(data, self._setting(setting, i)) for i in range(self.seeds)]

        def train(archs: Int32[np.ndarray, "K length"]) -> Iterator[list[Evaluation]]:
            _, own, seeds = split_seeds(self.space, archs)
            for seed, some in itertools.groupby(range(len(own)), key=seeds.__getitem__):
                yield from trainers[seed].train(own[list(some)])

        return Trainer(train, [one.shared for one in trainers], trainers[0].together)

    def predict(
        self,
        shared: Variables,
        variables: Sequence[Variables],
        archs: Int32[np.ndarray, "M length"],
        inputs: ArrayLike,
    ) -> Float[np.ndarray, "M n classes"]:
        """Return log-probabilities, those of one seed at a time."""
        _, own, seeds = split_seeds(self.space, archs)
        said: dict[int, np.ndarray] = {}
        for seed in np.unique(seeds):
            (places,) = np.nonzero(seeds == seed)
            some = [variables[i] for i in places.tolist()]
            predicted = self.family.predict(shared[seed], some, own[places], inputs)
            said.update(zip(places.tolist(), predicted, strict=True))
        return np.stack([said[i] for i in range(len(own))])

    def _setting(self, setting: Setting, i: int) -> Setting:
        directory = setting.directory
        if i > 0 and directory is not None:
            directory = directory / f"seed{i}"
        asked = None if setting.asked is None else -(-setting.asked // self.seeds)
        return setting._replace(seed=setting.seed + i, directory=directory, asked=asked)
