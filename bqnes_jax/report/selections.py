"""Which ensembles a run is shown beside, and their programs, compiled while others train."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bqnes_jax import algorithms
from bqnes_jax.runs import Record, Run, RunConfig, Workbench

_METHODS = ("logpool", "restack", "recombine", "beam", "corrective")
RIVALS = ("caruana", *_METHODS)  # that a report compares an ensemble with


def list_selections(
    config: RunConfig, count: int, *, sizes: Sequence[int] = ()
) -> list[tuple[str | None, int]]:
    """Return methods and sizes of ensembles among so many candidates, None for the run's own.

    By default they are as large as the ensemble of the run.
    """
    algorithm = algorithms.find_trainable(config.algorithm)
    # Of one architecture is what the algorithm selects, not what its method does among all.
    own = (None if algorithm.one_architecture else algorithm.method, config.ensemble_size)
    sizes = [size for size in sizes or (config.ensemble_size,) if size <= count]
    asked = [("top", 1), *((method, size) for size in sizes for method in _METHODS), own]
    return sorted(dict.fromkeys(asked), key=lambda pair: pair[1])


def rehearse(config: RunConfig, bench: Workbench) -> None:
    """Select the ensembles of a run that has just begun, among candidates that are made up.

    When the run has its candidates, the programs are there. They take as long to compile as half
    of a training program, which keeps a single core busy while it is compiled.
    """
    if config.search.measure != "valid" or config.evaluate != "alone":
        return  # the number of candidates, or what they are measured by, is not known yet
    algorithm = algorithms.find_trainable(config.algorithm)
    count = algorithm.with_budget(config.search, config.ensemble_size).budget
    classes = _make_up_classes(count, bench)
    run = Run(bench.store.directory, config, bench.family, _make_up_record(classes, bench))
    run.__dict__["valid_log_probs"] = jax.device_put(classes)  # nothing is in the store
    rivals = [(method, config.ensemble_size) for method in RIVALS]
    for method, size in dict.fromkeys([*list_selections(config, count), *rivals]):
        run.ensemble(size, method)


def _make_up_classes(count: int, bench: Workbench) -> Float[np.ndarray, "n valid classes"]:
    """Return log-probabilities of networks that guess."""
    shape = (count, len(bench.data.valid.labels), bench.data.classes)
    odds = np.random.default_rng(0).uniform(0.1, 1, shape)
    return np.log(odds / odds.sum(axis=-1, keepdims=True)).astype(jnp.result_type(float))


def _make_up_record(classes: Float[np.ndarray, "n valid classes"], bench: Workbench) -> Record:
    """Return the record of a search that has found networks that guess."""
    count, data = len(classes), bench.data
    each, one = np.zeros(count, classes.dtype), np.zeros(1, classes.dtype)
    log_probs = classes[..., 0]
    archs = np.zeros((count, len(bench.space.options)), np.int32)
    return Record(
        archs=archs,
        log_likelihoods=log_probs.sum(axis=1),
        log_probs=log_probs,
        scores=each,
        gram=np.eye(count, dtype=classes.dtype),
        log_prior=each,
        temperature=np.ones((), classes.dtype),
        rule=each + 1 / count,
        counts=np.array([count]),
        effective_sizes=one,
        log_evidence=one,
        evidence_sd=one,
        statuses=np.zeros(1, np.int32),
        test_labels=np.asarray(data.test.labels),
        input_shape=np.array(np.shape(data.train.inputs)[1:], int),
        classes=np.array(data.classes),
    )
