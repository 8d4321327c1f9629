"""Pairs of cells of DARTS as a family: each trained on its own, many of them in one program."""

import dataclasses

from bqnes_jax.families.cells import TrainedCells
from bqnes_jax.training import DARTSTrainConfig


@dataclasses.dataclass(frozen=True)
class DARTSFamily(TrainedCells):
    """The networks of the DARTS space.

    Example:
        >>> DARTSFamily().space.count > 10**18
        True
    """

    config: DARTSTrainConfig = dataclasses.field(default_factory=DARTSTrainConfig)

    name = "darts"
