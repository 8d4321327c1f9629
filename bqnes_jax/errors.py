"""The one exception type of the package, and the checks that raise it.

A check looks at shapes always and at values only when they are concrete: under `jit`, `vmap` or
`grad` there are no values to look at, and the functions report through `Status` instead.
"""

from collections.abc import Collection, Iterable
from typing import TypeGuard, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

_LONGEST = 2000  # characters of a message


class BQNESError(Exception):
    """Bad input: the message says what was given, what is allowed and what to do.

    What was given may be megabytes: of a message that is too long the middle is left out.
    """

    def __init__(self, message: str = ""):
        if len(message) > _LONGEST:
            left_out = len(message) - _LONGEST
            ends = message[: _LONGEST // 2], message[-_LONGEST // 2 :]
            message = f" … ({left_out:,} characters) … ".join(ends)
        super().__init__(message)


def check_choice(name: str, value: object, allowed: Collection[object]) -> None:
    """Refuse a value that is not one of the allowed ones."""
    if value not in allowed:
        options = ", ".join(map(repr, allowed))
        raise BQNESError(f"{name} is {value!r}; allowed are {options}.")


def check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but a whole number from `low` to `high`."""
    if not _is_whole(value) or value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise BQNESError(f"{name} is {value!r}; it must be a whole number, {limit}.")


def check_mask(name: str, mask: jax.Array | np.ndarray, length: int) -> None:
    """Refuse anything but one truth value for each of `length` rows."""
    check_shape(name, mask, (length,))
    if mask.dtype != bool:
        raise BQNESError(
            f"{name} has type {mask.dtype}; it must be bool, false for what is left out."
        )


def check_positive(name: str, value: ArrayLike) -> None:
    """Refuse anything but finite numbers above zero, in the precision that JAX computes in.

    A subnormal number is 0 to XLA, and 1e39 is infinite in float32.
    """
    array = concrete(value)
    if array is None:
        return
    if not np.issubdtype(array.dtype, np.number) or not (np.isfinite(array) & (array > 0)).all():
        raise BQNESError(f"{name} is {_show(array)}; it must be positive and finite.")
    if np.issubdtype(array.dtype, np.floating):
        kind = jnp.finfo(jax.dtypes.canonicalize_dtype(array.dtype))
        if not ((array >= kind.tiny) & (array <= kind.max)).all():
            raise BQNESError(
                f"{name} is {_show(array)}; it must be positive and finite in {kind.dtype}: from "
                f"{kind.tiny:.0e} to {kind.max:.0e}."
            )


def check_bounds(name: str, bounds: object) -> None:
    """Refuse anything but a pair 0 < low < high."""
    pair = bounds if isinstance(bounds, tuple) and len(bounds) == 2 else (0, 0)
    if not 0 < pair[0] < pair[1] < float("inf"):
        raise BQNESError(f"{name} is {bounds!r}; it must be a pair (low, high), 0 < low < high.")


def check_shape(name: str, array: jax.Array | np.ndarray, shape: Iterable[int | None]) -> None:
    """Refuse an array of another shape; None stands for any length."""
    shape = tuple(shape)
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise BQNESError(f"{name} has shape {array.shape}; it must have shape ({wanted}).")


def check_finite(name: str, array: ArrayLike, where: ArrayLike | None = None) -> None:
    """Refuse NaN (and infinities), and say where the first one is."""
    values, chosen = concrete(array), concrete(True if where is None else where)
    if values is None or chosen is None:
        return
    bad = ~np.isfinite(values) & chosen
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise BQNESError(
            f"{name} holds {values[place]} at index {place[0] if len(place) == 1 else place} "
            f"({int(bad.sum())} such of {bad.size}); every value must be finite: "
            "mask failed evaluations out."
        )


def check_distribution(name: str, array: ArrayLike, where: ArrayLike | None = None) -> None:
    """Refuse what is not a probability vector along the last axis; `where` picks the vectors."""
    values, chosen = concrete(array), concrete(True if where is None else where)
    if values is None or chosen is None:
        return
    with np.errstate(invalid="ignore"):  # infinities of both signs have no sum: refused below
        bad = np.broadcast_to(chosen & ~is_distribution(values), values.shape[:-1])
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    vector = values[place]
    outside = np.flatnonzero(~(np.isfinite(vector) & (vector >= 0)))
    if outside.size:
        place, given = (*place, int(outside[0])), f"holds {vector[outside[0]]}"
    else:
        given = f"sums to {vector.sum(dtype=float):.7g}"
    index = f"[{', '.join(map(str, place))}]" if place else ""
    among = f" ({int(bad.sum())} bad of {bad.size})" if bad.size > 1 else ""
    raise BQNESError(
        f"{name}{index} {given}{among}; a probability vector must be finite, non-negative and sum "
        f"to 1 within {_sum_tolerance(values.dtype):g}: divide it by its sum, or apply a softmax."
    )


def check_labels(name: str, labels: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Refuse labels that are not classes of predictions of shape (points, classes); return them."""
    points, classes = shape
    values = concrete(labels)
    labels = as_array(labels)
    check_shape(name, labels, (points,))
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise BQNESError(f"{name} are {labels.dtype}; they must be integers from 0 to C - 1.")
    if values is not None and (outside := (values < 0) | (values >= classes)).any():
        place = int(np.flatnonzero(outside)[0])
        raise BQNESError(
            f"{name}[{place}] is {values[place]} ({int(outside.sum())} bad of {points}); "
            f"with {classes} classes a label is from 0 to {classes - 1}."
        )
    return labels.astype(jnp.result_type(int))


@overload
def is_distribution(array: jax.Array) -> jax.Array: ...
@overload
def is_distribution(array: np.ndarray) -> np.ndarray | np.bool_: ...
def is_distribution(array: np.ndarray | jax.Array) -> np.ndarray | np.bool_ | jax.Array:
    """Tell which vectors along the last axis are probability vectors; works on traced values."""
    total = array.sum(-1, dtype=jnp.promote_types(array.dtype, jnp.float32))
    return (array >= 0).all(-1) & (abs(total - 1) <= _sum_tolerance(array.dtype))


def concrete(array: ArrayLike) -> np.ndarray | None:
    """Return the values as NumPy, or None while they are traced."""
    return None if isinstance(array, Tracer) else np.asarray(array)


def as_array(array: ArrayLike) -> jax.Array:
    """Convert to an array of JAX, without the program for each shape that `asarray` compiles."""
    return jax.device_put(array) if isinstance(array, np.ndarray) else jnp.asarray(array)


def as_float(array: ArrayLike) -> jax.Array:
    """Convert to JAX's floating type of the current precision, keeping a floating type as it is."""
    array = as_array(array)
    return (
        array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))
    )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _sum_tolerance(dtype: np.dtype) -> float:
    # float64 leaves room for values that were computed in float32 and widened.
    return 1e-6 if dtype == np.float64 else 1e-4


def _show(array: np.ndarray) -> str:
    if array.ndim == 0:
        return repr(array.item())
    return np.array2string(array, threshold=6, edgeitems=2, precision=4)
