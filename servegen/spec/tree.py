"""YAML text to plain values that remember where they stand.

Built on ruamel.yaml's event stream instead of its constructors: scalars follow the YAML 1.2 core schema whatever the
file says, every key and value keeps its line and column, and size, depth, tags, duplicates and aliases are judged
before any of them can do harm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from servegen.errors import Diagnostic, SpecError, Where
from servegen.record import record

MAX_DEPTH = 50
MAX_NODES = 50_000  # of one file, every alias counted as what it stands for
MAX_INTEGER = 2**63 - 1

Value = None | bool | int | float | str | list["Node"] | dict[str, tuple["Node", "Node"]]


@dataclass(slots=True)
class Node:
    """A value at ``line``, ``column`` (from 1). A mapping's ``value`` holds (key node, value node) by key.

    ``text`` is a scalar as it was written, without its quotes; ``size`` counts the nodes below and this one.
    """

    value: Value
    line: int
    column: int
    text: str = ""
    size: int = 1
    depth: int = 1


@dataclass
class Document:
    """One YAML document: its root and what is wrong with it besides its syntax."""

    root: Node
    diagnostics: list[Diagnostic] = field(default_factory=list)


@record
class WhereMap:
    """Where each key of a document stands. Paths are dotted, list items by index: ``spec.hardware.pool.0.price``."""

    file: str
    places: dict[str, tuple[Where, Where, str]]  # path -> (of the key, of the value, the value as written)

    def at(self, path: str) -> Where:
        """Of the value at ``path``, of its key where the value starts on a later line, else of the nearest ancestor."""
        place = self.places.get(self.nearest(path))
        if place is None:
            return Where(self.file)
        key, value, _ = place
        return value if value.line == key.line else key

    def key_at(self, path: str) -> Where:
        """Of the key at ``path``, else of the nearest ancestor's."""
        place = self.places.get(self.nearest(path))
        return place[0] if place else Where(self.file)

    def text(self, path: str) -> str:
        """The scalar at ``path`` as it was written; empty for anything else."""
        place = self.places.get(path)
        return place[2] if place else ""

    def nearest(self, path: str) -> str:
        """``path`` or its nearest ancestor that the document holds; "" is the root."""
        path = re.sub(r"\[(\d+)\]", r".\1", path)
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return path


def compose(text: str, file: str) -> list[Document]:
    """The documents of ``text`` that hold anything. SpecError where the text is no YAML or breaks a limit."""
    return _Composer(text, file).documents()


def plain(root: Node, file: str) -> tuple[Any, WhereMap]:
    """The document as dicts, lists and scalars, and where everything in it stands."""
    top = Where(file, root.line, root.column)
    places: dict[str, tuple[Where, Where, str]] = {"": (top, top, root.text)}

    def build(node: Node, path: str) -> Any:
        if isinstance(node.value, dict):
            return {name: below(path, name, key, item) for name, (key, item) in node.value.items()}
        if isinstance(node.value, list):
            return [below(path, str(index), item, item) for index, item in enumerate(node.value)]
        return node.value

    def below(path: str, name: str, key: Node, item: Node) -> Any:
        inner = f"{path}.{name}" if path else name
        of_key = Where(file, key.line, key.column)
        empty = item.value is None and not item.text
        places[inner] = (of_key, of_key if empty else Where(file, item.line, item.column), item.text)
        return build(item, inner)

    return build(root, ""), WhereMap(file, places)


class _Composer:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.events = _events(text, file)
        self.anchors: dict[str, Node | None] = {}
        self.found: list[Diagnostic] = []
        self.count = 0

    def documents(self) -> list[Document]:
        result = []
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                if event.version is not None and tuple(event.version) != (1, 2):
                    raise self.fatal(event, "yaml-version", "specs are YAML 1.2", "remove the %YAML line")
                self.anchors, self.found = {}, []
                root = self.node(next(self.events), 1)
                if root.value is not None or self.found:
                    result.append(Document(root, self.found))
            elif isinstance(event, DocumentEndEvent):
                continue
        return result

    def node(self, event: Event, depth: int) -> Node:
        mark = event.start_mark
        self.count += 1
        if depth > MAX_DEPTH:
            hint = "no key of the language lies deeper than ten"
            raise self.fatal(event, "too-deep", f"nested deeper than {MAX_DEPTH} levels", hint)
        if isinstance(event, AliasEvent):
            return self.alias(event, depth)
        if getattr(event, "tag", None) is not None:
            tag = str(event.tag).replace("tag:yaml.org,2002:", "!!")[:60]  # type: ignore[attr-defined]
            hint = 'put the value in quotes to make it text: "1.30"'
            self.find(event, "yaml-tag", f"the tag {tag} is not part of the language", hint)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self.anchors[anchor] = None
        node = Node(None, mark.line + 1, mark.column + 1)
        if isinstance(event, ScalarEvent):
            node.value = self.scalar(event)
            node.text = event.value
        elif isinstance(event, SequenceStartEvent):
            node.value = self.sequence(depth)
            self.measure(node, node.value)
        else:
            node.value = self.mapping(depth)
            self.measure(node, [n for pair in node.value.values() for n in pair])
        if self.count > MAX_NODES:
            raise self.fatal(event, "too-large", f"more than {MAX_NODES} values, aliases counted in full", "")
        if anchor:
            self.anchors[anchor] = node
        return node

    def measure(self, node: Node, below: list[Node]) -> None:
        node.size = 1 + sum(n.size for n in below)
        node.depth = 1 + max((n.depth for n in below), default=0)

    def alias(self, event: AliasEvent, depth: int) -> Node:
        name = event.anchor
        if name not in self.anchors:
            raise self.fatal(
                event, "yaml-alias", f"*{name} refers to an anchor that is not defined above", f"define it: &{name}"
            )
        target = self.anchors[name]
        if target is None:
            raise self.fatal(event, "yaml-alias", f"*{name} stands inside what it refers to", "write the value out")
        self.count += target.size
        if self.count > MAX_NODES:
            raise self.fatal(
                event, "too-large", f"more than {MAX_NODES} values, aliases counted in full", "write the values out"
            )
        if depth + target.depth - 1 > MAX_DEPTH:
            raise self.fatal(event, "too-deep", f"nested deeper than {MAX_DEPTH} levels", "write the values out")
        return replace(target, line=event.start_mark.line + 1, column=event.start_mark.column + 1)

    def sequence(self, depth: int) -> list[Node]:
        items = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self.node(event, depth + 1))
        return items

    def mapping(self, depth: int) -> dict[str, tuple[Node, Node]]:
        items: dict[str, tuple[Node, Node]] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self.node(event, depth + 1)
            value = self.node(next(self.events), depth + 1)
            if key.text == "<<" and getattr(event, "style", None) is None:
                hint = "repeat the keys, or use an alias for the whole value"
                self.find(event, "yaml-merge", "merge keys (<<) are not part of YAML 1.2", hint)
            elif not isinstance(key.value, str):
                kind = "a list or mapping" if isinstance(key.value, (list, dict)) else key.text or "nothing"
                hint = f'put it in quotes: "{key.text}"' if key.text else "write a name before the colon"
                self.find(event, "wrong-type", f"a key must be text, not {kind}", hint)
            elif key.value in items:
                first = items[key.value][0]
                self.find(
                    event,
                    "duplicate-key",
                    f"{key.value[:60]} is stated twice",
                    f"the first is at line {first.line}; keep one",
                )
            else:
                items[key.value] = (key, value)
        return items

    def scalar(self, event: ScalarEvent) -> Value:
        text: str = event.value
        if not text.isprintable():
            text = event.value = _joined(text)
        if not text.isprintable():
            char = next(c for c in text if not c.isprintable())
            name = "a line break" if char in "\r\n" else f"the invisible character U+{ord(char):04X}"
            self.find(event, "bad-text", f"this text holds {name}", "control and direction characters are not allowed")
            return text.encode("utf-8", "replace").decode() or " "
        if event.style is not None:
            return text
        value = core_scalar(text)
        if isinstance(value, float) and not math.isfinite(value):
            self.find(
                event, "out-of-range", f"{text} is not a finite number", "leave the key out where there is no limit"
            )
            return 0.0
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            self.find(event, "out-of-range", f"{text[:20]}... is too large a number", "at most 2^63 - 1")
            return 0
        return value

    def find(self, event: Event, code: str, message: str, hint: str) -> None:
        where = Where(self.file, event.start_mark.line + 1, event.start_mark.column + 1)
        self.found.append(Diagnostic(code, message, where, hint))

    def fatal(self, event: Event, code: str, message: str, hint: str) -> SpecError:
        self.find(event, code, message, hint)
        return SpecError(self.found)


def _joined(text: str) -> str:
    """``text`` with pairs of surrogates as the one character that they mean: JSON, which is YAML, escapes it that way."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: math.inf for word in (".inf", ".Inf", ".INF") for sign in ("", "+", "-")},
}


def core_scalar(text: str) -> bool | int | float | str | None:
    """An unquoted scalar by the YAML 1.2 core schema (section 10.3.2)."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > 40:  # int() itself refuses very long digits
            return MAX_INTEGER + 1
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    return float(text) if _FLOAT.fullmatch(text) else text


_HINTS = (
    ("'\\t' that cannot start", "indent with spaces, not with tabs"),
    ("that cannot start any token", "put the value in quotes"),
    ("mapping values are not allowed", "put a value that holds ': ' in quotes, or mend the indentation"),
    ("expected <block end>", "the indentation does not match the lines above"),
    ("could not find expected ':'", "a key needs a colon and a space after it, and the indentation of its neighbours"),
    ("expected ',' or ']'", "close the list with ]"),
    ("expected ',' or '}'", "close the mapping with }"),
    ("unexpected end of stream", "close the quotes"),
)


def _events(text: str, file: str) -> Iterator[Event]:
    last = Where(file, 1, 1)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            last = Where(file, event.start_mark.line + 1, event.start_mark.column + 1)
            yield event
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Where(file, mark.line + 1, mark.column + 1) if mark else last
        problem = " ".join(str(error.problem or error.context or "not YAML").split())
        hint = next((hint for words, hint in _HINTS if words in problem), "")
        raise SpecError(Diagnostic("yaml-syntax", problem, where, hint)) from error
    except ReaderError as error:
        before = text[: error.position]
        where = Where(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise SpecError(Diagnostic("bad-text", message, where, "remove it")) from error
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:
        # The YAML reader has failures of its own on malformed escapes and directives; to a user they are syntax errors.
        raise SpecError(
            Diagnostic("yaml-syntax", "this is no YAML", last, "something after this place is malformed")
        ) from error
