"""Two groups of replicas on two kinds, as plain as :mod:`tests.solver.plain`: every choice of each kind, every pair of counts.

Nothing is left out beforehand: each batch limit of each row is tried with each of the other kind, and how much the router's draw
of two replicas lets through is asked of the chances themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from servegen.solve.problem import EngineOption, Kind, Problem
from tests.solver.plain import by_replicas, largest, meets, slot_level, three_digits
from tests.solver.plain_cut import Cut, cuts, most_replicas
from tests.solver.plain_memory import chunks_worth, holds, memory
from tests.solver.plain_replica import Replica
from tests.solver.plain_step import step
from tests.solver.plain_traffic import EDGES, Traffic, traffic


@dataclass
class Choice:
    """One replica of a kind: a row and a batch limit, at its largest level."""

    cut: Cut
    kind: Kind
    discipline: str
    replica: Replica
    level: float
    flight: float
    rate: float
    most: int
    known: dict[float, float] = field(default_factory=dict)

    def rate_with(self, flight: float) -> float:
        """Requests/s with so many in flight, at most what it may hold."""
        if flight >= self.flight * (1 - 1e-9):
            return self.rate
        if flight not in self.known:
            low, high = math.log(1e-8), math.log(self.level)
            for _ in range(40):
                middle = (low + high) / 2
                seen = self.replica.at(self.discipline, math.exp(middle))
                over = seen.rate * seen.mean("e2e", self.replica.load) > flight
                low, high = (low, middle) if over else (middle, high)
            self.known[flight] = self.replica.at(self.discipline, math.exp(high)).rate
        return self.known[flight]


@dataclass
class Groups:
    """The optimum: the total order's tuple up to the name, and the counts of the two kinds."""

    key: tuple[float, ...]
    counts: tuple[int, int]


def best_groups(problem: Problem, limits: Sequence[int], chunks: Sequence[int]) -> Groups | None:
    """The best of all pairs of choices and counts."""
    problem = by_replicas(problem)[-1]
    load = traffic(problem)
    best: Groups | None = None
    for engine in problem.engines:
        for option in engine.weights:
            for kv in engine.kv:
                choices = [_choices(problem, load, engine, k, option.precision, kv, limits, chunks) for k in problem.pool]
                narrow = problem.allowed_weights.index(option.precision), problem.allowed_kv.index(kv)
                for i in range(len(choices)):
                    for j in range(i + 1, len(choices)):
                        for a in choices[i]:
                            for b in choices[j]:
                                found = _counts(problem, a, b, narrow, load)
                                if found is not None and (best is None or found.key < best.key):
                                    best = found
    return best


def _choices(
    problem: Problem,
    load: Traffic,
    engine: EngineOption,
    kind: Kind,
    weights: str,
    kv: str,
    limits: Sequence[int],
    chunks: Sequence[int],
) -> list[Choice]:
    out = []
    option = next(o for o in engine.weights if o.precision == weights)
    for cut in cuts(problem, engine, kind, option, kv):
        for discipline in engine.facts.schedulers:
            if discipline == "mixed" and not cut.whole:
                continue
            for chunk in chunks_worth(load, chunks):
                one = step(problem.model, kind, engine.facts, weights, kv, cut)
                replica = Replica(one, chunk, load, engine.facts.request_s.value, [0.0] * len(EDGES))
                fit = [
                    b
                    for b in limits
                    if holds(problem, memory(problem, kind, engine.facts, weights, kv, cut, chunk, b, False), load, b)
                ]
                if not fit:
                    continue
                top = max(slot_level(problem, b, cut, load, discipline == "static") for b in fit)
                cap = largest(lambda n, r=replica, x=discipline: meets(problem, r.at(x, n), load), top, discipline == "static")
                most = most_replicas(kind, cut) - problem.spares
                for b in fit if cap > 0 else ():
                    level = min(slot_level(problem, b, cut, load, discipline == "static"), cap)
                    seen = replica.at(discipline, level)
                    flight = seen.rate * seen.mean("e2e", load)
                    flight = flight if problem.open_loop else min(flight, b)
                    out.append(Choice(cut, kind, discipline, replica, level, flight, seen.rate, most))
    return out


def let_through(x: int, y: int, first: float, second: float) -> float:
    """Part of what both groups sustain at which one gets all it can, of requests for which only its replicas were drawn."""
    n = x + y
    whole = x * first + y * second
    drawn = [(k * (k - 1) / (n * (n - 1)), k * r / whole) for k, r in ((x, first), (y, second))]
    return min([1.0] + [share / both for both, share in drawn if both > 0])


def _counts(problem: Problem, a: Choice, b: Choice, narrow: tuple[int, int], load: Traffic) -> Groups | None:
    flight = min(a.flight, b.flight)
    rates = a.rate_with(flight), b.rate_with(flight)
    each = [r if problem.open_loop else flight + r * problem.think_s for r in rates]
    best: Groups | None = None
    for x in range(1, a.most + 1):
        for y in range(1, b.most + 1):
            counts = x + problem.spares, y + problem.spares
            devices = counts[0] * a.cut.devices + counts[1] * b.cut.devices
            if problem.max_accelerators and devices > problem.max_accelerators:
                continue
            used = let_through(x, y, *rates)
            whole = used * (x * each[0] + y * each[1])
            if whole * problem.utilization < problem.load * (1 - 1e-9):
                continue
            if problem.objective == "throughput":
                output = used * problem.utilization * (x * rates[0] + y * rates[1]) * load.output_mean
                objective = -three_digits(output)
            else:
                of = "tdp_w" if problem.objective == "energy" else "price_per_hour"
                objective = sum(
                    n * c.cut.devices * (getattr(c.kind.facts, of) if of == "tdp_w" else c.kind.plan.price_per_hour)
                    for n, c in zip(counts, (a, b), strict=True)
                )
            headroom = whole if problem.open_loop else min(whole, problem.load / problem.utilization)
            found = Groups((objective, devices, 1, max(a.cut.tp, b.cut.tp), *narrow, -three_digits(headroom)), (x, y))
            if best is None or found.key < best.key:
                best = found
    return best
