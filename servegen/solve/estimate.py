"""One explicit configuration, no search: memory, prefill, a decode step, and a closed loop of B users."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from servegen.catalog.calibration import NONE, Calibration
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.catalog.models import model_from_file, resolve_model
from servegen.errors import CatalogError, Diagnostic
from servegen.lower import Config, Lowered, Physics, lower
from servegen.record import record
from servegen.service.demand import Demand, demand
from servegen.service.server import Server, server
from servegen.solve import closed_loop
from servegen.solve.bands import band
from servegen.solve.budget import budget
from servegen.solve.problem import WeightOption
from servegen.solve.space import Shape, cut, spans_nodes
from servegen.workload import Lengths, Workload

Mode = Literal["static", "aggregated", "disaggregated"]
#: Users of a replay; at most half a millisecond each.
MOST_REPLAYED = 20_000
#: TTFT, TPOT and output tokens/s of what does not fit.
NOTHING = (math.nan, math.nan, math.nan)


@record
class EstimateRequest:
    """A configuration as the command line states it.

    ``chunk`` 0 is the engine's token budget, ``weights`` "" the checkpoint's own precision.
    ``*_tp`` and ``*_workers`` speak for mode ``disaggregated``; 0 means ``tp`` and 1. ``calibration`` holds constants and
    accelerators of the user's own.
    """

    model: str
    accelerator: str
    engine: str = "sglang"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    weights: str = ""
    kv: str = "bf16"
    batch: int = 1
    isl: int = 1024
    osl: int = 128
    cached: int = 0
    chunk: int = 0
    mode: Mode = "aggregated"
    physics: Physics = "calibrated"
    prefill_tp: int = 0
    prefill_workers: int = 0
    decode_tp: int = 0
    decode_workers: int = 0
    calibration: Calibration = NONE


@record
class ModelFigures:
    params_total: int
    params_active: int


@record
class MemoryFigures:
    weight_bytes_per_device: float
    kv_bytes_per_token: float
    kv_pool_bytes: float
    max_running_requests: int
    fits: bool


@record
class PrefillFigures:
    time_s: float
    bound: str
    breakdown_s: Mapping[str, float]


@record
class DecodeFigures:
    step_time_s: float
    bound: str
    breakdown_s: Mapping[str, float]


@record
class ServingFigures:
    """Closed loop at concurrency B; nan where the configuration does not fit."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_device: float


@record
class BandFigures:
    low: Mapping[str, float]
    high: Mapping[str, float]


@record
class Estimate:
    """The stable figures of `servegen estimate`; KV figures count a whole replica, weights one device."""

    model: ModelFigures
    memory: MemoryFigures
    prefill: PrefillFigures
    decode: DecodeFigures
    serving: ServingFigures
    band: BandFigures


def estimate(request: EstimateRequest) -> Estimate:
    """Figures of a configuration. CatalogError for what cannot be resolved or exist."""
    model, accelerator, engine = _resolve(request)
    _check(request, model, accelerator, engine)
    d = _demand(request)
    tp = request.prefill_tp or request.tp if request.mode == "disaggregated" else request.tp
    lowered = _lower(request, model, accelerator, engine, tp)
    chunk = float(request.chunk or engine.token_budget)
    srv = _server(request, lowered, engine, d, chunk)
    figures = _memory(request, model, engine, lowered, d, chunk)
    if request.mode == "disaggregated":
        decoding = _lower(request, model, accelerator, engine, request.decode_tp or request.tp)
        starting, figures = figures, _memory(request, model, engine, decoding, d, chunk)
        figures = dataclasses.replace(figures, fits=figures.fits and starting.fits)
        x, y = closed_loop.workers(request)
        devices = float(x * tp + y * decoding.configs[0].tp)
        if not figures.fits:
            serving = NOTHING
        elif request.physics == "ideal":
            serving = closed_loop.closed_form_split(request, srv, _server(request, decoding, engine, d, chunk), d)
        else:
            _refuse_long(request)
            serving = closed_loop.handed_over(request, accelerator, engine, (lowered, starting), (decoding, figures))
    else:
        decoding = lowered
        static = request.mode == "static" or engine.schedulers[0] == "static"
        devices = float(tp * request.pp)
        if not figures.fits:
            serving = NOTHING  # a replay of what cannot run takes as long as any
        elif static:
            serving = closed_loop.batch(request, srv, d)
        elif request.physics == "ideal":
            serving = closed_loop.closed_form(request, engine, srv, d, figures)
        else:
            _refuse_long(request)
            serving = closed_loop.replayed(request, accelerator, engine, lowered, figures)
    batch = np.array([float(request.batch)])
    kv_s = decoding.terms.kv_s(d.held_mean)
    step_parts = {k: float(v[0]) for k, v in decoding.terms.decode_breakdown_s(batch, kv_s).items()}
    prompt_parts = {
        k: float(v[0]) for k, v in lowered.terms.prefill_breakdown_s(d.uncached_mean, d.total_mean, np.array([chunk])).items()
    }
    ttft, tpot, output = serving
    result = ServingFigures(ttft, tpot, output, output / devices)
    return Estimate(
        ModelFigures(model.params_total, model.params_active),
        figures,
        PrefillFigures(float(srv.prefill_mean_s[0]), _largest(prompt_parts), prompt_parts),
        DecodeFigures(float(decoding.terms.decode_s(batch, kv_s)[0]), _largest(step_parts), step_parts),
        result,
        _band(request, model, engine, accelerator, result),
    )


def _largest(parts: Mapping[str, float]) -> str:
    return max(sorted(parts), key=lambda k: parts[k])


def _refuse_long(request: EstimateRequest) -> None:
    """CatalogError for more users than a replay, which plays out ten requests of each, takes seconds for."""
    if request.batch > MOST_REPLAYED:
        message = f"a replay plays out at most {MOST_REPLAYED:,} users, not {request.batch:,}"
        hint = "fewer, or a closed form: --physics ideal, or --mode static"
        raise CatalogError(Diagnostic("out-of-range", message, hint=hint))


def _resolve(request: EstimateRequest) -> tuple[ModelFacts, AcceleratorFacts, EngineFacts]:
    named_file = request.model.endswith(".json") or (os.path.sep in request.model and Path(request.model).is_file())
    model = model_from_file(Path(request.model)) if named_file else resolve_model(request.model)
    own = request.calibration
    return model, own.resolve_accelerator(request.accelerator), own.engine(resolve_engine(request.engine))


def _check(request: EstimateRequest, model: ModelFacts, accelerator: AcceleratorFacts, engine: EngineFacts) -> None:
    for name in ("tp", "pp", "dp", "ep", "batch", "isl", "osl"):
        if getattr(request, name) < 1:
            raise CatalogError(Diagnostic("out-of-range", f"{name} must be at least 1, not {getattr(request, name)}"))
    if request.isl + request.osl > model.max_context:
        message = f"isl + osl = {request.isl + request.osl} tokens, and {model.id} holds {model.max_context}"
        raise CatalogError(Diagnostic("out-of-range", message))
    if not 0 <= request.cached < request.isl:
        raise CatalogError(Diagnostic("out-of-range", f"cached must be from 0 to isl - 1, not {request.cached}"))
    weights = request.weights or model.native_precision
    if weights not in accelerator.gemm:
        hint = f"one of {', '.join(sorted(accelerator.gemm))}"
        raise CatalogError(Diagnostic("unsupported", f"{accelerator.id} cannot serve {weights} weights", hint=hint))
    if request.kv not in engine.kv_cache or (request.kv == "fp8" and "fp8" not in accelerator.peak_flops):
        raise CatalogError(Diagnostic("unsupported", f"{engine.id} on {accelerator.id} has no {request.kv} KV cache"))
    for tp in {request.tp, request.prefill_tp or request.tp, request.decode_tp or request.tp}:
        shape = Shape(tp, request.pp, request.dp, request.ep)
        reason = _unplaced(engine, accelerator, shape) or cut(model, WeightOption(weights, "", "", weights), shape)
        if reason:
            raise CatalogError(Diagnostic("unsupported", reason))


def _demand(request: EstimateRequest) -> Demand:
    """Fixed lengths; ``cached`` is a shared head."""
    workload = Workload(
        isl=Lengths.fixed(request.isl),
        osl=Lengths.fixed(request.osl),
        concurrency=request.batch,
        prefix_shared=request.cached,
    )
    return demand(workload)


def _unplaced(engine: EngineFacts, accelerator: AcceleratorFacts, shape: Shape) -> str:
    """Why usual hosts of the accelerator cannot hold a replica of the shape, "" if they can."""
    host, inside = accelerator.host_devices, shape.tp
    for name in ("pp", "dp", "ep"):
        if getattr(shape, name) > 1 and name not in engine.parallel:
            return f"{engine.id} has no {name.upper()}, or this version does not know it"
    if shape.devices > host and not spans_nodes(accelerator):
        inside = min(shape.tp, host)
        if shape.devices % host or host % inside or not accelerator.host_fabric_bytes_per_s:
            return f"{shape.words} does not fill hosts of {host} {accelerator.id} on a known fabric"
    elif shape.tp > max(accelerator.scaleup_domain, 1):
        return f"TP {shape.tp} is beyond the {accelerator.scaleup_domain} devices of the scale-up domain of {accelerator.id}"
    if inside > 1 and inside not in accelerator.allreduce_alpha_s:
        return f"no all-reduce figures of {accelerator.id} for TP {inside}"
    return ""


def _lower(request: EstimateRequest, model: ModelFacts, accelerator: AcceleratorFacts, engine: EngineFacts, tp: int) -> Lowered:
    """On usual hosts: several where one does not hold the replica."""
    node = 0 if spans_nodes(accelerator) else accelerator.host_devices
    weights, fabric = request.weights or model.native_precision, accelerator.host_fabric_bytes_per_s
    config = Config(accelerator, weights, request.kv, tp, request.pp, request.dp, request.ep, node, fabric)
    return lower(model, engine, [config], request.physics)


def _server(request: EstimateRequest, lowered: Lowered, engine: EngineFacts, d: Demand, chunk: float) -> Server:
    return server(lowered.terms, np.array([chunk]), 0.0 if request.physics == "ideal" else engine.request_s.value, d)


def _memory(
    request: EstimateRequest, model: ModelFacts, engine: EngineFacts, lowered: Lowered, d: Demand, chunk: float
) -> MemoryFigures:
    """Pool by the engine's rule; ``ideal`` leaves nothing in reserve."""
    m, rule, tp = lowered.memory, engine.memory, float(lowered.configs[0].tp)
    if request.physics == "ideal":
        pool = m.usable_bytes - m.weight_bytes
    else:
        sizes = np.array([chunk]), np.array([tp]), np.array([float(request.batch)])
        split, cut_up = request.mode == "disaggregated", (np.array([tp * request.pp]), np.array([float(request.dp)]))
        pool = budget(rule, model, m.usable_bytes, m.weight_bytes, *sizes, split, *cut_up).pool[:, 0]
    # A static engine, and the ideal one, holds whole sequences; a paged one admits with part of the output reserved.
    share = 1.0 if request.physics == "ideal" or request.mode == "static" else rule.kv_reserve_osl
    each = float(m.sequence_bytes(request.isl + share * request.osl)[0])
    most = max(math.floor(float(pool[0]) / each), 0) * request.dp if each else request.batch
    needed = request.batch if request.mode == "static" else 1
    # Bytes of a token on the fullest stage stand for those of all layers.
    stages = model.num_layers / math.ceil(model.num_layers / request.pp)
    token = _model_kv_bytes(m.token_bytes, tp / request.dp, model) * stages
    # Ranks that repeat KV heads hold copies; the pool counts each cached token once, as the bytes of a token do.
    unique = max(float(pool[0]), 0.0) * request.dp * (token / float(m.token_bytes[0]) if m.token_bytes[0] else tp)
    return MemoryFigures(float(m.weight_bytes[0]), token, unique, most, most >= needed)


def _model_kv_bytes(token_bytes: np.ndarray, tp: float, model: ModelFacts) -> float:
    """Bytes of one cached token, counted once however often ranks repeat it."""
    heads = [g.attention for g in model.layers if g.attention.kind != "none"]
    sharded = (
        min(tp, min((a.num_kv_heads for a in heads if a.num_kv_heads), default=1)) if all(a.kind != "mla" for a in heads) else 1.0
    )
    return float(token_bytes[0]) * sharded


def _band(
    request: EstimateRequest, model: ModelFacts, engine: EngineFacts, accelerator: AcceleratorFacts, s: ServingFigures
) -> BandFigures:
    """Low and high end of every serving figure; the ideal roofline is a floor, not a prediction, and has none."""
    if request.physics == "ideal":
        return BandFigures({}, {})
    metric = {
        "ttft_s": "ttft",
        "tpot_s": "itl",
        "output_tokens_per_s": "throughput",
        "output_tokens_per_s_per_device": "throughput",
    }
    bands = band(model, engine, accelerator, request.weights or model.native_precision, sequences=request.batch)
    values = {f.name: getattr(s, f.name) for f in dataclasses.fields(s)}
    return BandFigures(
        {k: v * bands[metric[k]].low for k, v in values.items()},
        {k: v * bands[metric[k]].high for k, v in values.items()},
    )
