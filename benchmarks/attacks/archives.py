"""Every hostile archive is read by every reader that would: each is refused in a sentence."""

import contextlib
import os
import resource
import shutil
from pathlib import Path

from attacks.processes import forked
from attacks.tally import Tally
from bqnes_jax import nats_bench
from bqnes_jax.data import archives as published
from bqnes_jax.errors import BQNESError
from tests.helpers import hostile, loaders

MEMORY = 6 << 30
SECONDS = 120
FORMS = {
    "pickle of NATS-Bench": hostile.PICKLES,
    "pickle of images": hostile.PICKLES,
    "tensor": hostile.TENSORS,
    "tar.gz of images": hostile.TARS,
    "tar of NATS-Bench": hostile.TARS,
}


def read(reader: str, form, folder: Path) -> None:
    """Read a hostile archive."""
    path = folder / "archive"
    if reader.startswith("pickle"):
        of = "NATS-Bench" if reader == "pickle of NATS-Bench" else "pickled images"
        loaders.KINDS[of].make(folder).load(form())
    elif reader == "tensor":
        opcodes = b"\x80\x04}X\x03\x00\x00\x00200" + form() + b"s."
        loaders.KINDS["NATS-Bench"].make(folder).load(opcodes)
    elif reader == "tar.gz of images":
        path.write_bytes(hostile.as_gzip(form(), 700))
        published.read_published("cifar10", path, verify=False)
    else:
        path.write_bytes(form() + bytes(5 << 20))
        with nats_bench.open_archive(path):
            pass


def read_and_tell(reader: str, name: str, folder: str, pipe) -> None:
    """Read an archive in a process of its own, which may be ended, and tell what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder)
    try:
        read(reader, FORMS[reader][name], Path(folder))
        pipe.send("was read")
    except BQNESError as error:
        pipe.send("refused" if not isinstance(error.__cause__, MemoryError) else "no memory")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}"[:200])


def outcome(processes, reader: str, name: str, folder: Path) -> str:
    """Return what a reader says to an archive."""
    here, there = processes.Pipe()
    process = processes.Process(target=read_and_tell, args=(reader, name, str(folder), there))
    process.start()
    there.close()
    said = f"nothing after {SECONDS} s"
    with contextlib.suppress(EOFError):
        said = here.recv() if here.poll(SECONDS) else said
    process.join(5)
    process.kill()
    return "ran code" if (folder / "exploded").exists() else said


def attack(tally: Tally, scratch: Path) -> None:
    """Read each archive that was not read yet with each of its readers."""
    processes = forked()
    for reader, forms in FORMS.items():
        if tally.tried("archives", reader) >= len(forms):
            continue
        tally.of("archives").pop(reader, None)
        for name in forms:
            folder = scratch / "archive"
            folder.mkdir()
            said = outcome(processes, reader, name, folder)
            good = said == "refused"
            note = "" if good else f"{name}: {said}"
            tally.add("archives", reader, note, tried=1, survived=int(good), lost=int(not good))
            shutil.rmtree(folder)
        tally.write()
