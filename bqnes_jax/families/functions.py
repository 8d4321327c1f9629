"""A family from two functions of your own: one that trains, and one that predicts."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int32

from bqnes_jax.data import Examples, Split
from bqnes_jax.errors import BQNESError
from bqnes_jax.families.base import (
    Evaluation,
    Setting,
    Trainer,
    Variables,
    check_log_probs,
    check_log_probs_shape,
)
from bqnes_jax.files.trees import as_tree
from bqnes_jax.identity import describe_code
from bqnes_jax.parallel import mesh_for
from bqnes_jax.spaces import ChoiceSpace, Space
from bqnes_jax.training.population import in_batches, sum_of_labels
from bqnes_jax.types import PRNGKey

Choices = dict[str, Any]
Train = Callable[[PRNGKey, Choices, Split], Variables]
Predict = Callable[[Variables, Choices, Any], Any]


def from_functions(
    space: ChoiceSpace,
    train: Train,
    predict: Predict,
    *,
    jit: bool = True,
    name: str | None = None,
    manifest: Mapping[str, object] | None = None,
) -> "FunctionFamily":
    """Make a family from a function that trains and a function that predicts.

    Args:
        space: what can be chosen, such as `spaces.Product`.
        train: a function `(key, choices, data)` that returns the variables of a trained network.
            `choices` is a dictionary such as `{"depth": 2}`; `data.train.inputs` and
            `data.train.labels` are arrays, and `data.classes` is a number.
        predict: a function `(variables, choices, inputs)` that returns the log-probabilities of
            the classes, of shape (n, classes).
        jit: compile both for each architecture; architectures of one batch are trained side by
            side on all devices. Otherwise both are called on the host, with NumPy arrays, for one
            architecture at a time: scikit-learn, PyTorch, anything. Variables that are no tree of
            arrays are then not kept, and an ensemble cannot predict anew.
        name: what the family is called; by default the name of `train`.
        manifest: what else decides the result, besides the code of the two functions and the
            seed: versions, or numbers that they read from elsewhere.

    Example:
        >>> from bqnes_jax.spaces import Product
        >>> def train(key, choices, data):  # one number: how sharp to be
        ...     return {"scale": jnp.asarray(choices["scale"])}
        >>> def predict(variables, choices, inputs):
        ...     return jax.nn.log_softmax(inputs * variables["scale"])
        >>> family = from_functions(Product(scale=(0.1, 1.0, 10.0)), train, predict)
        >>> family.name, family.space.size
        ('train', 3)
    """
    if not isinstance(space, ChoiceSpace):
        raise BQNESError(
            f"space is {space!r}; it must have decode(arch) that returns a dictionary of choices, "
            "as bqnes_jax.spaces.Product has."
        )
    for role, function in (("train", train), ("predict", predict)):
        if not callable(function):
            raise BQNESError(f"{role} is {function!r}; it must be a function.")
    return FunctionFamily(
        space,
        train,
        predict,
        jit,
        name or getattr(train, "__name__", type(train).__name__),
        tuple(sorted((manifest or {}).items())),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionFamily:
    """A family of functions; make one with `from_functions`."""

    space: ChoiceSpace
    train: Train
    predict_one: Predict
    jit: bool
    name: str
    described: tuple[tuple[str, object], ...]

    def check(self, data: Split) -> None:
        """Accept any data: the functions know what they need."""

    def manifest(self, classes: int) -> Mapping[str, object]:
        """Describe the code of the functions, and what the user has added."""
        return {
            "family": self.name,
            "code_of_train": describe_code(self.train)[:16],
            "code_of_predict": describe_code(self.predict_one)[:16],
            **dict(self.described),
        }

    def prepare(self, data: Split, setting: Setting) -> Trainer:
        """Return what trains architectures: compiled side by side, or on the host in turn."""
        if not self.jit:
            return Trainer(_on_host(self, data, setting))
        return Trainer(_side_by_side(self, data, setting), _shape_of(data))

    def predict(
        self,
        shared: Variables,
        variables: Sequence[Variables],
        archs: Int32[np.ndarray, "M length"],
        inputs: ArrayLike,
    ) -> Float[np.ndarray, "M n classes"]:
        """Return what networks say about inputs, one network after the other."""
        inputs = np.asarray(inputs)

        def said(own: Variables, arch: np.ndarray) -> np.ndarray:
            text = self.space.to_string(arch)
            with _name_errors(f"predicting with {text}"):
                if self.jit:
                    own = _structure(self, text, *_shapes(shared)).unflatten(own)
                    return np.asarray(_predict_program(self, text)(own, inputs), np.float32)
                choices = self.space.decode(arch)
                return np.asarray(self.predict_one(own, choices, inputs), np.float32)

        return np.stack([said(own, arch) for own, arch in zip(variables, archs, strict=True)])


def key_of(space: Space, arch: Int32[np.ndarray, " length"], seed: int) -> PRNGKey:
    """Return the key that an architecture is trained with: the same in whatever order."""
    number = hashlib.sha256(space.to_string(arch).encode()).digest()[:4]
    return jax.random.fold_in(jax.random.key(seed), int.from_bytes(number, "little"))


TrainMany = Callable[[Int32[np.ndarray, "K length"]], Iterator[list[Evaluation]]]


def _on_host(family: FunctionFamily, data: Split, setting: Setting) -> TrainMany:
    """Return a function that trains architectures one after the other, outside of JAX."""
    data = jax.tree.map(np.asarray, data)
    inputs = np.concatenate([data.valid.inputs, data.test.inputs])

    def one(arch: np.ndarray) -> Evaluation:
        started, text = perf_counter(), family.space.to_string(arch)
        choices = family.space.decode(arch)
        with _name_errors(f"training {text}"):
            try:
                variables = family.train(key_of(family.space, arch, setting.seed), choices, data)
            except (FloatingPointError, np.linalg.LinAlgError):  # by its numbers, not by a mistake
                return Evaluation(seconds=perf_counter() - started)
            kept = _as_kept(variables)
            own = variables if kept is None else kept  # as it will be predicted with later
            log_probs = np.asarray(family.predict_one(own, choices, inputs))
            check_log_probs(log_probs, (len(inputs), data.classes), text)
            fit = sum(
                _sum_of_labels(family.predict_one(own, choices, some.inputs), some.labels)
                for some in _in_parts(data.train, len(inputs))
            )
        return _evaluation(data, log_probs, kept, perf_counter() - started, float(fit))

    def train(archs: Int32[np.ndarray, "K length"]) -> Iterator[list[Evaluation]]:
        for arch in archs:
            yield [one(arch)]

    return train


def _side_by_side(family: FunctionFamily, data: Split, setting: Setting) -> TrainMany:
    """Return a function that trains architectures by programs of their own, on all devices."""
    mesh = mesh_for(setting.asked, setting.mesh)
    devices = [device for device in mesh.devices.flat if device in jax.local_devices()]
    placed = {device: jax.device_put(data, device) for device in devices}
    points = len(data.valid.labels) + len(data.test.labels)
    tried = False

    def one(
        arch: np.ndarray,
        device: jax.Device,  # pyright: ignore[reportInvalidTypeForm] (jaxlib has no stubs)
    ) -> Evaluation:
        started, text = perf_counter(), family.space.to_string(arch)
        key = jax.device_put(key_of(family.space, arch, setting.seed), device)
        with _name_errors(f"training {text}"):
            program = _train_program(family, text)
            variables, log_probs, fit = jax.device_get(program(key, placed[device]))
        check_log_probs(log_probs, (points, data.classes), text)
        return _evaluation(data, log_probs, variables, perf_counter() - started, float(fit))

    def train(archs: Int32[np.ndarray, "K length"]) -> Iterator[list[Evaluation]]:
        nonlocal tried
        start = 0
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            while start < len(archs):
                width = len(devices) if tried else 1  # the first alone: it may be wrong
                some = archs[start : start + width]
                yield list(pool.map(one, some, devices[: len(some)]))
                start, tried = start + width, True

    return train


@functools.lru_cache(maxsize=512)
def _train_program(family: FunctionFamily, text: str):
    """Compile training and predicting of one architecture; variables come out as a list."""
    choices = family.space.decode(family.space.from_string(text))

    def program(key: PRNGKey, data: Split):
        variables = family.train(key, choices, data)
        inputs = jnp.concatenate([data.valid.inputs, data.test.inputs])
        log_probs = jnp.asarray(family.predict_one(variables, choices, inputs))
        check_log_probs_shape(log_probs, (len(inputs), data.classes), text)
        # As many at a time as there are others: what fits into memory once fits again.
        own = in_batches(
            lambda some: jnp.asarray(family.predict_one(variables, choices, some)),
            jnp.asarray(data.train.inputs),
            len(inputs),
        )
        return (
            jax.tree.leaves(variables),
            log_probs,
            sum_of_labels(own, jnp.asarray(data.train.labels)),
        )

    return jax.jit(program)


@functools.lru_cache(maxsize=512)
def _predict_program(family: FunctionFamily, text: str):
    choices = family.space.decode(family.space.from_string(text))
    return jax.jit(lambda variables, inputs: family.predict_one(variables, choices, inputs))


def _shape_of(data: Split) -> Variables:
    """Return, as arrays, what the structure of variables may depend on."""
    inputs = np.asarray(data.train.inputs)
    counts = [len(part.labels) for part in data.parts.values()]
    return {"classes": np.array(data.classes), "counts": np.array(counts), "inputs": inputs[:0]}


def _shapes(shared: Variables) -> tuple[tuple[int, ...], tuple[int, ...], Any, int]:
    """Return the sizes of the parts, the shape and type of an input, and the number of classes."""
    like, counts = shared["inputs"], tuple(map(int, shared["counts"]))
    dtype = jax.dtypes.canonicalize_dtype(like.dtype)  # of the precision in force
    return counts, like.shape[1:], dtype, int(shared["classes"])


@functools.lru_cache(maxsize=512)
def _structure(
    family: FunctionFamily,
    text: str,
    counts: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: Any,
    classes: int,
) -> Any:
    """Return the structure of the variables of an architecture: its training is traced, not run."""
    choices = family.space.decode(family.space.from_string(text))

    def blank() -> Split:
        train, valid, test = (
            Examples(jnp.zeros((count, *shape), dtype), jnp.zeros(count, jnp.int32))
            for count in counts
        )
        return Split(train, valid, test, classes)

    traced = jax.eval_shape(
        lambda key, data: family.train(key, choices, data),
        jax.random.key(0),
        jax.eval_shape(blank),
    )
    return jax.tree.structure(traced)


def _evaluation(
    data: Split, log_probs: np.ndarray, variables: Variables, seconds: float, fit: float
) -> Evaluation:
    """Return what training one architecture gave; it failed where a prediction is not a number.

    How well it fits the training points is for the record: NaN there is no failure.
    """
    if np.isnan(log_probs).any():
        return Evaluation(seconds=seconds)
    valid, test = np.split(np.minimum(log_probs, 0), [len(data.valid.labels)])
    return Evaluation(valid, test, seconds=seconds, variables=variables, train_log_likelihood=fit)


def _in_parts(examples: Examples, size: int) -> Iterator[Examples]:
    for start in range(0, len(examples.labels), size):
        yield Examples(*(array[start : start + size] for array in examples))


def _sum_of_labels(log_probs: ArrayLike, labels: ArrayLike) -> float:
    rows, labels = np.asarray(log_probs), np.asarray(labels)
    return float(rows[np.arange(len(labels)), labels].sum(dtype=float))


def _as_kept(variables: object) -> Variables:
    """Return variables as they can be kept, and read again; None for what is no tree of arrays."""
    try:
        return as_tree(variables)
    except TypeError:
        return None


@contextlib.contextmanager
def _name_errors(what: str) -> Iterator[None]:
    """Say of which architecture an error of the user's functions is."""
    try:
        yield
    except BQNESError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BQNESError(f"{what} raised {type(error).__name__}: {reason}") from error
