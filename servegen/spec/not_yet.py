"""Keys of the language whose feature this version has not built: refused at their line, never ignored.

Building a feature means deleting its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servegen.errors import Diagnostic
from servegen.record import record
from servegen.spec.tree import WhereMap


@record
class Unbuilt:
    """``key`` (dotted; ``*`` is every item of a list) may hold nothing but ``built``, or anything but ``missing``."""

    key: str
    message: str
    missing: tuple[Any, ...] = ()
    instead: str = ""
    built: tuple[Any, ...] = ()

    def refuses(self, value: Any) -> bool:
        return value in self.missing if self.missing else value not in self.built

    @property
    def hint(self) -> str:
        return self.instead or f"leave the key out{''.join(f', or write {value}' for value in self.built)}"


NOT_YET: tuple[Unbuilt, ...] = (
    Unbuilt("spec.constraints.engines.*", "minisgl has no fitted constants yet", ("minisgl",), "take sglang"),
    Unbuilt("spec.deploy.multiNode", "role-based groups are not rendered yet", built=("leaderworkerset",)),
    Unbuilt("spec.deploy.gateway", "gateways are not rendered yet", built=("none",)),
)


def not_yet(document: Any, where: WhereMap) -> list[Diagnostic]:
    """What ``document`` asks for that is not built, in the order of ``NOT_YET``."""
    return [
        Diagnostic("not-built", f"{path}: {row.message}", where.at(path), row.hint)
        for row in NOT_YET
        for path, value in _find(document, row.key.split("."), "")
        if value is not None and row.refuses(value)
    ]


def _find(node: Any, keys: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if not keys:
        yield path, node
    elif keys[0] == "*" and isinstance(node, list):
        for index, item in enumerate(node):
            yield from _find(item, keys[1:], f"{path}.{index}")
    elif isinstance(node, dict) and keys[0] in node:
        yield from _find(node[keys[0]], keys[1:], f"{path}.{keys[0]}" if path else keys[0])
