"""How fast everything is, beside what a user would pick instead, in one process and on one day.

Each job is done by this package and by its peers on the same data, warm: the median of repeats, and
the time of compiling apart. Beside each of ours stands what the machine would need at least (the
operations at the rate of a product of large matrices, or the numbers read and written at the rate
of a copy, both measured in the same run), how much memory was resident at most, and how the cost
grows with the size. Peers are `pip install -e '.[bench]'`; one that is missing says so.

    python benchmarks/speed.py
    python benchmarks/speed.py wl gp --repeats 5 --sizes small
"""

import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import tyro
from against_paper import as_markdown
from jobs import JOBS
from shared import RESULTS, console, show, write
from timing import Machine, as_seconds, description, exponent, measure, measure_machine
from ways import Case, Job, Size, Way

HUGE_PAGES = "glibc.malloc.hugetlb=1"
COLUMNS = ["", "n", "by", "for one", "compiling", "threads", "peak", "× bound", "answer"]
COLUMNS += ["wanted", "peer / ours"]


@dataclass(frozen=True)
class Options:
    """Time jobs."""

    jobs: tyro.conf.Positional[tuple[Literal["all", *JOBS], ...]] = ("all",)
    """Which."""
    repeats: int = 11
    """Warm calls of each, fewer of what takes long."""
    sizes: Literal["small", "full"] = "full"
    """Those of the tables, or small ones to see that everything works."""
    growth: bool = True
    """Measure at four sizes how the cost grows, too."""
    out: Path = RESULTS
    """The folder for speed.json and speed.md (speed-JOB… where only some jobs are asked for)."""


def measure_way(way: Way, repeats: int) -> dict:
    """Measure one way to do a job; `seconds` are for one problem."""
    if way.run is None:
        return {"by": way.name, "seconds": None}
    found = measure(way.run, repeats, way.check)
    says, good = found.verdict
    return {
        "by": way.name,
        "seconds": found.seconds / way.problems,
        "problems": way.problems,
        "compiling": found.compiling,
        "amortised": found.compiling * way.amortise,
        "calls": found.calls,
        "threads": found.threads,
        "peak": found.peak,
        "before": found.before,
        "answer": says,
        "good": good,
        "ratio wanted": way.ratio,
        "against": way.against,
        "limit": way.limit,
    }


def measure_case(case: Case, size: Size, machine: Machine, repeats: int) -> list[dict]:
    """Measure every way at one size, and compare ours with the peers whose answer is good."""
    rows = []
    for way in case.ways:
        row = {"size": size} | measure_way(way, repeats)
        if is_ours(row):
            row["bound"] = machine.bound(case.flops, case.numbers, way.precision)
        rows.append(row)
    rivals = [row for row in rows if not is_ours(row) and row["seconds"] and row["good"]]
    for row in filter(is_ours, rows):
        row["ratios"] = {
            rival["by"]: rival["seconds"] / (row["seconds"] + row["amortised"]) for rival in rivals
        }
        row["met"] = is_met(row)
    return rows


def is_ours(row: dict) -> bool:
    return row["by"].startswith("ours")


def is_met(row: dict) -> bool | None:
    """Tell whether what is wanted is so; None where nothing is, or where no peer is installed."""
    if not row["good"]:
        return False
    if row["limit"] is not None:
        return row["seconds"] <= row["limit"]
    ratios = row["ratios"]
    if row["against"] is not None:
        ratios = {name: ratio for name, ratio in ratios.items() if name == row["against"]}
    if row["ratio wanted"] is None or not ratios:
        return None
    return min(ratios.values()) >= row["ratio wanted"]


def measure_growth(job: Job, sizes: str, repeats: int) -> dict:
    """Measure at each size what our first way and each peer cost, and fit exponents."""
    steps = job.growth[sizes]
    seconds: dict[str, list[float]] = {}
    for size in steps:
        ways = job.case(size).ways
        for way in [ways[0], *(way for way in ways if not way.name.startswith("ours"))]:
            found = measure_way(way, repeats)["seconds"]
            if found is not None:
                seconds.setdefault(way.name, []).append(found * way.problems)
    fitted = {
        name: exponent([job.measure(size) for size in steps], values)
        for name, values in seconds.items()
    }
    return {"sizes": steps, "seconds": seconds, "exponents": fitted}


def as_size(size: Size) -> str:
    return " → ".join(f"{n:,}" for n in (size if isinstance(size, tuple) else (size,)))


def line(job: Job, row: dict) -> list[str]:
    """Write a row of the table."""
    start = [job.name, as_size(row["size"]), row["by"]]
    if row["seconds"] is None:
        return [*start, "not installed", *[""] * (len(COLUMNS) - 4)]
    peak = "–" if row["peak"] is None else f"{row['peak'] / 2**20:,.0f} MB"
    compiling = f"{row['compiling']:.1f} s" if is_ours(row) else "–"
    cells = [*start, as_seconds(row["seconds"]), compiling, str(row["threads"]), peak]
    if not is_ours(row):
        answer = row["answer"] + ("" if row["good"] else " (not good enough)")
        return [*cells, "", answer, "", ""]
    wanted = f"≥ {row['ratio wanted']:g}" if row["ratio wanted"] else ""
    wanted = f"≤ {as_seconds(row['limit'])}" if row["limit"] else wanted
    if wanted and row["met"] is not None:
        wanted += " ✓" if row["met"] else " ✗"
    ratios = sorted((ratio, name) for name, ratio in row["ratios"].items())
    return [
        *cells,
        f"{row['seconds'] / row['bound']:.3g}",
        row["answer"],
        wanted,
        f"{ratios[0][0]:.3g} ({ratios[0][1]})" if ratios else "",
    ]


def growth_line(job: Job, growth: dict) -> list[list[str]]:
    """Write how the cost of each way grows."""
    return [
        [job.name, name, *map(as_seconds, seconds), f"{growth['exponents'][name]:.2f}"]
        for name, seconds in growth["seconds"].items()
    ]


def run_job(job: Job, machine: Machine, options: Options) -> dict:
    rows = []
    for size in job.sizes[options.sizes]:
        rows += measure_case(job.case(size), size, machine, options.repeats)
    show(job.title, COLUMNS[1:], [line(job, row)[1:] for row in rows], names=2)
    result = {"title": job.title, "rows": rows}
    if options.growth:
        result["growth"] = growth = measure_growth(job, options.sizes, options.repeats)
        columns = ["", *map(as_size, growth["sizes"]), "exponent"]
        show("how it grows", columns, [row[1:] for row in growth_line(job, growth)])
    return result


def report(result: dict) -> str:
    """Write everything as Markdown."""
    machine, about = result["machine"], result["about"]
    rates = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {kind}" for kind, rate in machine[0].items())
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts = [
        "# Speed",
        f"`python speed.py`, {about['processor']}, {about['cores']} cores; threads: "
        f"{about['threads']}; memory: {about['memory']}. This machine multiplies matrices at "
        f"{rates}, copies {machine[1] / 1e9:.1f} GB/s, and fills memory that is new "
        f"{machine[2] / 1e9:.1f} GB/s. Python {about['python']}, {versions}.",
    ]
    for name, job in result["jobs"].items():
        rows = [line(JOBS[name], row)[1:] for row in job["rows"]]
        parts += [f"## {job['title']}", as_markdown(COLUMNS[1:], rows)]
        if "growth" in job:
            columns = ["cost at", *map(as_size, job["growth"]["sizes"]), "exponent"]
            rows = [row[1:] for row in growth_line(JOBS[name], job["growth"])]
            parts.append(as_markdown(columns, rows))
    return "\n\n".join(parts) + "\n"


def ask_for_huge_pages() -> None:
    """Start again with huge pages for what JAX sets aside, as NumPy asks for by itself on Linux.

    Otherwise large results cost JAX, and not its peers, a page fault for every 4 kB.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.argv])


def main(options: Options) -> None:
    console.width = max(console.width, 160)
    # Of peers: hyper-parameters at a bound, functions to be renamed.
    warnings.simplefilter("ignore")
    machine = measure_machine()
    chosen = [name for name in JOBS if {name, "all"} & set(options.jobs)]
    result = {"options": vars(options) | {"out": ""}, "machine": machine, "jobs": {}}
    for name in chosen:
        result["jobs"][name] = run_job(JOBS[name], machine, options)
        jax.clear_caches()
    result["about"] = description()
    console.print(f"threads: {result['about']['threads']}")
    stem = "speed" if len(chosen) == len(JOBS) else "-".join(["speed", *chosen])
    write(options.out / f"{stem}.json", result)
    (options.out / f"{stem}.md").write_text(report(result))


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    ask_for_huge_pages()
    main(options)
