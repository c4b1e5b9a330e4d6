"""The plain solver's other half: prefill and decode servers apart, every pair of counts, and the choice between both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servegen.solve.problem import EngineOption, Kind, Problem
from tests.solver.plain import (
    IDLE,
    Found,
    best_aggregated,
    largest,
    meets,
    narrow,
    pessimism,
    powered,
    quantile,
    slot_level,
    three_digits,
)
from tests.solver.plain_memory import chunks_worth, exists, found, holds, memory, tps
from tests.solver.plain_replica import EDGES, Replica, Seen, Traffic, step, traffic

#: Prompts that a prefill server keeps at the most.
SLOTS = 64


def best_of_all(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Found | None:
    """The optimum of both topologies: a split only where it gains what the spec asks for, and more than nothing."""
    together, split = best_aggregated(problem, limits, chunks), best_split(problem, limits, chunks)
    if together is None or split is None:
        return together or split
    a, b = together.key[0], split.key[0]
    assert isinstance(a, float) and isinstance(b, float)
    gain = 1.0 if a == b else b / a if problem.objective == "throughput" else a / b
    return split if gain >= problem.gain and gain > 1.0 else together


def packs(kinds: tuple[Kind, Kind], first: int, x: int, second: int, y: int) -> bool:
    """Whether ``x`` servers of ``first`` and ``y`` of ``second`` devices fit the nodes: all ways to fill them are tried."""
    if kinds[0] is not kinds[1]:
        return all(n <= k.plan.nodes * (k.plan.per_node // tp) for k, tp, n in zip(kinds, (first, second), (x, y), strict=True))
    kind = kinds[0]
    room = {0: 0}  # servers of the first size placed -> most of the second size beside them
    for _ in range(kind.plan.nodes):
        wider: dict[int, int] = {}
        for placed, other in room.items():
            for more in range(min(kind.plan.per_node // first, x - placed) + 1):
                beside = (kind.plan.per_node - more * first) // second
                wider[placed + more] = max(wider.get(placed + more, -1), other + beside)
        room = wider
    return room.get(x, -1) >= y


def best_split(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Found | None:
    """The optimum over every split candidate: every count of prefill and decode servers that fits is tried.

    Bounds on whole requests are checked at the sized load of each pair of counts.
    """
    found = [
        pair
        for engine in problem.engines
        if engine.facts.disaggregation
        for first in powered(problem)
        for second in powered(problem)
        for option in engine.weights
        for kv in engine.kv
        for pair in _pairs(problem, engine, (first, second), option.precision, kv, limits, chunks)
    ]
    return min(found, key=lambda f: f.key, default=None)


def _pairs(
    problem: Problem,
    engine: EngineOption,
    kinds: tuple[Kind, Kind],
    weights: str,
    kv: str,
    limits: Sequence[int],
    chunks: Sequence[int],
) -> list[Found]:
    """The best counts of every prefill with every decode candidate of one precision."""
    load = traffic(problem)
    link = min(k.plan.fabric_bytes_per_s for k in kinds)
    (option,) = (o for o in engine.weights if o.precision == weights)
    legal = [[tp for tp in tps(problem, k) if exists(problem, engine, k, option, kv, tp)] for k in kinds]
    if not link:
        return []
    gaps = [g for tp in legal[1] for g in _decodes(problem, load, engine, kinds[1], weights, kv, tp, limits, link)]
    starts = [
        s
        for tp in legal[0]
        for peer in legal[1]
        for s in _prefills(problem, load, engine, kinds[0], weights, kv, tp, peer, chunks, link)
    ]
    out = []
    for start in starts:
        for gap in gaps:
            if gap.tp == start.peer:
                out += _pair(problem, load, engine, kinds, weights, kv, start, gap)
    return out


@dataclass
class Server:
    tp: int
    chunk: int
    limit: int
    rate: float
    replica: Replica
    peer: int = 0


def _prefills(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    tp: int,
    peer: int,
    chunks: Sequence[int],
    link: float,
) -> list[Server]:
    out = []
    factors = pessimism(problem, engine.facts, kind)
    for chunk in chunks_worth(load, chunks):
        m = memory(problem, kind.facts, engine.facts, weights, kv, tp, chunk, SLOTS, True)
        if m.pool <= 0 or max(problem.context_length, found(problem)) * m.token > m.pool:
            continue
        one = step(problem.model, kind.facts, engine.facts, weights, kv, tp)
        handoff: list[float] = []
        for new, whole in zip(load.new, load.whole, strict=True):
            moved = (whole * m.token * tp + 60e6) / (0.72 * link * min(tp, peer))
            left = max(moved / math.ceil(new / chunk), moved - one.prefill(new, whole, chunk))
            handoff.append(max(left, handoff[-1] if handoff else left))
        replica = Replica(one, chunk, load, 2 * engine.facts.request_s.value, handoff)
        busy = largest(lambda u, r=replica: meets(problem, r.at("prefill", u), load, ("ttft",), factors), 1 - 1e-6)
        if busy > 0:
            links = 1.0 / ((float(problem.demand.total_mean) * m.token * tp + 60e6) / (0.72 * link * min(tp, peer)))
            out.append(Server(tp, chunk, SLOTS, min(replica.at("prefill", busy).rate, links), replica, peer))
    return out


def _decodes(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    tp: int,
    limits: Sequence[int],
    link: float,
) -> list[Server]:
    replica = Replica(step(problem.model, kind.facts, engine.facts, weights, kv, tp), 512, load, 0.0, [0.0] * len(EDGES))
    fitting = [
        b
        for b in limits
        if holds(problem, memory(problem, kind.facts, engine.facts, weights, kv, tp, 512, b, True), load, b, False)
    ]
    if not fitting:
        return []
    factors = pessimism(problem, engine.facts, kind)
    cap = largest(
        lambda n: meets(problem, replica.at("decode", n), load, ("itl", "tpot"), factors),
        max(slot_level(problem, b, load) for b in fitting),
    )
    token = memory(problem, kind.facts, engine.facts, weights, kv, tp, 512, fitting[0], True).token
    links = 1.0 / ((float(problem.demand.total_mean) * token * tp + 60e6) / (0.72 * link * tp))
    rates = {b: min(replica.at("decode", min(cap, slot_level(problem, b, load))).rate, links) for b in fitting if cap > 0}
    return [Server(tp, 512, b, rate, replica) for b, rate in rates.items()]


def _rate(problem: Problem, start: Server, gap: Server) -> float:
    """Requests/s of the load; a closed loop turns fastest when nothing waits, and that rate is the safe one."""
    if problem.open_loop:
        return problem.load
    idle = start.replica.at("prefill", IDLE).ttft_mean()
    return problem.load / (idle + start.replica.load.gaps * gap.replica.decode(1.0) + problem.think_s)


def _pair(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kinds: tuple[Kind, Kind],
    weights: str,
    kv: str,
    start: Server,
    gap: Server,
) -> list[Found]:
    """The best counts of one prefill and one decode candidate, none if no pair of counts carries the load on time."""
    u, spare, rate = problem.utilization, problem.spares, _rate(problem, start, gap)
    same = kinds[0] is kinds[1]
    most = problem.max_accelerators or sum(k.devices for k in ({kinds[0].index: kinds[0], kinds[1].index: kinds[1]}).values())
    ends = any(b.metric == "e2e" for b in problem.slo.bounds) or not math.isnan(problem.slo.attainment)
    factors: Mapping[str, float] = {
        m: max(pessimism(problem, engine.facts, k)[m] for k in kinds) for m in ("ttft", "itl", "tpot", "e2e")
    }
    full = problem.saturate or problem.objective == "throughput"
    pair = f"prefill-tp{start.tp:02d}-c{start.chunk:05d}-b{SLOTS:04d}+decode-tp{gap.tp:02d}-c00512-b{gap.limit:04d}"
    ids = kinds[0].facts.id if same else f"{kinds[0].facts.id}+{kinds[1].facts.id}"
    name = f"{engine.facts.id}/{ids}/{weights}-kv-{kv}/{pair}"

    def fits(x: int, y: int) -> bool:
        devices = (x + spare) * start.tp + (y + spare) * gap.tp
        return devices <= most and packs(kinds, start.tp, x + spare, gap.tp, y + spare)

    counts = [
        (x, y) for x in range(1, most // start.tp + 1) for y in range(1, most // gap.tp + 1) if fits(x, y)
    ]
    if full and counts:  # the pool yields what it can, with no server more than that takes
        carried = max(min(x * start.rate, y * gap.rate) for x, y in counts)
        counts = [(math.ceil(carried / start.rate - 1e-9), math.ceil(carried / gap.rate - 1e-9))]
    out: list[Found] = []
    for x, y in counts:
        one = min(x * start.rate, y * gap.rate)
        if u * one < rate * (1 - 1e-9):
            continue
        sized = u * one if full else rate
        seen = _joined(start, gap, sized / x, sized / y) if ends or problem.objective == "latency" else None
        if ends and seen is not None and not meets(problem, seen, load, ("ttft", "tpot", "e2e"), factors):
            continue
        devices = (x + spare) * start.tp + (y + spare) * gap.tp
        parts = [((x + spare) * start.tp, kinds[0]), ((y + spare) * gap.tp, kinds[1])]
        cost = devices * kinds[0].plan.price_per_hour if same else sum(n * k.plan.price_per_hour for n, k in parts)
        watts = devices * kinds[0].facts.tdp_w if same else sum(n * k.facts.tdp_w for n, k in parts)
        output = sized * load.output_mean
        if problem.objective == "throughput":
            objective: tuple[float, ...] = (-three_digits(output),)
        elif problem.objective == "latency" and seen is not None:
            objective = tuple(three_digits(quantile(over, 0.95)) for over in (seen.itl_over, seen.ttft_over))
        else:
            spent = cost if problem.objective == "cost" else watts
            objective = (spent / output if problem.saturate else spent,)
        headroom = three_digits(one) if problem.open_loop else 1.0
        key = (*objective, devices, max(start.tp, gap.tp), *narrow(problem, weights, kv), -headroom, 2, name)
        out.append(Found(key, name, (x, y), devices, cost))
    return out


def _joined(start: Server, gap: Server, load_p: float, load_d: float) -> Seen:
    first = start.replica.at("prefill", _at_rate(start.replica, "prefill", load_p, 1 - 1e-6))
    then = gap.replica.at("decode", _at_rate(gap.replica, "decode", load_d, 4096.0))
    return Seen(
        min(first.rate, then.rate),
        first.start,
        first.start_mean,
        first.delayed,
        first.wait,
        first.wait_cv2,
        first.service,
        first.service_mean,
        then.gap,
        then.gap_sd,
        then.stalled,
        then.stalls,
        then.longest,
        then.gap_mean,
        then.burst,
    )


def _at_rate(replica: Replica, discipline: str, rate: float, high: float) -> float:
    low_t, high_t = math.log(1e-8), math.log(high)
    for _ in range(30):
        middle = (low_t + high_t) / 2
        low_t, high_t = (low_t, middle) if replica.at(discipline, math.exp(middle)).rate > rate else (middle, high_t)
    return math.exp(high_t)
