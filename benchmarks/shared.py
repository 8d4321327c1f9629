"""What the benchmarks have in common: repeats in one program, tables, files."""

import json
import sys
from pathlib import Path
from time import perf_counter

import jax
import numpy as np
from jax import lax
from rich.console import Console
from rich.table import Table as RichTable

from bqnes_jax import tables
from bqnes_jax.candidates import SearchConfig, make
from bqnes_jax.cli.shell import interruptible
from bqnes_jax.drivers import scan
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import write_whole
from bqnes_jax.parallel import use_all_cores
from bqnes_jax.spaces import NATS

use_all_cores()

RESULTS = Path(__file__).parent / "results"
REPORTED = (10, 25, 50, 100, 150)
console = Console(width=max(Console().width, 136))


def companion(name: str, kind: str) -> Path | None:
    """Return the file that goes with a table of cells, if there is one.

    "seeds" has some of the cells with several weight seeds, "again" some that were trained once
    more. It is beside the table, and for a table of the package among the results.
    """
    folder = RESULTS if name in tables.names() else Path(name).parent
    path = folder / f"{Path(name).stem}-{kind}.npz"
    return path if path.is_file() else None


def timed(function, *arguments):
    start = perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, perf_counter() - start


def make_repeats(strategy: str, config: SearchConfig, space=NATS, kernel=None):
    """Return a function (keys, evaluate) -> histories and traces, one program for all repeats.

    On CPUs mapping over keys is faster than `vmap`: the matrices of one repeat stay in the cache.
    """
    made = make(strategy, space, kernel=kernel, config=config)
    return lambda keys, evaluate: lax.map(lambda key: scan(made, config, key, evaluate), keys)


def with_error(values, digits: int = 3) -> str:
    """Write the mean and its standard error."""
    values = np.asarray(values, float)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}"


def show(title: str, columns: list[str], rows: list[list[str]], names: int = 1) -> None:
    """Print a table whose first columns are names."""
    table = RichTable(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < names else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def write(path: Path, result: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(result, default=_numbers, allow_nan=False) + "\n"
    write_whole(path, content.encode())
    console.print(f"written to {path}")


def one_sentence(main, options) -> None:
    """Run a script; what is refused is one sentence, and so is Ctrl-C."""
    try:
        interruptible(lambda: main(options), "Stopped. The same command goes on from there.")
    except BQNESError as error:
        sys.exit(f"error: {error}")


def _numbers(array) -> list:
    """Turn an array into lists; what is not finite becomes null, which JSON has."""
    array = np.asarray(array).astype(float)
    return np.where(np.isfinite(array), array.round(6), None).tolist()
