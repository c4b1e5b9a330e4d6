"""Finds and parses the catalogue's YAML files, and keeps the source of every figure.

A file has a table ``sources`` of short names. A figure is ``{value: 80e9, source: mle}``, or a bare number inside a
section that has a ``source`` of its own. Every number ends up with a source, or the file does not load.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.resolver import VersionedResolver

from servegen.catalog.facts import GemmEfficiency
from servegen.errors import CatalogError, Diagnostic, Where

ROOT = Path(__file__).parent

#: No figure of a device or an engine comes near this; not-a-number is not below it either.
LARGEST = 1e30

_ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)
_VENDORS = re.compile(r"^(nvidia|amd|intel|google)")


class Figure(NamedTuple):
    """One figure of a fact: its dotted path, its value, its unit ("" for counts and factors) and its source."""

    path: str
    value: object
    unit: str
    source: str


def normal(name: str) -> str:
    """The form in which names are compared: lower case letters and digits only, without the vendor in front."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return _VENDORS.sub("", key) or key


@cache
def ids(kind: str) -> tuple[str, ...]:
    """The ids of a kind (``accelerators``, ``engines``) in order: the stems of its files. Nothing is opened."""
    return tuple(sorted(file.stem for file in (ROOT / kind).glob("*.yaml")))


@cache
def _names(kind: str) -> Mapping[str, tuple[str, ...]]:
    """Normal form of every id and alias -> the ids that claim it. The text of the files is scanned, none is parsed."""
    found: dict[str, tuple[str, ...]] = {}
    for name in ids(kind):
        listed = _ALIASES.search((ROOT / kind / f"{name}.yaml").read_text("utf-8"))
        for alias in (name, *(listed.group(1).split(",") if listed else ())):
            key = normal(alias)
            if key and name not in found.get(key, ()):
                found[key] = (*found.get(key, ()), name)
    return found


def find(kind: str, name: str) -> str:
    """The id that ``name`` means: an id or an alias, whatever its case, separators or vendor prefix.

    CatalogError when nothing or more than one thing has the name; it lists the nearest names or the claimants.
    """
    if name in ids(kind):
        return name
    what = kind.removesuffix("s")
    names = _names(kind)
    hits = names.get(normal(name), ())
    if len(hits) == 1:
        return hits[0]
    if hits:
        message = f"{what} {name!r} means more than one"
        raise CatalogError(Diagnostic(f"{what}-ambiguous", message, hint=f"say which: {', '.join(hits)}"))
    from difflib import get_close_matches  # only a wrong name pays for the import

    near = dict.fromkeys(i for key in get_close_matches(normal(name), names, n=4, cutoff=0.55) for i in names[key])
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(ids(kind))}"
    raise CatalogError(Diagnostic(f"{what}-unknown", f"there is no {what} {name!r} in the catalogue", hint=hint))


def parse(text: str, file: Path) -> dict[object, object]:
    """The mapping that a catalogue file holds. CatalogError when it is no YAML mapping."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        message = f"{file.name} does not parse: {error}"
        raise CatalogError(Diagnostic("catalog-file", message, Where(str(file)))) from error
    if not isinstance(data, dict):
        raise CatalogError(Diagnostic("catalog-file", f"{file.name} is no mapping", Where(str(file))))
    return data


class _Resolver(VersionedResolver):
    """YAML 1.2, without a look for a directive at every scalar: a third of the time that a file takes."""

    @property
    def processing_version(self) -> tuple[int, int]:
        return (1, 2)


def own(text: str, file: Path) -> dict[object, object]:
    """What :func:`parse` makes of the catalogue's own text, by ruamel.yaml's C parser where that is installed.

    That parser takes a seventh of the time and gives equal data, but has messages of its own and lets some text pass that is
    no YAML, such as tabs: a file that fails is parsed again, and files from outside are left to :func:`parse`.
    """
    yaml = YAML(typ="safe")
    yaml.Resolver = _Resolver
    try:
        data = yaml.load(text)
    except (YAMLError, ValueError, RecursionError):
        return parse(text, file)
    return data if isinstance(data, dict) else parse(text, file)


class Sheet:
    """One catalogue entry while it turns into facts. ``sources`` grows with every figure that is taken. The entry is all of
    a file, or ``data`` where it is part of one.

    Every method raises CatalogError when the file lacks the key, has another type there, or names no source for a
    number. ``done`` refuses keys that nothing took, so that a misspelt key cannot go unnoticed.
    """

    def __init__(self, file: Path, data: dict[object, object] | None = None) -> None:
        self._file = file
        self._data = own(file.read_text("utf-8"), file) if data is None else data
        self._taken: set[object] = set()
        self.sources: dict[str, str] = {}
        self._table = self.labels("sources")

    def fail(self, why: str) -> NoReturn:
        raise CatalogError(Diagnostic("catalog-file", f"{self._file.name}: {why}", Where(str(self._file))))

    def has(self, key: str) -> bool:
        return key in self._data

    def _take(self, key: str) -> object:
        if key not in self._data:
            self.fail(f"{key} is missing")
        self._taken.add(key)
        return self._data[key]

    def text(self, key: str) -> str:
        value = self._take(key)
        return value if isinstance(value, str) and value else self.fail(f"{key} is no text")

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(f"{key} is no list of texts")
        return tuple(value)

    def flag(self, key: str) -> bool:
        value = self._take(key)
        return value if isinstance(value, bool) else self.fail(f"{key} is neither true nor false")

    def labels(self, key: str) -> dict[str, str]:
        value = self._take(key)
        if not isinstance(value, dict) or not all(isinstance(item, str) for pair in value.items() for item in pair):
            self.fail(f"{key} is no mapping of texts")
        return dict(value)

    def cited(self, key: str) -> dict[str, str]:
        """A mapping of texts whose entry ``source`` names where they come from; empty ones need none."""
        found = self.labels(key)
        name = found.pop("source", None)
        if found:
            self.source(key, name)
        return found

    def section(self, key: str) -> dict[object, object]:
        value = self._take(key)
        return value if isinstance(value, dict) else self.fail(f"{key} is no mapping")

    def source(self, path: str, name: object) -> str:
        """The full source that ``name`` stands for, noted for the figure at ``path``."""
        if not isinstance(name, str) or name not in self._table:
            self.fail(f"{path} has no source" if name is None else f"{path}: {name!r} is not in the table of sources")
        self.sources[path] = self._table[name]
        return self._table[name]

    def number(self, path: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
            self.fail(f"{path} is no number")
        return float(value)

    def figure(self, key: str) -> float:
        """A number with its source; nan where the file says null (nobody publishes it)."""
        node = self.section(key)
        self.source(key, node.get("source"))
        return math.nan if node.get("value") is None else self.number(key, node["value"])

    def count(self, key: str) -> int:
        value = self.figure(key)
        return int(value) if not math.isnan(value) else self.fail(f"{key} has no value")

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers with one source."""
        node = self.section(key)
        self.source(key, node.get("source"))
        value = node.get("value")
        if not isinstance(value, list):
            self.fail(f"{key} is no list")
        return tuple(int(self.number(key, item)) for item in value)

    def figures(self, key: str) -> dict[object, float]:
        """A section of numbers by name (or by TP): bare ones have the section's source, the others their own."""
        node = self.section(key)
        found: dict[object, float] = {}
        for name, value in node.items():
            if name == "source":
                continue
            path = f"{key}.{name}"
            own = value if isinstance(value, dict) else {"value": value, "source": node.get("source")}
            self.source(path, own.get("source"))
            found[name] = self.number(path, own.get("value"))
        return found

    def record(self, path: str, node: object, numbers: tuple[str, ...]) -> dict[str, float]:
        """The named numbers of a mapping that has one ``source`` for all of them."""
        if not isinstance(node, dict):
            self.fail(f"{path} is no mapping")
        self.source(path, node.get("source"))
        return {name: self.number(f"{path}.{name}", node.get(name)) for name in numbers}

    def gemm(self, path: str, node: object) -> GemmEfficiency:
        """The shares that matrix multiplications of one precision reach, with how they are known."""
        figures = self.record(path, node, ("ew", "ec", "fit_error", "rows"))
        origin = node.get("origin") if isinstance(node, dict) else None
        if origin not in {"fitted", "scaled", "default", "measured"}:
            self.fail(f"{path}: unknown origin")
        ew, ec, error, rows = figures.values()
        return GemmEfficiency(ew, ec, error, int(rows), origin, self.sources[path])

    def done(self) -> None:
        extra = [str(key) for key in self._data if key not in self._taken]
        if extra:
            self.fail(f"unknown key {', '.join(extra)}")


_UNITS = (
    ("_bytes_per_s", "B/s"),
    ("_bytes", "B"),
    ("_s", "s"),
    ("_flops", "FLOP/s"),
    ("_w", "W"),
    ("_per_h", "$/h"),
    ("token_budget", "tokens"),
    ("max_context", "tokens"),
)


def _unit(path: str) -> str:
    # the nearest name that carries a unit: `allreduce_alpha_s.8` is in seconds by its parent
    for part in reversed(path.split(".")):
        for suffix, unit in _UNITS:
            if part.endswith(suffix):
                return unit
    return ""


def _origin(node: object, source: str) -> str:
    """The source of a constant, with the error and rows that its fact carries."""
    error, rows, origin = (getattr(node, name, None) for name in ("fit_error", "rows", "origin"))
    if origin is None or not isinstance(error, float):
        return source
    band = "" if math.isnan(error) else f", error {error:.1%}"
    return f"{origin}{band}, {rows} rows; {source}"


def explain(facts: object) -> list[Figure]:
    """Every figure of a fact (``AcceleratorFacts``, ``EngineFacts``, ``ModelFacts``) in the order of its fields.

    A fitted constant is one row: its error, rows and origin stand in front of its source. Texts, names and flags are
    left out.
    """
    stated = getattr(facts, "sources", {})
    found: list[Figure] = []

    def source_of(path: str) -> str:
        parts = path.split(".")
        paths = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        return next((stated[p] for p in paths if p in stated), "")

    def visit(path: str, value: object, source: str, holder: object) -> None:
        if isinstance(value, bool | str) or value is None:
            return
        listed = isinstance(value, tuple) and bool(value) and all(isinstance(item, int) for item in value)
        if isinstance(value, int | float) or listed:
            found.append(Figure(path, value, _unit(path), _origin(holder, source or source_of(path))))
        elif is_dataclass(value):
            inner = str(getattr(value, "source", source))
            for item in fields(value):
                if item.name not in {"fit_error", "rows"}:
                    step = path if item.name == "value" else f"{path}.{item.name}"
                    visit(step, getattr(value, item.name), inner, value)
        elif isinstance(value, Mapping) and path in stated and all(isinstance(item, str) for item in value.values()):
            found.extend(Figure(f"{path}.{name}", item, "", stated[path]) for name, item in value.items())
        elif isinstance(value, Mapping):
            for name, item in value.items():
                visit(f"{path}.{name}" if path else str(name), item, source, holder)
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                visit(f"{path}.{number}", item, source, holder)

    if not is_dataclass(facts):
        return found
    for item in fields(facts):
        if item.name not in {"sources", "price_rows", "hf_config"}:
            visit(item.name, getattr(facts, item.name), "", None)
    for number, row in enumerate(getattr(facts, "price_rows", ())):
        said = ", ".join(str(row[name]) for name in ("provider", "kind", "date", "note") if row.get(name))
        found.append(Figure(f"price_rows.{number}", row["usd_per_h"], "$/h", f"{said}; {row['source']}"))
    return found
