"""A second solver, as plain as can be: nested loops over every candidate, Python floats, no columns.

It shares facts and request lengths with servegen and nothing else: step, memory, queues, bisection, bands, replicas, packing
and the total order are written again from their definitions, for models of one kind of layer with full attention, dense or with
experts. It answers small questions slowly, so that a test can compare the real search with it. Aggregated serving (continuous
and static batching) is here, prefill and decode apart in :mod:`tests.solver.plain_split`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from servegen.catalog.facts import EngineFacts
from servegen.service.demand import demand
from servegen.solve.problem import EngineOption, Kind, Problem
from tests.solver.plain_cut import Cut, cuts, drafting_cuts, most_replicas
from tests.solver.plain_memory import beside_cache, chunks_worth, holds, memory
from tests.solver.plain_replica import Replica
from tests.solver.plain_seen import Seen
from tests.solver.plain_step import stepping
from tests.solver.plain_traffic import EDGES, Traffic, traffic

SLOT_WAIT = 1e-3
STALL_GUARD = 1.1
IDLE = 1e-4
#: Cells of the way from there to the highest level, and the parts of it that are tried first.
CELLS = 8**6
PARTS = (0, 0.5, 0.65, 0.75, 0.8, 0.84, 0.87, 0.895, 0.92, 0.94, 0.96, 0.98, 0.99, 1)


ALL_METRICS = ("ttft", "itl", "tpot", "e2e")
BEST_ESTIMATE: Mapping[str, float] = dict.fromkeys(ALL_METRICS, 1.0)


def pessimism(problem: Problem, engine: EngineFacts, kind: Kind, cut: Cut) -> Mapping[str, float]:
    """How much longer each latency may be than predicted, where the spec asks for that end of the band to be on time."""
    if problem.confidence == "best":
        return BEST_ESTIMATE
    out = dict.fromkeys(ALL_METRICS, 0.0)
    measured = cut == Cut(cut.tp, ahead=cut.ahead) and cut.devices <= kind.plan.per_node
    experts = 0.0 if measured and not problem.model.layers[0].num_experts else 0.25
    drafts = 0.25 if problem.speculation is not None else 0.0
    for precision in [p for p in problem.allowed_weights if p in kind.facts.gemm] or ["bf16"]:
        gemm = engine.kernels.get(f"{kind.facts.id}.{precision}") or kind.facts.gemm[precision]
        unfitted = 0.0 if gemm.origin == "fitted" else gemm.fit_error
        alone = 0.34 if gemm.origin == "measured" else 0.0
        first = 1.0 + math.hypot(engine.band["ttft"].value, 2.06 * math.hypot(unfitted, alone, experts))
        gap = 1.0 + math.hypot(engine.band["itl"].value, 2.06 * math.hypot(unfitted, alone, experts, drafts))
        for metric, factor in (("ttft", first), ("itl", gap), ("tpot", gap), ("e2e", max(first, gap))):
            out[metric] = max(out[metric], factor)
    return out if problem.confidence == "low" else {metric: 1.0 / factor for metric, factor in out.items()}


def meets(
    problem: Problem,
    seen: Seen,
    load: Traffic,
    metrics: Sequence[str] = ALL_METRICS,
    factors: Mapping[str, float] = BEST_ESTIMATE,
) -> bool:
    """Whether every bound on these metrics holds, were each latency ``factors`` times what it is predicted to be."""
    slo = problem.slo
    for b in slo.bounds:
        if b.metric not in metrics:
            continue
        seconds = b.seconds / factors[b.metric]
        if math.isnan(b.probability):
            if seen.mean(b.metric, load) > seconds:
                return False
        elif seen.over(b.metric, seconds, load, STALL_GUARD) > 1 - b.probability - SLOT_WAIT * (b.metric in ("ttft", "e2e")):
            return False
    joint = [b for b in slo.jointly if b.metric in metrics]
    if not math.isnan(slo.attainment) and joint:
        missed = sum(seen.over(b.metric, b.seconds / factors[b.metric], load) for b in joint)
        return 1.0 - min(max(1.0 - missed, 0.0), 1.0) <= 1.0 - slo.attainment
    return True


def largest(ok: Callable[[float], bool], high: float, static: bool = False) -> float:
    """Largest level up to ``high`` that is still right, 0 if none is; the least part of the way that is not right counts."""
    low_t, high_t = math.log(min(IDLE, high)), math.log(high)

    def right(cell: int) -> bool:
        return ok(math.exp(low_t + (high_t - low_t) * cell / CELLS))

    parts = [i / 32 for i in range(33)] if static else PARTS
    tried = [math.floor(part * CELLS) for part in parts]
    wrong = next((i for i, cell in enumerate(tried) if not right(cell)), None)
    if wrong is None:
        return high
    if wrong == 0:
        return 0.0
    low, over = tried[wrong - 1], tried[wrong]
    while over - low > 1:
        middle = (low + over) // 2
        low, over = (middle, over) if right(middle) else (low, middle)
    return math.exp(low_t + (high_t - low_t) * low / CELLS)


def carried(problem: Problem, seen: Seen, load: Traffic) -> float:
    if problem.load_kind == "rate":
        return seen.rate
    think = problem.think_s if problem.load_kind == "users" else 0.0
    return seen.rate * (seen.mean("e2e", load) + think)


def level_of(problem: Problem, replica: Replica, discipline: str, share: float, high: float) -> float:
    """Level at which a replica carries ``share``."""
    low_t, high_t = math.log(1e-8), math.log(high)
    for _ in range(30):
        middle = (low_t + high_t) / 2
        over = carried(problem, replica.at(discipline, math.exp(middle)), replica.load) > share
        low_t, high_t = (low_t, middle) if over else (middle, high_t)
    return math.exp(high_t)


def quantile(over: Callable[[float], float], probability: float) -> float:
    low_t, high_t = math.log(1e-7), math.log(1e5)
    for _ in range(32):
        middle = (low_t + high_t) / 2
        low_t, high_t = (middle, high_t) if over(math.exp(middle)) > 1.0 - probability else (low_t, middle)
    return math.exp(high_t)


def three_digits(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) else value


@dataclass
class Found:
    """The optimum. ``key`` is the total order's tuple, the name last."""

    key: tuple[object, ...]
    name: str
    replicas: tuple[int, ...]
    devices: int
    cost: float


def powered(problem: Problem) -> list[Kind]:
    """The kinds that can be judged by the objective: energy needs a published power."""
    return [k for k in problem.pool if problem.objective != "energy" or not math.isnan(k.facts.tdp_w)]


def narrow(problem: Problem, weights: str, kv: str) -> tuple[int, int]:
    return problem.allowed_weights.index(weights), problem.allowed_kv.index(kv)


def computed_by(problem: Problem, engine: EngineOption) -> Problem:
    """The problem as an engine sees it: one without a prefix cache computes every prompt."""
    if engine.facts.prefix_cache:
        return problem
    workload = dataclasses.replace(problem.workload, prefix_hit=0.0, prefix_shared=0.0)
    return dataclasses.replace(problem, workload=workload, demand=demand(workload, bounded=bool(problem.slo.bounds)))


def by_replicas(problem: Problem) -> list[Problem]:
    """A stated concurrency as one replica has it, and as each of several does, who are sent strangers at random; and so of
    arrivals that are steadier than that."""
    if problem.load_kind == "concurrency":
        random = dataclasses.replace(problem.demand, own=1.0, turns=False)
    elif problem.open_loop and problem.demand.arrival_cv2 < 1.0:
        random = dataclasses.replace(problem.demand, arrival_cv2=1.0, queue_cv2=1.0)
    else:
        return [problem]
    return [dataclasses.replace(problem, replicas="one"), dataclasses.replace(problem, replicas="several", demand=random)]


def best_aggregated(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Found | None:
    """The optimum over every aggregated candidate."""
    best: Found | None = None
    for engine, asked in ((e, part) for e in problem.engines for part in by_replicas(computed_by(problem, e))):
        load = traffic(asked)
        for kind in powered(problem):
            for discipline in engine.facts.schedulers:
                for option in engine.weights:
                    for kv in engine.kv:
                        for cut in cuts(problem, engine, kind, option, kv):
                            if discipline == "mixed" and not cut.whole:
                                continue
                            for drafting in drafting_cuts(problem, engine, kind, cut, discipline):
                                for chunk in chunks_worth(load, chunks):
                                    for found in _row(
                                        asked, load, engine, kind, discipline, option.precision, kv, drafting, chunk, limits
                                    ):
                                        if best is None or found.key < best.key:
                                            best = found
    return best


def _row(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    discipline: str,
    weights: str,
    kv: str,
    cut: Cut,
    chunk: int,
    limits: Sequence[int],
) -> list[Found]:
    acc = kind.facts
    of = problem, kind, engine.facts, weights, kv, cut
    fitting = [b for b in limits if holds(problem, memory(*of, chunk, b, False), load, b)]
    if not fitting:
        return []
    replica = Replica(
        stepping(*of),
        chunk,
        load,
        engine.facts.request_s.value,
        [0.0] * len(EDGES),
        problem.speculation is not None,
    )
    levels = {}
    for b in fitting:
        m = memory(problem, kind, engine.facts, weights, kv, cut, chunk, b, False)
        levels[b] = min(slot_level(problem, b, cut, load, discipline == "static"), beside_cache(problem, m, load))
    factors = pessimism(problem, engine.facts, kind, cut)
    static = discipline == "static"
    cap = largest(lambda n: meets(problem, replica.at(discipline, n), load, factors=factors), max(levels.values()), static)
    if cap == 0.0:
        return []
    most = most_replicas(kind, cut)
    if problem.max_accelerators:
        most = min(most, problem.max_accelerators // cut.devices)
    most = min(most - problem.spares, 1 if problem.replicas == "one" else most)
    out: list[Found] = []
    cache: dict[float, tuple[float, float]] = {}
    for b in fitting:
        level = min(levels[b], cap)
        seen = replica.at(discipline, level)
        one = carried(problem, seen, load)
        if not problem.open_loop:  # who is being served holds a slot, only who thinks holds none
            one = min(one, b + seen.rate * problem.think_s)
        least = 2 if problem.replicas == "several" else 1
        able, wanted = problem.utilization * one, problem.load * (1 - 1e-9)
        enough = [n for n in range(least, most + 1) if problem.saturate or n * able >= wanted]
        if not enough:
            continue
        if problem.saturate or problem.objective == "throughput":
            n = most
        elif problem.objective == "latency":
            n = max(enough[0], most if problem.open_loop else min(most, math.ceil(problem.load)))
        else:
            n = enough[0]
        devices = (n + problem.spares) * cut.devices
        cost, watts = devices * kind.plan.price_per_hour, devices * acc.tdp_w
        output = n * seen.rate * problem.utilization * load.output_mean
        if problem.objective == "throughput":
            objective: tuple[float, ...] = (-three_digits(output),)
        elif problem.objective == "latency":
            share = problem.utilization * one if problem.saturate else problem.load / n
            if share not in cache:
                now = replica.at(discipline, level_of(problem, replica, discipline, share, level if problem.saturate else cap))
                pace = quantile(lambda t, now=now: now.pace_over(t, load), 0.95)
                cache[share] = (three_digits(pace), three_digits(quantile(now.ttft_over, 0.95)))
            objective = cache[share]
        else:
            spent = cost if problem.objective == "cost" else watts
            objective = (three_digits(spent / output) if problem.saturate else spent,)
        mixed = "-mixed" if discipline == "mixed" else ""
        name = f"{engine.facts.id}/{acc.id}/{weights}-kv-{kv}/{drafts(cut)}serve-{cut.words}-c{chunk:05d}-b{b:04d}{mixed}"
        headroom = n * one if problem.open_loop else min(n * one, problem.load / problem.utilization)
        key = (*objective, devices, 1, cut.tp, *narrow(problem, weights, kv), -three_digits(headroom), 1, cut.ahead, name)
        out.append(Found(key, name, (n,), devices, cost))
    return out


def drafts(cut: Cut) -> str:
    """What a name says of drafting."""
    return f"draft{cut.ahead:02d}/" if cut.ahead else ""


def slot_level(problem: Problem, limit: int, cut: Cut, load: Traffic, static: bool = False) -> float:
    """Mean sequences at which a thousandth of arrivals finds all slots of its group taken, where first tokens are bounded."""
    starts = any(b.metric in ("ttft", "e2e") for b in (*problem.slo.bounds, *problem.slo.jointly))
    if not starts or (problem.load_kind == "concurrency" and problem.replicas != "several"):
        return float(limit)
    slots = limit / cut.dp
    peak = 1.0 + max(load.arrival_cv2 - 1.0, 0.0) * (1.0 if static else load.overlap)
    if static:  # which varies with the longest output of the batch before, and by half with its size
        at = [v for size, _, v in load.longest], [size for size, _, v in load.longest]
        peak = (peak + slots * float(np.interp(math.log(slots), at[1], at[0]))) / 0.75
    slots /= max(peak, 1.0)
    return limit * SLOT_WAIT ** (1.0 / (math.sqrt(2.0 * (slots + 1.0)) - 1.0))
