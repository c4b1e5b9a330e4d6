"""Pydantic's errors as diagnostics: where it stands in the file, what is wrong, what would be right."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from servegen.errors import Diagnostic, Where
from servegen.spec.base import Finding, Section
from servegen.spec.tree import WhereMap, core_scalar

_LIMITS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}
_A_LIST = ("a list", "write each item behind a dash, or all of them in [ ]")
_A_MAPPING = ("a mapping (keys with values)", "")
_BUCKET = ("must be two numbers", "a bucket is [upper bound in tokens, weight]")  # the only list of a fixed length
_TYPES = {
    "string_type": ("text", ""),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "int_type": ("a whole number", ""),
    "int_from_float": ("a whole number", ""),
    "float_type": ("a number", "write a number without quotes and unit, like 0.85"),
    "model_type": _A_MAPPING,
    "dict_type": _A_MAPPING,
    "tuple_type": _A_LIST,
}
_ENGINES_FOR_PREDICTIONS = ("tensorrt-llm", "trtllm", "llama-cpp", "vllm-2023")


def explain(errors: list[Any], where: WhereMap, model: type[Section]) -> list[Diagnostic]:
    """One diagnostic or more for each of pydantic's ``errors`` about a document that ``model`` describes."""
    return [diagnostic for error in errors for diagnostic in _explain(error, where, model)]


def _explain(error: Mapping[str, Any], where: WhereMap, model: type[Section]) -> Iterator[Diagnostic]:
    kind, ctx = error["type"], error.get("ctx", {})
    loc = tuple(part for part in error["loc"] if part not in ("[key]", "\0"))
    path = ".".join(str(part) for part in loc)
    if kind == "findings":
        findings: list[Finding] = ctx["findings"]
        for finding in findings:
            inner = ".".join(part for part in (path, finding.key) if part)
            place = where.key_at(inner) if finding.code in ("missing-key", "secret-value") else where.at(inner)
            yield Diagnostic(finding.code, _say(inner, finding.message), place, finding.hint)
    elif kind == "too_short" and error["input"]:
        return  # items were refused, each for a reason of its own
    elif kind == "extra_forbidden":
        yield _unknown_key(loc, path, where, model)
    elif kind == "missing" and isinstance(loc[-1], int):
        parent = ".".join(str(part) for part in loc[:-1])
        yield Diagnostic("wrong-type", _say(parent, _BUCKET[0]), where.at(parent), _BUCKET[1])
    elif kind == "missing":
        parent = ".".join(str(part) for part in loc[:-1])
        hint = _description(loc, model)
        yield Diagnostic("missing-key", _say(parent, f"{loc[-1]} is missing"), where.key_at(parent), hint)
    else:
        place = where.key_at(path) if "[key]" in error["loc"] else where.at(path)
        code, message, hint = _simple(kind, ctx, error, where.text(path))
        yield Diagnostic(code, _say(path, message), place, hint)


def _say(path: str, message: str) -> str:
    return f"{path[:200]}: {message}" if path else message


def _simple(kind: str, ctx: Mapping[str, Any], error: Mapping[str, Any], text: str) -> tuple[str, str, str]:
    """(code, message, hint) of an error about one value, ``text`` being how it was written."""
    value = error["input"]
    shown = _shown(value, text)
    if kind == "literal_error":
        return _no_choice(ctx, value, shown, text)
    if kind in _LIMITS:
        return "out-of-range", f"must be {_LIMITS[kind]} {next(iter(ctx.values())):g}, not {shown}", ""
    if kind == "too_short":
        return "out-of-range", "must not be empty", ""
    if kind == "too_long":
        return "wrong-type", *_BUCKET
    if kind not in _TYPES:
        return kind.replace("_", "-"), error["msg"], str(ctx.get("hint", ""))
    expected, hint = _TYPES[kind]
    if expected == "text" and isinstance(value, (bool, int, float)):
        hint = f'put it in quotes: "{text}"'
    elif expected == "a list" and text:
        hint = f"write [{text}]"
    elif error["loc"][-1] == "\0":
        hint = "write a number, figures like {mean: 2048, p95: 6000}, or {histogram: [[upper, weight], ...]}"
    elif isinstance(value, str) and isinstance(core_scalar(value), (int, float)):
        hint = "remove the quotes"
    return "wrong-type", f"must be {expected}, not {shown}", hint


def _no_choice(ctx: Mapping[str, Any], value: Any, shown: str, text: str) -> tuple[str, str, str]:
    legal = [part.strip().strip("'") for part in ctx["expected"].replace(" or ", ", ").split(", ")]
    if text in legal and not isinstance(value, str):
        return "wrong-type", f"must be text, not the number {text}", f'put it in quotes: "{text}"'
    choices = ", ".join(legal)
    if isinstance(value, str) and "sglang" in legal:
        engine = value.partition("@")[0]
        if engine in legal:
            return "bad-value", f"{shown} names a version", f"write {engine}, and the version in deploy.engineVersion"
        if engine in _ENGINES_FOR_PREDICTIONS:
            return "bad-value", f"{shown} is for predictions only", f"`servegen estimate` knows it; here: {choices}"
    is_word = isinstance(value, str) and isinstance(core_scalar(value), str)
    near = difflib.get_close_matches(value.lower(), legal, 1, 0.6) if is_word else []
    hint = f"did you mean {near[0]}? legal: {choices}" if near else f"legal: {choices}"
    return "bad-value", f"{shown} is not legal here", hint


def _shown(value: Any, text: str) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"'{value[:60]}'"
    return text[:60] or str(value)


def _unknown_key(loc: tuple[Any, ...], path: str, where: WhereMap, model: type[Section]) -> Diagnostic:
    key = str(loc[-1])
    parent = ".".join(str(part) for part in loc[:-1])
    section = _section(loc[:-1], model)
    legal = _keys(section) if section else []
    near = difflib.get_close_matches(key.lower(), [name.lower() for name in legal], 1, 0.6)
    homes = [home for home in _homes(key, model) if home != parent]
    if near:
        hint = f"did you mean {next(name for name in legal if name.lower() == near[0])}?"
    elif homes:
        hint = f"{key} belongs in {homes[0]}"
    else:
        hint = f"legal keys of {parent or 'a document'}: {', '.join(legal)}"
    return Diagnostic("unknown-key", _say(parent, f"there is no key {key[:60]}"), where.key_at(path), hint)


def _keys(section: type[Section]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items() if field.alias != "\0"]


def _description(loc: tuple[Any, ...], model: type[Section]) -> str:
    section = _section(loc[:-1], model)
    for field in section.model_fields.values() if section else ():
        if field.alias == loc[-1]:
            return field.description or ""
    return ""


def _section(loc: tuple[Any, ...], model: type[Section]) -> type[Section] | None:
    """The section that stands at ``loc``, None where there is none."""
    current: type[Section] | None = model
    for part in loc:
        if isinstance(part, int) or current is None:
            continue  # an item of a list is described by the list's own annotation
        current = next((_inner(f.annotation) for f in current.model_fields.values() if f.alias == part), None)
    return current


def _inner(annotation: Any) -> type[Section] | None:
    """The section inside ``X | None``, ``tuple[X, ...]`` or ``Annotated[X, ...]``."""
    if inspect.isclass(annotation):  # false for tuple[X, ...], unlike isinstance(annotation, type)
        return annotation if issubclass(annotation, Section) else None
    return next((found for arg in typing.get_args(annotation) if (found := _inner(arg))), None)


def _homes(key: str, model: type[Section], path: str = "") -> Iterator[str]:
    """Dotted paths of the sections that have ``key``."""
    for field in model.model_fields.values():
        if field.alias == key and path:
            yield path
    for field in model.model_fields.values():
        inner = _inner(field.annotation)
        if inner is not None:
            yield from _homes(key, inner, f"{path}.{field.alias}" if path else str(field.alias))


def sort_key(diagnostic: Diagnostic) -> tuple[Where, str, str]:
    return diagnostic.where, diagnostic.code, diagnostic.message
