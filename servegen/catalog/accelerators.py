"""Accelerators: a name becomes ``AcceleratorFacts``.

The efficiencies of ``gemm`` follow one rule, which a test recomputes from the measured kernel tables:

1. *fitted*: the end-to-end fit has the pair (device, weight precision).
2. *scaled*: kernels of the pair were measured. Their share (of the bandwidth: median over m = 1, 4, 16; of the peak:
   mean over m = 1024, 4096) times fitted/measured of the same device, else of the same precision in its chip family (H100
   and H200; B200, B300, GB200 and GB300), else of that family, else of the same precision on other devices, else of all
   fitted pairs, else 1. Several ratios count by their geometric mean. A step whose product is unphysical passes to the
   next: bandwidth above 0.93, the most that any measured kernel reaches beyond the L2, or arithmetic above the measured
   matmul maximum.
3. A width without kernels of its own takes the bandwidth share of the nearest one measured: fp8 that of int8
   weight-only kernels; int8 that of fp8; int4, nvfp4 and mxfp4 that of another 4-bit width, else of fp8.
4. *default*: no kernels of the device were measured. 0.85 and 0.59, the latter never above its measured matmul share.

Arithmetic runs as ``arithmetic`` says; where that is bf16 (weight-only kernels) the arithmetic share is that of bf16.
"""

from __future__ import annotations

import re
from functools import cache

from servegen.catalog.facts import PRECISIONS, AcceleratorFacts, Constant, GemmEfficiency
from servegen.catalog.loader import ROOT, Sheet, find, ids, normal
from servegen.catalog.prices import default_price_per_h, price_rows
from servegen.errors import CatalogError, Diagnostic

#: Devices that people name and the catalogue leaves out, with the figure that no reliable source states.
WITHOUT_FIGURES = {
    "h100-nvl-94gb": "its memory bandwidth and peak",
    "rtx-5090-32gb": "its dense bf16 peak with fp32 accumulation",
    "h20-96gb": "its bandwidth and peak",
    "h800-80gb": "its bandwidth and peak",
    "tpu-v7x-192gb": "its memory bandwidth",
}

#: How far the memory that a device reports may be from the catalogue's, relative.
MEMORY_TOLERANCE = 0.1


def list_accelerators() -> tuple[str, ...]:
    """The ids of all accelerators, in order."""
    return ids("accelerators")


def resolve_accelerator(name: str) -> AcceleratorFacts:
    """The facts of an accelerator by id or alias (``h100-sxm-80gb``, ``h100_sxm``, ``H100``, ``NVIDIA-H200``).

    CatalogError when the name is unknown or ambiguous, or the device is known but lacks published figures.
    """
    for left_out, lacks in WITHOUT_FIGURES.items():
        short = left_out.rsplit("-", 1)[0]
        if normal(name) in {normal(left_out), normal(short)}:
            message = f"{left_out} is not in the catalogue: no reliable source states {lacks}"
            hint = f"known: {', '.join(list_accelerators())}"
            raise CatalogError(Diagnostic("accelerator-without-figures", message, hint=hint))
    if normal(name).endswith("local"):
        message = f"there is no accelerator {name!r} in the catalogue: it is one that a probe found on a machine"
        hint = "servegen calibrate --probe --out FILE writes it; name the file in deploy.calibration, or by --calibration"
        raise CatalogError(Diagnostic("accelerator-unknown", message, hint=hint))
    return _load(find("accelerators", name))


def match_accelerator(name: str, memory_bytes: float) -> AcceleratorFacts | None:
    """The accelerator that calls itself ``name`` (``NVIDIA H100 80GB HBM3``) and has that much memory; None where none does.

    Its labels on Kubernetes nodes count as names. Of several the one whose memory is nearest; memory may be 10 % off, as
    drivers and error correction take some.
    """
    found = []
    for id in list_accelerators():
        facts = _load(id)
        short = re.sub(r"\s+\d+GB$", "", facts.name)
        off = abs(facts.usable_bytes / memory_bytes - 1.0)
        names = {normal(n) for n in (id, facts.name, short, *facts.aliases, *facts.node_selector.values())}
        if normal(name) in names and off <= MEMORY_TOLERANCE:
            found.append((off, id, facts))
    return min(found)[2] if found else None


def arithmetic(accelerator: AcceleratorFacts, precision: str) -> str:
    """The dtype (a key of ``peak_flops``) in which a GEMM with weights of ``precision`` runs on ``accelerator``.

    fp8, int8, nvfp4 and mxfp4 weights run natively where the device has that arithmetic; otherwise, and for int4
    always, the kernel expands them to bf16. CatalogError when the device cannot serve the precision at all.
    """
    if precision not in accelerator.gemm:
        can = ", ".join(accelerator.gemm)
        message = f"{accelerator.id} does not serve {precision} weights"
        raise CatalogError(Diagnostic("accelerator-precision", message, hint=f"it serves {can}"))
    return precision if precision != "int4" and precision in accelerator.peak_flops else "bf16"


@cache
def _load(name: str) -> AcceleratorFacts:
    sheet = Sheet(ROOT / "accelerators" / f"{name}.yaml")
    if sheet.text("id") != name:
        sheet.fail("id is not the file's name")
    return facts_of(sheet, name)


def facts_of(sheet: Sheet, name: str) -> AcceleratorFacts:
    """The facts of an entry that is called ``name``. CatalogError where a figure is missing or has no source."""
    rows = price_rows(name)
    price_per_h = default_price_per_h(name)
    count = sum(row["kind"] == "on_demand" for row in rows)
    facts = AcceleratorFacts(
        id=name,
        name=sheet.text("name"),
        vendor=sheet.text("vendor"),
        aliases=sheet.texts("aliases"),
        hbm_bytes=sheet.figure("hbm_bytes"),
        usable_bytes=sheet.figure("usable_bytes"),
        hbm_bytes_per_s=sheet.figure("hbm_bytes_per_s"),
        peak_flops=_by_precision(sheet, "peak_flops"),
        achievable_flops=_by_precision(sheet, "achievable_flops"),
        link=sheet.text("link"),
        link_bytes_per_s=sheet.figure("link_bytes_per_s"),
        link_pair_bytes_per_s=sheet.figure("link_pair_bytes_per_s"),
        scaleup_domain=sheet.count("scaleup_domain"),
        legal_tp=sheet.counts("legal_tp") if sheet.has("legal_tp") else (),
        tdp_w=sheet.figure("tdp_w"),
        host_devices=sheet.count("host_devices"),
        host_cpus=sheet.count("host_cpus"),
        host_memory_bytes=sheet.figure("host_memory_bytes"),
        host_fabric_bytes_per_s=sheet.figure("host_fabric_bytes_per_s") if sheet.has("host_fabric_bytes_per_s") else 0.0,
        resource=sheet.text("resource"),
        node_selector=sheet.cited("node_selector"),
        compute_capability=sheet.figure("compute_capability") if sheet.has("compute_capability") else 0.0,
        gemm=_gemm(sheet),
        allreduce_alpha_s=_by_tp(sheet, "allreduce_alpha_s"),
        allreduce_bytes_per_s=_by_tp(sheet, "allreduce_bytes_per_s"),
        price_per_h=price_per_h,
        price_rows=rows,
        sources=sheet.sources,
        kv_efficiency=_own(sheet, "kv_efficiency"),
        attention_efficiency=_own(sheet, "attention_efficiency"),
    )
    sheet.sources["price_per_h"] = f"median of {count} on-demand rows of prices.yaml" if count else "no price is known"
    if not facts.host_fabric_bytes_per_s:
        sheet.sources["host_fabric_bytes_per_s"] = "not known"
    if not facts.compute_capability:
        sheet.sources["compute_capability"] = "not a CUDA device"
    sheet.done()
    return facts


def _by_precision(sheet: Sheet, key: str) -> dict[str, float]:
    found = {str(name): value for name, value in sheet.figures(key).items()}
    unknown = found.keys() - set(PRECISIONS)
    return found if not unknown else sheet.fail(f"{key}: unknown precision {', '.join(sorted(unknown))}")


def _by_tp(sheet: Sheet, key: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for tp, value in sheet.figures(key).items():
        if not isinstance(tp, int):
            sheet.fail(f"{key}: {tp!r} is no TP")
        found[tp] = value
    return found


def _own(sheet: Sheet, key: str) -> Constant | None:
    """A share that attention reaches on this device, where it was measured there."""
    if not sheet.has(key):
        return None
    figures = sheet.record(key, sheet.section(key), ("value", "fit_error", "rows"))
    return Constant(figures["value"], figures["fit_error"], int(figures["rows"]), sheet.sources[key], origin="measured")


def _gemm(sheet: Sheet) -> dict[str, GemmEfficiency]:
    found: dict[str, GemmEfficiency] = {}
    for precision, node in sheet.section("gemm").items():
        if precision not in PRECISIONS:
            sheet.fail(f"gemm.{precision}: unknown precision")
        found[precision] = sheet.gemm(f"gemm.{precision}", node)
    return found
