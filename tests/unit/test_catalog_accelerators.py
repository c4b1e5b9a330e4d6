from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from servegen.catalog import accelerators, loader
from servegen.catalog.accelerators import arithmetic, list_accelerators, resolve_accelerator
from servegen.catalog.facts import PRECISIONS, AcceleratorFacts
from servegen.errors import CatalogError

TABLES: Any = YAML(typ="safe", pure=True).load(Path(__file__).parents[1] / "fixtures" / "efficiency.yaml")
FITTED: dict[str, dict[str, list[float]]] = TABLES["fitted"]
#: The width whose kernels stand in for one that was not measured, nearest first.
STAND_IN = {
    "fp8": ("w8a16",),
    "int8": ("fp8",),
    "int4": ("w4a16", "nvfp4", "fp8"),
    "nvfp4": ("w4a16", "fp8"),
    "mxfp4": ("nvfp4", "w4a16", "fp8"),
}
EW, EC = 0, 1

every_accelerator = pytest.mark.parametrize("name", list_accelerators())


# -- the rule of the efficiencies, recomputed from the measured tables ------------------------------------------------


def measured(device: str, kernels: str, which: int) -> float:
    table = TABLES["gemm"][device]
    row = table[kernels]
    if which == EC:
        return float(statistics.mean(row["mfu"]))
    seen_bytes_per_s = statistics.median(row["bw"]) * table["hbm_bytes_per_s"]
    return float(seen_bytes_per_s / resolve_accelerator(device).hbm_bytes_per_s)


def matmul_ceiling(facts: AcceleratorFacts, dtype: str) -> float:
    known = dtype if dtype in facts.achievable_flops else "bf16"
    return facts.achievable_flops.get(known, math.inf) / facts.peak_flops[known]


def expected_share(facts: AcceleratorFacts, kernels: str, which: int) -> float:
    fitted = FITTED.get(facts.id, {})
    if kernels in fitted:
        return fitted[kernels][which]
    ratio = {
        (d, p): pair[which] / measured(d, p, which)
        for d, row in FITTED.items()
        for p, pair in row.items()
        if p in TABLES["gemm"].get(d, {})
    }
    family: list[str] = next((f for f in TABLES["families"].values() if facts.id in f), [])
    steps = [
        [r for (d, _), r in ratio.items() if d == facts.id],
        [r for (d, p), r in ratio.items() if d in family and p == kernels],
        [r for (d, _), r in ratio.items() if d in family],
        [r for (_, p), r in ratio.items() if p == kernels],
        list(ratio.values()),
        [1.0],
    ]
    dtype = kernels if kernels in facts.peak_flops else "bf16"
    ceiling = TABLES["bandwidth_ceiling"] if which == EW else min(1.0, matmul_ceiling(facts, dtype))
    products = [measured(facts.id, kernels, which) * statistics.geometric_mean(step) for step in steps if step]
    return next(p for p in products if p <= ceiling)


def expected_gemm(facts: AcceleratorFacts, precision: str) -> tuple[float, float, str]:
    runs_as = arithmetic(facts, precision)
    table = TABLES["gemm"].get(facts.id)
    if precision in FITTED.get(facts.id, {}):
        ew, ec = FITTED[facts.id][precision]
        return ew, ec, "fitted"
    if table is None:
        return 0.85, min(0.59, matmul_ceiling(facts, runs_as)), "default"
    kernels = precision if precision in table else next(k for k in STAND_IN[precision] if k in table)
    computes = kernels if runs_as == precision else "bf16"
    return expected_share(facts, kernels, EW), expected_share(facts, computes, EC), "scaled"


@every_accelerator
def test_efficiencies_follow_the_rule(name: str) -> None:
    facts = resolve_accelerator(name)
    errors = {"scaled": 0.118, "default": 0.25}
    for precision, gemm in facts.gemm.items():
        ew, ec, origin = expected_gemm(facts, precision)
        assert [gemm.ew, gemm.ec] == pytest.approx([ew, ec], abs=6e-4), precision
        assert gemm.origin == origin
        assert gemm.fit_error == errors[origin] if origin != "fitted" else 0.01 < gemm.fit_error < 0.25
        assert (gemm.rows > 0) == (origin == "fitted")


def test_every_measured_device_is_in_the_catalogue() -> None:
    assert set(TABLES["gemm"]) <= set(list_accelerators())


# -- all-reduce -------------------------------------------------------------------------------------------------------


def fit_allreduce(n: int, row: list[float]) -> tuple[float, float]:
    """Least squares on log t of t = alpha + bytes*2(n-1)/n/BW: (us, GB/s)."""
    size = 2.0 ** np.array([14, 16, 18, 20, 22, 24, 26])
    wire = size * 2 * (n - 1) / n
    seconds = np.array([*(us * 1e-6 for us in row[:6]), wire[6] / (row[6] * 1e9)])
    x = np.log([seconds[0], 1 / (row[6] * 1e9)])
    for _ in range(50):
        alpha, beta = np.exp(x)
        model = alpha + wire * beta
        jacobian = np.stack([alpha / model, wire * beta / model], axis=1)
        x = x - np.linalg.lstsq(jacobian, np.log(model / seconds), rcond=None)[0]
    return float(np.exp(x[0]) * 1e6), float(np.exp(-x[1]) / 1e9)


def test_the_fit_reproduces_a_published_one() -> None:
    alpha, bandwidth = fit_allreduce(2, TABLES["allreduce"]["h100-sxm-80gb"][2])
    assert alpha == pytest.approx(2.7, rel=0.03)
    assert bandwidth == pytest.approx(293, rel=0.03)


def test_rtx_pro_allreduce_is_the_fit_of_its_rows() -> None:
    facts = resolve_accelerator("rtx-pro-6000-96gb")
    for n, row in TABLES["allreduce"]["rtx-pro-6000-96gb"].items():
        alpha, bandwidth = fit_allreduce(n, row)
        assert facts.allreduce_alpha_s[n] == pytest.approx(alpha * 1e-6, abs=6e-8)
        assert facts.allreduce_bytes_per_s[n] == pytest.approx(bandwidth * 1e9, abs=6e7)


@pytest.mark.parametrize("name", ["gb200-192gb", "gb300-288gb"])
def test_nvl72_allreduce_grows_past_the_tray(name: str) -> None:
    facts, b200 = resolve_accelerator(name), resolve_accelerator("b200-sxm-180gb")
    alpha, bandwidth = fit_allreduce(8, TABLES["allreduce"]["gb300-288gb"][8])
    growth = statistics.median(row[8] / row[4] for row in TABLES["nccl_floor_us"].values())
    for n in (2, 4):
        assert facts.allreduce_alpha_s[n] == b200.allreduce_alpha_s[n]
        assert facts.allreduce_bytes_per_s[n] == b200.allreduce_bytes_per_s[n]
    for doublings, n in enumerate((8, 16, 32, 64)):
        assert facts.allreduce_alpha_s[n] == pytest.approx(alpha * 1e-6 * growth**doublings, rel=5e-3)
        assert facts.allreduce_bytes_per_s[n] == pytest.approx(bandwidth * 1e9, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "like"),
    [(n, "l40s-48gb") for n in ("l4-24gb", "a10g-24gb", "a100-pcie-80gb", "rtx-3090-24gb", "rtx-4090-24gb")]
    + [("h100-pcie-80gb", "rtx-pro-6000-96gb")],
)
def test_pcie_cards_scale_by_their_link(name: str, like: str) -> None:
    facts, base = resolve_accelerator(name), resolve_accelerator(like)
    ratio = facts.link_bytes_per_s / base.link_bytes_per_s
    assert facts.allreduce_alpha_s == base.allreduce_alpha_s
    for n, bandwidth in base.allreduce_bytes_per_s.items():
        assert facts.allreduce_bytes_per_s[n] == pytest.approx(bandwidth * ratio, rel=5e-3)


@pytest.mark.parametrize("name", ["mi300x-192gb", "mi325x-256gb", "mi355x-288gb", "gaudi2-96gb", "gaudi3-128gb"])
def test_meshes_use_the_links_that_the_group_has(name: str) -> None:
    facts = resolve_accelerator(name)
    for n, bandwidth in facts.allreduce_bytes_per_s.items():
        links = min(facts.link_pair_bytes_per_s * (n - 1), facts.link_bytes_per_s)
        assert bandwidth == pytest.approx(links * 170 / 300, abs=6e7)


def test_tpu_allreduce_is_a_ring_over_the_axes() -> None:
    v5e, v5p, v6e = (resolve_accelerator(n) for n in ("tpu-v5e", "tpu-v5p", "tpu-v6e"))
    hops = {4: 1 + 1, 8: 1 + 3, 16: 3 + 3, 32: 3 + 7, 64: 7 + 7, 128: 7 + 16 // 2, 256: 16 // 2 + 16 // 2}
    assert v5e.allreduce_alpha_s == pytest.approx({n: 2e-6 * count for n, count in hops.items()})
    assert v6e.allreduce_alpha_s == v5e.allreduce_alpha_s
    for facts in (v5e, v6e):
        link = facts.link_pair_bytes_per_s
        ways = {n: bandwidth / link for n, bandwidth in facts.allreduce_bytes_per_s.items()}
        assert ways == {4: 2, 8: 2, 16: 2, 32: 2, 64: 2, 128: 3, 256: 4}
    assert {n: b / 90e9 for n, b in v5p.allreduce_bytes_per_s.items()} == {4: 2, 8: 3, 16: 3, 32: 3, 64: 6, 128: 6}
    hops_us = {n: round(alpha * 1e6, 3) for n, alpha in v5p.allreduce_alpha_s.items()}
    assert hops_us == {4: 4, 8: 6, 16: 10, 32: 14, 64: 12, 128: 16}


# -- schema and physics -----------------------------------------------------------------------------------------------


@every_accelerator
def test_figures_are_physical(name: str) -> None:
    facts = resolve_accelerator(name)
    assert facts.id == name
    assert facts.vendor in {"nvidia", "amd", "intel", "google"}
    assert 8e9 <= facts.hbm_bytes <= 512e9
    assert 0.9 < facts.usable_bytes / facts.hbm_bytes < 1.1
    assert 100e9 <= facts.hbm_bytes_per_s <= 20e12
    assert "bf16" in facts.peak_flops
    assert all(10e12 < flops < 30e15 for flops in facts.peak_flops.values())
    assert all(facts.achievable_flops[d] <= facts.peak_flops[d] for d in facts.achievable_flops)
    assert 0 < facts.link_pair_bytes_per_s <= facts.link_bytes_per_s <= facts.hbm_bytes_per_s
    assert facts.scaleup_domain >= 1
    assert facts.host_devices in {1, 4, 8}
    assert facts.host_cpus >= 8 * facts.host_devices
    assert facts.host_memory_bytes >= 0.5 * facts.hbm_bytes * facts.host_devices
    assert math.isnan(facts.tdp_w) if facts.vendor == "google" else 50 < facts.tdp_w < 2000
    assert (facts.compute_capability >= 8) == (facts.vendor == "nvidia")
    assert "/" in facts.resource
    assert all(0.3 <= g.ew <= 1 and 0.1 <= g.ec <= 1 for g in facts.gemm.values())
    assert list(facts.gemm) == [p for p in PRECISIONS if p in facts.gemm]
    assert set(facts.peak_flops) <= set(facts.gemm)
    assert all(arithmetic(facts, p) in facts.peak_flops for p in facts.gemm)


@every_accelerator
def test_collectives_cover_every_legal_tp(name: str) -> None:
    facts = resolve_accelerator(name)
    latency, bandwidth = facts.allreduce_alpha_s, facts.allreduce_bytes_per_s
    assert latency.keys() == bandwidth.keys()
    assert set(latency) >= (set(facts.legal_tp) - {1} if facts.legal_tp else {2, 4, 8})
    assert all(5e-7 < alpha < 5e-4 for alpha in latency.values())
    # a TPU's wrapped axes halve its hops; everywhere else more devices never cost less
    assert facts.vendor == "google" or sorted(latency.values()) == list(latency.values())
    assert all(0 < b <= facts.link_bytes_per_s for b in bandwidth.values())


@every_accelerator
def test_every_number_has_a_source(name: str) -> None:
    figures = loader.explain(resolve_accelerator(name))
    assert [f.path for f in figures if not f.source] == []
    units = {f.path: f.unit for f in figures}
    assert {"peak_flops.bf16", "gemm.bf16.ew", "host_cpus", "price_per_h"} <= set(units)
    assert (units["hbm_bytes"], units["hbm_bytes_per_s"], units["allreduce_alpha_s.8"]) == ("B", "B/s", "s")


@every_accelerator
def test_what_a_device_offers_is_near_its_nominal_memory(name: str) -> None:
    """Makers' gigabytes are 10^9 or 2^30 bytes; ECC, driver and reserved regions take up to 2 % (L4: 22.03 of 24 GB)."""
    facts = resolve_accelerator(name)
    nominal = facts.hbm_bytes
    assert 0.98 * nominal <= facts.usable_bytes <= 1.01 * nominal * 2.0**30 / 1e9


def test_known_values() -> None:
    h100 = resolve_accelerator("h100-sxm-80gb")
    assert (h100.hbm_bytes_per_s, h100.peak_flops["bf16"], h100.usable_bytes) == (3.35e12, 989e12, 85e9)
    assert [h100.gemm["fp8"].ew, h100.gemm["fp8"].ec] == FITTED["h100-sxm-80gb"]["fp8"]
    assert (h100.host_devices, h100.host_cpus, h100.host_memory_bytes) == (8, 192, 2 * 2.0**40)
    assert h100.node_selector == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert (h100.allreduce_alpha_s[8], h100.allreduce_bytes_per_s[8]) == (5.0e-6, 290e9)
    assert resolve_accelerator("l40s").usable_bytes == 47.663e9  # 44.39 GiB by PyTorch; nvidia-smi's 46068 MiB are not all there
    assert resolve_accelerator("a100-sxm-80gb").usable_bytes == 84.975e9  # 79.14 GiB
    assert resolve_accelerator("tpu-v5e").usable_bytes == 15.75 * 2.0**30
    assert resolve_accelerator("tpu-v5e").legal_tp == (1, 4, 8, 16, 32, 64, 128, 256)
    assert resolve_accelerator("gb200").scaleup_domain == 72
    assert resolve_accelerator("gb300").host_devices == 4
    assert "fp8" not in resolve_accelerator("a100-sxm-80gb").peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "runs_as"),
    [
        ("h100-sxm-80gb", "fp8", "fp8"),
        ("h100-sxm-80gb", "int8", "int8"),
        ("h100-sxm-80gb", "int4", "bf16"),
        ("h100-sxm-80gb", "nvfp4", "bf16"),
        ("a100-sxm-80gb", "fp8", "bf16"),
        ("a100-sxm-80gb", "int8", "int8"),
        ("b200-sxm-180gb", "nvfp4", "nvfp4"),
        ("b200-sxm-180gb", "mxfp4", "mxfp4"),
        ("b300-sxm-288gb", "int8", "bf16"),
        ("mi355x-288gb", "mxfp4", "mxfp4"),
        ("tpu-v6e-32gb", "int8", "int8"),
        ("tpu-v6e-32gb", "fp8", "bf16"),
    ],
)
def test_arithmetic(name: str, precision: str, runs_as: str) -> None:
    assert arithmetic(resolve_accelerator(name), precision) == runs_as


def test_arithmetic_of_a_precision_that_the_device_cannot_serve() -> None:
    with pytest.raises(CatalogError, match="does not serve nvfp4") as caught:
        arithmetic(resolve_accelerator("tpu-v5e"), "nvfp4")
    assert "bf16" in caught.value.diagnostics[0].hint


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("h100_sxm", "h100-sxm-80gb"),
        ("H100", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),
        ("nvidia h200", "h200-sxm-141gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("RTX 4090", "rtx-4090-24gb"),
        ("3090", "rtx-3090-24gb"),
        ("AMD Instinct MI300X", "mi300x-192gb"),
        ("v5e", "tpu-v5e-16gb"),
        ("Trillium", "tpu-v6e-32gb"),
    ],
)
def test_names_and_aliases(name: str, means: str) -> None:
    assert resolve_accelerator(name).id == means


@every_accelerator
def test_a_device_is_found_by_its_own_names(name: str) -> None:
    facts = resolve_accelerator(name)
    assert resolve_accelerator(facts.id.upper().replace("-", "_")) is facts
    for label in facts.node_selector.values():
        assert resolve_accelerator(label) is facts


@pytest.mark.parametrize(
    ("name", "claimants"), [("A100", 3), ("a100_sxm", 2), ("a100-80gb", 2)], ids=["chip", "form-factor", "memory"]
)
def test_an_ambiguous_name_lists_its_claimants(name: str, claimants: int) -> None:
    with pytest.raises(CatalogError, match="means more than one") as caught:
        resolve_accelerator(name)
    assert caught.value.diagnostics[0].hint.count("a100-") == claimants


@pytest.mark.parametrize(("name", "near"), [("h10", "h100-sxm-80gb"), ("l40", "l40s-48gb"), ("mi300", "mi300x-192gb")])
def test_an_unknown_name_lists_the_nearest(name: str, near: str) -> None:
    with pytest.raises(CatalogError, match="there is no accelerator") as caught:
        resolve_accelerator(name)
    assert near in caught.value.diagnostics[0].hint


@pytest.mark.parametrize("name", ["", "***", "quantum-9000", "../engines/sglang"])
def test_nonsense_is_unknown(name: str) -> None:
    with pytest.raises(CatalogError, match="there is no accelerator"):
        resolve_accelerator(name)


@pytest.mark.parametrize("name", ["h100-nvl-94gb", "H100 NVL", "rtx_5090", "tpu-v7x", "H20"])
def test_a_device_without_published_figures_says_so(name: str) -> None:
    with pytest.raises(CatalogError, match="no reliable source states"):
        resolve_accelerator(name)


def test_resolving_parses_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    own = loader.own

    def spy(text: str, file: Path) -> dict[object, object]:
        parsed.append(file.name)
        return own(text, file)

    monkeypatch.setattr(loader, "own", spy)
    accelerators._load.cache_clear()
    resolve_accelerator("H100")
    resolve_accelerator("h100-sxm-80gb")
    assert parsed == ["h100-sxm-80gb.yaml"]
