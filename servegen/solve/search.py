"""The search: every candidate of every engine, kind and topology, the best by the total order."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from servegen.plan import Plan
from servegen.record import record
from servegen.solve.aggregate import Outcome, aggregated
from servegen.solve.assemble import Risks, assemble
from servegen.solve.candidate import Candidate, first_of
from servegen.solve.cuts import cut_words
from servegen.solve.ends import candidates_at
from servegen.solve.explain import absent, compare, summary, why_lost
from servegen.solve.flips import Pessimistic, flips, under_the_band
from servegen.solve.groups import grouped
from servegen.solve.pairs import disaggregated
from servegen.solve.problem import Confidence, Problem
from servegen.solve.reuse import apart, open_question, settled
from servegen.solve.space import Rows
from servegen.solve.uncertainty import at_the_ends, cases, missing


@record
class Searched:
    """All that the search saw.

    ``gain`` is how much better the best split is than the best aggregated plan, nan if one is missing.
    """

    best: Candidate | None
    candidates: tuple[Candidate, ...]
    gain: float
    searched: int
    rejected: Counter[str]
    outcomes: tuple[Outcome, ...]


#: Numbers of the largest array that the C library is to keep the memory of.
KEPT = 2_000_000


def search(problem: Problem) -> Searched:
    """Exhaustive over weight precision, KV precision, TP, batch limit, chunk and topology, on every engine, kind and pair of
    kinds; where prefix hits depend on the room for them, over that, too, on one kind each.
    """
    _keep_memory()
    parts = [_with_reuse(p) if open_question(p) else _searched(p) for p in apart(problem)]
    return parts[0] if len(parts) == 1 else _joined(problem, parts)


def _keep_memory() -> None:
    """Make and let go a large array, which costs nothing. A C library may take its size for what is worth keeping (glibc does:
    mallopt(3), M_MMAP_THRESHOLD); else it maps each of a search's arrays of 100 kB and more anew, a tenth of all its time."""
    np.empty(KEPT)


def _joined(problem: Problem, parts: Sequence[Searched]) -> Searched:
    """Several searches as one; of candidates that differ in nothing but the room for their caches the best is kept."""
    by_name: dict[str, Candidate] = {}
    every = (c for p in parts for c in p.candidates)
    for c in sorted(every, key=lambda c: (c.key(problem), -c.problem.workload.prefix_hit)):
        by_name.setdefault(c.name, c)
    candidates = tuple(by_name.values())
    best, gain = choose(problem, candidates)
    rejected: Counter[str] = sum((p.rejected for p in parts), Counter())
    return Searched(best, candidates, gain, sum(p.searched for p in parts), rejected, tuple(o for p in parts for o in p.outcomes))


def _with_reuse(problem: Problem) -> Searched:
    """The search at every room that a cache may have."""
    parts: list[Searched] = []

    def best(asked: Problem) -> tuple[Candidate, ...]:
        parts.append(_searched(asked))
        return tuple(sorted(parts[-1].candidates, key=lambda c: c.key(problem)))

    # How the prompts of a trace spread over caches of two sizes is not known.
    settling = tuple(settled(dataclasses.replace(problem, groups=False), best))
    whole = _joined(problem, parts)
    return _joined(problem, [dataclasses.replace(whole, candidates=settling)])


def _searched(problem: Problem) -> Searched:
    """The search of one demand."""
    rejected: Counter[str] = Counter()
    outcomes: list[Outcome] = []
    for engine in problem.engines:
        made: dict[int, Rows | None] = {}
        if problem.topology != "disaggregated":
            for kind in problem.pool:
                made[kind.index], found = aggregated(problem, engine, kind, rejected)
                outcomes += found
        if problem.topology != "aggregated":
            pairs = itertools.product(problem.pool, problem.pool)
            outcomes += [disaggregated(problem, engine, kinds, rejected, made) for kinds in pairs]
    if problem.groups and len(problem.pool) > 1 and problem.topology != "disaggregated":
        outcomes.append(grouped(problem.by_replicas[-1], outcomes))
    candidates = tuple(c for o in outcomes for c in o.candidates)
    best, gain = choose(problem, candidates)
    rejected = Counter({reason: n for reason, n in rejected.items() if n})
    return Searched(best, candidates, gain, sum(o.searched for o in outcomes), rejected, tuple(outcomes))


def choose(problem: Problem, candidates: tuple[Candidate, ...]) -> tuple[Candidate | None, float]:
    """The best candidate, a split one only if it gains enough over the best aggregated one; and that gain."""
    together = first_of(problem, (c for c in candidates if c.topology == "aggregated"))
    split = first_of(problem, (c for c in candidates if c.topology == "disaggregated"))
    if together is None or split is None:
        return together or split, math.nan
    gain = gain_of(problem, together, split)
    return (split if worth(problem, gain) else together), gain


def worth(problem: Problem, gain: float) -> bool:
    """Whether a split that gains so much is taken."""
    return gain >= problem.gain and gain > 1.0


def gain_of(problem: Problem, together: Candidate, split: Candidate) -> float:
    """Ratio of the objectives, above 1 where the split is better."""
    a, b = together.objective[0], split.objective[0]
    if a == b:  # also where both cost nothing
        return 1.0
    if problem.objective != "throughput" and b == 0.0:
        return math.inf
    return b / a if problem.objective == "throughput" else a / b


def solve(problem: Problem) -> Plan:
    """The plan of a problem. Raises InfeasibleError with the binding bound, the best attainable and verified fixes."""
    seen = search(problem)
    if seen.best is None:
        from servegen.solve.infeasible import infeasible

        raise infeasible(problem, seen)
    return explained(problem, seen, seen.best)


def _at_end(problem: Problem, seen: Searched, known: Confidence) -> Candidate | None:
    """The best at another end of the band than the ``known`` one that was ``seen``."""
    if open_question(problem):  # hits depend on the room, and that on who is best
        return search(problem).best
    return choose(problem, candidates_at(problem, seen.outcomes, known))[0]


def explained(problem: Problem, seen: Searched, chosen: Candidate, own: Problem | None = None) -> Plan:
    """The plan of one candidate of a search, with what the others lost by and what would change the decision.

    ``own`` is the problem on the accelerators that are the candidate's in a fleet: there the ends of the band are solved.
    """
    comparison = compare(problem, chosen, seen.candidates, seen.gain)
    asked = own or problem
    at_ends = at_the_ends(asked, chosen, lambda other: _at_end(other, seen, problem.confidence))
    pessimistic = Pessimistic()
    if at_ends and problem.confidence == "best":
        low = dataclasses.replace(asked, confidence="low")
        pessimistic = under_the_band(
            problem,
            chosen,
            at_ends["low"],
            lambda metric: _at_end(dataclasses.replace(low, wrong=metric), seen, "best"),
            "on these accelerators" if own else "in the pool",
        )
    changes = flips(problem, chosen, comparison, seen.candidates, pessimistic.flip)
    risks = Risks(changes, cases(at_ends), missing(problem, chosen))
    cuts = cut_words(problem, chosen, seen.outcomes, lambda kept: _beside(problem, chosen, seen.candidates, kept))
    more = (*cuts, absent(problem, chosen, seen), pessimistic.sentence)
    return assemble(problem, chosen, comparison, risks, seen.searched, seen.rejected, [m for m in more if m])


def lost(problem: Problem, chosen: Candidate, other: Candidate) -> str:
    """What the chosen one has over another, the gain of a split over an aggregated plan weighed."""
    gain = math.nan
    if other.topology != chosen.topology:
        together, split = (other, chosen) if chosen.topology == "disaggregated" else (chosen, other)
        gain = gain_of(problem, together, split)
    return why_lost(problem, chosen, other, gain)


def _beside(
    problem: Problem, chosen: Candidate, candidates: Sequence[Candidate], kept: Callable[[Candidate], bool]
) -> str:
    """The best of the candidates that are ``kept``, and what it lost by; "" if there is none."""
    best, _ = choose(problem, tuple(c for c in candidates if kept(c)))
    if best is None:
        return ""
    if choose(problem, (chosen, best))[0] is best:  # which only a fleet can be the reason of
        return f"{summary(best)}: better for this model alone"
    return f"{summary(best)}: {lost(problem, chosen, best)}"
