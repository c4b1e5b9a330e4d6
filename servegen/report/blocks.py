"""What a report is made of, before any format: titles, sentences, lists and tables of ready text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from servegen.record import record


@record
class Title:
    text: str


@record
class Text:
    text: str


@record
class Items:
    texts: tuple[str, ...]


@record
class Table:
    """``right`` holds the indices of the columns of figures."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = field(default=frozenset())


Block = Title | Text | Items | Table


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A table whose first ``left`` columns hold words and the others figures."""
    return Table(tuple(headers), tuple(tuple(row) for row in rows), frozenset(range(left, len(headers))))
