"""One search, two drivers around it: a scan over a table, and a loop on the host.

A strategy asks for architectures, something evaluates them, and the strategy is told what that
gave. `scan` is one compiled program, for an `evaluate` that looks results up; `loop` calls an
`evaluate` on the host, which may train. Both take the same steps with the same keys, and so choose
the same candidates.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

from bqnes_jax.candidates import History, Info, Outcome, SearchConfig, State, Strategy, tell
from bqnes_jax.spaces.base import Architectures
from bqnes_jax.types import PRNGKey

__all__ = [
    "Conversation",
    "Driver",
    "Evaluate",
    "Recorded",
    "Report",
    "Searched",
    "conversation",
    "loop",
    "loop_all",
    "scan",
    "step_keys",
]


def __dir__() -> list[str]:
    return __all__  # and nothing that is imported


Evaluate = Callable[[Architectures], Outcome]
Report = Callable[[Info, History], None]


class Searched(NamedTuple):
    """What a search leaves behind.

    Attributes:
        history: everything that was evaluated, in order.
        trace: what was believed after each step, stacked: first after the initial architectures,
            last after all of them.
    """

    history: History
    trace: Info


# A way to spend the whole budget: (strategy, its config, key, evaluate) -> what was found.
Driver = Callable[[Strategy, SearchConfig, PRNGKey, Evaluate], Searched]


class Recorded(NamedTuple):
    """The beginning of a search that was done before: n candidates, and their scores."""

    archs: Int32[Array, "n length"]
    scores: Float[Array, " n"]


def scan(strategy: Strategy, config: SearchConfig, key: PRNGKey, evaluate: Evaluate) -> Searched:
    """Search in one program, under `jit` and `vmap`.

    What the last step asks for, and what exceeds the budget in the last batch, is evaluated too and
    not recorded: on a table that costs nothing.
    """
    first, keys = step_keys(key, _count_steps(config))
    state, info = strategy.init(first)

    def step(state: State, key: PRNGKey) -> tuple[State, Info]:
        state, info = strategy.ask(key, state)
        return _told(state, info, evaluate(info.archs)), info

    state = _told(state, info, evaluate(info.archs))
    state, trace = lax.scan(step, state, keys)
    return Searched(state.history, trace)


def loop(
    strategy: Strategy,
    config: SearchConfig,
    key: PRNGKey,
    evaluate: Evaluate,
    *,
    report: Report | None = None,
    recorded: Recorded | None = None,
) -> Searched:
    """Search on the host, with an `evaluate` that may do anything.

    Args:
        strategy: as `candidates.make` made it from the same config.
        config: budget and batch.
        key: of everything random.
        evaluate: trains architectures, or looks them up.
        report: called after each step with what is believed, and what was evaluated.
        recorded: the first candidates, if they are known: the search goes on after them.
    """
    alone = conversation(strategy, config, key, report=report, recorded=recorded)
    return _together([alone], evaluate)[0]


def loop_all(
    strategy: Strategy, config: SearchConfig, keys: Sequence[PRNGKey], evaluate: Evaluate
) -> list[Searched]:
    """Do several searches in step, so that what all of them ask for is evaluated together."""
    return _together([conversation(strategy, config, key) for key in keys], evaluate)


Conversation = Generator[Architectures, Outcome, Searched]


def conversation(
    strategy: Strategy,
    config: SearchConfig,
    key: PRNGKey,
    *,
    report: Report | None = None,
    recorded: Recorded | None = None,
) -> Conversation:
    """Yield architectures to evaluate; what that gave is sent back."""
    first, keys = step_keys(key, config.budget + 1)  # a record may end within a batch: more steps
    state, info = strategy.init(first)
    trace: list[Info] = []
    for step_key in keys:
        count = int(state.history.count)
        asked = _ask_next(info, count, config.budget, recorded)
        outcome = yield asked.archs
        state = tell(state, outcome._replace(scores=asked.scores))
        state, info = strategy.ask(step_key, state)
        trace.append(info)
        if report is not None:
            report(info, state.history)
        if int(info.count) >= config.budget:
            break
    return Searched(state.history, jax.tree.map(lambda *leaves: np.stack(leaves), *trace))


def _ask_next(info: Info, count: int, budget: int, recorded: Recorded | None) -> Recorded:
    """Return what is evaluated next: what was once, if it is recorded, or what is asked for now."""
    end = min(count + len(info.archs), budget)
    if recorded is not None and count < len(recorded.archs):
        return Recorded(recorded.archs[count:end], recorded.scores[count:end])
    return Recorded(info.archs[: end - count], info.scores[: end - count])


def _together(searches: list[Conversation], evaluate: Evaluate) -> list[Searched]:
    """Evaluate what all searches ask for, as often as they ask: all have the same steps."""
    asked, found = [next(search) for search in searches], []
    while not found:
        outcome = jax.device_get(evaluate(jnp.concatenate(asked)))
        each = jax.tree.map(lambda leaf: leaf.reshape(len(asked), -1, *leaf.shape[1:]), outcome)
        for i, search in enumerate(searches):
            try:
                asked[i] = search.send(jax.tree.map(lambda leaf, i=i: leaf[i], each))
            except StopIteration as stop:
                found.append(stop.value)
    return found


def _told(state: State, info: Info, outcome: Outcome) -> State:
    return tell(state, outcome._replace(scores=info.scores))


def _count_steps(config: SearchConfig) -> int:
    """Count the steps: one more than batches, for what is believed after the last of them."""
    return -(-(config.budget - config.initial) // config.batch) + 1


def step_keys(key: PRNGKey, steps: int) -> tuple[PRNGKey, Array]:
    """Return the key of the first architectures, and those of the steps.

    The key of a step does not depend on how many there are, so that a search can be continued.
    """
    first, rest = jax.random.split(key)
    return first, jax.random.split(rest, steps)
