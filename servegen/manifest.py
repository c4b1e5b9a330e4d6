"""Reading Kubernetes YAML back, and the kubelet's ``$(NAME)`` expansion."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

_MOST_PLACES = 50_000
#: Of one text, every alias counted as what it stands for; a rendered object has some hundreds.
_MOST_VALUES = 50_000
_DEEPEST = 100
#: int() refuses more by itself, and no reader of numbers keeps so many.
_MOST_DIGITS = 200
#: Of ruamel.yaml itself, at malformed escapes, directives and tags.
_READER_FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, NotImplementedError)
_DOLLAR = re.compile(r"\$(?=[$(])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
#: What JSON has, and the merge key.
_TAGS = frozenset(f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge"))


class UnreadableError(ValueError):
    """A text that :func:`documents` does not read; ``line`` and ``column`` count from 1, and are 1 where nothing is known."""

    def __init__(self, problem: str, mark: Any = None) -> None:
        super().__init__(f"line {mark.line + 1}: {problem}" if mark is not None else problem)
        self.line: int = 1 if mark is None else mark.line + 1
        self.column: int = 1 if mark is None else mark.column + 1


@lru_cache(maxsize=512)
def documents(text: str) -> tuple[Any, ...]:
    """Every document of a YAML text, as dicts with texts for keys, lists, and scalars that JSON has, too.

    Callers share the result and must not change it. Cached by text, because rendering and validation read the same files.
    Raises UnreadableError with line and problem, also for what YAML is to one reader and not to the next, or means other things
    to them: directives, tags of one's own, keys that are no text, dates without quotes, halves of surrogate pairs, values
    that contain themselves. kustomize refuses most of that, and dies of the last.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        _refuse_directives(text)
        yaml = YAML(typ="safe", pure=True)
        constructor, parser = yaml.get_constructor_parser(text)
        found = []
        try:
            while constructor.composer.check_node():
                node = constructor.composer.get_node()
                _judge(node, {})
                found.append(_made(constructor, node))
        finally:
            parser.dispose()
        return tuple(found)
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnreadableError:
        raise
    except (YAMLError, ValueError) as error:
        problem = str(getattr(error, "problem", None) or error)
        raise UnreadableError(" ".join(problem.split()), getattr(error, "problem_mark", None)) from error
    except _READER_FAULTS as error:
        raise UnreadableError("something in it is malformed") from error


def _made(constructor: Any, node: Any) -> Any:
    from ruamel.yaml.error import YAMLError

    try:
        return constructor.construct_document(node)
    except YAMLError:
        raise
    except (ValueError, *_READER_FAULTS) as error:
        raise _at(node, "a value in it does not fit its tag") from error


def _refuse_directives(text: str) -> None:
    """``%`` at the start of a line begins a directive only where no document has begun."""
    from ruamel.yaml.error import StreamMark

    between = True
    for number, line in enumerate(text.split("\n"), 1):
        if between and line.startswith("%"):
            problem = f"{line.split()[0][:20]} is a directive, and kustomize reads none; remove the line"
            raise UnreadableError(problem, StreamMark(None, 0, number - 1, 0))
        between = line.startswith("...") or (between and (not line.strip() or line.lstrip().startswith("#")))


def _judge(node: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values a node stands for, and how deep they lie. UnreadableError for what :func:`documents` refuses.

    ``known`` are the nodes that were judged before; one that still is has (0, 0).
    """
    from ruamel.yaml.nodes import MappingNode, ScalarNode

    if id(node) in known:
        if known[id(node)] == (0, 0):
            raise _at(node, "it contains itself")
        return known[id(node)]
    tag = str(node.tag)
    if tag == f"{_TAG}timestamp" and node.style is None:
        raise _at(node, f"{node.value} is a date, and readers make different things of it: put it in quotes")
    if tag not in _TAGS:
        said = tag.replace(_TAG, "!!")[:60]
        raise _at(node, f"the tag {said} means nothing to Kubernetes; to make a value text, put it in quotes")
    if isinstance(node, ScalarNode):
        if _SURROGATE.search(node.value):
            raise _at(node, "this text holds half of a surrogate pair; write the character itself")
        if tag == f"{_TAG}int" and len(node.value) > _MOST_DIGITS:
            raise _at(node, f"{node.value[:20]}... is too large a number")
        if tag == f"{_TAG}float" and not _is_finite(node.value):
            raise _at(node, f"{node.value[:20]} is no number that JSON has")
        return known.setdefault(id(node), (1, 1))
    known[id(node)] = (0, 0)
    if isinstance(node, MappingNode):
        for key, _ in node.value:
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge"):
                said = f"not {key.value}" if isinstance(key, ScalarNode) and key.value else "not a list, a mapping or nothing"
                raise _at(key, f"a key must be text, {said}; put it in quotes")
        below = [_judge(child, known) for pair in node.value for child in pair]
    else:
        below = [_judge(child, known) for child in node.value]
    size, depth = 1 + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)
    if size > _MOST_VALUES:
        raise _at(node, f"it holds more than {_MOST_VALUES:,} values, aliases counted in full")
    if depth > _DEEPEST:
        raise _at(node, "it is nested too deeply")
    known[id(node)] = size, depth
    return size, depth


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace("_", "")))
    except ValueError:
        return False


def _at(node: Any, problem: str) -> UnreadableError:
    return UnreadableError(problem, node.start_mark)


@lru_cache(maxsize=64)
def places(text: str) -> dict[tuple[str | int, ...], tuple[int, int]]:
    """Line and column, from 1, of every key and item of a YAML text that :func:`documents` reads; of its first document.

    Callers share the result and must not change it.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    found: dict[tuple[str | int, ...], tuple[int, int]] = {}

    def walk(node: Any, path: tuple[str | int, ...]) -> None:
        below: list[tuple[Any, str | int, Any]]
        if isinstance(node, MappingNode):
            below = [(key, str(key.value), value) for key, value in node.value]
        elif isinstance(node, SequenceNode):
            below = [(item, index, item) for index, item in enumerate(node.value)]
        else:
            return
        for head, step, value in below:
            found.setdefault((*path, step), (head.start_mark.line + 1, head.start_mark.column + 1))
            if len(found) < _MOST_PLACES:  # an alias stands for as much as it likes
                walk(value, (*path, step))

    walk(next(iter(YAML(typ="safe", pure=True).compose_all(text)), None), ())
    return found


def escape_variables(text: str) -> str:
    """``text`` so that the kubelet yields it unchanged in ``command``, ``args`` and ``env``.

    The kubelet replaces ``$(NAME)`` and halves ``$$`` (k8s.io/kubernetes third_party/forked/golang/expansion), so a
    dollar sign is doubled where one of these would follow.
    """
    return _DOLLAR.sub("$$", text)


def unescape_variables(text: str) -> str:
    """What the kubelet makes of ``text``. Raises ValueError if a ``$(NAME)`` is left that it would replace."""
    out: list[str] = []
    i = 0
    while i < len(text):
        if text[i] == "$" and text[i + 1 : i + 2] == "$":
            out.append("$")
            i += 2
        elif text[i] == "$" and text[i + 1 : i + 2] == "(" and ")" in text[i + 2 :]:
            raise ValueError(f"the kubelet would expand {text[i : text.index(')', i) + 1]!r}")
        else:
            out.append(text[i])
            i += 1
    return "".join(out)
