"""Fields of configs from files and keywords, each checked against its type."""

import contextlib
import dataclasses
import os
import re
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bqnes_jax.errors import BQNESError
from bqnes_jax.files import check_plain, read_small

Config = TypeVar("Config")
_LIMIT = 1 << 16  # bytes of a file with fields; PyYAML is slow, and so are its odder numbers
_DEEPEST = 4  # points in a name; no field is nested deeper


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 as a number, as JSON does; to YAML 1.1 it is text, for want of a point.

    Aliases, of which a few lines can stand for gigabytes, are refused.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read one value."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*); write out what that stands for")
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def read_fields(path: str | os.PathLike[str]) -> dict:
    """Read a YAML or JSON file with fields of a config, which may be named as flags are."""
    path = Path(path)
    try:
        content = yaml.load(read_small(path, limit=_LIMIT), _Loader)
        check_plain(content)
    except OSError as error:
        raise BQNESError(f"config file {path} cannot be read ({error.strerror}).") from None
    except Exception as error:  # PyYAML has errors of many kinds
        reason = " ".join(str(error).split())[:160]
        raise BQNESError(f"config file {path} is neither YAML nor JSON: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BQNESError(f"config file {path} holds no fields; write lines such as 'seed: 3'.")
    return _name_as_fields(content, str(path))


def _name_as_fields(content: dict, where: str) -> dict:
    """Return fields by their own names where flags name them: kernel.layer-weights is nested.

    Example:
        >>> _name_as_fields({"kernel": {"name": "wl"}, "kernel.layer-weights": "fitted"}, "it")
        {'kernel': {'name': 'wl', 'layer_weights': 'fitted'}}
    """
    fields: dict = {}
    for written, value in content.items():
        value = _name_as_fields(value, where) if isinstance(value, dict) else value
        *path, last = str(written).replace("-", "_").split(".", _DEEPEST)
        nested = {last: value}
        for name in reversed(path):
            nested = {name: nested}
        _join(fields, nested, where)
    return fields


def _join(fields: dict, others: dict, where: str) -> None:
    """Add fields to others, nested ones too; refuse one that is there."""
    for name, value in others.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            _join(fields[name], value, where)
        elif name in fields:
            raise BQNESError(f"{where} has {name!r} twice; write it once.")
        else:
            fields[name] = value


def replace_fields(config: Config, fields: dict, *, where: str = "config") -> Config:
    """Return a config (a dataclass) with some fields changed, nested ones too, each type checked.

    Example:
        >>> from bqnes_jax.candidates import SearchConfig
        >>> replace_fields(SearchConfig(), {"temperature": 64, "warp": {"warp": "log"}}).temperature
        64.0
    """
    names = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    values = {}
    for name, value in fields.items():
        if name not in names:
            raise BQNESError(f"{where} has {name!r}; allowed are {', '.join(names)}.")
        here = f"{where}: {name}" if _is_file(where) else f"{where}.{name}"
        old = getattr(config, name)
        if dataclasses.is_dataclass(old) and isinstance(value, dict):
            values[name] = replace_fields(old, value, where=here)
        else:
            values[name] = fit_value(type(config), name, value, old, where=here)
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except BQNESError as error:
        raise BQNESError(_locate(str(error), where, names)) from None


def _locate(message: str, where: str, names: list[str]) -> str:
    """Say of which field a message is: of what is at the end of a path, or of a field of it.

    Example:
        >>> _locate("budget is 5, less than 10.", "c.yaml: search", ["budget"])
        'c.yaml: search.budget is 5, less than 10.'
        >>> _locate("kernel.name is 'x'.", "c.yaml: search.kernel", ["name"])
        "c.yaml: search.kernel.name is 'x'."
        >>> _locate("c.yaml: search.budget is 5.", "c.yaml", ["search"])
        'c.yaml: search.budget is 5.'
    """
    if message.startswith(where):
        return message
    first = message.split(" ", 1)[0].partition("[")[0]
    *before, last = re.split(r"(?<=[.: ])", where)
    if first.startswith(f"{last}."):
        return "".join(before) + message
    joint = "." if first in names and not _is_file(where) else ": "
    return f"{where}{joint}{message}"


def _is_file(where: str) -> bool:
    return where.endswith((".yaml", ".yml", ".json"))


def fit_value(
    kind: type, name: str, value: object, old: object, *, where: str | None = None
) -> object:
    """Return a value as a field of a dataclass holds it; refuse one that does not fit.

    A field that holds any config takes one of the same type as the old one.
    """
    hint = typing.get_type_hints(kind)[name]
    hint = type(old) if hint is Any else hint
    value = tuple(value) if isinstance(value, list) else value
    try:
        return _fit(hint, value)
    except TypeError:
        wanted = _describe(hint)
        if where is None and dataclasses.is_dataclass(hint):
            wanted = f"a {hint.__name__}: dataclasses.replace the one that configure().{name} holds"
        raise BQNESError(f"{where or name} is {value!r}; it must be {wanted}.") from None


def _fit(hint: object, value: object) -> object:
    """Return a value as a field of that type holds it; TypeError if it does not fit."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        for part in parts:
            with contextlib.suppress(TypeError):
                return _fit(part, value)
        raise TypeError
    if origin is typing.Literal and value in parts:
        return value
    if origin is tuple and isinstance(value, tuple):
        parts = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(parts) == len(value):
            return tuple(map(_fit, parts, value))
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not (type(None) if hint is None else hint):
        raise TypeError
    return value


def _describe(hint: object) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        Path: "a path",
    }
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if part is type(None) else _describe(part) for part in parts)
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        length = "" if parts[-1] is ... else f" of {len(parts)}"
        return f"a list{length}, each {_describe(parts[0])}"
    if dataclasses.is_dataclass(hint):
        return "fields: " + ", ".join(field.name for field in dataclasses.fields(hint))
    return names.get(hint, str(hint))
