"""What survives: kills, altered files, hostile archives, odd numbers, several writers.

    python benchmarks/reliability.py            # everything that is not done yet
    python benchmarks/reliability.py kills      # one part of it

It goes on where it was stopped, and writes results/reliability.json and .md after each piece. What
is lost or silent is a bug: a file that cannot be used any more, another result than an undisturbed
one, a crash, a traceback, or a wrong number without a word. Each part is a module in `attacks`.
"""

import argparse
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))  # for `tests`, which knows every kind of file
# What is measured is not speed, and most of the time goes into compiling.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
PARTS = ("archives", "altered", "writers", "kills", "calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all if not given")
    parser.add_argument("--out", type=Path, default=FOLDER / "results" / "reliability.json")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")

    from attacks.tally import Tally

    tally = Tally(given.out)
    for part in given.parts or PARTS:
        attack = importlib.import_module(f"attacks.{part}").attack
        with tempfile.TemporaryDirectory(prefix="bqnes-reliability-") as scratch:
            attack(tally, Path(scratch))
        tally.write()
    print(tally.as_markdown())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    main()
