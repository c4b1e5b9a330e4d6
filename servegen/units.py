"""The only place that converts units: text as a person writes it to SI floats, and back.

Parsing is exact (decimal arithmetic, then one rounding to the nearest float), and a formatter without ``digits`` gives
text that parses back to the very same float.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Context, Decimal

_NUMBER = re.compile(r"(?P<sign>[-+]?)(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(?P<unit>\S*)", re.ASCII)
_LONGEST = 40  # characters that are worth reading as a quantity
_EXACT = Context(prec=400)  # any float times any unit fits, so that only the final rounding rounds

SECONDS: Mapping[str, Decimal] = {
    "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1), "min": Decimal(60), "h": Decimal(3600),
}  # fmt: skip
BYTES: Mapping[str, Decimal] = {
    "B": Decimal(1), "kB": Decimal(10**3), "MB": Decimal(10**6), "GB": Decimal(10**9), "TB": Decimal(10**12),
    "KiB": Decimal(2**10), "MiB": Decimal(2**20), "GiB": Decimal(2**30), "TiB": Decimal(2**40),
}  # fmt: skip
BYTES_PER_S: Mapping[str, Decimal] = {
    **{f"{unit}/s": scale for unit, scale in BYTES.items()},
    "kbps": Decimal(125), "Mbps": Decimal(125 * 10**3), "Gbps": Decimal(125 * 10**6), "Tbps": Decimal(125 * 10**9),
}  # fmt: skip
PER_S: Mapping[str, Decimal] = {"/s": Decimal(1), "/min": Decimal(60), "/h": Decimal(3600)}
PER_H: Mapping[str, Decimal] = {"/h": Decimal(1)}

_EXAMPLES = {"duration": "500ms", "size": "80GB", "bandwidth": "400Gbps", "rate": "20/s", "price": "2.95/h"}


def parse_duration(text: object) -> float:
    """Seconds of ``500ms``, ``1.5s``, ``2min``. ValueError on anything else, as for every parser here."""
    return _parse(text, "duration", SECONDS)


def parse_bytes(text: object) -> float:
    """Bytes of ``80GB`` (1e9 each) or ``64GiB`` (2^30 each)."""
    return _parse(text, "size", BYTES)


def parse_bandwidth(text: object) -> float:
    """Bytes per second of ``400Gbps`` (bits), ``2GB/s`` or ``2GiB/s`` (bytes)."""
    return _parse(text, "bandwidth", BYTES_PER_S)


def parse_rate(text: object) -> float:
    """Events per second of ``20/s``, ``90/min`` or ``1000/h``."""
    return _parse(text, "rate", PER_S, inverse=True)


def parse_price(text: object) -> float:
    """Dollars per hour of ``2.95/h`` or ``$2.95/h``."""
    return _parse(text, "price", PER_H, prefix="$")


def format_duration(seconds: float, digits: int | None = None) -> str:
    """``500ms``, ``1.5s``, ``2min``; minutes and hours only where they are whole. ``digits`` rounds to as many."""
    value = _figures(seconds, digits)
    for unit in ("h", "min"):
        if value and not _EXACT.remainder(value, SECONDS[unit]):
            return _write(value / SECONDS[unit]) + unit
    unit = "s" if value >= 1 or not value else "ms" if value >= SECONDS["ms"] else "us"
    return _write(_EXACT.divide(value, SECONDS[unit])) + unit


def format_bytes(size: float, digits: int | None = None) -> str:
    """Decimal units, ``80GB``; without ``digits``, whole MiB, GiB or TiB (``64GiB``) where that is the shorter text."""
    value = _figures(size, digits)
    unit = next((u for u in ("TB", "GB", "MB", "kB") if value >= BYTES[u]), "B")
    texts = [_write(_EXACT.divide(value, BYTES[unit])) + unit]
    if digits is None and value:
        texts += [
            _write(_EXACT.divide(value, BYTES[u])) + u
            for u in ("TiB", "GiB", "MiB")
            if not _EXACT.remainder(value, BYTES[u])
        ]
    return min(texts, key=len)


def format_bandwidth(bytes_per_s: float, digits: int | None = None) -> str:
    """``50GB/s``."""
    return format_bytes(bytes_per_s, digits) + "/s"


def format_gib(size: float) -> str:
    """A Kubernetes quantity that holds ``size`` bytes: whole GiB, rounded up, ``64Gi``."""
    _figures(size, None)
    return f"{-(-math.ceil(size) // 2**30)}Gi"


def format_rate(per_s: float, digits: int | None = None) -> str:
    """``20/s``."""
    return _write(_figures(per_s, digits)) + "/s"


def format_price(dollars_per_h: float, digits: int | None = None) -> str:
    """``2.95/h``, as a spec writes it."""
    return _write(_figures(dollars_per_h, digits)) + "/h"


def format_money(dollars: float) -> str:
    """``$1,234.50``; below a dollar three figures, ``$0.421``. For people: it rounds."""
    value = float(_figures(dollars, None))
    if value == 0 or value >= 0.9995:
        return f"${value:,.2f}"
    decimals = max(2, 2 - math.floor(math.log10(value)))
    whole, _, fraction = f"{value:.{decimals}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}"


def _parse(text: object, what: str, table: Mapping[str, Decimal], inverse: bool = False, prefix: str = "") -> float:
    legal = f"write a {what} like {_EXAMPLES[what]} (units: {', '.join(table)})"
    if not isinstance(text, str):
        raise ValueError(f"{text!r} has no unit: {legal}")
    match = _NUMBER.fullmatch(text.strip().removeprefix(prefix)) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f"{text[:_LONGEST]!r} is not a {what}: {legal}")
    unit = match["unit"]
    if not unit:
        raise ValueError(f"{text!r} has no unit: {legal}")
    if unit not in table:
        near = [known for known in table if known.lower() == unit.lower() or known == unit + "B" or known == f"/{unit}"]
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"{text!r} has the unit {unit!r}, which is no unit of a {what}{meant}: {legal}")
    if match["sign"] == "-":
        raise ValueError(f"{text!r} is negative: a {what} is zero or more")
    number = Decimal(match["number"])
    value = float(_EXACT.divide(number, table[unit]) if inverse else _EXACT.multiply(number, table[unit]))
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large for a {what}")
    return value


def _figures(value: float, digits: int | None) -> Decimal:
    """``value`` as the shortest decimal that is the same float, or rounded to ``digits`` significant figures."""
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a finite number of zero or more")
    return Decimal(repr(float(value)) if digits is None else f"{float(value):.{digits}g}")


def _write(value: Decimal) -> str:
    """Plain digits, without trailing zeros; an exponent only where the digits would run long."""
    value = value.normalize(_EXACT)
    if not value:
        return "0"
    return f"{value:f}" if -12 < value.adjusted() < 16 else f"{value:e}".replace("e+", "e")
