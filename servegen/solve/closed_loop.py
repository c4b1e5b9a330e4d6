"""What a closed loop of B users sees of one explicit configuration: by the published benchmark's replay, or in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from servegen.catalog.facts import AcceleratorFacts, EngineFacts
from servegen.lower import Lowered
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, PREFILL_SLOTS
from servegen.service.point import Point
from servegen.service.server import Server
from servegen.simulate import benchmark
from servegen.simulate.deployment import Deployment, Handoff, Pool
from servegen.simulate.engine import Limits
from servegen.simulate.started import WHOLE_PROMPTS, Started, started
from servegen.simulate.steps import StepModel
from servegen.solve.split import combine

if TYPE_CHECKING:
    from servegen.solve.estimate import EstimateRequest, MemoryFigures


def closed_form(
    request: EstimateRequest, engine: EngineFacts, srv: Server, d: Demand, figures: MemoryFigures
) -> tuple[float, float, float]:
    """TTFT, TPOT, output tokens/s of a closed loop of B users; those beyond the KV pool wait for a slot."""
    discipline = DISCIPLINES[engine.schedulers[0] if srv.terms.plain else "prefill-first"]
    running = float(min(request.batch, max(figures.max_running_requests, 1)))
    level = size.level_at(discipline, srv, d, "concurrency", np.array([running]), np.array([running]))
    p = discipline(srv, d, level)
    rate = float(p.rate[0])
    waiting = (request.batch - running) / rate
    return float(latency.ttft_mean(p)[0]) + waiting, float(p.gap_mean_s[0]), rate * request.osl


def replayed(
    request: EstimateRequest, accelerator: AcceleratorFacts, engine: EngineFacts, lowered: Lowered, figures: MemoryFigures
) -> tuple[float, float, float]:
    """TTFT, TPOT, output tokens/s of the closed-loop benchmark, replayed step by step."""
    bench = benchmark.as_published(request.batch, request.isl, request.osl, request.cached)
    begun = _begun(request, bench, accelerator, engine, lowered.configs[0].tp)
    scheduler = "whole" if engine.id in WHOLE_PROMPTS else engine.schedulers[0]
    late_s = engine.request_s.value
    served = _pool(lowered, figures, engine, scheduler, begun, 1, late_s, bench.isl - bench.cached)
    found = benchmark.run(Deployment((served,)), bench)
    return found.ttft_s, found.tpot_s, found.output_tokens_per_s


def handed_over(
    request: EstimateRequest,
    accelerator: AcceleratorFacts,
    engine: EngineFacts,
    start: tuple[Lowered, MemoryFigures],
    gaps: tuple[Lowered, MemoryFigures],
) -> tuple[float, float, float]:
    """The same benchmark through prefill and decode workers; the KV goes over the accelerators' own links, each request to the
    emptier of two workers.
    """
    bench = benchmark.as_published(request.batch, request.isl, request.osl, request.cached)
    x, y = workers(request)
    begun = [_begun(request, bench, accelerator, engine, low.configs[0].tp) for low, _ in (start, gaps)]
    # Both servers take the request in; the client sees that once, before its first token.
    prefill = _pool(*start, engine, "prefill", replace(begun[0], slots=int(PREFILL_SLOTS)), x, 2.0 * engine.request_s.value)
    decode = _pool(*gaps, engine, "decode", begun[1], y)
    links = min(start[0].configs[0].tp, gaps[0].configs[0].tp)
    handoff = Handoff.of(prefill.model, start[0].configs[0].tp, accelerator.link_bytes_per_s * links)
    found = benchmark.run(Deployment((prefill, decode), "power-of-two", handoff), bench)
    return found.ttft_s, found.tpot_s, found.output_tokens_per_s


def workers(request: EstimateRequest) -> tuple[int, int]:
    return max(request.prefill_workers, 1), max(request.decode_workers, 1)


def _pool(
    lowered: Lowered,
    figures: MemoryFigures,
    engine: EngineFacts,
    scheduler: str,
    begun: Started,
    count: int,
    request_s: float = 0.0,
    prompt: int = 0,
) -> Pool:
    """Equal replicas with the step of ``lowered`` and the KV pool of ``figures``; ``prompt`` tokens pass its later stages."""
    m = lowered.memory
    token = float(m.token_bytes[0])
    # Of one device, for as many sequences as all attention groups hold.
    room = figures.kv_pool_bytes * (token / figures.kv_bytes_per_token if token else 1.0 / lowered.configs[0].tp)
    model = StepModel.of(lowered.terms, 0, m.kv_bytes[0].tolist(), float(m.state_bytes[0]))
    model = replace(model, prompt_s=model.prompt_s * begun.launches)
    late_s = request_s + model.later_stages_s(min(begun.chunk, prompt))
    limits = Limits(begun.slots, begun.chunk, room, engine.memory.kv_reserve_osl, begun.wait_steps)
    return Pool(model, limits, scheduler, count, late_s)


def _begun(
    request: EstimateRequest, bench: benchmark.Benchmark, accelerator: AcceleratorFacts, engine: EngineFacts, tp: int
) -> Started:
    """How the publishers of such benchmarks start the engine; a stated chunk counts."""
    known = started(
        engine.id, accelerator.compute_capability, engine.token_budget, tp, bench.users, bench.isl, bench.osl
    )
    return replace(known, chunk=request.chunk or known.chunk)


def batch(request: EstimateRequest, srv: Server, d: Demand) -> tuple[float, float, float]:
    """A static batch: B prompts prefilled together, then decoded in step."""
    batch = np.array([float(request.batch)])
    tokens = batch * d.uncached_mean
    steps = np.maximum(np.ceil(tokens / srv.chunk), 1.0)
    prefill = steps * srv.terms.chunk_s(tokens / steps) + batch * (srv.terms.sequence_s + srv.attention_mean_s)
    step = srv.terms.decode_s(batch, srv.kv_s)
    total = float(prefill[0] + max(request.osl - 1, 0) * step[0])
    return float(prefill[0] + srv.request_s[0]), float(step[0]), request.batch * request.osl / total


def closed_form_split(request: EstimateRequest, pre: Server, dec: Server, d: Demand) -> tuple[float, float, float]:
    """Closed loop over prefill and decode workers; the rate at which the loop of B users closes."""
    x, y = workers(request)
    most = min(x * float(DISCIPLINES["prefill"](pre, d, np.array([1.0 - 1e-6])).rate[0]), math.inf)
    low, high = 0.0, most
    p = _pair(pre, dec, d, 1e-9, x, y)
    for _ in range(60):
        rate = (low + high) / 2.0
        p = _pair(pre, dec, d, rate, x, y)
        low, high = (rate, high) if rate * float(latency.e2e_mean(p, d)[0]) < request.batch else (low, rate)
    return float(latency.ttft_mean(p)[0]), float(p.gap_mean_s[0]), low * request.osl


def _pair(pre: Server, dec: Server, d: Demand, rate: float, x: int, y: int) -> Point:
    start = DISCIPLINES["prefill"](
        pre, d, size.level_at(DISCIPLINES["prefill"], pre, d, "rate", np.array([rate / x]), np.array([1.0 - 1e-6]))
    )
    gaps = DISCIPLINES["decode"](
        dec, d, size.level_at(DISCIPLINES["decode"], dec, d, "rate", np.array([rate / y]), np.array([1e5]))
    )
    return combine(start, gaps)
