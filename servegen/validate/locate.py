"""Where in a YAML text something stands that a check names by a dotted path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servegen.manifest import places
from servegen.validate.objects import mapping

_STEP = re.compile(r"([^.\[\]]+)|\[(\d*)\]")
#: By what the items of a list are told apart, the first that they have.
_TELLING = ("name", "mountPath", "containerPort", "port", "topologyKey")
#: What a patch says of its target, and changes nothing by.
_TARGET = ("apiVersion", "kind")


def nearest(text: str, body: Any, at: str, merged_body: Any = None) -> tuple[int, int]:
    """Line and column of the nearest place that ``text`` has of a dotted path.

    ``body`` is what the text says; ``merged_body`` is the object into which it was merged, whose lists the path counts in.
    """
    known = places(text)
    steps: tuple[str | int, ...] = ()
    node, other = body, merged_body
    for name, number in _STEP.findall(at):
        step: str | int = name
        if not name:
            step = _item(node, other, number)
            other = other[int(number)] if number and isinstance(other, list) and int(number) < len(other) else None
        else:
            if isinstance(node, list) and len(node) == 1 and isinstance(node[0], Mapping):
                steps, node = (*steps, 0), node[0]  # a path that leaves the index out
            other = mapping(other).get(name)
        if (*steps, step) not in known:
            break
        steps = (*steps, step)
        node = node[step]
    while steps and steps not in known:
        steps = steps[:-1]
    return known.get(steps, (1, 1))


def narrowest(text: str, patch: Mapping[str, Any]) -> tuple[int, int]:
    """Line and column of the narrowest place that holds all that a patch changes."""
    known = places(text)
    meta = {k: v for k, v in mapping(patch.get("metadata")).items() if k not in ("name", "namespace")}
    node: Any = {k: v for k, v in patch.items() if k not in (*_TARGET, "metadata")} | ({"metadata": meta} if meta else {})
    steps: tuple[str | int, ...] = ()
    while True:
        below: list[tuple[str | int, Any]] = []
        if isinstance(node, Mapping):
            below = [(k, v) for k, v in node.items() if k not in _TELLING or not steps or not isinstance(steps[-1], int)]
        elif isinstance(node, list):
            below = list(enumerate(node))
        if len(below) != 1 or (*steps, below[0][0]) not in known:
            return known.get(steps, (1, 1))
        steps, node = (*steps, below[0][0]), below[0][1]


def _item(node: Any, other: Any, number: str) -> str | int:
    """Which item of a text's list is that of the merged one, by its name or what else tells it apart."""
    if not isinstance(node, list) or not number:
        return 0
    item = mapping(other[int(number)]) if isinstance(other, list) and int(number) < len(other) else {}
    for key in _TELLING:
        for i, own in enumerate(node):
            if key in item and mapping(own).get(key) == item[key]:
                return i
    if not isinstance(other, list):
        return int(number)
    return next((i for i, own in enumerate(node) if own == item), -1)  # of a list that is replaced whole
