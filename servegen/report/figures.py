"""Figures and foreign text as a report shows them: three significant digits, units at the edge, no control codes."""

from __future__ import annotations

import math
import re

from servegen import units

NONE = "-"
DIGITS = 3
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def seconds(value: float) -> str:
    """``412ms``; ``-`` where there is no such figure."""
    return units.format_duration(value, DIGITS) if _shown(value) else _other(value)


def size(value_bytes: float) -> str:
    """``70.6GB``, decimal."""
    return units.format_bytes(value_bytes, DIGITS) if _shown(value_bytes) else _other(value_bytes)


def gigabytes(value_bytes: float) -> str:
    """``70.6``: a cell of a column that is headed GB."""
    return f"{value_bytes / 1e9:.1f}" if math.isfinite(value_bytes) else _other(value_bytes)


def number(value: float) -> str:
    """Three significant digits in plain notation: ``0.0421``, ``12.3``, ``12,300``."""
    if not math.isfinite(value):
        return _other(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.{DIGITS}g}")
    decimals = max(0, DIGITS - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: float) -> str:
    """A whole number in full: ``141,000``."""
    return f"{value:,.0f}" if math.isfinite(value) else _other(value)


def percent(share: float) -> str:
    """``95.4 %`` of a share of one."""
    return f"{number(100 * share)} %" if math.isfinite(share) else _other(share)


def money(dollars: float) -> str:
    """``$1,234.50``."""
    return units.format_money(dollars) if _shown(dollars) else _other(dollars)


def deviation(factor: float) -> str:
    """``+9 %`` of a factor of 1.09."""
    return f"{100 * (factor - 1):+.0f} %" if math.isfinite(factor) else _other(factor)


def visible(text: str) -> str:
    """Foreign text without what a terminal would obey: control and direction characters are written as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same on one line."""
    return visible(" ".join(text.split()))


def _shown(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _other(value: float) -> str:
    return "unbounded" if value == math.inf else NONE
