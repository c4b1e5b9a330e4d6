"""From what a probe measured to the constants of an accelerator, by the formulas of the step.

A product of m tokens takes max(weight bytes/(W*ew), FLOP/(C*ec)): the two shares meet where reading turns into multiplying, and
that place is found with them. Reading a cache takes bytes/(W*eta_kv), a prompt FLOP/(C*eta_a), an all-reduce alpha + wire
bytes/BW. Shares refer to the specified bandwidth W and peak C where the catalogue knows the device, else to the best rate seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from servegen.calibrate.probe import Case, DeviceInfo, Measured, Shapes
from servegen.catalog.calibration import physical_range
from servegen.catalog.facts import AcceleratorFacts, Constant
from servegen.errors import CatalogError, Diagnostic
from servegen.record import record


@record
class Profile:
    """Constants by the name that follows the accelerator's id (``gemm.bf16.ew``), with the figures that they refer to.

    ``id`` is the catalogue's where ``known``; ``notes`` say what was cut to its physical range or could not be used.
    ``source`` says what measured them.
    """

    id: str
    known: AcceleratorFacts | None
    bytes_per_s: float
    peak_flops: Mapping[str, float]
    constants: Mapping[str, Constant]
    notes: tuple[str, ...]
    source: str

    def before(self, name: str) -> float:
        """The catalogue's value of one of the constants; nan where it has none for this device."""
        if self.known is None:
            return math.nan
        head, *rest = name.split(".")
        if head == "gemm":
            return float(getattr(self.known.gemm[rest[0]], rest[1]))
        return float(getattr(self.known, head).get(int(rest[0]), math.nan)) if rest else math.nan


def fit(info: DeviceInfo, id: str, known: AcceleratorFacts | None, shapes: Shapes, measured: Sequence[Measured]) -> Profile:
    """The profile of a device. CatalogError where the measurements cannot carry one."""
    gemms = [m for m in measured if m.case.kind == "gemm"]
    prompts = [m for m in measured if m.case.kind == "prefill"]
    reads = [m for m in measured if m.case.kind == "decode"]
    dtypes = list(dict.fromkeys(m.case.dtype for m in gemms))
    if "bf16" not in dtypes or min(len(prompts), len(reads)) < 2:  # one alone has no error
        hint = "give it more time with --budget, or a smaller --model"
        raise CatalogError(Diagnostic("probe-failed", f"too little could be measured on {info.name}", hint=hint))
    if known is None:
        bandwidth = max(m.bytes_per_s for m in measured if m.case.kind in ("copy", "gemm", "decode"))
        peaks = {d: max(m.flops_per_s for m in gemms if m.case.dtype == d) for d in dtypes}
        peaks["bf16"] = max(peaks["bf16"], *(m.flops_per_s for m in prompts))
    else:
        bandwidth, peaks = known.hbm_bytes_per_s, dict(known.peak_flops)
    source = f"servegen calibrate --probe, {info.tool}, shapes of {shapes.model}"
    found: dict[str, tuple[float, float, int]] = {}
    notes: list[str] = []
    for dtype in dtypes:
        if dtype not in peaks:
            notes.append(f"{dtype}: measured, but no {dtype} peak of {id} is published, so there is nothing to be a share of")
            continue
        stream, multiply = products([m for m in gemms if m.case.dtype == dtype])
        found[f"gemm.{dtype}.ew"] = _over(stream, bandwidth)
        found[f"gemm.{dtype}.ec"] = _over(multiply, peaks[dtype])
    found["kv_efficiency"] = _over(_mean(reads, [m.bytes_per_s for m in reads], [m.case.moved_bytes for m in reads]), bandwidth)
    found["attention_efficiency"] = _over(
        _mean(prompts, [m.flops_per_s for m in prompts], [m.case.flops for m in prompts]), peaks["bf16"]
    )
    for devices in sorted({m.case.size[0] for m in measured if m.case.kind == "allreduce"}):
        own = [m for m in measured if m.case.kind == "allreduce" and m.case.size[0] == devices]
        if len(own) < 2:
            notes.append(f"all-reduce over {devices}: {len(own)} of the sizes measured, two are needed")
            continue
        alpha, speed, error = line([m.case.moved_bytes for m in own], [m.seconds for m in own])
        found[f"allreduce_alpha_s.{devices}"] = (alpha, error, len(own))
        found[f"allreduce_bytes_per_s.{devices}"] = (speed, error, len(own))
    constants = {
        name: Constant(_physical(name, value, notes), error, rows, source, origin="measured")
        for name, (value, error, rows) in found.items()
    }
    return Profile(id, known, bandwidth, peaks, constants, tuple(notes), source)


def products(measured: Sequence[Measured]) -> tuple[tuple[float, float, int], tuple[float, float, int]]:
    """Bytes/s of reading weights and FLOP/s of multiplying, each with its relative error and how many products it rests on.

    Least squares on the logarithms of max(bytes/rate, FLOP/rate): for every token count at which reading may turn into
    multiplying the two rates are means, and the best of these pairs is the answer. A matrix counts by its size, as in a layer.
    """
    tokens = sorted({m.case.size[0] for m in measured})
    best: tuple[float, tuple[float, float, int], tuple[float, float, int]] | None = None
    for turn in tokens[1:]:
        small = [m for m in measured if m.case.size[0] < turn]
        large = [m for m in measured if m.case.size[0] >= turn]
        read, multiply = _rate(small, [m.bytes_per_s for m in small]), _rate(large, [m.flops_per_s for m in large])
        left, right = (_scatter(part, read, multiply) for part in (small, large))
        total = left * left * len(small) + right * right * len(large)
        if best is None or total < best[0] * (1.0 - 1e-9) - 1e-24:
            best = total, (read, left, len(small)), (multiply, right, len(large))
    if best is None:
        hint = "give it more time with --budget, or a smaller --model"
        raise CatalogError(Diagnostic("probe-failed", "products of one token count only could be measured", hint=hint))
    return best[1], best[2]


def line(wire_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float, float]:
    """alpha in seconds and BW in bytes/s of t = alpha + wire/BW with the least relative squares; the relative error."""
    wire, time = np.array(wire_bytes), np.array(seconds)
    columns = np.stack([np.ones_like(wire), wire], axis=1) / time[:, None]
    (alpha, slope), *_ = np.linalg.lstsq(columns, np.ones_like(time), rcond=None)
    # With scatter one of them may come out below zero: then the fastest message bounds it.
    alpha = alpha if alpha > 0 else time.min()
    slope = slope if slope > 0 else time.min() / wire.max()
    off = (alpha + slope * wire) / time - 1.0
    return float(alpha), float(1.0 / slope), float(np.sqrt(np.mean(off * off)))


def _weights(measured: Sequence[Measured]) -> list[float]:
    """Of each token count the matrices count by their bytes, and every token count the same."""
    total: dict[int, float] = {}
    for m in measured:
        total[m.case.size[0]] = total.get(m.case.size[0], 0.0) + m.case.moved_bytes
    return [m.case.moved_bytes / total[m.case.size[0]] for m in measured]


def _rate(measured: Sequence[Measured], rates: Sequence[float]) -> float:
    return float(np.exp(np.average(np.log(rates), weights=_weights(measured))))


def _scatter(measured: Sequence[Measured], read: float, multiply: float) -> float:
    """Root mean square of log(predicted / measured)."""

    def predicted(case: Case) -> float:
        return max(case.moved_bytes / read, case.flops / multiply)

    off = [math.log(predicted(m.case) / m.seconds) for m in measured]
    return float(np.sqrt(np.average(np.square(off), weights=_weights(measured))))


def _mean(measured: Sequence[Measured], rates: Sequence[float], work: Sequence[float]) -> tuple[float, float, int]:
    """The mean rate in log terms, cases counting by their work, with its scatter."""
    logs = np.log(rates)
    mean = float(np.average(logs, weights=work))
    return math.exp(mean), float(np.sqrt(np.average((logs - mean) ** 2, weights=work))), len(measured)


def _over(rate: tuple[float, float, int], peak: float) -> tuple[float, float, int]:
    return rate[0] / peak, rate[1], rate[2]


def _physical(name: str, value: float, notes: list[str]) -> float:
    """A constant inside its physical range. A share above 1 is cut to 1; anything else outside is no measurement."""
    low, high = physical_range(f"accelerator.x.{name}") or (0.0, math.inf)
    if value > high == 1.0:
        notes.append(f"{name}: {value:.3g} of the specified figure was measured, 1 is written")
        return high
    if not low <= value <= high:
        hint = "is the device busy with something else? Probe it while it is idle, with a larger --budget"
        message = f"{name} = {value:.3g} was measured, and {low:g} to {high:g} is what can be"
        raise CatalogError(Diagnostic("probe-unphysical", message, hint=hint))
    return value
