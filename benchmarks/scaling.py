"""How the cost of each stage grows, and what that says about far larger problems.

Every stage of a search is timed at some sizes of what it may depend on (candidates, validation
points, classes, the space), compiled and warm; an exponent is fitted to the times and carried on
to 10⁴ candidates, 10⁶ validation points and a space of 10¹⁵, or measured there where it takes
seconds. Training is not among the stages: its cost is that of one network times their number,
divided by the devices.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --table  # of what was measured last
"""

import functools
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from against_paper import as_markdown
from shared import RESULTS, console, one_sentence, show, timed, write
from timing import as_seconds, description, exponent

from bqnes_jax.candidates import Outcome, SearchConfig, make, tell
from bqnes_jax.pooling import ensemble_log_probabilities
from bqnes_jax.selection import select
from bqnes_jax.spaces import DARTS, NATS, SlimmableSpace, Space, Subset
from bqnes_jax.storage import Entry, Manifest, Store

_SMALL = 0.05  # seconds; what takes less is repeated more often


@dataclass(frozen=True)
class Options:
    """Time the stages."""

    repeats: int = 5
    """Calls of which the median is taken."""
    shrink: int = 1
    """Divide all sizes, to try it out."""
    table: bool = False
    """Measure nothing; print the table, of the results that are there."""
    out: Path = RESULTS / "scaling.json"
    """Where to write the results."""


class Part(NamedTuple):
    """A function without arguments, and how often it is called in each of what is timed."""

    share: float
    run: Callable[[], Any]


class Stage(NamedTuple):
    """What is timed, and how far it is carried on.

    Attributes:
        name: of the stage.
        grows: what the sizes are of.
        sizes: four of them, or more.
        prepare: from a size to what is timed.
        target: a size that is predicted.
        measured: whether that size is measured as well.
    """

    name: str
    grows: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Callable[[], Any] | list[Part]]
    target: int
    measured: bool = False


def log_probs_of(candidates: int, points: int) -> np.ndarray:
    """Draw log-probabilities of the true class, better for some candidates than for others."""
    random = np.random.default_rng(0)
    skill = random.normal(0, 0.3, (candidates, 1))
    return -np.logaddexp(0, -(1.5 + skill + random.normal(size=(candidates, points)))).astype("f4")


class Step(NamedTuple):
    """The last step of a search: from nothing, and from what the step before it left."""

    from_nothing: Callable[[], Any]
    from_before: Callable[[], Any]
    every: int | None  # steps, in which length scales are fitted once; None where there are none


@functools.cache
def last_step(space: Space, candidates: int) -> Step:
    """Prepare to fit the surrogate to all candidates, score the space and ask for one more."""
    config = SearchConfig(initial=min(10, candidates), budget=candidates)
    strategy = make("us", space, config=config)
    archs = space.sample(jax.random.key(2), candidates)
    log_likelihoods = jnp.asarray(log_probs_of(candidates, 500).sum(axis=1))
    ask = functools.partial(strategy.ask, jax.random.key(1))
    empty = strategy.init(jax.random.key(0))[0]
    before = ask(tell(empty, Outcome(archs[:-1], log_likelihoods[:-1])))[0]
    after = tell(before, Outcome(archs[-1:], log_likelihoods[-1:]))
    everything = tell(empty, Outcome(archs, log_likelihoods))
    has_scales = before.shape is not None and before.shape.axes is None
    every = math.ceil(config.fit.growth * candidates) if has_scales else None
    return Step(lambda: ask(everything), lambda: ask(after), every)


def step(space: Space, candidates: int) -> list[Part]:
    """Prepare what a step takes on average: steps that keep length scales count as often."""
    from_nothing, from_before, every = last_step(space, candidates)
    if every is None:
        return [Part(1.0, from_before)]
    return [Part(1 / every, from_nothing), Part(1 - 1 / every, from_before)]


_BLOCK = SlimmableSpace(blocks=1, layers=3).count


def unlisted(size: int) -> SlimmableSpace:
    """Return a space of about that many architectures, which is not listed."""
    return SlimmableSpace(blocks=max(1, round(math.log(size, _BLOCK))), layers=3)


def selection(method: str, candidates: int, points: int) -> Callable[[], Any]:
    log_probs = jnp.asarray(log_probs_of(candidates, points))
    features = np.random.default_rng(1).normal(size=(candidates, 30))
    gram = jnp.asarray(np.exp(-0.02 * np.sum((features[:, None] - features) ** 2, -1)))
    usable = jnp.ones(candidates, bool)
    chosen = jax.jit(lambda log_probs: select(method, log_probs, 10, kernel=gram, mask=usable))
    return lambda: chosen(log_probs)


def prediction(points: int, classes: int, members: int = 10) -> Callable[[], Any]:
    logits = jax.random.normal(jax.random.key(0), (members, points, classes))
    said, weights = jax.nn.log_softmax(logits), jnp.full(members, 1 / members)
    average = jax.jit(ensemble_log_probabilities)
    return lambda: average(weights, said)


def reading(points: int, classes: int, networks: int = 10) -> Callable[[], Any]:
    folder = tempfile.TemporaryDirectory()
    store = Store.open(folder.name, Manifest("nats", "toy", {}, points, 1, classes))
    said = np.full((points, classes), -np.log(classes), np.float32)
    names = [str(i) for i in range(networks)]
    store.put(Entry(name, 0, "ok", said, said[:1]) for name in names)

    def read():
        assert folder.name  # is removed with this function
        return store.predictions(names, 0).valid_log_probs

    return read


CANDIDATES, POINTS, CLASSES = (100, 200, 400, 800), (1000, 4000, 16_000, 64_000), (10, 30, 100, 300)
MANY, FAR = 10**4, 10**6

STAGES = (
    Stage("a step of the search", "candidates", CANDIDATES, lambda n: step(NATS, n), MANY),
    Stage(
        "a step, the space listed",
        "architectures",
        (1000, 2500, 6000, 15_000),
        lambda n: step(Subset(NATS, tuple(range(n))), 50),
        10**6,
    ),
    Stage(
        "a step, a pool of the space",
        "candidates",
        (*CANDIDATES, 1600),
        lambda n: step(unlisted(_BLOCK**7), n),
        MANY,
        measured=True,
    ),
    Stage(
        "a step, a pool of DARTS's cells",
        "candidates",
        (75, 150, 300, 600),
        lambda n: step(DARTS, n),
        MANY,
    ),
    Stage(
        "… one that fits length scales",
        "candidates",
        (*CANDIDATES, 1600),
        lambda n: last_step(unlisted(_BLOCK**7), n).from_nothing,
        MANY,
        measured=True,
    ),
    Stage(
        "a step, a pool of the space",
        "architectures",
        tuple(_BLOCK**blocks for blocks in (2, 4, 6, 8)),
        lambda n: step(unlisted(n), 50),
        10**15,
    ),
    *(
        Stage(
            f"selection: {method}",
            "candidates",
            CANDIDATES,
            lambda n, m=method: selection(m, n, 1000),
            MANY,
        )
        for method in ("restack", "recombine", "beam")
    ),
    *(
        Stage(
            f"selection: {method}",
            "validation points",
            POINTS,
            lambda n, m=method: selection(m, 50, n),
            FAR,
        )
        for method in ("restack", "recombine", "beam")
    ),
    Stage("prediction, M = 10", "points", POINTS, lambda n: prediction(n, 10), FAR),
    Stage("prediction, M = 10", "classes", CLASSES, lambda n: prediction(4000, n), 1000),
    Stage("reading 10 networks", "points", POINTS, lambda n: reading(n, 10), FAR),
    Stage("reading 10 networks", "classes", CLASSES, lambda n: reading(4000, n), 1000),
)


def seconds_of(run: Callable[[], Any] | list[Part], repeats: int) -> float:
    """Return the median of warm calls."""
    if isinstance(run, list):
        return sum(part.share * seconds_of(part.run, repeats) for part in run)
    timed(run)
    took = [timed(run)[1] for _ in range(repeats)]
    if np.median(took) < _SMALL:
        took += [timed(run)[1] for _ in range(4 * repeats)]
    return float(np.median(took))


def measure(stage: Stage, options: Options) -> dict:
    def seconds_at(size: int) -> float:
        return seconds_of(stage.prepare(size), options.repeats)

    def shrink(size: int) -> int:
        return max(4, size // options.shrink)

    sizes = [shrink(size) for size in stage.sizes]
    seconds = [seconds_at(size) for size in sizes]
    grows = exponent(sizes[-3:], seconds[-3:])  # the smallest is mostly overhead
    target = shrink(stage.target) if stage.measured else stage.target
    carried = seconds[-1] * (target / sizes[-1]) ** max(grows, 0)
    return {
        "stage": stage.name,
        "grows": stage.grows,
        "sizes": sizes,
        "seconds": seconds,
        "exponent": grows,
        "target": target,
        "predicted": carried,
        "measured": seconds_at(target) if stage.measured else None,
    }


def as_count(number: int) -> str:
    """Write a whole number, a large one with a power of ten.

    >>> as_count(15_625), as_count(10**15), as_count(5_352_009_260_481)
    ('15,625', '10¹⁵', '5·10¹²')
    """
    if number < 10**7:
        return f"{number:,}"
    digit, power = f"{number:.0e}".split("e+")
    raised = "10" + str(int(power)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return raised if digit == "1" else f"{digit}·{raised}"


COLUMNS = ["stage", "by", "smallest", "largest", "exponent", "carried on"]


def line(result: dict) -> list[str]:
    ends = ((result["sizes"][i], result["seconds"][i]) for i in (0, -1))
    found = result["predicted"] if result["measured"] is None else result["measured"]
    far = f"{as_count(result['target'])}: {as_seconds(found)}"
    return [
        result["stage"],
        result["grows"],
        *(f"{as_count(size)}: {as_seconds(seconds)}" for size, seconds in ends),
        f"{result['exponent']:.2f}",
        far if result["measured"] is None else f"{far}, measured",
    ]


def main(options: Options) -> None:
    if options.table:
        stages = json.loads(options.out.read_text())["stages"]
        print(as_markdown(COLUMNS, [line(result) for result in stages], names=2))
        return
    results = []
    for stage in STAGES:
        results.append(measure(stage, options))
        console.print("  ".join(line(results[-1])), style="dim")
    show("cost of each stage", COLUMNS, [line(result) for result in results], names=2)
    write(options.out, {"machine": description(), "stages": results})


if __name__ == "__main__":
    one_sentence(main, tyro.cli(Options, description=__doc__))
