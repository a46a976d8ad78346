"""JSON of config dataclasses: every field is written; reading is strict and names the field of an error."""

import dataclasses
import difflib
import types
import typing
from typing import Any, Literal

from proteinlm.errors import InputError
from proteinlm.models.attention import ATTENTION, MechanismConfig


def to_plain(value: Any) -> Any:
    """Return a dataclass as objects, lists and scalars for `json.dumps`; a mechanism has its name under "kind"."""
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        plain = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": kind.kind, **plain} if issubclass(kind, MechanismConfig) else plain
    return list(value) if isinstance(value, tuple) else value


def from_plain(expected: Any, value: Any, source: str, path: str = "") -> Any:
    """Build a value of a type from JSON's types (objects, lists, strings, numbers, true, false, null).

    Args:
        expected: type annotation of the value: a dataclass, MechanismConfig, a Literal, a tuple, int, float ...
        value: the value as `json.loads` returns it.
        source: name of the file in errors.
        path: dotted name of the value in errors; "" is the whole config.

    Raises:
        InputError: an unknown or a missing field, a value of the wrong type.
    """
    where = f"{source}: {path or 'the config'}"
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        (expected,) = (option for option in arguments if option is not type(None))
        return None if value is None else from_plain(expected, value, source, path)
    if expected is MechanismConfig:
        kind = value.get("kind") if isinstance(value, dict) else value
        if not isinstance(kind, str) or kind not in ATTENTION:
            raise InputError(
                f"{where} has the kind {kind!r}; it must be one of {', '.join(sorted(ATTENTION))}. (A mechanism from "
                "outside the package is known only after its module was imported.)"
            )
        return from_plain(ATTENTION[kind], value, source, path)
    if dataclasses.is_dataclass(expected):
        return _dataclass_from_plain(expected, value, source, path)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, arguments))}.")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} is {value!r}; it must be a JSON list.")
        return tuple(from_plain(arguments[0], item, source, f"{path}[{i}]") for i, item in enumerate(value))
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise InputError(f"{where} is {value!r}; it must be {expected.__name__}.")
    return value


def _dataclass_from_plain(expected: Any, value: Any, source: str, path: str) -> Any:
    where = f"{source}: {path or 'the config'}"
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}; it must be a JSON object.")
    value = {key: item for key, item in value.items() if key != "kind" or not issubclass(expected, MechanismConfig)}
    hints = typing.get_type_hints(expected)
    names = [f.name for f in dataclasses.fields(expected)]
    for key in value:
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(names)}."
            raise InputError(f"{where} has no field {key!r}; {hint}")
    missing = [name for name in names if name not in value]
    if missing:
        raise InputError(f"{where} lacks {', '.join(missing)}.")
    prefix = f"{path}." if path else ""
    return expected(**{name: from_plain(hints[name], value[name], source, prefix + name) for name in names})
