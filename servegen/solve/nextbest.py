"""The next-best plan in every dimension of the search: what would be chosen if the chosen value were not to be had."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np

from servegen.explanation import NextBest
from servegen.record import record
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.counts import frontier
from servegen.solve.drafting import Speculation, depths
from servegen.solve.explain import summary
from servegen.solve.infeasible import diagnosis
from servegen.solve.predict import candidate_points, p95
from servegen.solve.problem import Problem
from servegen.solve.routing import spread
from servegen.solve.search import Searched, choose, lost, search
from servegen.solve.space import Shape, chunks_for, replicas_that_fit, shapes, tensor_parallel
from servegen.solve.words import money

Value = tuple[str | int, ...]
#: Ways to cut a replica beside TP, by the field of a shape and the key of the spec, with their names.
CUTS = {"pp": "PP", "dp": "attention DP", "ep": "EP"}


@record
class Dimension:
    """``value`` is a candidate's own, ``others`` what else the problem allows beside it, ``without`` the problem without it.

    ``one`` says why there is no other value.
    """

    name: str
    value: Callable[[Candidate], Value]
    others: Callable[[Problem, Value], Value]
    without: Callable[[Problem, Value, Value], Problem]  # of the chosen value and the others
    one: str


def _kinds(c: Candidate) -> Value:
    return tuple(sorted(k.index for k in c.kinds))


def _tps(c: Candidate) -> Value:
    return tuple(sorted({r.tp for r in c.roles}))


def _cut(way: str) -> Dimension:
    """The dimension of a way to cut a replica beside TP, by the name of a shape's field; it is governed like TP."""

    def value(c: Candidate) -> Value:
        return tuple(sorted({int(getattr(r.shape, way)) for r in c.roles}))

    def others(problem: Problem, chosen: Value) -> Value:
        return _rest(sorted({int(getattr(s, way)) for s in _shapes(problem)}), chosen)

    def without(problem: Problem, chosen: Value, rest: Value) -> Problem:
        return dataclasses.replace(problem, **{f"{way}s": rest})  # type: ignore[arg-type]

    return Dimension(CUTS[way], value, others, without, f"constraints.{way} allows no other")


def _shapes(problem: Problem) -> set[Shape]:
    """Every way in which the search cuts a replica, on some engine and kind."""
    return {s for e in problem.engines for k in problem.pool for s in shapes(problem, e, k)}


def _discipline(c: Candidate) -> Value:
    return (c.roles[0].block.discipline,)


def _rest(values: Iterable[str | int], chosen: Value) -> Value:
    return tuple(v for v in dict.fromkeys(values) if v not in chosen)


def _schedulers(problem: Problem, chosen: Value, kept: Value) -> Problem:
    engines = []
    for e in problem.engines:
        schedulers = tuple(s for s in e.facts.schedulers if s in kept)
        engines.append(dataclasses.replace(e, facts=dataclasses.replace(e.facts, schedulers=schedulers)))
    return dataclasses.replace(problem, topology="aggregated", engines=tuple(engines))


def _drafting_others(problem: Problem, chosen: Value) -> Speculation | None:
    asked = problem.speculation
    return asked and dataclasses.replace(asked, without=tuple(int(d) for d in chosen))


DIMENSIONS = (
    Dimension(
        "engine",
        lambda c: (c.engine.facts.id,),
        lambda p, v: _rest((e.facts.id for e in p.engines), v),
        lambda p, v, rest: dataclasses.replace(p, engines=tuple(e for e in p.engines if e.facts.id in rest)),
        "constraints.engines names no other",
    ),
    Dimension(
        "topology",
        lambda c: (c.topology,),
        lambda p, v: _rest(("aggregated", "disaggregated"), v) if p.topology == "auto" else (),
        lambda p, v, rest: dataclasses.replace(p, topology=rest[0]),  # type: ignore[arg-type]
        "constraints.topology allows no other",
    ),
    Dimension(
        "accelerator",
        _kinds,
        # Beside two groups stands either kind alone.
        lambda p, v: _rest((k.index for k in p.pool), v) or (v[:1] if len(v) > 1 else ()),
        lambda p, v, rest: dataclasses.replace(p, pool=tuple(k for k in p.pool if k.index in rest)),
        "hardware.pool has no other kind",
    ),
    Dimension(
        "weights",
        lambda c: (c.config[0],),
        lambda p, v: _rest((o.precision for e in p.engines for o in e.weights), v),
        lambda p, v, rest: dataclasses.replace(
            p,
            engines=tuple(
                dataclasses.replace(e, weights=tuple(o for o in e.weights if o.precision in rest)) for e in p.engines
            ),
        ),
        "no other precision is allowed and can be loaded (constraints.weights)",
    ),
    Dimension(
        "KV cache",
        lambda c: (c.config[1],),
        lambda p, v: _rest((kv for e in p.engines for kv in e.kv), v),
        lambda p, v, rest: dataclasses.replace(
            p, engines=tuple(dataclasses.replace(e, kv=tuple(k for k in e.kv if k in rest)) for e in p.engines)
        ),
        "constraints.kvCache allows no other",
    ),
    Dimension(
        "TP",
        _tps,
        lambda p, v: _rest((tp for k in p.pool for tp in tensor_parallel(p, k)), v),
        lambda p, v, rest: dataclasses.replace(p, tps=tuple(int(tp) for tp in rest)),
        "constraints.tp allows no other",
    ),
    *map(_cut, CUTS),
    Dimension(
        "discipline",
        _discipline,
        lambda p, v: _rest((s for e in p.engines for s in e.facts.schedulers), v),
        _schedulers,
        "the engine has no other",
    ),
    Dimension(
        "drafted tokens",
        lambda c: (c.drafted,),
        lambda p, v: _rest(depths(p.speculation), v),
        lambda p, v, rest: dataclasses.replace(p, speculation=_drafting_others(p, v)),
        "",
    ),
    Dimension(
        "prefill chunk",
        lambda c: (c.roles[0].chunk,),
        lambda p, v: _rest(chunks_for(p), v),
        lambda p, v, rest: dataclasses.replace(p, without_chunks=(int(v[0]),)),
        "no prompt fills a larger one",
    ),
    Dimension(
        "batch limit",
        lambda c: (c.roles[-1].batch_limit,),
        lambda p, v: ("other",),
        lambda p, v, rest: dataclasses.replace(p, without_limits=(int(v[0]),)),
        "",
    ),
)
#: Dimensions of which the search keeps only the best of each configuration: what comes next takes a search of its own.
FINE = ("prefill chunk", "batch limit")


def next_best(problem: Problem, chosen: Candidate, seen: Searched) -> tuple[NextBest, ...]:
    """One for every dimension, in a fixed order. A split has no discipline to choose; not every spec allows drafting, nor to cut
    a replica in other ways than by TP."""
    found: list[tuple[Dimension, Candidate | None, str]] = []
    for dimension in DIMENSIONS:
        if dimension.name == "discipline" and chosen.topology == "disaggregated":
            continue
        if dimension.name == "drafted tokens" and problem.speculation is None:
            continue
        if dimension.name in CUTS.values() and not _open(problem, chosen, dimension):
            continue
        found.append((dimension, *_other(problem, chosen, seen, dimension)))
    some = [c for _, c, _ in found if c is not None]
    ttft, itl = p95(candidate_points(problem, some), problem.demand) if some else ((), ())
    at = {id(c): i for i, c in enumerate(some)}
    return tuple(
        NextBest(
            dimension=d.name,
            chosen=_shown(problem, d, d.value(chosen)),
            value=_shown(problem, d, d.value(c)) if c else "",
            summary=summary(c) if c else "",
            devices=c.devices if c else 0,
            cost_per_hour=c.cost_per_h if c else math.nan,
            ttft_p95_s=float(ttft[at[id(c)]]) if c else math.nan,
            itl_p95_s=float(itl[at[id(c)]]) if c else math.nan,
            output_tokens_per_second=c.output_tokens_per_s if c else math.nan,
            why_lost=reason,
        )
        for d, c, reason in found
    )


def _open(problem: Problem, chosen: Candidate, dimension: Dimension) -> bool:
    """Whether there is a choice of this way to cut a replica, or the spec made it."""
    stated = {"PP": problem.pps, "attention DP": problem.dps, "EP": problem.eps}[dimension.name]
    return bool(stated) or bool(dimension.others(problem, dimension.value(chosen)))


def one_more(problem: Problem, chosen: Candidate) -> tuple[NextBest, ...]:
    """The chosen plan with one replica more of each role."""
    return tuple(_grown(problem, chosen, i) for i in range(len(chosen.roles)))


def _grown(problem: Problem, chosen: Candidate, index: int) -> NextBest:
    role = chosen.roles[index]
    n = role.replicas + 1
    name = "replicas" if role.role == "serve" else f"{role.role} servers"
    name += f" of {role.name}" if role.grouped else ""
    was = f"{role.replicas:,}"
    if not _held(problem, [r.replicas + (i == index) for i, r in enumerate(chosen.roles)], chosen.roles):
        why = "maxAccelerators leaves" if problem.max_accelerators else "the pool has"
        nan = math.nan
        return NextBest(name, was, "", "", 0, nan, nan, nan, nan, f"{why} no room for one more of {role.tp}")
    roles = list(chosen.roles)
    roles[index] = dataclasses.replace(role, replicas=n, load=role.load * role.replicas / n)
    if chosen.grouped:
        roles = list(spread(chosen.roles, [r.replicas + (i == index) for i, r in enumerate(chosen.roles)]))
    dearer = role.tp * role.block.kind.plan.price_per_hour
    more = dataclasses.replace(
        chosen, roles=tuple(roles), devices=chosen.devices + role.tp, cost_per_h=chosen.cost_per_h + dearer
    )
    ttft, itl = p95(candidate_points(problem, [more]), problem.demand)
    why = f"costs {money(more.cost_per_h)}/h instead of {money(chosen.cost_per_h)}/h"
    if problem.objective == "latency":
        why = "no percentile that decides gets better"
    return NextBest(
        name, was, f"{n:,}", summary(more), more.devices, more.cost_per_h, float(ttft[0]), float(itl[0]),
        chosen.output_tokens_per_s, why,
    )  # fmt: skip


def _held(problem: Problem, counts: list[int], roles: tuple[RoleChoice, ...]) -> bool:
    """Whether the pool, and maxAccelerators, hold so many replicas of the roles beside their spares."""
    if len(roles) == 1 or roles[0].grouped:
        whole = [n + problem.spares for n in counts]
        held = all(
            float(replicas_that_fit(r.block.kind, np.array(float(r.tp)))) >= n for r, n in zip(roles, whole, strict=True)
        )
        most = problem.max_accelerators
        return held and (not most or sum(n * r.tp for r, n in zip(roles, whole, strict=True)) <= most)
    kinds = roles[0].block.kind, roles[1].block.kind
    front = frontier(kinds, roles[0].tp, roles[1].tp, problem.spares, problem.max_accelerators)
    return front.any and bool(front.holds(np.array(float(counts[0])), np.array(float(counts[1]))))


def _other(problem: Problem, chosen: Candidate, seen: Searched, dimension: Dimension) -> tuple[Candidate | None, str]:
    """The best candidate with another value, or none; and why it lost, or why there is none."""
    value = dimension.value(chosen)
    others = dimension.others(problem, value)
    if not others:
        return None, dimension.one
    best, _ = choose(problem, tuple(c for c in seen.candidates if dimension.value(c) != value))
    # Of groups the search keeps only what beats every single kind.
    groups = problem.groups and len(problem.pool) > 1 and problem.topology != "disaggregated"
    if best is None or groups or dimension.name in FINE:
        restricted = dimension.without(problem, value, others)
        again = search(restricted)
        # A stated PP or EP is tried with every TP, also where one that is left to the search is not.
        tried = _shapes(problem)
        found = tuple(c for c in again.candidates if all(r.shape in tried for r in c.roles))
        other, _ = choose(problem, found)
        either = tuple(c for c in (best, other) if c is not None)
        best = choose(problem, either)[0] if groups and dimension.name not in FINE else other
        if best is None and again.best is not None:
            return None, "nothing that is tried without it meets the spec"
    if best is None:
        _, message, attainable = diagnosis(restricted, again)
        return None, message if attainable in ("none", "not known") else f"{message}; best attainable: {attainable}"
    return best, lost(problem, chosen, best)


def _shown(problem: Problem, dimension: Dimension, value: Value) -> str:
    if dimension.name == "accelerator":
        names = {k.index: k.facts.id for k in problem.pool}
        return " + ".join(names[int(i)] for i in value)
    return " + ".join(f"{v:,}" if isinstance(v, int) else v for v in value)
