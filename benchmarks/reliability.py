"""What survives: kills, altered files, hostile archives, odd numbers, several writers.

    python benchmarks/reliability.py            # everything that is not done yet
    python benchmarks/reliability.py kills      # one part of it

It goes on where it was stopped, and writes results/reliability.json and .md after each piece. What
is lost or silent is a bug: a file that cannot be used any more, another result than an undisturbed
one, a crash, a traceback, or a wrong number without a word.
"""

import collections
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
RESULTS = Path(__file__).parent / "results"
# What is measured is not speed, and most of the time goes into compiling.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
GOALS = {"kills": 100, "altered": 2_000, "archives": 1, "calls": 100_000, "writers": 20}
PARTS = {
    "kills": "kills, by command",
    "altered": "altered files of a run, by file",
    "archives": "hostile archives, by reader",
    "calls": "calls with odd numbers, by function",
    "writers": "rounds of 5 writers that are killed",
}
OUTCOMES = ("tried", "survived", "lost", "silent")
TASK = {
    "image_size": 4,
    "split": [40, 50, 60],
    "train": {"steps": 4, "batch": 20, "network": {"channels": 1}},
}


def forked():
    """Return what makes processes that have imported everything."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["bqnes_jax.cli", "bqnes_jax.report", "tests.loaders"])
    return processes


class Tally:
    """What was counted so far, on disk after each piece."""

    def __init__(self, path: Path = RESULTS / "reliability.json"):
        self._path = path
        self.content = json.loads(path.read_text()) if path.is_file() else {}

    def of(self, part: str) -> dict:
        return self.content.setdefault(part, {})

    def tried(self, part: str) -> int:
        return sum(one["tried"] for one in self.of(part).values())

    def add(self, part: str, name: str, note: str = "", **counts: int) -> None:
        one = self.of(part).setdefault(name, dict.fromkeys(OUTCOMES, 0) | {"notes": []})
        for outcome, count in counts.items():
            one[outcome] += count
        if note and note not in one["notes"]:
            one["notes"] = [*one["notes"], note][:5]

    def write(self) -> None:
        from bqnes_jax.files import write_json, write_whole

        write_json(self._path, self.content)
        write_whole(self._path.with_suffix(".md"), self.as_markdown().encode())

    def as_markdown(self) -> str:
        lines = ["# What survives", "", "Made by `benchmarks/reliability.py`.", ""]
        lines += ["| what | tried | survived | lost | silent |", "|---|--:|--:|--:|--:|"]
        for part, title in PARTS.items():
            sums = [sum(one[o] for one in self.of(part).values()) for o in OUTCOMES]
            lines.append(f"| **{title}** | " + " | ".join(f"{n:,}" for n in sums) + " |")
            shown = self.of(part).items() if part != "calls" else ()
            for name, one in shown:
                lines.append(f"| {name} | " + " | ".join(f"{one[o]:,}" for o in OUTCOMES) + " |")
        functions = len(self.of("calls"))
        lines += ["", f"The calls are of {functions} public functions.", ""]
        for part in PARTS:
            for name, one in self.of(part).items():
                lines += [f"- {part}, {name}: {note}" for note in one["notes"]]
        return "\n".join(lines).rstrip() + "\n"


# Kills


def command(arguments: list[str], folder: str, cache: str) -> None:
    """Do a command in a process of its own; programs are compiled once for all processes."""
    import jax

    from bqnes_jax.cli import main

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os._exit(main(arguments))


def of_run(folder: Path) -> list:
    from bqnes_jax.runs import Run

    run = Run.load(folder / "run")
    ensemble = run.saved_ensemble()
    return [*(array.tolist() for array in run.record), ensemble.members.tolist(), ensemble.metrics]


def of_table(folder: Path) -> list:
    import numpy as np

    with np.load(folder / "table.npz") as file:
        return [hashlib.sha256(file[name].tobytes()).hexdigest() for name in sorted(file)]


def of_file(name: str):
    return lambda folder: hashlib.sha256((folder / name).read_bytes()).hexdigest()


def of_page(folder: Path) -> list:
    text = (folder / "run" / "report.html").read_text()
    return [text.endswith("</html>\n"), text.count("<tr"), of_run(folder)]


def of_saved(folder: Path) -> list:
    from bqnes_jax.runs import Run

    ensemble = Run.load(folder / "run").saved_ensemble()
    return [ensemble.method, ensemble.members.tolist(), ensemble.weights.tolist()]


SEARCH = ["--initial", "4", "--budget", "8", "--batch", "2"]
COMMANDS = {  # what is done, what comes out of it, and whether it needs a finished run
    "run": (["run", "--config", "task.yaml", *SEARCH, "--out", "run"], of_run, False),
    "tabulate": (
        [
            *("tabulate", "--config", "task.yaml", "--count", "4", "--best", "0"),
            *("--store", "store", "--table", "table.npz"),
        ],
        of_table,
        False,
    ),
    "compare --live": (
        [
            *("compare", "--live", "--config", "task.yaml", "--algorithms", "Random", "BQ-S"),
            *("--sizes", "2"),
            *("--seeds", "1", *SEARCH, "--out", "compared"),
        ],
        of_file("compared/comparison.csv"),
        False,
    ),
    "combine": (
        ["combine", "models.npz", "--size", "2", "--out", "combined"],
        of_file("combined/ensemble.json"),
        False,
    ),
    "reselect --save": (
        ["reselect", "run", "--method", "beam", "--size", "2", "--save"],
        of_saved,
        True,
    ),
    "predict": (
        ["predict", "run", "--input", "x.npy", "--out", "said.csv"],
        of_file("said.csv"),
        True,
    ),
    "report": (["report", "run"], of_page, True),
}


def prepare(folder: Path) -> None:
    import numpy as np

    folder.mkdir()
    (folder / "task.yaml").write_text(json.dumps(TASK))
    draw = np.random.default_rng(0)
    said = draw.dirichlet(np.ones(3), (5, 60))
    np.savez(folder / "models.npz", valid=said, valid_labels=draw.integers(0, 3, 60))
    np.save(folder / "x.npy", draw.integers(0, 255, (3, 4, 4, 1)).astype(np.uint8))


def start(processes, arguments: list[str], folder: Path, cache: Path):
    process = processes.Process(target=command, args=(arguments, str(folder), str(cache)))
    process.start()
    return process


def kills(tally: Tally, scratch: Path) -> None:
    """Kill each command at a moment of its own, do it again, and compare what comes out."""
    processes = forked()
    cache, whole = scratch / "cache", scratch / "whole"
    prepare(whole)
    expected, seconds = {}, {}
    for name, (arguments, outcome, _) in COMMANDS.items():
        for _ in range(2):  # the second time nothing is compiled
            if name in ("run", "tabulate", "compare --live"):
                for made in ("run", "store", "compared"):
                    if made in arguments:
                        shutil.rmtree(whole / made, ignore_errors=True)
            started = time.perf_counter()
            process = start(processes, arguments, whole, cache)
            process.join()
            seconds[name] = time.perf_counter() - started
            assert process.exitcode == 0, (name, (whole / "log").read_text())
        expected[name] = outcome(whole)
        if name == "run":
            shutil.copytree(whole / "run", scratch / "finished")
    number = 0
    while tally.tried("kills") < GOALS["kills"]:
        number += 1
        for name, (arguments, outcome, finished) in COMMANDS.items():
            folder = scratch / f"{number}-{name.split()[0]}"
            prepare(folder)
            if finished:
                shutil.copytree(scratch / "finished", folder / "run")
            moments = random.Random(f"{tally.tried('kills')} {name}")
            killed = 0
            for _ in range(2):
                process = start(processes, arguments, folder, cache)
                process.join(moments.uniform(0, 1.1 * seconds[name]))
                killed += process.is_alive()
                process.kill()
                process.join()
            process = start(processes, arguments, folder, cache)
            process.join()
            said = (folder / "log").read_text()
            left = [path.name for path in folder.rglob("*-" + "?" * 16 + ".tmp")]
            try:
                same = process.exitcode == 0 and outcome(folder) == expected[name]
                note = "" if same else f"code {process.exitcode}: {said[-200:]}"
            except Exception as error:
                same, note = False, f"{type(error).__name__}: {error}"
            silent = killed if process.exitcode == 0 and not same else 0
            tally.add(
                "kills",
                name,
                note,
                tried=killed,
                survived=killed * same,
                lost=killed * (not same and not silent),
                silent=silent,
            )
            tally.of("kills")[name].setdefault("temporary files left young", 0)
            tally.of("kills")[name]["temporary files left young"] += len(left)
            tally.write()
            shutil.rmtree(folder)


# Altered files


def read_everything(folder: Path) -> str:
    """Read all that a run keeps; return a digest of every number in it."""
    import jax
    import numpy as np

    from bqnes_jax.runs import Run
    from bqnes_jax.studies import robustness
    from tests.loaders import ARCH

    run = Run.load(folder)
    ensemble = run.saved_ensemble()
    store = run.store
    entries = store.predictions([ARCH, "failed"], 0)
    found = [
        repr(run.config),
        run.versions,
        [ensemble.method, ensemble.members, ensemble.weights, ensemble.texts],
        [*run.record],
        run._shared(),
        [*entries],
        store.variables(ARCH, 0),
        robustness.read_study(run),
    ]
    text = repr(jax.tree.map(lambda x: x.tolist() if isinstance(x, np.ndarray) else x, found))
    return hashlib.sha256(text.encode()).hexdigest()


def altered(tally: Tally, scratch: Path) -> None:
    """Alter one file of a run at a time; what is read is then the same, or an error says so."""
    from bqnes_jax.errors import BQNESError
    from tests.alterations import Choices, altered_bytes
    from tests.loaders import a_run

    folder = scratch / "altered"
    folder.mkdir()
    a_run(folder)
    expected = read_everything(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    draws = random.Random(tally.tried("altered"))
    while tally.tried("altered") < GOALS["altered"]:
        for path in files:
            content = path.read_bytes()
            tape = draws.randbytes(90)
            if draws.random() < 0.5:
                place = draws.randrange(8 * len(content))
                other = bytearray(content)
                other[place // 8] ^= 1 << place % 8
                other = bytes(other)
            else:
                other = altered_bytes(Choices(tape), content)
            if other == content:
                continue
            path.write_bytes(other)
            name = path.name if path.suffix != ".bqe" else "store/entries/…"
            note, counts = "", {"tried": 1}
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    same = read_everything(folder) == expected
                    told = same or any("Damaged" in w.category.__name__ for w in said)
                    counts["survived" if told else "silent"] = 1
                except BQNESError:
                    counts["survived"] = 1
                except Exception as error:
                    counts["lost"], note = 1, f"{type(error).__name__}: {error}"[:200]
            path.write_bytes(content)
            tally.add("altered", name, note, **counts)
        tally.write()


# Hostile archives


def open_hostile(kind: str, name: str, folder: str, pipe) -> None:
    """Read an archive in a process of its own, which may be ended."""
    import resource

    from bqnes_jax import nats_bench
    from bqnes_jax.data import archives as published
    from bqnes_jax.errors import BQNESError
    from tests import hostile, loaders

    limit = 6 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.chdir(folder)
    path = Path(folder) / "archive"
    try:
        if kind.startswith("pickle"):
            of = "NATS-Bench" if kind == "pickle of NATS-Bench" else "pickled images"
            loader = loaders.KINDS[of].make(Path(folder))
            loader.load(hostile.PICKLES[name]())
        elif kind == "tensor":
            loader = loaders.KINDS["NATS-Bench"].make(Path(folder))
            opcodes = b"\x80\x04}X\x03\x00\x00\x00200" + hostile.TENSORS[name]() + b"s."
            loader.load(opcodes)
        elif kind == "tar.gz of images":
            path.write_bytes(hostile.as_gzip(hostile.TARS[name](), 700))
            published.read_published("cifar10", path, verify=False)
        else:
            path.write_bytes(hostile.TARS[name]() + bytes(5 << 20))
            with nats_bench.open_archive(path):
                pass
        pipe.send("was read")
    except BQNESError as error:
        pipe.send("refused" if not isinstance(error.__cause__, MemoryError) else "no memory")
    except BaseException as error:
        pipe.send(f"{type(error).__name__}: {error}"[:200])


def archives(tally: Tally, scratch: Path) -> None:
    """Read every hostile archive with every reader that would."""
    from tests import hostile

    processes = forked()
    kinds = {
        "pickle of NATS-Bench": hostile.PICKLES,
        "pickle of images": hostile.PICKLES,
        "tensor": hostile.TENSORS,
        "tar.gz of images": hostile.TARS,
        "tar of NATS-Bench": hostile.TARS,
    }
    for kind, forms in kinds.items():
        if tally.of("archives").get(kind, {"tried": 0})["tried"] >= len(forms):
            continue
        tally.of("archives").pop(kind, None)
        for number, name in enumerate(forms):
            folder = scratch / f"{kind}-{number}".replace(" ", "-")
            folder.mkdir()
            here, there = processes.Pipe()
            process = processes.Process(target=open_hostile, args=(kind, name, str(folder), there))
            process.start()
            there.close()
            said = "nothing after 120 s"
            with contextlib.suppress(EOFError):
                said = here.recv() if here.poll(120) else said
            process.join(5)
            process.kill()
            exploded = (folder / "exploded").exists()
            good = said == "refused" and not exploded
            note = "" if good else f"{name}: {said}"
            tally.add("archives", kind, note, tried=1, survived=int(good), lost=int(not good))
            shutil.rmtree(folder)
        tally.write()


# Calls


def calls(tally: Tally, scratch: Path) -> None:
    """Call every public function with odd numbers in its arrays: a result, a status or an error."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from bqnes_jax import selection
    from bqnes_jax.errors import BQNESError
    from tests.test_transformations import PUBLIC

    odd = np.array([np.nan, np.inf, -np.inf, 0.0, 1e19, -1e30, 1e-40, 1.0, -1.0, 3e38])

    def chosen(method: str, count: int, size: int):
        def call(log_probs, classes):
            gram = jnp.exp(-jnp.square(log_probs[:, None, 0] - log_probs[None, :, 0]))
            needed = classes if selection.needs_classes(method) else None
            return selection.select(method, log_probs, size, kernel=gram, classes=needed)

        def arguments(key):
            log_probs = jax.nn.log_softmax(jax.random.normal(key, (count, 6, 3)))
            return log_probs[..., 0], log_probs

        return call, arguments

    functions = dict(PUBLIC)
    for method in ("beam", "top", "corrective", "stack", "caruana", "logpool"):
        for count, size in ((1, 1), (4, 2), (4, 4), (7, 3)):
            functions[f"select {method}, {size} of {count}"] = chosen(method, count, size)

    def spoiled(draw, leaf):
        if not hasattr(leaf, "dtype") or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        array = np.array(leaf)
        flat = array.reshape(-1)
        places = draw.integers(0, flat.size, draw.integers(0, 3)) if flat.size else []
        for place in places:
            if array.dtype.kind == "f":
                flat[place] = odd[draw.integers(len(odd))].astype(array.dtype)
            elif array.dtype.kind in "iu":
                flat[place] = draw.choice([-1, 0, 1, 7, 99, 2**31 - 1])
            elif array.dtype.kind == "b":
                flat[place] = not flat[place]
        if array.dtype.kind == "f" and draw.random() < 0.1:
            array = array * array.dtype.type(draw.choice([1e-30, 1e10, 1e19]))
        return jnp.asarray(array)

    def is_finite(tree) -> bool:
        leaves = [
            np.asarray(x)
            for x in jax.tree.leaves(tree)
            if hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        return all(np.isfinite(x).all() for x in leaves if x.dtype.kind == "f")

    def has_nan(tree) -> bool:
        leaves = [
            np.asarray(x)
            for x in jax.tree.leaves(tree)
            if hasattr(x, "dtype") and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        return any(np.isnan(x).any() for x in leaves if x.dtype.kind == "f")

    def status_of(tree) -> int:
        found = [
            int(np.max(leaf))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if jax.tree_util.keystr(path).endswith("status") and np.asarray(leaf).size
        ]
        return max(found, default=0)

    each = -(-GOALS["calls"] // len(functions))
    for name, (function, make) in functions.items():
        have = tally.of("calls").get(name, {"tried": 0})["tried"]
        if have >= each:
            continue
        draw = np.random.default_rng(have)
        bases = [make(jax.random.key(have + i)) for i in range(8)]
        counts, note = collections.Counter(), ""
        for number in range(each - have):
            counts["tried"] += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:  # a kernel refuses odd numbers when it is made
                    arguments = jax.tree.map(functools.partial(spoiled, draw), bases[number % 8])
                    found = function(*arguments)
                    silent = has_nan(found) and is_finite(arguments) and not status_of(found)
                    counts["silent" if silent else "survived"] += 1
                    if silent:
                        note = f"NaN for {arguments!r}"[:300].replace("\n", " ")
                except BQNESError:
                    counts["survived"] += 1
                except Exception as error:
                    counts["lost"] += 1
                    note = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        tally.add("calls", name, note, **counts)
        tally.write()


# Writers


def write_entries(folder: str, number: int) -> None:
    import numpy as np

    from bqnes_jax.files import write_bound
    from bqnes_jax.storage import Entry, Store
    from tests.loaders import MANIFEST, VARIABLES, log_probs

    store = Store.open(folder, MANIFEST)
    draw = np.random.default_rng(number)
    said = log_probs(7, 3)
    while True:
        arch = f"arch-{draw.integers(20)}"
        store.put(Entry(arch, 0, "ok", said[:4], said[4:], variables=VARIABLES))
        Path(folder, f"done-{number}-{arch}").touch()
        write_bound(Path(folder) / "shared", f"{number} {arch}".encode())


def writers(tally: Tally, scratch: Path) -> None:
    """Let five processes write into one store, kill them, and look for what is broken or gone."""
    from bqnes_jax.errors import BQNESError
    from bqnes_jax.files import check_bound
    from bqnes_jax.storage import Store
    from tests.loaders import MANIFEST

    processes = forked()
    while tally.tried("writers") < GOALS["writers"]:
        folder = scratch / f"writers-{tally.tried('writers')}"
        working = [processes.Process(target=write_entries, args=(str(folder), i)) for i in range(5)]
        for process in working:
            process.start()
        time.sleep(random.Random(tally.tried("writers")).uniform(1.0, 3.0))
        for process in working:
            process.kill()
            process.join()
        store = Store.open(folder, MANIFEST)
        done = {path.name.split("-", 2)[2] for path in folder.glob("done-*")}
        good, note = True, ""
        try:
            good = not store.damaged() and not store.missing(done, [0])
            if (folder / "shared").exists():
                check_bound(folder / "shared", "never")
        except BQNESError as error:
            good, note = False, str(error)
        tally.add("writers", "store", note, tried=1, survived=int(good), lost=int(not good))
        tally.write()
        shutil.rmtree(folder)


def main(parts: list[str]) -> None:
    tally = Tally()
    do = {"archives": archives, "altered": altered, "writers": writers, "kills": kills}
    do |= {"calls": calls}
    for part in parts or do:
        with tempfile.TemporaryDirectory(prefix="bqnes-reliability-") as scratch:
            do[part](tally, Path(scratch))
        tally.write()
    print(tally.as_markdown())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    main(sys.argv[1:])
