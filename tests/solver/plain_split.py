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
from tests.solver.plain_full import yielding
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
    fitting: dict[tuple[int, int], list[tuple[int, int]]] = {}
    together: dict[tuple[Cut, Cut], list[Two]] = {}
    for start in starts:
        for gap in gaps:
            if gap.cut.tp == start.peer and gap.cut.ahead == start.cut.ahead:
                sizes = start.cut.tp, gap.cut.tp
                if sizes not in fitting:
                    fitting[sizes] = _counts(problem, kinds, start.cut, gap.cut)
                two = Two(problem, load, engine, kinds, weights, kv, start, gap, fitting[sizes])
                together.setdefault((start.cut, gap.cut), []).append(two)
    return [found for pairs in together.values() for found in _best_of(problem, pairs)]


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


@dataclass
class Two:
    """One prefill and one decode candidate of an engine, and every pair of counts that the pool holds."""

    problem: Problem
    load: Traffic
    engine: EngineOption
    kinds: tuple[Kind, Kind]
    weights: str
    kv: str
    start: Server
    gap: Server
    fitting: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self.rate = _rate(self.problem, self.start, self.gap)
        ends = [pessimism(self.problem, self.engine.facts, k, s.cut) for k, s in zip(self.kinds, self.servers, strict=True)]
        self.factors: Mapping[str, float] = {m: max(end[m] for end in ends) for m in ("ttft", "itl", "tpot", "e2e")}
        self.beside_x: dict[int, int] = {}
        self.beside_y: dict[int, int] = {}
        for x, y in self.fitting:
            self.beside_x[x] = max(y, self.beside_x.get(x, 0))
            self.beside_y[y] = max(x, self.beside_y.get(y, 0))

    @property
    def servers(self) -> tuple[Server, Server]:
        return self.start, self.gap

    @property
    def name(self) -> str:
        start, gap, first, second = self.start, self.gap, self.kinds[0].facts.id, self.kinds[1].facts.id
        pair = f"prefill-{start.cut.words}-c{start.chunk:05d}-b{SLOTS:04d}+decode-{gap.cut.words}-c00512-b{gap.limit:04d}"
        ids = first if self.kinds[0] is self.kinds[1] else f"{first}+{second}"
        return f"{self.engine.facts.id}/{ids}/{self.weights}-kv-{self.kv}/{drafts(start.cut)}{pair}"

    def one(self, x: int, y: int) -> float:
        """Requests/s that the servers sustain."""
        return min(x * self.start.rate, y * self.gap.rate)

    def enough(self, x: int, y: int, rate: float) -> bool:
        return self.problem.utilization * self.one(x, y) >= rate * (1 - 1e-9)

    def fullest(self) -> tuple[int, int]:
        """What gets the most out of the pool, with no server more than that takes."""
        carried = max(self.one(x, y) for x, y in self.fitting)
        return math.ceil(carried / self.start.rate - 1e-9), math.ceil(carried / self.gap.rate - 1e-9)

    def keeps(self, x: int, y: int, sized: float) -> bool:
        """Whether whole requests are on time with these servers at the load."""
        seen = _joined(self.start, self.gap, sized / x, sized / y)
        return meets(self.problem, seen, self.load, ("ttft", "tpot", "e2e"), self.factors)

    def on_time(self, x: int, y: int, sized: float) -> bool:
        """The same, and were there as many more of either role as the pool holds: the lowest load that is late counts."""
        return all(self.keeps(a, b, sized) for a, b in ((x, y), (x, self.beside_x[x]), (self.beside_y[y], y)))

    def devices(self, x: int, y: int) -> tuple[int, int]:
        return (x + self.problem.spares) * self.start.cut.tp, (y + self.problem.spares) * self.gap.cut.tp

    def cost(self, x: int, y: int) -> float:
        return self._spent(x, y, *(k.plan.price_per_hour for k in self.kinds))

    def spent(self, x: int, y: int) -> float:
        """What is minimised of these servers, whatever they yield."""
        watts = self._spent(x, y, *(k.facts.tdp_w for k in self.kinds))
        return {"cost": self.cost(x, y), "energy": watts}.get(self.problem.objective, 0.0)

    def _spent(self, x: int, y: int, first: float, second: float) -> float:
        a, b = self.devices(x, y)
        return (a + b) * first if self.kinds[0] is self.kinds[1] else a * first + b * second

    def headroom(self, x: int, y: int) -> float:
        return three_digits(self.one(x, y)) if self.problem.open_loop else 1.0

    def found(self, x: int, y: int, sized: float) -> Found:
        problem, devices = self.problem, sum(self.devices(x, y))
        output = sized * self.load.output_mean
        objective: tuple[float, ...]
        if problem.objective == "throughput":
            objective = (-three_digits(output),)
        elif problem.objective == "latency":
            seen = _joined(self.start, self.gap, sized / x, sized / y)
            pace = quantile(lambda t: seen.pace_over(t, self.load), 0.95)
            objective = three_digits(pace), three_digits(quantile(seen.ttft_over, 0.95))
        else:
            spent = self.spent(x, y)
            objective = (three_digits(spent / output) if problem.saturate else spent,)
        tps = {s.cut.tp for s in self.servers}
        order = (*objective, devices, len(tps), max(tps), *narrow(problem, self.weights, self.kv), -self.headroom(x, y))
        return Found((*order, 2, self.start.cut.ahead, self.name), self.name, (x, y), devices, self.cost(x, y))


def _best_of(problem: Problem, pairs: Sequence[Two]) -> list[Found]:
    """What comes of the candidates of two configurations: any counts that carry the load on time; where the pool yields what it
    can the fullest, and with bounds on whole requests what yields the most on time."""
    ends = any(b.metric == "e2e" for b in problem.slo.bounds) or not math.isnan(problem.slo.attainment)
    pairs = [pair for pair in pairs if pair.fitting]
    if not (problem.saturate or problem.objective == "throughput"):
        return [
            pair.found(x, y, pair.rate)
            for pair in pairs
            for x, y in pair.fitting
            if pair.enough(x, y, pair.rate) and (not ends or pair.on_time(x, y, pair.rate))
        ]
    full = [(pair, *pair.fullest()) for pair in pairs]
    full = [(pair, x, y) for pair, x, y in full if pair.enough(x, y, pair.rate)]
    if not ends:
        return [pair.found(x, y, problem.utilization * pair.one(x, y)) for pair, x, y in full]
    return yielding(problem, pairs, full)


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
