"""Calls on the workers of an executor, which may be a cluster: workers are lost, and come back.

Any `concurrent.futures.Executor` will do: `ProcessPoolExecutor`, Dask's `Client.get_executor()`,
and with the adapters here submitit's (Slurm) and Ray's.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from bqnes_jax.elastic import wait_for_first
from bqnes_jax.errors import BQNESError, check_whole

TRIES = 3  # of a call, before it counts as lost
_LOSSES = 10  # of a call that never began: its workers may die of what is sent to them

Workers = int | Callable[[], int]
Future = concurrent.futures.Future

_PATIENCE = 1.0  # seconds; after that, somebody may have joined
# What Dask, submitit and Ray say of a worker that died; they need not be installed.
_DEATHS = {
    "KilledWorker",
    "CommClosedError",
    "UncompletedJobError",
    "WorkerCrashedError",
    "NodeDiedError",
    "OutOfMemoryError",
    "ObjectLostError",
}


class Lost(NamedTuple):
    """What a call comes to whose workers died, or that returned this itself; it says why."""

    reason: str


class Calls:
    """Calls of one function on an executor, each tried again elsewhere when its worker is lost.

    Args:
        executor: who calls.
        function: what is called; it returns `Lost` where another worker may succeed.
        workers: how many calls there can be at once, or a function that tells, if that changes.
    """

    def __init__(
        self, executor: concurrent.futures.Executor, function: Callable[..., Any], workers: Workers
    ) -> None:
        if not isinstance(executor, concurrent.futures.Executor):
            raise BQNESError(
                f"executor is a {type(executor).__name__}; it must be a "
                "concurrent.futures.Executor: of a Dask client give client.get_executor(), around "
                "submitit's executor put bqnes_jax.parallel.OnSubmitit."
            )
        if not callable(workers):
            check_whole("workers", workers, 1)
        self._executor, self._function, self._workers = _sound(executor), function, workers
        self._flying: dict[Future, int] = {}
        self._given: dict[int, tuple[Any, ...]] = {}
        self._tries: collections.Counter[int] = collections.Counter()  # that began
        self._losses: collections.Counter[int] = collections.Counter()
        self._lost: list[tuple[float, int]] = []  # since when, and which

    @property
    def size(self) -> int:
        """How many calls there can be at once."""
        if not callable(self._workers):
            return self._workers
        with _gone_in_a_sentence(OSError, RuntimeError):
            return self._workers()

    def start(self, number: int, *arguments: Any) -> None:
        """Begin a call; of the same number again, with other arguments, is the same call."""
        self._given[number] = arguments
        with _gone_in_a_sentence(OSError, RuntimeError):
            future = self._executor.submit(self._function, *arguments)
        self._flying[future] = number

    def collect(self, *, wait: bool) -> list[tuple[int, Any]]:
        """Return the numbers and results of calls that have ended; with `wait` for a second."""
        self._try_again()
        if wait and not self._flying:
            time.sleep(_PATIENCE / 10)
        ended, done = [], wait_for_first(self._flying, seconds=_PATIENCE if wait else 0.0)
        if wait and not done:
            _ = self.size  # it raises when nobody is left who could end any
        for future in done:
            number = self._flying.pop(future)
            result = self._result_of(future, number)
            if isinstance(result, Lost) and self._may_try_again(number):
                self._lost.append((time.monotonic(), number))
                continue
            del self._given[number]
            ended.append((number, result))
        return sorted(ended, key=lambda pair: pair[0])

    def _may_try_again(self, number: int) -> bool:
        return self._tries[number] < TRIES and self._losses[number] < _LOSSES

    def _try_again(self) -> None:
        """Begin lost calls again, after a second: by then it is known who is left to do them."""
        for since, number in list(self._lost):
            late = time.monotonic() - since > _PATIENCE
            if late and len(self._flying) < max(self.size, 1):
                self._lost.remove((since, number))
                self.start(number, *self._given[number])

    def cancel(self) -> None:
        """Take back what has not begun; nobody waits for the rest."""
        for future in self._flying:
            future.cancel()

    def _result_of(self, future: Future, number: int) -> Any:
        """Return the result of a call, or that it is lost; raise what nobody can mend."""
        begun = 1
        try:
            with _gone_in_a_sentence():
                result = future.result()
        except BQNESError:
            raise
        except Exception as error:
            if not _is_death(error):
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise BQNESError(
                    f"a worker cannot do its work ({reason}); give all workers the same packages "
                    "and modules as here."
                ) from error
            begun = getattr(error, "begun", 1)  # Dask tries again itself, or has not begun
            result = Lost(" ".join(str(error).split())[:300])
        if isinstance(result, Lost):
            self._tries[number] += begun
            self._losses[number] += 1
        return result


def _is_death(error: Exception) -> bool:
    """Tell whether an error is about a worker, and not about its work."""
    names = {kind.__name__ for kind in type(error).__mro__}
    own = "FailedJobError" in names  # submitit's, of an error in the job: a death is its parent
    return isinstance(error, OSError | EOFError | MemoryError) or bool(names & _DEATHS and not own)


@contextlib.contextmanager
def _gone_in_a_sentence(*kinds: type[Exception]) -> Iterator[None]:
    """Say that nobody is left, by errors of these kinds: a pool broke, or a scheduler died."""
    try:
        yield
    except (concurrent.futures.CancelledError, concurrent.futures.BrokenExecutor, *kinds) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")[:200]
        raise BQNESError(
            f"the workers are gone: their pool or their scheduler has ended ({reason}); what was "
            "trained is stored: start them again, and give the same command."
        ) from None


def _sound(executor: concurrent.futures.Executor) -> concurrent.futures.Executor:
    """Return what stands in for Dask's own executor, and any other as it is."""
    if type(executor).__name__ != "ClientExecutor":
        return executor
    return OnDask(executor._client, **executor._kwargs)  # type: ignore[attr-defined]


class OnDask(concurrent.futures.Executor):
    """An executor of Dask's tasks that tells of those whose workers died how often they had begun.

    Dask blames a death on all that was sent to a worker, also on what waited there. And its own
    executor never ends a task whose result is lost on its way and cannot be made again.

    Args:
        client: Dask's.
        **options: of each task: resources, workers, ….
    """

    def __init__(self, client: Any, **options: Any) -> None:
        self._client, self._options = client, {**options, "pure": False}  # not the same call again

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit a task."""
        from distributed import Queue

        # It is there before any worker writes into it: the last one to let go of it removes it.
        begun = Queue(f"begun-{secrets.token_hex(8)}", client=self._client)
        task = self._client.submit(_begin, begun.name, fn, args, kwargs, **self._options)
        future: Future = Future()

        def take_back(done: Future) -> None:
            if done.cancelled() and task.status != "cancelled":
                task.cancel()

        future.add_done_callback(take_back)
        self._client.loop.add_callback(_pass_on, task, begun, future)
        return future


def _begin(name: str, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Call a function on a worker, after the scheduler has heard of it.

    A scheduler of somebody else's may send it to more workers than it should be tried on.
    """
    from distributed import Queue

    queue: Any = Queue(name)
    queue.put(None)
    begun = cast(int, queue.qsize())  # a coroutine only where its client is one
    queue.close()
    if begun > TRIES:
        raise ConnectionError(f"{begun - 1} workers that had begun it were lost")
    return function(*args, **kwargs)


async def _pass_on(task: Any, begun: Any, future: Future) -> None:
    """Wait for a task, and let a future have its result or error."""
    error = result = None
    try:
        result = await task
    except asyncio.CancelledError:
        future.cancel()
    except Exception as raised:
        error = raised
        with contextlib.suppress(Exception):
            error.begun = await begun.qsize()  # type: ignore[attr-defined]
    if future.set_running_or_notify_cancel():
        future.set_result(result) if error is None else future.set_exception(error)
    with contextlib.suppress(Exception):  # the scheduler may be gone
        begun.close()


class OnSubmitit(concurrent.futures.Executor):
    """An executor of submitit's jobs: of Slurm, or local processes.

    Args:
        executor: submitit's, with the resources of one job.
        poll: seconds between two looks at the jobs.
    """

    def __init__(self, executor: Any, *, poll: float = 1.0) -> None:
        self._executor, self._poll = executor, poll
        self._jobs: dict[Future, Any] = {}
        self._lock, self._watcher = threading.Lock(), None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit a job."""
        future: Future = Future()
        future.set_running_or_notify_cancel()
        job = self._executor.submit(fn, *args, **kwargs)
        with self._lock:
            self._jobs[future] = job
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the jobs, or cancel them."""
        with self._lock:
            jobs = dict(self._jobs)
        if cancel_futures:
            for job in jobs.values():
                job.cancel()
        if wait:
            concurrent.futures.wait(jobs)

    def _watch(self) -> None:
        while True:
            with self._lock:
                jobs = dict(self._jobs)
                if not jobs:
                    self._watcher = None
                    return
            for future, job in jobs.items():
                if job.done():
                    with self._lock:
                        del self._jobs[future]
                    try:
                        future.set_result(job.result())
                    except BaseException as error:
                        future.set_exception(error)
            time.sleep(self._poll)


class OnRay(concurrent.futures.Executor):
    """An executor of Ray's tasks, after `ray.init()`.

    Args:
        **options: of each task: num_cpus, num_gpus, resources, ….
    """

    def __init__(self, **options: Any) -> None:
        import ray  # pyright: ignore[reportMissingImports] (an extra)

        self._remote = lambda function: ray.remote(function).options(max_retries=0, **options)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit a task."""
        return self._remote(fn).remote(*args, **kwargs).future()
