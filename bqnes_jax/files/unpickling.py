"""Pickles, read without trust.

A pickle may name any function to be called. Here a name stands for one of a few harmless things, or
is refused; and only what is made for it (`Stateful`) can be set to something afterwards (BUILD).
"""

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import read_at_most

_LIMIT = 1 << 29  # bytes; the largest published file has a third


class Stateful:
    """What a pickle may give a state to; nothing is done with it until it is asked for."""

    state: Any = None


class NumberType(Stateful):
    """The type of NumPy's numbers as it is pickled: its name, and then, as a state, its order."""

    def __init__(self, code: object, *_: object):
        if code not in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"):
            raise pickle.UnpicklingError("it holds an array of type other than numbers")
        self.code = code

    @property
    def dtype(self) -> np.dtype:
        """The type itself."""
        order = "<" if self.state is None else self.state[1]
        if order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError("it holds an array without a byte order")
        return np.dtype(order.replace("|", "=") + self.code)


class Unpickler(pickle._Unpickler):  # in C a wrong byte can ask for gigabytes of memory
    """Reads what is admitted, by module and name, and refuses everything else."""

    admitted: ClassVar[dict[tuple[str, str], object]] = {}
    reads = "file"  # in the error
    stack: list[Any]  # of pickle, which does not declare it

    @classmethod
    def read(cls, file: io.BufferedIOBase, encoding: str = "ASCII") -> Any:
        """Read the one object of a file."""
        content = io.BytesIO(read_at_most(file, _LIMIT))  # others set aside what a byte asks for
        found = cls(content, encoding=encoding).load()
        if content.read(1):
            raise pickle.UnpicklingError("it goes on after its end")
        return found

    def find_class(self, module: str, name: str) -> object:
        """Return what a name stands for."""
        module = module.replace("numpy._core", "numpy.core")  # renamed in NumPy 2
        if (module, name) not in self.admitted:
            raise BQNESError(
                f"a file asks for {module}.{name}, which no {self.reads} needs; it is not safe to "
                "read: get it again from its authors."
            )
        return self.admitted[module, name]

    def _set_state(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Stateful):
            self.stack[-1].state = state

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _set_state,
    }
    del dispatch[pickle.BYTEARRAY8[0]]  # it takes memory before there is anything to fill it
