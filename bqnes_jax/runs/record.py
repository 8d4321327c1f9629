"""What is kept of a search: its candidates in their order, and what was believed."""

import io
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bqnes_jax.candidates import History
from bqnes_jax.data import Split
from bqnes_jax.drivers import Recorded, Searched
from bqnes_jax.files import check_bound, refuse_damaged, write_bound
from bqnes_jax.files.arrays import read_arrays
from bqnes_jax.spaces import Space
from bqnes_jax.types import Status


class Record(NamedTuple):
    """A finished search: n candidates in their order, and what was believed at T steps.

    Attributes:
        archs: the candidates.
        log_likelihoods: summed over the validation points; NaN where the training failed.
        log_probs: of the true class of each validation point.
        scores: with which each was asked for.
        gram: how alike they are, by the kernel fitted last.
        log_prior: the logarithm of their prior, up to a constant.
        temperature: by which the log-likelihoods were divided.
        rule: the weights of a quadrature of the prior on them.
        counts: how many candidates there were at each step.
        effective_sizes: of the posterior over them then: how many equally likely ones it is worth.
        log_evidence: log Ẑ of the tempered likelihood then.
        evidence_sd: its standard deviation, of the surrogate and of sampling together.
        statuses: what went differently then, as `types.Status`.
        test_labels: the classes of the test points.
        input_shape: of one input.
        classes: how many classes there are.
    """

    archs: Int[np.ndarray, "n length"]
    log_likelihoods: Float[np.ndarray, " n"]
    log_probs: Float[np.ndarray, "n valid"]
    scores: Float[np.ndarray, " n"]
    gram: Float[np.ndarray, "n n"]
    log_prior: Float[np.ndarray, " n"]
    temperature: Float[np.ndarray, ""]
    rule: Float[np.ndarray, " n"]
    counts: Int[np.ndarray, " T"]
    effective_sizes: Float[np.ndarray, " T"]
    log_evidence: Float[np.ndarray, " T"]
    evidence_sd: Float[np.ndarray, " T"]
    statuses: Int[np.ndarray, " T"]
    test_labels: Int[np.ndarray, " m"]
    input_shape: Int[np.ndarray, " axes"]
    classes: Int[np.ndarray, ""]

    @property
    def status(self) -> Status:
        """What went differently at the last step."""
        return Status(int(self.statuses[-1]))

    @property
    def history(self) -> History:
        """The candidates as a search has them."""
        archs, log_likelihoods, log_probs, scores = map(jax.device_put, self[:4])
        return History(
            archs.astype(jnp.int32), log_likelihoods, log_probs, scores, jnp.int32(len(archs))
        )

    @property
    def beginning(self) -> Recorded:
        """The candidates as the beginning of a longer search."""
        return Recorded(jnp.asarray(self.archs, jnp.int32), jnp.asarray(self.scores))


def make_record(
    searched: Searched,
    gram: Float[np.ndarray, "N N"],
    log_prior: Float[np.ndarray, " N"],
    rule: Float[np.ndarray, " N"],
    data: Split,
) -> Record:
    """Keep of a search what ensembles and reports need."""
    history, trace = searched
    count, evidence, log_probs = int(history.count), trace.evidence, history.log_probs
    assert log_probs is not None  # whatever was trained has predicted
    values = (
        history.archs[:count],
        history.log_likelihoods[:count],
        log_probs[:count],
        history.scores[:count],
        gram[:count, :count],
        log_prior[:count],
        trace.temperature[-1],
        rule[:count],
        trace.count,
        trace.effective_size,
        evidence.log_evidence,
        np.hypot(evidence.posterior_sd, evidence.sampling_sd),
        evidence.status,
        np.asarray(data.test.labels),
        np.array(np.shape(data.train.inputs)[1:], int),
        np.array(data.classes),
    )
    return Record(*map(np.asarray, values))


def write_record(path: Path, record: Record) -> None:
    """Write a record whole or not at all, bound by its digest."""
    content = io.BytesIO()
    np.savez_compressed(content, **record._asdict())
    write_bound(path, content.getvalue())


def read_record(path: Path, space: Space) -> Record:
    """Read a record of a search in a space; refuse one that is damaged."""
    remedy = "remove it and give the command of the run again: what was trained is in its store."
    check_bound(path, remedy)
    with refuse_damaged(path, "is damaged", remedy=remedy):
        record = read_arrays(path, Record)
        _check(record, space)
    return record


def _check(record: Record, space: Space) -> None:
    """Refuse candidates that are not of the space, and numbers that are not of this search."""
    count, length = record.archs.shape
    options = space.options
    sound = (
        count > 0
        and length == len(options)
        and np.all((record.archs >= 0) & (record.archs < options))
        and 0 < record.temperature < np.inf
        and len(record.counts) > 0
        and np.all((record.counts >= 0) & (record.counts <= count))
        and np.all((record.statuses >= 0) & (record.statuses <= sum(Status)))
        and record.classes >= 2
        and np.all((record.test_labels >= 0) & (record.test_labels < record.classes))
        and np.all(record.input_shape > 0)
    )
    if not sound:
        raise ValueError("its numbers are out of range")
