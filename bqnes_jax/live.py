"""Search with real training: ask for architectures, train them, store what they predict, tell.

The same steps as on a table, in a loop on the host. All that was trained is in the store: a run
that was stopped, by Ctrl-C or by a crash, does the same steps again from there, without training
anything twice, and ends with the same result.
"""

from collections.abc import Callable, Generator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bqnes_jax import algorithms, candidates
from bqnes_jax.algorithms import Evaluate, Pair, Result
from bqnes_jax.candidates import History, Info, Outcome, SearchConfig, Strategy, record
from bqnes_jax.devices import agree, own_part, wait_for_all
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.kernels import Kernel
from bqnes_jax.spaces.base import Architectures, Space
from bqnes_jax.store import Store
from bqnes_jax.trainers import Trainer
from bqnes_jax.types import PRNGKey

Report = Callable[[Info, History], None]
Count = Callable[[int], None]
Found = tuple[History, Info]
Searching = Generator[Architectures, Outcome, Found]
Predict = Callable[[Architectures], Float[Array, "M m classes"]]


def train_into(
    store: Store,
    trainer: Trainer,
    archs: Architectures,
    seed: int = 0,
    report: Count | None = None,
) -> None:
    """Train those of the architectures that the store does not have, chunk by chunk.

    With several hosts, each puts a part of what all have trained into the store.
    `report` is called with how many more of them are there, each time that some are stored.
    """
    check_whole("seed", seed, 0)
    by_text = {trainer.space.to_string(arch): arch for arch in np.asarray(archs)}
    absent = {key.arch for key in store.missing(by_text, [seed])}
    missing = agree(np.array([text in absent for text in by_text]))
    untrained = [arch for arch, absent in zip(by_text.values(), missing, strict=True) if absent]
    report = report or (lambda count: None)
    if len(untrained) < len(archs):
        report(len(archs) - len(untrained))
    if not untrained:
        return
    for entries in trainer.train(np.stack(untrained), seed):
        store.put(own_part(entries))
        wait_for_all()
        report(len(entries))


def stored_evaluator(
    store: Store, trainer: Trainer, seed: int = 0, report: Count | None = None
) -> Evaluate:
    """Return a function that trains architectures, or remembers what training them gave.

    It answers with what the store holds, to the store's precision, so that a resumed search sees
    what the first one saw.
    """

    def evaluate(archs: Architectures) -> Outcome:
        archs = agree(archs)
        train_into(store, trainer, archs, seed, report)
        texts = [trainer.space.to_string(arch) for arch in np.asarray(archs)]
        stored = store.load(texts, seed).valid_log_probs
        log_probs = np.take_along_axis(stored, trainer.valid_labels[None, :, None], axis=2)[..., 0]
        return Outcome(
            jnp.asarray(archs), jnp.asarray(log_probs.sum(axis=1)), jnp.asarray(log_probs)
        )

    return evaluate


def stored_predictor(store: Store, space: Space, seed: int = 0) -> Predict:
    """Return a function that tells the class probabilities of test points by stored networks."""

    def predict(archs: Architectures) -> Float[Array, "M m classes"]:
        texts = [space.to_string(arch) for arch in np.asarray(archs)]
        probabilities = np.exp(store.load(texts, seed).test_log_probs)
        return jnp.asarray(probabilities / probabilities.sum(axis=2, keepdims=True))  # were rounded

    return predict


def search(
    strategy: Strategy,
    config: SearchConfig,
    key: PRNGKey,
    evaluate: Evaluate,
    report: Report | None = None,
) -> Found:
    """Do what `algorithms.search` does, in a loop on the host; `report` is called at every step."""
    return _in_step([_searching(strategy, config, key, report)], evaluate)[0]


def search_all(
    strategy: Strategy, config: SearchConfig, keys: Sequence[PRNGKey], evaluate: Evaluate
) -> list[Found]:
    """Do several searches in step, so that what all of them ask for is trained together."""
    return _in_step([_searching(strategy, config, key) for key in keys], evaluate)


def _searching(
    strategy: Strategy, config: SearchConfig, key: PRNGKey, report: Report | None = None
) -> Searching:
    """Yield the architectures to evaluate; what that gave is sent back."""
    init_key, steps_key = jax.random.split(key)
    state, info = strategy.init(init_key)
    steps = -(-(config.budget - config.initial) // config.batch) + 1
    outcome = yield info.archs
    state = record(state, outcome._replace(scores=info.scores))
    trace: list[Info] = []
    for step_key in jax.random.split(steps_key, steps):
        state, info = strategy.choose(step_key, state)
        trace.append(info)
        if report is not None:
            report(info, state.history)
        left = config.budget - int(info.count)
        if left:
            outcome = yield info.archs[:left]
            state = record(state, outcome._replace(scores=info.scores[:left]))
    return state.history, jax.tree.map(lambda *leaves: jnp.stack(leaves), *trace)


def _in_step(searches: list[Searching], evaluate: Evaluate) -> list[Found]:
    """Evaluate what all searches ask for, as often as they ask: all have the same steps."""
    asked, found = [next(search) for search in searches], []
    while not found:
        outcome = evaluate(jnp.concatenate(asked))
        each = jax.tree.map(lambda leaf: leaf.reshape(len(asked), -1, *leaf.shape[1:]), outcome)
        for i, search in enumerate(searches):
            try:
                asked[i] = search.send(jax.tree.map(lambda leaf, i=i: leaf[i], each))
            except StopIteration as stop:
                found.append(stop.value)
    return found


def trainable(name: str) -> Pair:
    """Return the algorithm of that name, if it needs no more results than it asks for.

    NES-BS and Best single look at every architecture, which no one trains: they need a table.
    """
    algorithm = algorithms.find(name)
    if not isinstance(algorithm, Pair):
        raise BQNESError(
            f"algorithm is {name!r}, which needs results of the whole space; with training use "
            "'BQ-S', 'BQ-R', 'NES-RE', 'Random' or 'strategy+method'."
        )
    return algorithm


def run(
    name: str,
    space: Space,
    size: int,
    key: PRNGKey,
    evaluate: Evaluate,
    kernel: Kernel | None = None,
    config: SearchConfig = SearchConfig(),  # noqa: B008 (immutable)
    report: Report | None = None,
) -> Result:
    """Run an algorithm by name with training on the host."""
    algorithm = trainable(name)
    config = algorithm.budgeted(config, size)
    strategy = candidates.make(algorithm.strategy, space, kernel, config)
    history, trace = search(strategy, config, key, evaluate, report)
    return algorithms.select_ensemble(algorithm.method, strategy, history, trace, size, config)
