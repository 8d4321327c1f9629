"""Commands about what there is: `data list`, `data prepare`, `families`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from bqnes_jax import families
from bqnes_jax.cli.shell import say, show_table
from bqnes_jax.data import PUBLISHED, available, data_directory, how_to_get, prepare
from bqnes_jax.kernels import make_kernel


@dataclasses.dataclass(frozen=True)
class ListCommand:
    """List the data sets that are there, and how to get the others.

    Args:
        directory: where data sets are; by default $BQNES_DATA_DIR, or TFDS's own directory.
    """

    directory: Path | None = None

    def __call__(self) -> None:
        """Print what there is."""
        there = available(self.directory)
        rows = [[item.name, item.kind, str(item.path or "in scikit-learn")] for item in there]
        show_table(["data set", "kind", "where"], rows, names=3)
        for name in PUBLISHED:
            if name not in {item.name for item in there}:
                place = data_directory(self.directory)
                say(f"{name} is not in {place}; {how_to_get(name, self.directory)}")


@dataclasses.dataclass(frozen=True)
class PrepareCommand:
    """Convert published files, or an .npz with x and y, to a prepared data set.

    Args:
        name: cifar10, cifar100, imagenet16-120, fashion_mnist, or a name of your own for an .npz.
        source: the archive, the folder of files, or the .npz.
        directory: where it goes; by default $BQNES_DATA_DIR, or TFDS's own directory.
        verify: compare the checksums of a published data set.
    """

    name: tyro.conf.Positional[str]
    source: Annotated[Path, tyro.conf.arg(name="from")]
    directory: Path | None = None
    verify: bool = True

    def __call__(self) -> None:
        """Prepare it, and say where it is."""
        target = prepare(self.name, self.source, data_directory(self.directory), verify=self.verify)
        say(f"prepared: {target}")


@dataclasses.dataclass(frozen=True)
class FamiliesCommand:
    """List the network families, and what they can be built from."""

    def __call__(self) -> None:
        """Print a table of them."""
        rows = []
        for name in families.families():
            kind = families.find(name)
            space = kind.make(kind.options).space
            count = f"{space.size:,}" if space.size else "too many to list"
            kernel = type(make_kernel(space)).__name__
            rows.append([name, count, kind.what, kernel])
        show_table(["family", "architectures", "what", "kernel"], rows, names=4)
        say("One of your own: --family package.module:family")
