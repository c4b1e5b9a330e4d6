"""Numbers as sentences show them: three significant digits, the unit that reads best."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """``19.6 ms``."""
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * s), ("us", 1e-6))
    amount = seconds / size
    return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:,.0f} {unit}"


def rate(per_s: float) -> str:
    """``4.69 requests/s``."""
    return f"{per_s:.3g} requests/s"


def money(dollars: float) -> str:
    """``$23.94``."""
    return f"${dollars:,.2f}"


def load(kind: str, amount: float) -> str:
    """A load in its own unit: requests/s, requests in flight, or users."""
    return rate(amount) if kind == "rate" else f"{amount:.4g} {'requests in flight' if kind == 'concurrency' else 'users'}"
