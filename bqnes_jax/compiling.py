"""Programs that run for milliseconds, and need not be compiled for seconds."""

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

# Half the time of compiling, for programs that take up to twice as long as they could.
_LITTLE = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,  # which JAX 0.12 has no longer
}

P = ParamSpec("P")
R = TypeVar("R")


def jit_quickly(
    static_argnames: str | Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a `jax.jit` that optimises little on CPUs; in another program it is `jax.jit`.

    Example:
        >>> @jit_quickly("times")
        ... def repeat(x, times):
        ...     return times * x
        >>> float(repeat(2.0, times=3)), float(jax.jit(lambda x: repeat(x, times=2))(3.0))
        (6.0, 6.0)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        as_part = jax.jit(function, static_argnames=static_argnames)

        @functools.cache
        def alone() -> Callable[P, R]:
            return jax.jit(
                function, static_argnames=static_argnames, compiler_options=little_optimisation()
            )

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # XLA takes options for whole programs only, whatever the arguments of a part are.
            parts = jax.tree.leaves((args, kwargs, jnp.zeros(())))
            traced = any(isinstance(leaf, Tracer) for leaf in parts)
            return (as_part if traced else alone())(*args, **kwargs)

        return call

    return decorate


def call_apart(function: Callable[[], R]) -> R:
    """Call a function of known numbers while another may be traced, of which it is no part.

    Traces are those of a thread, and so it has its own. `jax.ensure_compile_time_eval` would make
    a program of every constant in what the function compiles.

    Example:
        >>> jax.jit(lambda x: x + call_apart(lambda: int(jnp.arange(3).sum())))(1).item()
        4
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


@functools.cache
def little_optimisation() -> dict[str, bool | int] | None:
    """Return options for a compiler that is to be quick; None where $XLA_FLAGS says how quick."""
    told = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    if told or jax.default_backend() != "cpu":
        return None
    return {name: value for name, value in _LITTLE.items() if _is_known(name, value)} or None


def _is_known(name: str, value: bool | int) -> bool:
    """Tell whether XLA knows an option of that name; it refuses others."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True
