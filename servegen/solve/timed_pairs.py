"""All pairs of a prefill and a decode configuration, where how loaded they are decides: bounds on whole requests, and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from servegen.service.size import Slo
from servegen.solve.candidate import Candidate
from servegen.solve.field import Chosen, groups, on_time
from servegen.solve.filled import filled
from servegen.solve.pair import MISSED, Pair
from servegen.solve.problem import Problem
from servegen.solve.split import joining
from servegen.solve.ways import Needs


def timed(problem: Problem, pairs: Sequence[Pair], rejected: Counter[str], late: Counter[str]) -> list[Candidate]:
    """The best candidate of each of the ``pairs`` that carries the load within the bounds, in their order."""
    held = []
    for pair in pairs:
        if pair.front.any:
            held.append(pair)
        else:
            rejected["split: more accelerators needed than there are"] += pair.searched
    whole, out = joining(problem.slo), list[Candidate]()
    chosen = filled(held, whole, late) if problem.full else _needed(held, whole, late)
    for pair, best in zip(held, chosen, strict=True):
        rejected[MISSED] += pair.searched - (Needs.of(pair, pair.load).held if best else 0)
        out += [best.candidate(pair)] if best else []
    return out


def _needed(pairs: Sequence[Pair], bounds: Slo, late: Counter[str]) -> list[Chosen | None]:
    """The best way of each of the pairs to carry the load."""
    out: list[Chosen | None] = []
    for group in groups(pairs):
        found = on_time([Needs.of(pair, pair.load) for pair in group], bounds, late)
        out += [found.get(k) for k in range(len(group))]
    return out
