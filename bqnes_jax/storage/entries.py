"""From what a family trains to what a store keeps."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bqnes_jax.data import Split, fingerprint
from bqnes_jax.families import Evaluation, NetworkFamily
from bqnes_jax.families.base import check_log_probs
from bqnes_jax.identity import describe_value
from bqnes_jax.spaces import ChoiceSpace, Seeded
from bqnes_jax.storage.records import FAILED, OK, Entry, Manifest

CHOICES = "choices"  # of a space whose name does not say what can be chosen
_LEAST = float(np.finfo(np.float32).min)


def manifest_of(family: NetworkFamily, data: Split, *, dtype: str = "float16") -> Manifest:
    """Describe the store of what a family trains on these data."""
    config = {
        **describe_family(family, data.classes),
        "precision": jnp.result_type(float).name,
        "train_points": len(data.train.labels),
        "inputs": fingerprint(data),
    }
    points = len(data.valid.labels), len(data.test.labels)
    return Manifest(family.space.name, data.name, config, *points, data.classes, dtype=dtype)


def describe_family(family: NetworkFamily, classes: int) -> dict[str, object]:
    """Describe, as JSON can, what a family trains, and the choices of its space if it has any."""
    space = family.space.base if isinstance(family.space, Seeded) else family.space
    choices = {CHOICES: describe_value(space)} if isinstance(space, ChoiceSpace) else {}
    return {**family.manifest(classes), **choices}


def entry_of(evaluation: Evaluation, arch: str, seed: int, data: Split) -> Entry:
    """Return the entry of one architecture."""
    valid, test = evaluation.valid_log_probs, evaluation.test_log_probs
    if valid is None or test is None:
        return Entry(arch, seed, FAILED, seconds=evaluation.seconds)
    for said, labels in ((valid, data.valid.labels), (test, data.test.labels)):
        check_log_probs(np.asarray(said), (len(labels), data.classes), arch)
    return Entry(
        arch,
        seed,
        OK,
        valid,
        test,
        evaluation.train_loss,
        mean_loss(valid, data.valid.labels),
        mean_loss(test, data.test.labels),
        evaluation.seconds,
        evaluation.variables,
        max(evaluation.train_log_likelihood, _LEAST),  # an infinite one is as good as unknown
    )


def mean_loss(log_probs: np.ndarray, labels: np.ndarray | Array) -> float:
    """Return the mean negative log-likelihood of the labels."""
    return float(-np.mean(log_probs[np.arange(len(log_probs)), np.asarray(labels)]))
