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

T = TypeVar("T")
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


def parsed(kind: type[T], text: str) -> T:
    """The inverse of :func:`dumps` for any frozen dataclass of plain fields. Raises as :func:`loads`."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # half a pair is a UnicodeEncodeError, which is a ValueError
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return _build(kind, value)


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


def _build(kind: type[T], value: Any) -> T:
    """Rebuild a frozen dataclass from JSON by its field types."""
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = set(value) - set(known)
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
    return kind(**{name: _convert(hints[name], value[name]) for name in known if name in value})


def _convert(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if hint is float:
        if value is None:
            return math.nan
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{value!r} is no number")
        return float(value)
    if hint in (int, str, bool) and type(value) is not hint:
        raise ValueError(f"{value!r} is no {hint.__name__}")
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type[Any], hint), value)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _convert(next(a for a in typing.get_args(hint) if a is not type(None)), value)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], v) for v in value)
        return tuple(_convert(a, v) for a, v in zip(args, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = typing.get_args(hint)[1]
        return {k: _convert(inner, v) for k, v in value.items()}
    return value
