"""Frozen dataclasses as canonical JSON, and back: the form in which plans are locked and compared."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from servegen import inputs

T = TypeVar("T")
#: A number that may be nan (written as null), and one that may be below 0; what else a file holds is 0 or more.
Unsure = typing.Annotated[float, "unsure"]
Signed = typing.Annotated[float, "signed"]
#: Of a whole number, its sign included: counts, bytes and tokens have fewer, and what has more may be no float.
_MOST_DIGITS = 19
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def to_jsonable(value: Any) -> Any:
    """Plain JSON types: dataclasses as objects, tuples as arrays, floats rounded to 9 significant digits.

    The rounding makes the bytes equal over numpy versions and machines, whose last bits may differ.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, numbers.Integral):  # numpy's
        return int(value)
    number = float(value)
    if math.isnan(number) or math.isinf(number):
        return None
    return float(f"{number:.9g}")


def dumps(plan: Any, indent: int | None = 2) -> str:
    """Canonical JSON: keys sorted, no NaN, a final newline when indented."""
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(
        to_jsonable(plan), sort_keys=True, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False
    )
    return text + "\n" if indent else text


def parsed(kind: type[T], text: str, edited: bool = False) -> T:
    """The inverse of :func:`dumps` for any frozen dataclass of plain fields. Raises ValueError.

    ``edited``: anybody may have changed the text, so that numbers must be such as their fields can have.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, parse_int=_whole, object_pairs_hook=inputs.once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # half a pair is a UnicodeEncodeError, which is a ValueError
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return typing.cast(T, _convert(kind, value, "", edited))


def read_as(reader: Callable[[str], T], text: str) -> T:
    """What ``reader`` makes of a file that anybody may have edited. ValueError for all that it may raise."""
    try:
        return reader(text)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:_MOST_DIGITS]}... is too large a number")
    return int(text)


def _build(kind: type[Any], value: Any, path: str, edited: bool) -> Any:
    """Rebuild a frozen dataclass from JSON by its field types."""
    if not isinstance(value, dict):
        raise _wrong(path, value, "object")
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {f.name: f for f in dataclasses.fields(kind)}
    unknown = set(value) - set(known)
    if unknown:
        raise ValueError(f"{_at(path)}{kind.__name__} has no field {sorted(unknown)[0]!r}")
    for name, f in known.items():
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ValueError(f"{_at(path)}the field {name!r} is missing")
    return kind(**{n: _convert(hints[n], value[n], f"{path}.{n}" if path else n, edited) for n in known if n in value})


def _convert(hint: Any, value: Any, path: str, edited: bool) -> Any:
    origin = typing.get_origin(hint)
    if hint in (int, float, Unsure, Signed):
        return _figure(hint, value, path, edited)
    if hint in (str, bool) and type(value) is not hint:
        raise _wrong(path, value, {str: "text", bool: "true or false"}[hint])
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value, path, edited)
    if origin is typing.Literal and value not in typing.get_args(hint):
        raise ValueError(f"{_at(path)}{value!r} is not one of {', '.join(map(str, typing.get_args(hint)))}")
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _convert(next(a for a in typing.get_args(hint) if a is not type(None)), value, path, edited)
    if origin is tuple:
        args = typing.get_args(hint)
        if not isinstance(value, list):
            raise _wrong(path, value, "array")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], v, f"{path}[{i}]", edited) for i, v in enumerate(value))
        if len(value) != len(args):
            raise _wrong(path, value, f"array of {len(args)}")
        return tuple(_convert(a, v, f"{path}[{i}]", edited) for i, (a, v) in enumerate(zip(args, value, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _wrong(path, value, "object")
        inner = typing.get_args(hint)[1]
        return {k: _convert(inner, v, f"{path}.{k}", edited) for k, v in value.items()}
    return value


def _figure(hint: Any, value: Any, path: str, edited: bool) -> Any:
    """A number; null is nan, where an edited file may have that."""
    if value is None and hint is not int and (hint is Unsure or not edited):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int if hint is int else (int, float)) or not math.isfinite(value):
        raise _wrong(path, value, "whole number" if hint is int else "number")
    if edited and value < 0 and hint is not Signed:
        raise ValueError(f"{_at(path)}{value} is below 0")
    return value if hint is int else float(value)


def _wrong(path: str, value: Any, kind: str) -> ValueError:
    said = json.dumps(value, ensure_ascii=False)
    return ValueError(f"{_at(path)}{said if len(said) <= 40 else said[:40] + '...'} is no {kind}")


def _at(path: str) -> str:
    return f"{path}: " if path else ""
