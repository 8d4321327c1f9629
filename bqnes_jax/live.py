"""Search with real training: ask for architectures, train them, store what they predict, tell.

The same steps as on a table, in a loop on the host. All that was trained is in the store: a run
that was stopped, by Ctrl-C or by a crash, does the same steps again from there, without training
anything twice, and ends with the same result.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bqnes_jax import algorithms, candidates
from bqnes_jax.algorithms import Evaluate, Pair, Result
from bqnes_jax.candidates import History, Info, Outcome, SearchConfig, Strategy, record
from bqnes_jax.data import Split, fingerprint
from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.kernels import Kernel
from bqnes_jax.spaces import NATS
from bqnes_jax.spaces.base import Architectures, Space
from bqnes_jax.store import Entry, Manifest, Store
from bqnes_jax.training import TrainConfig, chunk_size, train_population, weight_count
from bqnes_jax.types import PRNGKey

# What changes how fast a network is trained, but not what it becomes.
_ONLY_SPEED = ("seeds", "keep_weights", "chunk", "memory")

Report = Callable[[Info, History], None]
Count = Callable[[int], None]


def manifest_of(dataset: str, data: Split, config: TrainConfig, dtype: str = "float16") -> Manifest:
    """Describe the store of networks that are trained on these images in this way."""
    recipe = {k: v for k, v in dataclasses.asdict(config).items() if k not in _ONLY_SPEED}
    recipe["train_points"] = len(data.train.labels)
    recipe["images"] = fingerprint(data)
    shape = data.train.images.shape[1:]
    return Manifest(
        NATS.name,
        dataset,
        recipe,
        len(data.valid.labels),
        len(data.test.labels),
        config.network.classes,
        dtype,
        weight_count(config.network, shape) if config.keep_weights else 0,
    )


def train_into(
    store: Store,
    archs: Architectures,
    data: Split,
    config: TrainConfig,
    seed: int = 0,
    report: Count | None = None,
) -> None:
    """Train those of the architectures that the store does not have, chunk by chunk.

    `report` is called with how many more of them are there, each time that some are stored.
    """
    check_whole("seed", seed, 0)
    by_text = {NATS.to_string(arch): arch for arch in np.asarray(archs)}
    missing = [key.arch for key in store.missing(by_text, [seed])]
    report = report or (lambda count: None)
    if len(missing) < len(archs):
        report(len(archs) - len(missing))
    config = dataclasses.replace(config, seeds=1, keep_weights=store.manifest.weights > 0)
    chunk = chunk_size(config, data, NATS.size)
    for start in range(0, len(missing), chunk):
        texts = missing[start : start + chunk]
        # Filled up with the last one, so that all chunks have the shape that is compiled.
        padded = texts + [texts[-1]] * (chunk - len(texts))
        population = train_population(
            jax.random.key(seed), np.stack([by_text[text] for text in padded]), data, config
        )
        trained = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], population.trained)
        seconds = float(population.seconds.sum()) / len(texts)
        store.put(
            Entry(
                text,
                seed,
                "failed" if trained.failed[i] else "ok",
                trained.valid_log_probs[i],
                trained.test_log_probs[i],
                float(trained.train_losses[i, -1]),
                float(trained.valid_loss[i]),
                _mean_loss(trained.test_log_probs[i], data.test.labels),
                seconds,
                trained.weights[i] if config.keep_weights else None,
            )
            for i, text in enumerate(texts)
        )
        report(len(texts))


def stored_evaluator(
    store: Store, data: Split, config: TrainConfig, seed: int = 0, report: Count | None = None
) -> Evaluate:
    """Return a function that trains architectures, or remembers what training them gave.

    It answers with what the store holds, to the store's precision, so that a resumed search sees
    what the first one saw.
    """

    def evaluate(archs: Architectures) -> Outcome:
        train_into(store, archs, data, config, seed, report)
        texts = [NATS.to_string(arch) for arch in np.asarray(archs)]
        stored = store.load(texts, seed).valid_log_probs
        log_probs = np.take_along_axis(stored, data.valid.labels[None, :, None], axis=2)[..., 0]
        return Outcome(
            jnp.asarray(archs), jnp.asarray(log_probs.sum(axis=1)), jnp.asarray(log_probs)
        )

    return evaluate


def search(
    strategy: Strategy,
    config: SearchConfig,
    key: PRNGKey,
    evaluate: Evaluate,
    report: Report | None = None,
) -> tuple[History, Info]:
    """Do what `algorithms.search` does, in a loop on the host; `report` is called at every step."""
    init_key, steps_key = jax.random.split(key)
    state, info = strategy.init(init_key)
    steps = -(-(config.budget - config.initial) // config.batch) + 1
    state = record(state, evaluate(info.archs)._replace(scores=info.scores))
    trace: list[Info] = []
    for step_key in jax.random.split(steps_key, steps):
        state, info = strategy.choose(step_key, state)
        trace.append(info)
        if report is not None:
            report(info, state.history)
        left = config.budget - int(info.count)
        if left:
            outcome = evaluate(info.archs[:left])
            state = record(state, outcome._replace(scores=info.scores[:left]))
    return state.history, jax.tree.map(lambda *leaves: jnp.stack(leaves), *trace)


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


def _mean_loss(log_probs: np.ndarray, labels: Sequence[int] | np.ndarray) -> float:
    return float(-np.mean(log_probs[np.arange(len(log_probs)), np.asarray(labels)]))
