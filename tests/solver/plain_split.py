"""The plain solver's other half: prefill and decode servers apart, every pair of counts, and the choice between both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servegen.solve.problem import EngineOption, Kind, Problem
from tests.solver.plain import (
    IDLE,
    Found,
    best_aggregated,
    drafts,
    largest,
    meets,
    narrow,
    pessimism,
    powered,
    quantile,
    slot_level,
    three_digits,
)
from tests.solver.plain_cut import Cut, cuts, drafting_cuts, most_replicas
from tests.solver.plain_memory import Memory, chunks_worth, found, holds, memory
from tests.solver.plain_replica import Replica
from tests.solver.plain_seen import Seen
from tests.solver.plain_step import stepping
from tests.solver.plain_traffic import EDGES, Traffic, traffic

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


def packs(kinds: tuple[Kind, Kind], first: Cut, x: int, second: Cut, y: int) -> bool:
    """Whether ``x`` and ``y`` servers fit the nodes: all ways to fill them are tried."""
    if kinds[0] is not kinds[1]:
        return x <= most_replicas(kinds[0], first) and y <= most_replicas(kinds[1], second)
    kind, per = kinds[0], kinds[0].plan.per_node
    if first.devices > per:  # takes nodes whole
        left = kind.plan.nodes - x * math.ceil(first.devices / per)
        beside = left * (per // second.devices) if second.devices <= per else left // math.ceil(second.devices / per)
        return left >= 0 and y <= beside
    if second.devices > per:
        return packs(kinds, second, y, first, x)
    room = {0: 0}  # servers of the first size placed -> most of the second size beside them
    for _ in range(kind.plan.nodes):
        wider: dict[int, int] = {}
        for placed, other in room.items():
            for more in range(min(per // first.devices, x - placed) + 1):
                beside = (per - more * first.devices) // second.devices
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
    if not link:
        return []
    able = [
        [
            drafting
            for cut in cuts(problem, engine, k, option, kv, split=True)
            for drafting in drafting_cuts(problem, engine, k, cut, "decode")
        ]
        for k in kinds
    ]
    gaps = [g for cut in able[1] for g in _decodes(problem, load, engine, kinds[1], weights, kv, cut, limits, link)]
    starts = [
        s
        for cut in able[0]
        for peer in sorted({other.tp for other in able[1]})
        for s in _prefills(problem, load, engine, kinds[0], weights, kv, cut, peer, chunks, link)
    ]
    out = []
    fitting: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for start in starts:
        for gap in gaps:
            if gap.cut.tp == start.peer and gap.cut.ahead == start.cut.ahead:
                sizes = start.cut.tp, gap.cut.tp
                if sizes not in fitting:
                    fitting[sizes] = _counts(problem, kinds, start.cut, gap.cut)
                out += _pair(problem, load, engine, kinds, weights, kv, start, gap, fitting[sizes])
    return out


def _counts(problem: Problem, kinds: tuple[Kind, Kind], start: Cut, gap: Cut) -> list[tuple[int, int]]:
    """Every pair of counts that the pool holds, spares beside them."""
    spare = problem.spares
    most = problem.max_accelerators or sum(k.devices for k in ({kinds[0].index: kinds[0], kinds[1].index: kinds[1]}).values())

    def fits(x: int, y: int) -> bool:
        devices = (x + spare) * start.tp + (y + spare) * gap.tp
        return devices <= most and packs(kinds, start, x + spare, gap, y + spare)

    return [(x, y) for x in range(1, most // start.tp + 1) for y in range(1, most // gap.tp + 1) if fits(x, y)]


@dataclass
class Server:
    cut: Cut
    chunk: int
    limit: int
    rate: float
    replica: Replica
    peer: int = 0
    known: dict[float, Seen] = field(default_factory=dict)  # where the replica stands at the rates that were asked for


def _handed(m: Memory, tokens: float, cut: Cut, links: float) -> float:
    """Seconds to hand the KV of so many tokens over, which the devices of one group have between them."""
    return (tokens * m.token * cut.group + 60e6) / (0.72 * links)


def _prefills(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    cut: Cut,
    peer: int,
    chunks: Sequence[int],
    link: float,
) -> list[Server]:
    out = []
    factors = pessimism(problem, engine.facts, kind, cut)
    links = link * min(cut.tp, peer) / cut.dp  # of one group
    for chunk in chunks_worth(load, chunks):
        m = memory(problem, kind, engine.facts, weights, kv, cut, chunk, SLOTS, True)
        if m.pool <= 0 or max(problem.context_length, found(problem)) * m.token > m.pool:
            continue
        one = stepping(problem, kind, engine.facts, weights, kv, cut)
        handoff: list[float] = []
        for new, whole in zip(load.new, load.whole, strict=True):
            moved = _handed(m, whole, cut, links)
            left = max(moved / math.ceil(new / (chunk / cut.dp)), moved - one.prefill(new, whole, chunk))
            handoff.append(max(left, handoff[-1] if handoff else left))
        replica = Replica(one, chunk, load, 2 * engine.facts.request_s.value, handoff, problem.speculation is not None)
        busy = largest(lambda u, r=replica: meets(problem, r.at("prefill", u), load, ("ttft",), factors), 1 - 1e-6)
        if busy > 0:
            most = cut.dp / _handed(m, float(problem.demand.total_mean), cut, links)
            out.append(Server(cut, chunk, SLOTS, min(replica.at("prefill", busy).rate, most), replica, peer))
    return out


def _decodes(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    cut: Cut,
    limits: Sequence[int],
    link: float,
) -> list[Server]:
    one = stepping(problem, kind, engine.facts, weights, kv, cut)
    replica = Replica(one, 512, load, 0.0, [0.0] * len(EDGES), problem.speculation is not None)
    room = {b: memory(problem, kind, engine.facts, weights, kv, cut, 512, b, True) for b in limits}
    fitting = [b for b in limits if holds(problem, room[b], load, b, cached=False)]
    if not fitting:
        return []
    factors = pessimism(problem, engine.facts, kind, cut)
    levels = {b: slot_level(problem, b, cut, load) for b in fitting}
    cap = largest(
        lambda n: meets(problem, replica.at("decode", n), load, ("itl", "tpot"), factors),
        max(levels.values()),
    )
    most = cut.dp / _handed(room[fitting[0]], float(problem.demand.total_mean), cut, link * cut.group)
    rates = {b: min(replica.at("decode", min(cap, levels[b])).rate, most) for b in fitting if cap > 0}
    known: dict[float, Seen] = {}
    return [Server(cut, 512, b, rate, replica, known=known) for b, rate in rates.items()]


def _rate(problem: Problem, start: Server, gap: Server) -> float:
    """Requests/s of the load; a closed loop turns fastest when nothing waits, and that rate is the safe one."""
    if problem.open_loop:
        return problem.load
    idle = start.replica.at("prefill", IDLE).ttft_mean()
    return problem.load / (idle + start.replica.load.gaps * gap.replica.at("decode", 1.0).gap_mean + problem.think_s)


def _pair(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kinds: tuple[Kind, Kind],
    weights: str,
    kv: str,
    start: Server,
    gap: Server,
    fitting: list[tuple[int, int]],
) -> list[Found]:
    """The best of the counts that fit of one prefill and one decode candidate, none if none carries the load on time."""
    u, spare, rate = problem.utilization, problem.spares, _rate(problem, start, gap)
    same = kinds[0] is kinds[1]
    ends = any(b.metric == "e2e" for b in problem.slo.bounds) or not math.isnan(problem.slo.attainment)
    ends_of = [pessimism(problem, engine.facts, k, s.cut) for k, s in zip(kinds, (start, gap), strict=True)]
    factors: Mapping[str, float] = {m: max(end[m] for end in ends_of) for m in ("ttft", "itl", "tpot", "e2e")}
    full = problem.saturate or problem.objective == "throughput"
    pair = f"prefill-{start.cut.words}-c{start.chunk:05d}-b{SLOTS:04d}+decode-{gap.cut.words}-c00512-b{gap.limit:04d}"
    ids = kinds[0].facts.id if same else f"{kinds[0].facts.id}+{kinds[1].facts.id}"
    name = f"{engine.facts.id}/{ids}/{weights}-kv-{kv}/{drafts(start.cut)}{pair}"

    counts = fitting
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
        devices = (x + spare) * start.cut.tp + (y + spare) * gap.cut.tp
        parts = [((x + spare) * start.cut.tp, kinds[0]), ((y + spare) * gap.cut.tp, kinds[1])]
        cost = devices * kinds[0].plan.price_per_hour if same else sum(n * k.plan.price_per_hour for n, k in parts)
        watts = devices * kinds[0].facts.tdp_w if same else sum(n * k.facts.tdp_w for n, k in parts)
        output = sized * load.output_mean
        if problem.objective == "throughput":
            objective: tuple[float, ...] = (-three_digits(output),)
        elif problem.objective == "latency" and seen is not None:
            pace = quantile(lambda t, seen=seen: seen.pace_over(t, load), 0.95)
            objective = three_digits(pace), three_digits(quantile(seen.ttft_over, 0.95))
        else:
            spent = cost if problem.objective == "cost" else watts
            objective = (three_digits(spent / output) if problem.saturate else spent,)
        headroom = three_digits(one) if problem.open_loop else 1.0
        widest = max(start.cut.tp, gap.cut.tp)
        tps = 1 if start.cut.tp == gap.cut.tp else 2
        key = (*objective, devices, tps, widest, *narrow(problem, weights, kv), -headroom, 2, start.cut.ahead, name)
        out.append(Found(key, name, (x, y), devices, cost))
    return out


def _joined(start: Server, gap: Server, load_p: float, load_d: float) -> Seen:
    first, then = _at_rate(start, "prefill", load_p, 1 - 1e-6), _at_rate(gap, "decode", load_d, 4096.0)
    return Seen(
        min(first.rate, then.rate),
        first.start,
        first.rest,
        first.delayed,
        first.wait,
        first.wait_cv2,
        first.service,
        first.service_mean,
        then.gap,
        then.gap_spread,
        then.stalled,
        then.stalls,
        then.longest,
        then.gap_mean,
        then.burst,
    )


def _at_rate(server: Server, discipline: str, rate: float, high: float) -> Seen:
    if rate not in server.known:
        low_t, high_t = math.log(1e-8), math.log(high)
        for _ in range(30):
            middle = (low_t + high_t) / 2
            over = server.replica.at(discipline, math.exp(middle)).rate > rate
            low_t, high_t = (low_t, middle) if over else (middle, high_t)
        server.known[rate] = server.replica.at(discipline, math.exp(high_t))
    return server.known[rate]
