"""The sandbox for templates: foreign code, which must end, must fit into memory and must say the same every time.

What is bounded: rounds of loops, calls of macros and blocks, inclusions, repetitions, powers and the text that is put together.
A filter over one text of that size is not: its time is that of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Of a text or list that a template makes by repeating one.
_LONGEST = 2**20
#: Of the text that a template, macro or block puts together; a page for reviewers has some thousands of characters.
_LONGEST_TEXT = 2**22
#: Of one rendering; the largest shipped template takes some hundreds.
_MOST_STEPS = 100_000
_STEP = "servegen_step"
#: What runs its body once, once for each item, or whenever it is called.
_COUNTED = (nodes.Template, nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
#: Globals and filters whose result is another one each time.
_BY_CHANCE = (("lipsum",), ("random",))
#: How Python writes what has no form as text: with its place in memory.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox within bounds, without chance."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._steps = 0
        for name in _BY_CHANCE[0]:
            del self.globals[name]
        for name in _BY_CHANCE[1]:
            del self.filters[name]
        self.filters[_STEP] = self._counter()
        self.concat = _joined  # type: ignore[method-assign]

    def begin(self) -> None:
        """A new rendering: what was counted before is forgotten."""
        self._steps = 0

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if abs(left) > _LONGEST or abs(right) > 64:
                raise ValueError("this power is too large")
        else:
            for whole, times in ((left, right), (right, left)):
                if hasattr(whole, "__len__") and isinstance(times, int) and len(whole) * times > _LONGEST:
                    raise ValueError(f"this repetition is longer than {_LONGEST:,}")
        return super().call_binop(context, operator, left, right)

    def _counter(self) -> Callable[[Any, Any], Any]:
        # With the context, so that Jinja does not evaluate it once and for all when it compiles.
        @pass_context
        def step(_: Any, value: Any) -> Any:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise ValueError(f"its loops and macros take more than {_MOST_STEPS:,} steps")
            return value

        return step

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template with a count at the head of every body."""
        tree = super()._parse(source, name, filename)
        for node in [tree, *tree.find_all(_COUNTED)]:
            line = node.lineno or 1
            counted = nodes.Filter(nodes.Const(0), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(counted))  # type: ignore[attr-defined]
            node.body[0].set_lineno(line).set_environment(self)  # type: ignore[attr-defined]
        return tree


def _joined(parts: Iterable[str]) -> str:
    kept: list[str] = []
    total = 0
    for part in parts:
        total += len(part)
        if total > _LONGEST_TEXT:
            raise ValueError(f"it puts together a text of more than {_LONGEST_TEXT:,} characters")
        kept.append(part)
    return "".join(kept)


def check_text(text: str) -> None:
    """ValueError for a text with an object of Python in it, which is written with another address in each run."""
    if " at 0x" in text and (found := _ADDRESS.search(text)):
        raise ValueError(f"it prints an object that has no form as text: {found[0][1:].partition(' at 0x')[0]}")
