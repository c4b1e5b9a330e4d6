"""What prefix caches find depends on the room that the plan leaves them, and the plan on what they find: the search is run at
a handful of rooms, each with its own demand, and every candidate counts only where its pool keeps that room.

An engine without a prefix cache computes every prompt whatever the traffic shares.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from servegen.record import record
from servegen.service.demand import demand
from servegen.solve.candidate import Candidate
from servegen.solve.kept import cached_token_bytes, room_tokens
from servegen.solve.problem import Problem
from servegen.solve.space import BATCH_LIMITS, budget_of, build, chunks_for
from servegen.workload import Reuse, Workload

#: Rooms that are tried: from a quarter of the smallest pool to the largest, each this many times the one before.
STEP = 1.5
LEAST = 0.25
#: How much less a candidate's own caches may find than its demand counts on: half a point, what one draw of routes leaves open.
TOLERANCE = 0.005
#: Rounds in which the number of caches settles, for it and what they find follow from each other.
ROUNDS = 4


@record
class Room:
    """What ``caches`` of ``tokens`` each find; ``follows`` where a router sends prompts to what is known of them."""

    tokens: float
    caches: int
    follows: bool


def asked(problem: Problem, workload: Workload, kept_tokens: float) -> Problem:
    """The problem with the demand of a workload whose hits need so much room in each cache."""
    d = demand(workload, bounded=bool(problem.slo.bounds))
    return dataclasses.replace(problem, workload=workload, demand=d, kept_tokens=kept_tokens)


def at_room(problem: Problem, reuse: Reuse, room: Room) -> Problem:
    """The problem with what caches of that room find of its trace."""
    found = reuse.found(room.tokens, room.caches, room.follows)
    workload = dataclasses.replace(problem.workload, prefix_hit=found.share, found=found)
    return asked(problem, workload, room.tokens)


def without_cache(problem: Problem) -> Problem:
    """The problem for engines that find nothing."""
    return asked(problem, problem.workload.unshared(), 0.0)


def apart(problem: Problem) -> tuple[Problem, ...]:
    """The problem, or one for the engines with a prefix cache and one for those without, where the traffic shares anything."""
    if not problem.workload.hit_share() or all(e.facts.prefix_cache for e in problem.engines):
        return (problem,)
    have = tuple(e for e in problem.engines if e.facts.prefix_cache)
    others = tuple(e for e in problem.engines if not e.facts.prefix_cache)
    found = [dataclasses.replace(problem, engines=have)] if have else []
    return (*found, without_cache(dataclasses.replace(problem, engines=others)))


def open_question(problem: Problem) -> bool:
    """Whether hits depend on the room, and no room is chosen yet."""
    return problem.reuse is not None and bool(problem.workload.prefix_hit) and problem.workload.found is None


def settled(problem: Problem, best: Callable[[Problem], tuple[Candidate, ...]]) -> Iterator[Candidate]:
    """Candidates at every room, each with hits that its own caches give. ``best`` searches a problem, the best first."""
    assert problem.reuse is not None  # what makes it an open question
    reuse = problem.reuse
    for topology in ("aggregated", "disaggregated"):
        if problem.topology not in ("auto", topology):
            continue
        one = dataclasses.replace(problem, topology=topology)
        leaders: list[Candidate] = []
        for tokens in (0.0, *rooms(problem)):
            found = list(_at(one, reuse, tokens, best))
            leaders += found[:1]
            yield from found
        if leaders:
            yield from _refined(one, reuse, min(leaders, key=lambda c: c.key(one)), best)


def rooms(problem: Problem) -> tuple[float, ...]:
    """Rooms in tokens, ascending: what pools have, down to a part of the smallest."""
    pools: list[float] = []
    for engine in problem.engines:
        for kind in problem.pool:
            rows = build(problem, engine, kind, chunks_for(problem)[:1], Counter())
            if rows is None:
                continue
            token, pool = cached_token_bytes(rows), budget_of(problem, engine, rows, BATCH_LIMITS[:1]).pool[:, 0]
            pools += [float(p / t) for p, t in zip(pool, token, strict=True) if p > 0 and t > 0]
    if not pools:
        return ()
    low, high = min(pools) * LEAST, max(pools)
    count = math.ceil(math.log(high / low) / math.log(STEP))
    return tuple(high * STEP ** -(n + 0.05) for n in reversed(range(count)))


def _at(problem: Problem, reuse: Reuse, tokens: float, best: Callable[[Problem], tuple[Candidate, ...]]) -> Iterator[Candidate]:
    """Candidates with caches of ``tokens``: the number of caches is guessed, and guessed again by what is then the best."""
    follows = problem.topology == "disaggregated"
    caches, tried = 1, set[int]()
    for _ in range(ROUNDS if tokens else 1):
        tried.add(caches)
        used = at_room(problem, reuse, Room(tokens, caches, follows))
        found = best(used)
        yield from (c for c in found if _holds(reuse, c, tokens, follows))
        if not found or _about(found[0].caches) in tried:
            return
        caches = _about(found[0].caches)


def _refined(
    problem: Problem, reuse: Reuse, leader: Candidate, best: Callable[[Problem], tuple[Candidate, ...]]
) -> Iterator[Candidate]:
    """The leader's neighbourhood: with the room that it really leaves, and as many caches as it has."""
    follows = problem.topology == "disaggregated"
    for _ in range(ROUNDS):
        tokens = left(leader)
        found = best(at_room(problem, reuse, Room(tokens, leader.caches, follows)))
        good = [c for c in found if _holds(reuse, c, tokens, follows)]
        yield from good
        if not good or good[0].key(problem) >= leader.key(problem):
            return
        leader = good[0]


def left(candidate: Candidate) -> float:
    """Tokens that each of a candidate's caches can keep beside what runs at the sustained load."""
    role = candidate.roles[0]
    pool = float(role.budget.pool[0, role.limit])
    level = role.level_cap if role.role == "serve" else 0.0
    return room_tokens(role.block.problem, role.block.rows, role.row, pool, level)


def _holds(reuse: Reuse, candidate: Candidate, tokens: float, follows: bool) -> bool:
    """Whether as many caches as the candidate has find what its demand counts on."""
    return reuse.share(tokens, _about(candidate.caches), follows) >= candidate.problem.workload.prefix_hit - TOLERANCE


def _about(caches: int) -> int:
    """Numbers of caches that are told apart: each up to 4, then every quarter of a doubling."""
    step = 1 << max(caches.bit_length() - 3, 0)
    return caches // step * step



def as_found(problem: Problem, candidate: Candidate) -> Problem:
    """The problem with the demand that the candidate's own prefix caches leave."""
    seen = candidate.problem
    hits = {name: getattr(seen.workload, name) for name in ("prefix_hit", "prefix_shared", "found")}
    workload = dataclasses.replace(problem.workload, **hits)
    demand = problem.arriving(seen.demand)
    return dataclasses.replace(problem, workload=workload, demand=demand, kept_tokens=seen.kept_tokens)


def found_in(candidate: Candidate) -> dict[str, Any]:
    """The fields of a plan's traffic that say what its hits rest on."""
    problem, caches = candidate.problem, candidate.caches
    w, reuse = problem.workload, problem.reuse
    if reuse is not None:
        cached = candidate.engine.facts.prefix_cache
        spread = reuse.share(math.inf, caches, candidate.topology == "disaggregated") if cached else 0.0
        where = {"prefix_kept_tokens": problem.kept_tokens, "prefix_caches": caches if cached else 0}
        return {"prefix_source": "trace", "prefix_unbounded": reuse.unbounded, "prefix_spread": spread, **where}
    if not w.hit_share():
        return {}
    shares = {"prefix_unbounded": w.hit_share(), "prefix_spread": w.hit_share()}
    source, kept = ("shared", w.prefix_shared) if w.prefix_shared else ("hitRate", problem.kept_tokens)
    return {"prefix_source": source, **shares, "prefix_kept_tokens": kept, "prefix_caches": caches}


def reuse_words(candidate: Candidate) -> tuple[str, ...]:
    """A sentence on the hits that a plan counts on, and on what bounds them; none where nothing is shared."""
    problem, engine = candidate.problem, candidate.engine.facts
    w, reuse, caches = problem.workload, problem.reuse, candidate.caches
    stated = (problem.shown.get("spec", {}).get("traffic", {}) or {}).get("prefix")
    if not engine.prefix_cache:
        none = f"{engine.id}, as it is launched, keeps no prefix cache, so every prompt token is computed"
        return (f"{none} whatever the traffic shares.",) if reuse is not None or stated else ()
    share = f"{w.hit_share() * 100:.1f} % of the prompt tokens"
    if reuse is None:
        if w.prefix_shared:
            each = "each prefill server" if candidate.topology == "disaggregated" else "each replica"
            return (f"Every prompt begins with the same {w.prefix_shared:,.0f} tokens, which {each} holds once: {share}.",)
        if not w.prefix_hit:
            return ()
        return (
            f"The spec states that {share} are found in the prefix cache, and that is taken as what caches as large as the "
            f"KV pool leaves them find; at least the {problem.kept_tokens:,.0f} tokens that the longest prompt finds have room.",
        )
    follows = candidate.topology == "disaggregated"
    unbounded, spread = reuse.unbounded, reuse.share(math.inf, caches, follows)
    text = f"Prefix caches find {share}: {caches:,} that keep {problem.kept_tokens:,.0f} tokens each"
    if caches > 1:
        way = "by a router that follows what they hold" if follows else "at random, as a Service spreads requests"
        text += f", reached {way}; as many without a bound would find {spread * 100:.1f} %"
    what = "the KV pool" if spread - w.prefix_hit >= unbounded - spread else "the spread over replicas"
    bounded = f"{what} bounds it most" if unbounded - w.prefix_hit > TOLERANCE else "nothing bounds it"
    return (f"{text}, and a single one {unbounded * 100:.1f} %. So {bounded}.",)
