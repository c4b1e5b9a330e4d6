"""Constants of your own over those of the catalogue: by name, from a calibration file.

A constant is named by where it stands: ``engine.vllm.step_s``, ``accelerator.h100-sxm-80gb.gemm.fp8.ew``,
``accelerator.h100-sxm-80gb.allreduce_alpha_s.4``; ``*`` in place of the id means every engine or accelerator.

A file may also hold whole ``accelerators`` that the catalogue lacks, each as a file of the catalogue has it: a pool entry or
``--accelerator`` names them like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from servegen import inputs
from servegen.catalog.accelerators import facts_of, list_accelerators, resolve_accelerator
from servegen.catalog.facts import AcceleratorFacts, Constant, EngineFacts, GemmEfficiency
from servegen.catalog.loader import LARGEST, Sheet, normal, parse
from servegen.errors import CatalogError, Diagnostic, Where
from servegen.record import record

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
#: Shares that attention reaches with the accelerator's own kernels, in place of the engine's.
ATTENTION_RANGES: Mapping[str, tuple[float, float]] = {
    "kv_efficiency": (0.02, 1.0), "attention_efficiency": (0.02, 1.0),
}  # fmt: skip
#: Where a constant may come from: end-to-end runs, or kernels alone.
ORIGINS = ("fitted", "measured")
#: Errors of the bands that a calibration measured, by metric.
BAND_METRICS = ("ttft", "itl", "throughput")


@record
class Calibration:
    """Constants by name. ``bands`` are half-widths by engine and metric, ``accelerators`` whole entries by id."""

    constants: Mapping[str, Constant]
    bands: Mapping[str, Mapping[str, Constant]] = field(default_factory=dict)
    accelerators: Mapping[str, AcceleratorFacts] = field(default_factory=dict)

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

    def resolve_accelerator(self, name: str) -> AcceleratorFacts:
        """The accelerator that ``name`` means, of this calibration's or else of the catalogue's, with these constants.

        CatalogError as :func:`servegen.catalog.accelerators.resolve_accelerator`.
        """
        return self.accelerator(self._own(name) or resolve_accelerator(name))

    def has(self, name: str) -> bool:
        """Whether ``name`` means an accelerator of this calibration's own."""
        return self._own(name) is not None

    def _own(self, name: str) -> AcceleratorFacts | None:
        return next((f for f in self.accelerators.values() if normal(name) in {normal(n) for n in (f.id, *f.aliases)}), None)

    def accelerator(self, facts: AcceleratorFacts) -> AcceleratorFacts:
        """The accelerator with these constants in place of the catalogue's."""
        gemm = {
            p: self._gemm(f"accelerator.{facts.id}.gemm.{p}", f"accelerator.*.gemm.{p}", old) for p, old in facts.gemm.items()
        }
        changes: dict[str, Any] = {n: c for n in ATTENTION_RANGES if (c := self._find("accelerator", facts.id, n))}
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
    return ALLREDUCE_RANGES.get(head) if tail.isdigit() else ATTENTION_RANGES.get(what)


def load_calibration(path: Path) -> Calibration:
    """The calibration of a file. CatalogError where it is none, or holds a constant that does not exist or cannot be."""
    try:
        data = inputs.read(path)
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
        _in_range(name, constants[name].value, where)
    own = _mapping(document.get("accelerators", {}), "accelerators", where)
    accelerators = {id: _accelerator(id, _mapping(node, id, where), path) for id, node in own.items()}
    bands: dict[str, dict[str, Constant]] = {}
    for engine, node in _mapping(document.get("bands", {}), "bands", where).items():
        bands[engine] = {m: _constant(f"bands.{engine}.{m}", v, where) for m, v in _mapping(node, engine, where).items()}
        if not set(bands[engine]) <= set(BAND_METRICS):
            raise CatalogError(Diagnostic("calibration-file", f"bands.{engine} has other metrics than {BAND_METRICS}", where))
    return Calibration(constants, bands, accelerators)


def _in_range(name: str, value: float, where: Where) -> None:
    limits = physical_range(name)
    if limits is not None and not limits[0] <= value <= limits[1]:
        message = f"{name} = {value:g} is outside its physical range, {limits[0]:g} to {limits[1]:g}"
        raise CatalogError(Diagnostic("calibration-file", message, where))


def _accelerator(id: str, node: dict[str, Any], path: Path) -> AcceleratorFacts:
    """One accelerator of the file's own: an entry as the catalogue has them, with shares that can be."""
    where = Where(str(path))
    if id in list_accelerators():
        hint = f"state its constants by name: accelerator.{id}.gemm.bf16.ew"
        raise CatalogError(Diagnostic("calibration-file", f"{id} is in the catalogue", where, hint))
    sheet = Sheet(path, {key: value for key, value in node.items()})
    if sheet.text("id") != id:
        sheet.fail(f"the id of accelerators.{id} is another")
    facts = facts_of(sheet, id)
    amounts = {"hbm_bytes": facts.hbm_bytes, "usable_bytes": facts.usable_bytes, "hbm_bytes_per_s": facts.hbm_bytes_per_s}
    amounts |= {"host_devices": facts.host_devices, "host_cpus": facts.host_cpus, "host_memory_bytes": facts.host_memory_bytes}
    amounts |= {"scaleup_domain": facts.scaleup_domain, **{f"peak_flops.{p}": v for p, v in facts.peak_flops.items()}}
    optional = {n: getattr(facts, n) for n in ("link_bytes_per_s", "link_pair_bytes_per_s", "tdp_w")}
    for name, value in (amounts | {n: v for n, v in optional.items() if not math.isnan(v)}).items():
        if not value > 0:
            sheet.fail(f"{id}: {name} = {value:g} is no amount")
    if facts.allreduce_alpha_s.keys() != facts.allreduce_bytes_per_s.keys():
        sheet.fail(f"{id}: allreduce_alpha_s and allreduce_bytes_per_s are not of the same TPs")
    if "bf16" not in facts.peak_flops:
        sheet.fail(f"{id}: peak_flops lacks bf16, in which attention runs")
    for precision, gemm in facts.gemm.items():
        for name in GEMM_RANGES:
            _in_range(f"accelerator.{id}.gemm.{precision}.{name}", getattr(gemm, name), where)
    for name in ALLREDUCE_RANGES:
        for tp, value in getattr(facts, name).items():
            _in_range(f"accelerator.{id}.{name}.{tp}", value, where)
    for name in ATTENTION_RANGES:
        if (own := getattr(facts, name)) is not None:
            _in_range(f"accelerator.{id}.{name}", own.value, where)
    return facts


def _mapping(node: object, name: str, where: Where) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise CatalogError(Diagnostic("calibration-file", f"{name} is no mapping", where))
    return {str(k): v for k, v in node.items()}


def _constant(name: str, node: object, where: Where) -> Constant:
    found = _mapping(node, name, where)
    value, error, rows = found.get("value"), found.get("fit_error"), found.get("rows", 0)
    # By size, not by isfinite, which overflows for a whole number that no float can hold.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise CatalogError(Diagnostic("calibration-file", f"{name} has no value", where))
    if not isinstance(rows, int) or not isinstance(error, int | float | None) or (error and not abs(error) < LARGEST):
        raise CatalogError(
            Diagnostic("calibration-file", f"{name} has no whole number of rows, or no number as its error", where)
        )
    origin = found.get("origin", ORIGINS[0])
    if origin not in ORIGINS:
        message = f"{name}: the origin {origin!r} is not one of {', '.join(ORIGINS)}"
        raise CatalogError(Diagnostic("calibration-file", message, where))
    return Constant(
        float(value), math.nan if error is None else float(error), rows, str(found.get("source", "")),
        str(found.get("date", "")), origin,
    )  # fmt: skip
