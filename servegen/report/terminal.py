"""The same blocks for a terminal, with rich: imported only where one is there, because its import is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from servegen.report.blocks import Block, Items, Table, Text, Title
from servegen.report.figures import visible


def show(blocks: Sequence[Block], stream: TextIO) -> None:
    """Print the blocks to a terminal; rich leaves the colour out where NO_COLOR asks for that."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for number, block in enumerate(blocks):
        if number and not (isinstance(blocks[number - 1], Title) and not isinstance(block, Title)):
            console.print()
        match block:
            case Title(text):
                console.print(RichText(visible(text), style="bold"))
            case Text(text):
                console.print(RichText(visible(text)))
            case Items(texts):
                for item in texts:
                    console.print(RichText(f"- {visible(item)}"))
            case Table(headers, rows, right):
                grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
                for index, header in enumerate(headers):
                    grid.add_column(RichText(visible(header)), justify="right" if index in right else "left")
                for row in rows:
                    grid.add_row(*(RichText(visible(cell), style=_style(cell)) for cell in row))
                console.print(grid)


def _style(cell: str) -> str:
    """A broken bound is red, a met one green, everything else as it is."""
    return "bold red" if cell == "NO" else "green" if cell == "yes" else ""
