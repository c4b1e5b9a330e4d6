"""The sandbox for templates: foreign code, which must end, must fit into memory and must say the same every time.

What is bounded: rounds of loops, calls of macros and blocks, inclusions; what filters, methods and operators are given and
make, each by itself (``bounds.py``) and all together; and the text that is put together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from jinja2 import Template, nodes, pass_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from servegen.render.bounds import LONGEST_MADE, OPERATORS, check_format, cost, listed, size

#: Of the text that a template, macro or block puts together; a page for reviewers has some thousands of characters.
_LONGEST_TEXT = 2**22
#: Of one rendering; the largest shipped template takes some hundreds.
_MOST_STEPS = 100_000
#: Templates that one rendering takes in, each time counted; those that take in themselves would fill the stack.
_MOST_TAKEN_IN = 250
#: Characters and items that filters, methods and operators of one rendering make together.
_MOST_MADE = 2**23
#: Of one value of the plan that is written as it is.
_LONGEST_WRITTEN = 2**20
_STEP = "servegen_step"
_CONCAT = "servegen_concat"
_COPY = "servegen_copy"
#: What runs its body once, once for each item, or whenever it is called.
_COUNTED = (nodes.Template, nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
#: Globals and filters whose result is another one each time.
_BY_CHANCE = (("lipsum",), ("random",))
#: Filters that hand on what they are given, item by item or as it is: what they call is counted by itself.
_HAND_ON = frozenset(
    ("attr", "count", "d", "default", "dictsort", "first", "items", "last", "length", "list", "map", "reject", "rejectattr",
     "reverse", "select", "selectattr")
)  # fmt: skip
#: What has methods that make texts and lists.
_MAKERS = (str, bytes, int, float, list, tuple, dict)
#: How Python writes what has no form as text: with its place in memory.
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")


class _Filtered(NodeTransformer):
    """Hands what a template puts together or copies (texts by ``~``, lists, slices) to filters, which count it."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.Concat):
            return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)
        listed = isinstance(node, (nodes.List, nodes.Tuple, nodes.Dict))
        sliced = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        if (listed or sliced) and getattr(node, "ctx", "load") == "load":
            return _filter(cast(nodes.Expr, node), _COPY)
        return node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox within bounds, without chance."""

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begin()
        for name in _BY_CHANCE[0]:
            del self.globals[name]
        for name in _BY_CHANCE[1]:
            del self.filters[name]
        for name in self.filters.keys() - _HAND_ON:
            self.filters[name] = self._bounded(name, self.filters[name])
        self.filters[_STEP] = self._counter()
        self.filters[_COPY] = pass_context(lambda _, value: self._copied(value))
        self.filters[_CONCAT] = self._bounded("~", lambda parts: "".join(map(str, parts)))
        self.concat = _joined  # type: ignore[method-assign]

    def add_filters(self, **filters: Callable[..., str]) -> None:
        """Filters of our own, which write a value."""
        for name, function in filters.items():
            self.filters[name] = self._own(name, function)

    def begin(self) -> None:
        """A new rendering: what was counted before is forgotten."""
        self._steps = self._made = self._taken_in = 0

    def get_template(self, *args: Any, **kwargs: Any) -> Template:
        self._taken_in += 1
        if self._taken_in > _MOST_TAKEN_IN:
            raise ValueError(f"it includes or imports more than {_MOST_TAKEN_IN} templates")
        return super().get_template(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._count(OPERATORS[operator](left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of whatever a template may call; what methods of texts, numbers and lists make is counted."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, _MAKERS):
            args = tuple(map(listed, args))
            __self._count(cost(__obj.__name__, owner, (*args, *kwargs.values())))
        return __self._copied(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``format`` of a text, as it is looked up: Jinja puts a function of its own in its place."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_format(value.__self__)
        return wrapped

    def _count(self, made: int) -> None:
        self._made += made
        if self._made > _MOST_MADE:
            raise ValueError(f"its filters and operators make more than {_MOST_MADE:,} characters")

    def _copied(self, value: Any) -> Any:
        """``value``; a list may hold the same many times, which Python would take forever to write out or to compare."""
        if isinstance(value, (str, list, tuple, dict)):
            held = size(value, LONGEST_MADE)
            if held > LONGEST_MADE and not isinstance(value, str):
                raise ValueError(f"it makes a list that holds more than {LONGEST_MADE:,} characters")
            self._count(held)
        return value

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is refused where it would make too much. What comes before its value is Jinja's own."""
        at = int(hasattr(function, "jinja_pass_arg"))

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            own, value, rest = args[:at], listed(args[at]), tuple(map(listed, args[at + 1 :]))
            self._count(cost(name, value, (*rest, *kwargs.values())))
            return function(*own, value, *rest, **kwargs)

        return bounded

    def _own(self, name: str, function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def own(value: Any, *args: Any, **kwargs: Any) -> str:
            held = size(value, _LONGEST_WRITTEN)
            if held > _LONGEST_WRITTEN:
                raise ValueError(f"what {name} is given is too large")
            self._count(held)
            return function(value, *args, **kwargs)

        return own

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
        tree = cast(nodes.Template, _Filtered().visit(super()._parse(source, name, filename)))
        for node in [tree, *tree.find_all(_COUNTED)]:
            line = node.lineno or 1
            counted = nodes.Filter(nodes.Const(0), _STEP, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(counted))  # type: ignore[attr-defined]
            node.body[0].set_lineno(line)  # type: ignore[attr-defined]
        tree.set_environment(self)
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
