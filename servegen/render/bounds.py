"""How large what a template asks for would be, told before it is made: what filters, methods and operators may be asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

#: Of a text that a template makes or hands on, or of a list with all that it holds; a template is a page, its values are lines.
LONGEST = 2**16
#: Of what one step makes.
LONGEST_MADE = 2**18
#: A number that says how wide, how often or how many.
_WIDEST = 2**12
#: Of a whole number; beyond some thousand digits Python itself refuses to write it.
_MOST_BITS = 2**12
#: Filters and methods that make something as wide, as deep or as many as a number says.
_WIDE = frozenset(
    ("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "to_bytes", "tojson", "zfill")
)  # fmt: skip
#: Those that a number tells where to cut.
_CUT = frozenset(("filesizeformat", "round", "truncate", "wordwrap"))
_LONGEST_SEARCHED = 2**12
#: Those that look at all of the rest of a text, or at all of a sum, for every piece of it, and how much they are given.
_AT_EVERY_PIECE = {"wordwrap": 2**14, **dict.fromkeys(("urlize", "striptags", "sum"), _LONGEST_SEARCHED)}
#: Widths in a text for ``%`` and in one for ``format``, and those that either takes from the values.
_WIDTH = (re.compile(r"%(\(.*?\))?[-#+ .0-9]*[0-9]{4}", re.DOTALL), re.compile(r"\{[^{}]*:[^{}]*[0-9]{4}"))
_TAKEN = (re.compile(r"%(\(.*?\))?[-#+ .0-9]*\*", re.DOTALL), re.compile(r"\{[^{}]*:[^{}]*\{"))


def size(value: Any, most: int) -> int:
    """Characters and items of a value with all that it holds, counted no further than ``most``."""
    total, left = 0, [value]
    while left and total <= most:
        node = left.pop()
        if isinstance(node, (str, bytes)):
            total += len(node)
        elif isinstance(node, (list, tuple, set, frozenset, Mapping)):
            total += len(node)
            if total <= most:
                left += node
                left += node.values() if isinstance(node, Mapping) else ()
        else:
            total += 1
    return total


def listed(value: Any) -> Any:
    """``value``; of what yields its items one by one, a list of them: how large they are is known only then."""
    if not isinstance(value, Iterator):
        return value
    items, total = [], 0
    for item in islice(value, LONGEST + 1):
        items.append(item)
        total += size(item, LONGEST)
        if total > LONGEST:
            break  # which is told of the list
    return items


def cost(name: str, value: Any, others: tuple[Any, ...]) -> int:
    """The most that a filter or method ``name`` of ``value`` makes of it, characters and items. ValueError if that is too much.

    ``others`` are its arguments. Whatever it is, it makes no more of each character or item than its longest argument holds.
    """
    wide = name in _WIDE
    for number in others if wide or name in _CUT else ():
        if isinstance(number, (int, float)) and abs(number) > _WIDEST:
            raise ValueError(f"{name} by {number:,} is beyond {_WIDEST:,}")
    if name == "format":
        _check_widths(value, 0)
    if name == "sum" and not all(isinstance(x, (int, float, str)) for x in others):
        raise ValueError("sum adds up numbers, not lists")
    held = size(value, LONGEST)
    lengths = [size(other, LONGEST) for other in others]
    most = _AT_EVERY_PIECE.get(name, LONGEST)
    if max([held, *lengths]) > most:
        raise ValueError(f"what {name} is given is larger than {most:,} characters and items")
    widths = [int(abs(n)) for n in others if isinstance(n, (int, float))] if wide else []
    made = (held + 1) * max([1, *lengths, *widths])
    if name == "replace" and len(others) > 1 and all(isinstance(x, str) for x in (value, *others[:2])):
        made = held + (value.count(others[0]) if others[0] else held + 1) * lengths[1]
    if made > LONGEST_MADE:
        raise ValueError(f"what {name} makes may be longer than {LONGEST_MADE:,} characters")
    return made


def check_format(text: str) -> None:
    """ValueError for the text of a ``format`` method that makes a value wider than any line is."""
    _check_widths(text.replace("{{", "").replace("}}", ""), 1)


def _check_widths(text: str, kind: int) -> None:
    if len(text) > _LONGEST_SEARCHED:
        raise ValueError(f"this format is longer than {_LONGEST_SEARCHED:,}")
    if _WIDTH[kind].search(text):
        raise ValueError("this format makes a value wider than 999")
    if _TAKEN[kind].search(text):
        raise ValueError("this format takes a width from its values, which may be any")


def _power(left: Any, right: Any) -> int:
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise ValueError("** takes two numbers")
    if abs(left) > LONGEST_MADE or abs(right) > 64:
        raise ValueError("this power is too large")
    return 1


def _product(left: Any, right: Any) -> int:
    for whole, times in ((left, right), (right, left)):
        if hasattr(whole, "__len__") and isinstance(times, int):
            if max(size(whole, LONGEST_MADE), 1) * times > LONGEST_MADE:
                raise ValueError(f"this repetition is longer than {LONGEST_MADE:,}")
            return max(0, len(whole) * times)
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MOST_BITS:
        raise ValueError("this product is too large")
    return 1


def _sum(left: Any, right: Any) -> int:
    if not (hasattr(left, "__len__") and hasattr(right, "__len__")):
        return 1
    made = size(left, LONGEST_MADE) + size(right, LONGEST_MADE)
    if made > LONGEST_MADE:
        raise ValueError(f"what + makes is longer than {LONGEST_MADE:,}")
    return made


def _remainder(left: Any, right: Any) -> int:
    if not isinstance(left, (str, bytes)):
        return 1
    text = left if isinstance(left, str) else left.decode("latin-1")
    return cost("format", text, right if isinstance(right, tuple) else (right,))


#: Operator -> how much it makes, or ValueError.
OPERATORS: Mapping[str, Callable[[Any, Any], int]] = {"**": _power, "*": _product, "+": _sum, "%": _remainder}
