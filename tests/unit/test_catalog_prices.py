from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from servegen.catalog import loader, prices
from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
from servegen.errors import CatalogError


def usd(row: prices.Row) -> float:
    return float(str(row["usd_per_h"]))


def test_the_default_price_is_the_median_of_on_demand_rows() -> None:
    h100 = [
        2.29, 2.95, 3.99, 4.09, 2.69, 3.29, 3.49, 2.71, 2.69, 3.99, 6.88, 12.29, 3.99, 4.0811,
        4.5, 6.155, 10.9791, 2.99,
    ]  # fmt: skip
    facts = resolve_accelerator("h100-sxm-80gb")
    assert sorted(usd(r) for r in facts.price_rows if r["kind"] == "on_demand") == sorted(h100)
    assert facts.price_per_h == pytest.approx(statistics.median(h100))
    assert resolve_accelerator("tpu-v5e").price_per_h == pytest.approx((1.2 + 1.56) / 2)
    b200 = [4.89, 5.5, 6.99, 6.69, 5.98, 6.79, 6.79, 5.0]
    assert resolve_accelerator("b200").price_per_h == pytest.approx(statistics.median(b200))


def test_a_device_without_offers_has_no_price() -> None:
    facts = resolve_accelerator("mi355x")
    assert math.isnan(facts.price_per_h)
    assert facts.price_rows == ()


def test_every_price_row_is_sound_and_none_is_lost() -> None:
    whole: Any = YAML(typ="safe", pure=True).load(loader.ROOT / "prices.yaml")
    names = set(whole) - {"sources"}
    assert set(prices.priced_accelerators()) == names <= set(list_accelerators())
    used = set()
    for name in names:
        rows = prices.price_rows(name)
        assert len(rows) == len(whole[name])
        used |= {row["source"] for row in whole[name]}
        for row in rows:
            assert 0.2 < usd(row) < 20
            assert isinstance(row["source"], str) and len(row["source"]) > 10
            assert row.get("min_devices", 1) in {1, 4, 8}
        spot = [r for r in rows if r["kind"] == "spot"]
        offers = {(r["provider"], r["source"]): usd(r) for r in rows if r["kind"] == "on_demand"}
        assert all(usd(r) < offers[r["provider"], r["source"]] for r in spot)
    assert used == set(whole["sources"])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{provider: p, usd_per_h: 2, kind: on_demand, source: s}", ""),
        ("{provider: p, usd_per_h: 2, kind: on_demand, source: t}", "broken row"),
        ("{provider: p, usd_per_h: 2, kind: reserved, source: s}", "broken row"),
        ("{provider: p, usd_per_h: free, kind: spot, source: s}", "broken row"),
        ("{provider: p, usd_per_h: 0, kind: spot, source: s}", "broken row"),
        ("{usd_per_h: 2, kind: spot, source: s}", "broken row"),
        ("{provider: p, usd_per_h: 2, kind: spot, source: s, currency: EUR}", "broken row"),
    ],
)
def test_a_broken_row_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, why: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(f"sources:\n  s: a source\nbox-1gb:\n  - {row}\n")
    monkeypatch.setattr(prices, "_FILE", file)
    caches = (prices._blocks, prices._sources, prices.price_rows)
    for cache in caches:
        cache.cache_clear()
    try:
        if why:
            with pytest.raises(CatalogError, match=why):
                prices.default_price_per_h("box-1gb")
        else:
            assert prices.default_price_per_h("box-1gb") == 2
            assert prices.price_rows("box-1gb")[0]["source"] == "a source"
    finally:
        for cache in caches:
            cache.cache_clear()
