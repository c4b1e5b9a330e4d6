"""Constants of your own over those of the catalogue: by name, from a calibration file.

A constant is named by where it stands: ``engine.vllm.step_s``, ``accelerator.h100-sxm-80gb.gemm.fp8.ew``,
``accelerator.h100-sxm-80gb.allreduce_alpha_s.4``; ``*`` in place of the id means every engine or accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servegen.catalog.facts import AcceleratorFacts, Constant, EngineFacts, GemmEfficiency
from servegen.catalog.loader import parse
from servegen.errors import CatalogError, Diagnostic, Where

API_VERSION = "servegen/v1alpha1"
KIND = "Calibration"

#: Constants of an engine, each with the range in which it is physical: seconds, or shares of a specified peak.
ENGINE_RANGES: Mapping[str, tuple[float, float]] = {
    "step_s": (1e-5, 0.1), "layer_s": (1e-7, 5e-3), "prompt_layer_s": (1e-7, 5e-3),
    "sequence_s": (1e-8, 5e-3), "request_s": (1e-5, 2.0),
    "kv_efficiency": (0.02, 1.0), "attention_efficiency": (0.02, 1.0),
    "allreduce_latency_factor": (0.05, 20.0), "allreduce_bandwidth_factor": (0.05, 20.0),
}  # fmt: skip
#: Constants of an accelerator: shares of its specified bandwidth and peak by weight precision, and all-reduce by TP.
GEMM_RANGES: Mapping[str, tuple[float, float]] = {"ew": (0.02, 1.0), "ec": (0.02, 1.0)}
ALLREDUCE_RANGES: Mapping[str, tuple[float, float]] = {
    "allreduce_alpha_s": (1e-7, 1e-2), "allreduce_bytes_per_s": (1e8, 1e13),
}  # fmt: skip
#: Errors of the bands that a calibration measured, by metric.
BAND_METRICS = ("ttft", "itl", "throughput")


@dataclass(frozen=True)
class Calibration:
    """Constants by name. ``bands`` are half-widths by engine and metric."""

    constants: Mapping[str, Constant]
    bands: Mapping[str, Mapping[str, Constant]] = field(default_factory=dict)

    def engine(self, facts: EngineFacts) -> EngineFacts:
        """The engine with these constants in place of the catalogue's."""
        changes: dict[str, Any] = {}
        for name in ENGINE_RANGES:
            found = self._find("engine", facts.id, name)
            if found is not None:
                changes[name] = found
        kernels = {
            k: self._gemm(f"engine.{facts.id}.kernels.{k}", f"engine.*.kernels.{k}", old) for k, old in facts.kernels.items()
        }
        band = {**facts.band, **self.bands.get(facts.id, {})}
        return replace(facts, **changes, kernels=kernels, band=band)

    def accelerator(self, facts: AcceleratorFacts) -> AcceleratorFacts:
        """The accelerator with these constants in place of the catalogue's."""
        gemm = {
            p: self._gemm(f"accelerator.{facts.id}.gemm.{p}", f"accelerator.*.gemm.{p}", old) for p, old in facts.gemm.items()
        }
        changes: dict[str, Any] = {}
        for name in ALLREDUCE_RANGES:
            table = dict(getattr(facts, name))
            for tp in table:
                found = self._find("accelerator", facts.id, f"{name}.{tp}")
                table[tp] = table[tp] if found is None else found.value
            changes[name] = table
        return replace(facts, gemm=gemm, **changes)

    def _gemm(self, own: str, every: str, old: GemmEfficiency) -> GemmEfficiency:
        new = {n: c for n in GEMM_RANGES if (c := self.constants.get(f"{own}.{n}", self.constants.get(f"{every}.{n}")))}
        if not new:
            return old
        known = next(iter(new.values()))
        error = max(c.fit_error for c in new.values())
        return GemmEfficiency(
            new["ew"].value if "ew" in new else old.ew,
            new["ec"].value if "ec" in new else old.ec,
            old.fit_error if math.isnan(error) else error,
            known.rows,
            known.origin,
            known.source,
        )

    def _find(self, kind: str, id: str, name: str) -> Constant | None:
        return self.constants.get(f"{kind}.{id}.{name}", self.constants.get(f"{kind}.*.{name}"))


NONE = Calibration({})


def physical_range(name: str) -> tuple[float, float] | None:
    """The range of a constant by its name; None where no constant has that name."""
    kind, _, rest = name.partition(".")
    _, _, what = rest.partition(".")
    if kind == "engine":
        return GEMM_RANGES.get(what.rpartition(".")[2]) if what.startswith("kernels.") else ENGINE_RANGES.get(what)
    if kind != "accelerator":
        return None
    head, _, tail = what.partition(".")
    if head == "gemm":
        return GEMM_RANGES.get(tail.rpartition(".")[2])
    return ALLREDUCE_RANGES.get(head) if tail.isdigit() else None


def load_calibration(path: Path) -> Calibration:
    """The calibration of a file. CatalogError where it is none, or holds a constant that does not exist or cannot be."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CatalogError(Diagnostic("io", f"cannot read: {error.strerror or error}", Where(str(path)))) from error
    try:
        document = parse(data.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        raise CatalogError(Diagnostic("calibration-file", f"{path.name} is no UTF-8", Where(str(path)))) from error
    where = Where(str(path))
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        hint = "servegen calibrate RESULTS --out FILE writes one"
        raise CatalogError(Diagnostic("calibration-file", f"{path.name} is no calibration of {API_VERSION}", where, hint))
    constants = {}
    for name, node in _mapping(document.get("constants"), "constants", where).items():
        constants[name] = _constant(name, node, where)
        limits = physical_range(name)
        if limits is None:
            raise CatalogError(Diagnostic("calibration-file", f"there is no constant {name!r}", where))
        if not limits[0] <= constants[name].value <= limits[1]:
            message = f"{name} = {constants[name].value:g} is outside its physical range, {limits[0]:g} to {limits[1]:g}"
            raise CatalogError(Diagnostic("calibration-file", message, where))
    bands: dict[str, dict[str, Constant]] = {}
    for engine, node in _mapping(document.get("bands", {}), "bands", where).items():
        bands[engine] = {m: _constant(f"bands.{engine}.{m}", v, where) for m, v in _mapping(node, engine, where).items()}
        if not set(bands[engine]) <= set(BAND_METRICS):
            raise CatalogError(Diagnostic("calibration-file", f"bands.{engine} has other metrics than {BAND_METRICS}", where))
    return Calibration(constants, bands)


def _mapping(node: object, name: str, where: Where) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise CatalogError(Diagnostic("calibration-file", f"{name} is no mapping", where))
    return {str(k): v for k, v in node.items()}


def _constant(name: str, node: object, where: Where) -> Constant:
    found = _mapping(node, name, where)
    value, error, rows = found.get("value"), found.get("fit_error"), found.get("rows", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CatalogError(Diagnostic("calibration-file", f"{name} has no value", where))
    if not isinstance(rows, int) or not isinstance(error, int | float | None):
        raise CatalogError(
            Diagnostic("calibration-file", f"{name} has no whole number of rows, or no number as its error", where)
        )
    return Constant(
        float(value), math.nan if error is None else float(error), rows, str(found.get("source", "")), str(found.get("date", ""))
    )
