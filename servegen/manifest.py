"""Reading Kubernetes YAML back, and the kubelet's ``$(NAME)`` expansion."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_MOST_PLACES = 50_000
_DOLLAR = re.compile(r"\$(?=[$(])")


@lru_cache(maxsize=512)
def documents(text: str) -> tuple[Any, ...]:
    """Every document of a YAML text, as dicts, lists and scalars; callers share the result and must not change it.

    Cached by text, because rendering and validation read the same files. Raises ValueError with line and problem.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return tuple(YAML(typ="safe", pure=True).load_all(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{place}{getattr(error, 'problem', None) or error}") from error


def places(text: str) -> dict[tuple[str | int, ...], tuple[int, int]]:
    """Line and column, from 1, of every key and item of a YAML text of one document that :func:`documents` reads."""
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

    walk(YAML(typ="safe", pure=True).compose(text), ())
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
