"""Five processes write into one store and are killed: nothing that was done is broken or gone."""

import random
import shutil
import time
from pathlib import Path

import numpy as np

from attacks.processes import forked
from attacks.tally import Tally
from bqnes_jax.errors import BQNESError
from bqnes_jax.files import check_bound, write_bound
from bqnes_jax.storage import Entry, Store
from tests.helpers.loaders import MANIFEST, VARIABLES, log_probs

ROUNDS = 20
WRITERS = 5


def write_entries(folder: str, number: int) -> None:
    """Write into a store until killed, and leave a mark for each entry that was written."""
    store = Store.open(folder, MANIFEST)
    draw = np.random.default_rng(number)
    said = log_probs(7, 3)
    while True:
        arch = f"arch-{draw.integers(20)}"
        store.put(Entry(arch, 0, "ok", said[:4], said[4:], variables=VARIABLES))
        Path(folder, f"done-{number}-{arch}").touch()
        write_bound(Path(folder) / "shared", f"{number} {arch}".encode())


def what_is_gone(folder: Path) -> str:
    """Return what is broken or gone in a store; nothing if it is whole."""
    done = {path.name.split("-", 2)[2] for path in folder.glob("done-*")}
    try:
        store = Store.open(folder, MANIFEST)
        damaged, missing = store.find_damaged(), store.find_missing(done, [0])
        if (folder / "shared").exists():
            check_bound(folder / "shared", "never")
    except BQNESError as error:
        return str(error)
    return f"damaged {damaged}, missing {missing}" if damaged or missing else ""


def attack(tally: Tally, scratch: Path) -> None:
    """Let the writers write for a while, kill them, and look at the store."""
    processes = forked()
    while tally.tried("writers") < ROUNDS:
        number = tally.tried("writers")
        folder = scratch / f"writers-{number}"
        working = [
            processes.Process(target=write_entries, args=(str(folder), i)) for i in range(WRITERS)
        ]
        for process in working:
            process.start()
        time.sleep(random.Random(number).uniform(1.0, 3.0))
        for process in working:
            process.kill()
            process.join()
        gone = what_is_gone(folder)
        tally.add("writers", "store", gone, tried=1, survived=int(not gone), lost=int(bool(gone)))
        tally.write()
        shutil.rmtree(folder)
