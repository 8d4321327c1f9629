"""What identifies a piece of work: those fields of its config that decide the result.

Each field of a config is marked once, by its role: most decide what is trained, and so who a run,
a store or a checkpoint is; others decide only how far a search goes, how fast it is, or what is
selected in the end. The identity is what is left without those.

    @dataclasses.dataclass(frozen=True)
    class Config:
        epochs: int = 200
        chunk: int = field(SPEED, default=4)
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

Role = Literal["extent", "speed", "selection", "prediction"]

EXTENT: Role = "extent"  # how far a search goes: more of it is the same work, continued
SPEED: Role = "speed"  # how fast, where, or how precisely something is done
SELECTION: Role = "selection"  # what is chosen from what was trained
PREDICTION: Role = "prediction"  # how predictions are made with what was trained

_ROLE = "role"


def field(role: Role, **options: Any) -> Any:
    """Return a field of a dataclass with that role; options are those of `dataclasses.field`."""
    return dataclasses.field(metadata={_ROLE: role}, **options)


def identity(config: object, *, predicts: bool = True) -> dict[str, Any]:
    """Return the fields of a config, and of configs within it, that decide what is trained.

    What decides only how predictions are made with it is part of that, unless `predicts` is false:
    to a store it matters, to the checkpoint of a training it does not.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Config:
        ...     epochs: int = 200
        ...     chunk: int = field(SPEED, default=4)
        >>> identity(Config())
        {'epochs': 200}
    """
    return {
        one.name: _plain(getattr(config, one.name))
        for one in dataclasses.fields(config)  # type: ignore[arg-type]
        if _counts(one, predicts)
    }


def _counts(one: dataclasses.Field[Any], predicts: bool = True) -> bool:
    role = one.metadata.get(_ROLE)
    return role is None or (role == PREDICTION and predicts)


def canonical(content: object) -> bytes:
    """Write JSON in one way only, so that equal contents have equal hashes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(content: object) -> str:
    """Return the sha256 of what JSON can express, independent of the order of fields."""
    return hashlib.sha256(canonical(content)).hexdigest()


def first_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], *, prefix: str = ""
) -> tuple[str, object, object] | None:
    """Return the first field in which two identities differ, and both of its values.

    Example:
        >>> first_difference({"train": {"steps": 3}}, {"train": {"steps": 4}})
        ('train.steps', 3, 4)
    """
    absent = "(absent)"
    for name in [*old, *(name for name in new if name not in old)]:
        a, b = old.get(name, absent), new.get(name, absent)
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return first_difference(a, b, prefix=f"{prefix}{name}.")
        return prefix + name, a, b
    return None


def describe_code(function: Callable[..., Any]) -> str:
    """Return a hash of what a function does, by its code without comments, docstrings and layout.

    With it counts what it refers to by name: values, functions and classes outside of it, in its
    closure, in its defaults, bound by `functools.partial`, and the object of a method. Installed
    packages, this one among them, count by the names of what is used of them. What is reached
    through a module or an attribute (`settings.RATE`) is not seen.

    Example:
        >>> describe_code(lambda x: x + 1) == describe_code(lambda x: x + 2)
        False
    """
    return _describe_callable(function, frozenset())


_Seen = frozenset[int]  # what is being described: it may refer to itself


def _describe_callable(function: Any, seen: _Seen) -> str:
    function = inspect.unwrap(function)
    if id(function) in seen:
        return getattr(function, "__qualname__", type(function).__qualname__)
    seen |= {id(function)}
    if isinstance(function, functools.partial):
        bound = [*function.args, function.keywords]
        own = _describe_callable(function.func, seen)
        return digest([own, *(_describe(value, seen) for value in bound)])
    if isinstance(function, types.MethodType):
        parts = (function.__func__, function.__self__)
        return digest([_describe(part, seen) for part in parts])
    if isinstance(function, type):
        return digest(_describe_class(function, seen))
    if isinstance(function, types.FunctionType):
        return digest(_describe_function(function, seen))
    fields = _fields(function, seen) if dataclasses.is_dataclass(function) else None
    name = getattr(function, "__qualname__", getattr(function, "__name__", None))
    return digest([_describe_callable(type(function), seen), name, fields])


def _describe_function(function: types.FunctionType, seen: _Seen) -> list[object]:
    bound = [
        *(function.__defaults__ or ()),
        function.__kwdefaults__ or {},
        *(cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)),
    ]
    values = [_describe(value, seen) for value in bound]
    if _is_installed(function.__code__.co_filename):
        return [function.__module__, function.__qualname__, values]
    code = _source(function) or _describe_bytecode(function.__code__)
    return [code, values, _describe_globals(function, seen)]


def _describe_class(kind: type, seen: _Seen) -> list[object]:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ != "__main__" and module and (file is None or _is_installed(file)):
        return [kind.__module__, kind.__qualname__]
    bases = [_describe_callable(base, seen) for base in kind.__bases__]
    unwrapped = (inspect.unwrap(one) for one in vars(kind).values() if callable(one))
    methods = [one for one in unwrapped if isinstance(one, types.FunctionType)]
    source = _source(kind)
    if source is not None:
        return [source, bases, [_describe_globals(one, seen) for one in methods]]
    own = [one for one in methods if not _is_installed(one.__code__.co_filename)]
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    defaults = [[one.name, _describe(one.default, seen)] for one in fields]
    return [kind.__qualname__, bases, [_describe_function(one, seen) for one in own], defaults]


def _describe_globals(function: types.FunctionType, seen: _Seen) -> list[object]:
    """Describe what the code of a function refers to in its module, but for other modules."""
    there = function.__globals__
    used = {name: there[name] for name in sorted(_names(function.__code__)) if name in there}
    return [
        [name, _describe(value, seen)]
        for name, value in used.items()
        if not isinstance(value, types.ModuleType)
    ]


def _names(code: types.CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # a name that has no value yet
        return False
    return True


def _is_installed(file: str) -> bool:
    """Tell whether code comes from an installed package, or from this one."""
    path = Path(file)
    places = (Path(sysconfig.get_path("stdlib")), Path(__file__).parent)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or file.startswith("<frozen") or any(map(path.is_relative_to, places))


def _source(function: Any) -> str | None:
    """Return the code of a function or class, as Python writes it; None if it cannot be found."""
    try:
        if function.__name__ != "<lambda>":
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            return ast.unparse(_without_docstrings(tree))
        tree = ast.parse("".join(inspect.findsource(function)[0]))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt
        return None
    code = function.__code__
    lambdas = (node for node in ast.walk(tree) if isinstance(node, ast.Lambda))
    on_line = (node for node in lambdas if node.lineno == code.co_firstlineno)
    found = [node for node in on_line if _is_compiled_from(code, node)]
    return ast.unparse(found[-1]) if found else None


def _without_docstrings(tree: ast.Module) -> ast.Module:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _is_compiled_from(code: types.CodeType, node: ast.Lambda) -> bool:
    """Tell whether every instruction stems from within the body of a lambda."""
    body = node.body
    return all(
        (body.lineno, body.col_offset) <= (line, column)
        and (end_line, end_column) <= (body.end_lineno, body.end_col_offset)
        for line, end_line, column, end_column in code.co_positions()
        if end_column  # those that begin a function have no place
    )


def _describe_bytecode(code: types.CodeType) -> list[object]:
    constants = [
        _describe_bytecode(one) if isinstance(one, types.CodeType) else _describe(one, frozenset())
        for one in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _describe(value: Any, seen: _Seen) -> object:
    """Describe a value that a function uses, the same in every process, as JSON can."""
    if callable(value):
        return _describe_callable(value, seen)
    if id(value) in seen:
        return type(value).__qualname__
    inner = seen | {id(value)}
    if dataclasses.is_dataclass(value):
        return [type(value).__qualname__, _fields(value, inner)]
    if isinstance(value, Mapping):
        return sorted([repr(key), _describe(one, inner)] for key, one in value.items())
    if isinstance(value, list | tuple):
        return [_describe(one, inner) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))  # their own order differs between processes
    if hasattr(value, "__array__"):
        with contextlib.suppress(TypeError):  # of JAX's keys
            array = np.asarray(value)
            objects = array.dtype.hasobject  # whose bytes are addresses
            numbers = repr(array.tolist()).encode() if objects else array.tobytes()
            return [str(array.dtype), list(array.shape), hashlib.sha256(numbers).hexdigest()]
    return describe_value(value)


def describe_value(value: object) -> str:
    """Return how a value prints, without the address in memory that may be part of it."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _fields(value: Any, seen: _Seen) -> dict[str, object]:
    """Describe the fields of a dataclass that decide what is trained."""
    return {
        one.name: _describe(getattr(value, one.name, None), seen)
        for one in dataclasses.fields(value)
        if _counts(one)
    }


def _plain(value: object) -> object:
    """Reduce a value to what JSON gives back, so that it compares equal after reading."""
    if callable(value):
        return describe_code(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return identity(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
