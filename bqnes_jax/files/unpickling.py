"""Pickles, read without trust.

A pickle may name any function to be called. Here a name stands for one of a few harmless things, or
is refused; and only what is made for it (`Stateful`) can be set to something afterwards (BUILD).
What is left are containers, which can still be made to take forever or all memory: a few bytes nest
pairs of pairs so deep that hashing them never ends. So keys are plain, and there are bounds on how
deep containers are nested, on how many there are, and on how many opcodes a pickle has.
"""

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

import numpy as np

from bqnes_jax.errors import BQNESError
from bqnes_jax.files.untrusted import Bounded

_LIMIT = 1 << 29  # bytes; the largest published file has a third
_OPCODES = 1 << 20  # the largest published file has a fifth
_CONTAINERS = 1 << 17
_LEVELS = 32  # published files are seven deep
_PARTS = 32  # of a key, and arguments of a call

_AS_THEY_ARE = (
    *("PROTO", "FRAME", "STOP", "POP", "POP_MARK", "GLOBAL", "STACK_GLOBAL", "BINPERSID"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES"),
    *("SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "MEMOIZE"),
)
_THAT_MAKE_CONTAINERS = (
    *("MARK", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_LIST", "LIST", "EMPTY_DICT", "EMPTY_SET"),
)
_CONTAINER = list | tuple | dict | set | frozenset
_Handler = Callable[[Any], None]
_OF_PICKLE: dict[int, _Handler] = pickle._Unpickler.dispatch


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


def make_dict(pairs: Iterable[tuple[Any, Any]] = ()) -> dict:
    """Return a dict with plain keys: what pickles may call in the place of `OrderedDict`."""
    return {_plain(key): value for key, value in pairs}


def _count_steps(handler: _Handler) -> _Handler:
    def count(self: "Unpickler") -> None:
        self._count_containers(1)
        handler(self)

    return count


class Unpickler(pickle._Unpickler):  # in C a wrong byte can ask for gigabytes of memory
    """Reads what is admitted, by module and name, and refuses everything else."""

    admitted: ClassVar[dict[tuple[str, str], object]] = {}
    reads = "file"  # in the error
    opcodes: ClassVar[int | None] = None  # how many there may be, if fewer than usual
    stack: list[Any]  # of pickle, which does not declare it
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BufferedIOBase, *, encoding: str = "ASCII"):
        super().__init__(file, encoding=encoding)  # type: ignore[call-arg]
        self.dispatch = _Counted(self.dispatch, self.opcodes or _OPCODES)  # pyright: ignore[reportAttributeAccessIssue]
        self._containers = 0

    @classmethod
    def read(cls, file: io.BufferedIOBase, encoding: str = "ASCII") -> Any:
        """Read the one object of a file."""
        content = Bounded(file, _LIMIT)
        found = cls(content, encoding=encoding).load()
        if content.read(1):
            raise pickle.UnpicklingError("it goes on after its end")
        return found

    def load(self) -> Any:
        """Read an object."""
        found = super().load()
        _check_depth(found)
        return found

    def find_class(self, module: str, name: str) -> object:
        """Return what a name stands for."""
        module = module.replace("numpy._core", "numpy.core")  # renamed in NumPy 2
        if (module, name) not in self.admitted:
            asked = f"{module}.{name}"[:80]
            raise BQNESError(
                f"a file asks for {asked}, which no {self.reads} needs; it is not safe to read: "
                "get it again from its authors."
            )
        return self.admitted[module, name]

    def _set_state(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Stateful):
            self.stack[-1].state = state

    def _call(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if type(arguments) is not tuple or len(arguments) > _PARTS or not callable(function):
            raise pickle.UnpicklingError("it calls what is no function, or with too much")
        for argument in arguments:  # the same one may be given to many calls, which copy it
            self._count_containers(len(argument) if isinstance(argument, _CONTAINER) else 0)
        self.stack[-1] = function(*arguments)

    def _append(self) -> None:
        value = self.stack.pop()
        self._top(list).append(value)

    def _extend(self) -> None:
        values = self.pop_mark()
        self._top(list).extend(values)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top(dict)[_plain(key)] = value

    def _set_items(self) -> None:
        items = self.pop_mark()
        self._top(dict).update(make_dict(zip(items[::2], items[1::2], strict=True)))

    def _add_items(self) -> None:
        members = self.pop_mark()
        self._top(set).update(map(_plain, members))

    def _make_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append(make_dict(zip(items[::2], items[1::2], strict=True)))

    def _make_frozen_set(self) -> None:
        self.stack.append(frozenset(map(_plain, self.pop_mark())))

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise pickle.UnpicklingError(f"it fills a {kind.__name__} where there is none")
        return self.stack[-1]

    def _count_containers(self, count: int) -> None:
        self._containers += count
        if self._containers > _CONTAINERS:
            raise pickle.UnpicklingError(f"it has more than {_CONTAINERS:,} containers")

    dispatch: ClassVar[dict[int, _Handler]] = {
        **{getattr(pickle, name)[0]: _OF_PICKLE[getattr(pickle, name)[0]] for name in _AS_THEY_ARE},
        **{
            getattr(pickle, name)[0]: _count_steps(_OF_PICKLE[getattr(pickle, name)[0]])
            for name in _THAT_MAKE_CONTAINERS
        },
        pickle.DICT[0]: _count_steps(_make_dict),
        pickle.FROZENSET[0]: _count_steps(_make_frozen_set),
        pickle.REDUCE[0]: _count_steps(_call),
        pickle.BUILD[0]: _set_state,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _extend,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.ADDITEMS[0]: _add_items,
    }


class _Counted(dict[int, _Handler]):
    """What each opcode does; there is an end to how many are looked up."""

    def __init__(self, handlers: dict[int, _Handler], limit: int):
        super().__init__(handlers)
        self._limit, self._count = limit, 0

    def __getitem__(self, code: int) -> _Handler:
        self._count += 1
        if self._count > self._limit:
            raise pickle.UnpicklingError(f"it has more than {self._limit:,} opcodes")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError(f"it has the opcode {code}, which none of its kind has")


def _plain(key: Any) -> Any:
    """Return what may be a key; hashing takes next to no time."""
    parts = key if type(key) is tuple else (key,)
    for part in parts[: _PARTS + 1]:
        number = type(part) is int and -(2**63) <= part < 2**63
        if len(parts) > _PARTS or not (number or type(part) in (str, bytes)):
            raise pickle.UnpicklingError("it has a key that is neither text, a number nor a pair")
    return key


def _check_depth(found: object) -> None:
    """Refuse what is nested too deep, or within itself; what is shared is looked at again."""
    below, seen = [(found, 0)], {}
    while below:
        one, level = below.pop()
        if seen.get(id(one), -1) >= level:
            continue
        if level > _LEVELS:
            raise pickle.UnpicklingError(f"it is nested more than {_LEVELS} levels deep")
        seen[id(one)] = level
        below.extend((p, level + 1) for p in _parts_of(one) if isinstance(p, _NESTED))


def _parts_of(one: object) -> Iterable:
    if isinstance(one, Stateful):
        return (one.state,)
    if isinstance(one, dict):
        return one.values()
    return one if isinstance(one, list | tuple) else ()


_NESTED = Stateful | _CONTAINER
