"""Reading Kubernetes YAML back, and the kubelet's ``$(NAME)`` expansion."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

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
