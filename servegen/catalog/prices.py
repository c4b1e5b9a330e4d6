"""Published prices by accelerator, and the default that follows from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache

from servegen.catalog.loader import ROOT, own
from servegen.errors import CatalogError, Diagnostic, Where

_FILE = ROOT / "prices.yaml"
_KEYS = {"provider", "usd_per_h", "kind", "min_devices", "date", "source", "note"}

Row = Mapping[str, object]


@cache
def _blocks() -> Mapping[str, str]:
    """Accelerator id (or ``sources``) -> the text of its block: one block is parsed, not the file."""
    parts = re.split(r"^([a-z0-9-]+):\n", _FILE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def priced_accelerators() -> tuple[str, ...]:
    """The ids that have at least one row, in order."""
    return tuple(sorted(name for name in _blocks() if name != "sources"))


@cache
def _sources() -> dict[object, object]:
    return own(_blocks()["sources"], _FILE)


@cache
def price_rows(accelerator: str) -> tuple[Row, ...]:
    """The published offers for an accelerator id, in the file's order; empty when there is none.

    A row has ``provider``, ``usd_per_h`` (dollars per device and hour), ``kind`` (``on_demand`` or ``spot``) and
    ``source``, and where that states them ``min_devices``, ``date``, ``note``. CatalogError when the file breaks that.
    """
    block = _blocks().get(accelerator)
    if block is None:
        return ()
    rows = own(f"rows:\n{block}", _FILE)["rows"]
    found: list[Row] = []
    for row in rows if isinstance(rows, list) else ():
        source = _sources().get(row.get("source"))
        price = row.get("usd_per_h")
        sound = isinstance(price, int | float) and price > 0 and bool(row.get("provider"))
        if source is None or not sound or row.get("kind") not in {"on_demand", "spot"} or not set(row) <= _KEYS:
            message = f"prices.yaml: {accelerator}: broken row {row}"
            raise CatalogError(Diagnostic("catalog-file", message, Where(str(_FILE))))
        found.append({**row, "source": source})
    return tuple(found)


def default_price_per_h(accelerator: str) -> float:
    """Dollars per device and hour when the spec states none: the median of the on-demand rows, nan without one."""
    # not statistics.median: that module's import costs as much as reading the whole catalogue entry
    prices = sorted(float(str(row["usd_per_h"])) for row in price_rows(accelerator) if row["kind"] == "on_demand")
    middle = len(prices) // 2
    return (prices[middle] + prices[~middle]) / 2 if prices else math.nan
