"""Clusters of Dask: one of processes on this machine, or one that is running elsewhere."""

import contextlib
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import NamedTuple

from bqnes_jax.errors import BQNESError, check_whole
from bqnes_jax.parallel.devices import host_memory
from bqnes_jax.parallel.executors import OnDask, Workers

_SECONDS = 15  # that a scheduler may take to answer
_CLOSING = 5  # seconds, after which processes are left to end with this one
_LEAST_MEMORY = 1 << 28  # bytes; Python with JAX takes as much before it trains anything
_FOREVER = 10**9  # seconds
_FRESH = 0.2  # seconds that the number of workers is remembered
_LOGGERS = ("distributed", "distributed.client")  # Dask gives the second a level of its own
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")  # the last: XLA


class Cluster(NamedTuple):
    """Workers of a cluster: the executor that they belong to, and how many there are."""

    executor: Executor
    workers: Workers


@contextlib.contextmanager
def open_cluster(where: str) -> Iterator[Cluster]:
    """Start a number of processes on this machine, or use the cluster of a scheduler.

    Processes divide the threads and the memory of the machine among them; one that is killed is
    started again. In a cluster, workers may join and leave at any time: there are as many as have
    threads.

    Args:
        where: a number, or the address of a scheduler such as "tcp://host:8786".
    """
    try:
        from distributed import Client
    except ImportError:
        raise BQNESError(
            f"workers is {where!r}, which needs Dask; install it with pip install "
            "'bqnes-jax[cluster]', or leave it out."
        ) from None
    if "://" not in where:
        if not re.fullmatch(r"[0-9]{1,9}", where):
            raise BQNESError(
                f"workers is {where!r}; it must be a number of processes, or the address of a "
                "scheduler such as tcp://host:8786."
            )
        count = int(where)
        check_whole("workers", count, 1)
        share = host_memory() // count
        if share < _LEAST_MEMORY:
            raise BQNESError(
                f"workers is {count:,}; each would have {share // 2**20:,} MB of the memory of "
                f"this machine, and a process needs {_LEAST_MEMORY // 2**20}: use fewer."
            )
        with _local_cluster(count) as cluster, _close_after(Client(cluster)) as client:
            yield Cluster(OnDask(client), _Threads(client, cluster))
        return
    for name in _LOGGERS:  # what matters is said in sentences
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(where, timeout=_SECONDS)
    except Exception as error:  # each protocol has its own kinds
        reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise BQNESError(
            f"workers is {where!r}, where no scheduler answers ({reason}); start one with `dask "
            "scheduler`, and workers with `dask worker`."
        ) from None
    with _close_after(client):
        if not client.nthreads():
            text = f"{where} has no workers yet; training begins with the first."
            warnings.warn(text, stacklevel=3)
        yield Cluster(OnDask(client), _Threads(client))


class _Threads:
    """How many threads the workers of a cluster have, asked once in a while.

    Of a cluster of our own OSError says that there are none, and that none will come.
    """

    def __init__(self, client, own=None) -> None:
        self._client, self._own, self._asked, self._count = client, own, -1.0, 0

    def __call__(self) -> int:
        if time.monotonic() - self._asked > _FRESH:
            self._count = sum(self._client.nthreads().values())
            self._asked = time.monotonic()
            if self._count == 0 and self._own is not None and _has_ended(self._own):
                raise ConnectionError("none of its processes could be started again")
        return self._count


def _has_ended(cluster) -> bool:
    """Tell whether nothing is left that would start a process again."""
    ended = {"closing", "closed", "failed"}
    return all(nanny.status.name in ended for nanny in cluster.workers.values())


@contextlib.contextmanager
def _local_cluster(count: int) -> Iterator:
    """Start processes that share the machine; a task whose process dies is ours to try again."""
    from dask import config
    from distributed import LocalCluster

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = str(max((cores or 1) // count, 1))
    settings = {
        "distributed.scheduler.allowed-failures": 0,
        # By default one that grows to 80 % begins nothing more, and waits for less: for ever.
        "distributed.worker.memory.pause": False,
        # By default one that is not there 15 s after it died, dead again perhaps, is given up.
        "distributed.deploy.lost-worker-timeout": _FOREVER,
        "distributed.nanny.pre-spawn-environ": dict.fromkeys(_THREADS, threads),
    }
    with config.set(settings):
        cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=host_memory() // count,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.CRITICAL,
        )
        with _close_after(cluster):
            yield cluster


@contextlib.contextmanager
def _close_after(opened) -> Iterator:
    """Close a client or a cluster, without waiting for what is gone or just starting again."""
    try:
        yield opened
    finally:
        with contextlib.suppress(Exception):
            opened.close(timeout=_CLOSING)
