"""The candidates that can be best at another end of the band than the one that was searched, from what that search saw.

Nothing but the bounds depends on the end. Where they are tighter, what a configuration cost at the best it still costs at the
least; where they are looser, the best that is known stays possible, and no configuration does better than without any bound.
So most configurations need not be sized again, and the others are sized from the frames that they had.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.solve.aggregate import Outcome, least_objective, sized
from servegen.solve.candidate import Candidate
from servegen.solve.frame import Frame
from servegen.solve.groups import grouped
from servegen.solve.pairs import least_spend, paired
from servegen.solve.problem import Confidence, Problem

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: How tight the bounds are at each end.
TIGHTNESS: Mapping[Confidence, int] = {"high": 0, "best": 1, "low": 2}
#: Relative difference below which two objectives are the same.
SAME = 1e-9
#: Of the configurations of a topology one in so many, the most promising ones, says how good the others must be.
FIRST = 8


def candidates_at(problem: Problem, outcomes: Sequence[Outcome], known: Confidence) -> tuple[Candidate, ...]:
    """Candidates at the end that ``problem`` asks for, the best of either topology among them, as far as it can be chosen.

    ``outcomes`` are what a search of the same problem with bounds at ``known`` saw, on a pool that may be larger.
    """
    kinds = {k.index for k in problem.pool}
    tighter = TIGHTNESS[problem.confidence] > TIGHTNESS[known]
    whole = [o for o in outcomes if o.frame is not None and o.frame.block.kind.index in kinds]
    pairs = [o for o in outcomes if o.sides is not None and all(s.frame.block.kind.index in kinds for s in o.sides)]
    together: list[Candidate] = []
    if problem.topology != "disaggregated":
        if problem.groups and len(problem.pool) > 1:  # two groups need every row that either has
            again = [sized(_asked(problem, o.frame), o.frame, Counter()) for o in whole if o.frame is not None]
            together = [c for o in (*again, grouped(problem.by_replicas[-1], again)) for c in o.candidates]
        else:
            together = _least([_Open.of(problem, o, tighter) for o in whole])
    if problem.topology == "aggregated":
        return tuple(together)
    most = math.inf
    if together and problem.objective in ("cost", "energy"):
        # A split must gain so much over the best aggregated plan that a dearer one is never chosen.
        most = min(c.objective[0] for c in together) / max(problem.gain, 1.0)
    return (*together, *_least([_Open.of_pairs(problem, o, tighter) for o in pairs], most))


def _asked(problem: Problem, frame: Frame) -> Problem:
    """The frame's own question (what its prefix caches find is in it) at the end that ``problem`` asks for."""
    return dataclasses.replace(frame.block.problem, confidence=problem.confidence, pool=problem.pool, wrong=problem.wrong)


@record
class _Open:
    """The configurations of an outcome, or its pairs of them: what each costs at the least, shape (n,) or (n, m), inf where it
    has no candidate. ``known`` is an objective that is possible; those that ``stand`` are the same at either end.
    """

    problem: Problem
    outcome: Outcome
    least: Array
    known: float = math.inf
    stand: tuple[Candidate, ...] = ()

    @classmethod
    def of(cls, problem: Problem, outcome: Outcome, tighter: bool) -> _Open:
        frame, block = outcome.frame, outcome.block
        assert frame is not None and block is not None  # which an aggregated outcome has
        asked, config = _asked(problem, frame), frame.block.rows.config
        found = np.full(frame.configs, math.inf)
        for c in outcome.candidates:
            found[config[c.roles[0].row]] = c.objective[0]
        # More replicas, each less loaded: where the load of each follows from the bounds, tighter ones can shorten the latency
        # that is the objective.
        nested = problem.objective != "latency" or (problem.open_loop and not problem.saturate)
        if tighter:
            return cls(asked, outcome, found if nested else np.where(np.isfinite(found), -math.inf, found))
        # Where no bound held a row back, looser ones change nothing; one that was held does no worse than before, if ``nested``.
        held = frame.fits.any(axis=1) & (block.level_limit < frame.block.level_limit)
        if not nested:
            held = np.bincount(config, held)[config] > 0
        stand = tuple(c for c in outcome.candidates if not held[c.roles[0].row])
        least = np.full(frame.configs, math.inf)
        if held.any():
            rows = np.flatnonzero(held)
            np.minimum.at(least, config[rows], least_objective(asked, frame.at(rows)))
            frame = dataclasses.replace(frame, fits=frame.fits & held[:, None])
        return cls(asked, dataclasses.replace(outcome, frame=frame), least, float(found.min(initial=math.inf)), stand)

    @classmethod
    def of_pairs(cls, problem: Problem, outcome: Outcome, tighter: bool) -> _Open:
        assert outcome.sides is not None
        first, second = outcome.sides
        asked = _asked(problem, first.frame)
        found = np.full((first.frame.configs, second.frame.configs), math.inf)
        for c in outcome.candidates:
            i, j = (int(r.block.rows.config[r.row]) for r in c.roles)
            found[i, j] = c.objective[0]
        if not tighter:
            return cls(asked, outcome, least_spend(asked, first, second), float(found.min(initial=math.inf)))
        # Latencies are compared at some counts only, which are others at the other end. And of a pool that yields what it can
        # tighter bounds may leave a yield that takes fewer servers, and less for each token.
        nested = (problem.objective != "latency" and not problem.saturate) or problem.objective == "throughput"
        return cls(asked, outcome, found if nested else np.full_like(found, -math.inf))

    def sized(self, keep: Mask) -> tuple[Candidate, ...]:
        """The best candidate of each configuration, or pair, to ``keep``."""
        if self.outcome.frame is not None:
            return sized(self.problem, self.outcome.frame.only(keep), Counter()).candidates
        assert self.outcome.sides is not None
        first, second = self.outcome.sides
        rows, columns = (np.asarray(keep.any(axis=axis)) for axis in (1, 0))
        return paired(self.problem, first.of(rows), second.of(columns), Counter(), keep).candidates


def _least(open_: Sequence[_Open], most: float = math.inf) -> list[Candidate]:
    """The best candidates: of every configuration that can be as good as the best one, and no dearer than ``most``."""
    found = [c for o in open_ for c in o.stand]
    best = min([most, *(o.known for o in open_), *(c.objective[0] for c in found)])
    first, every = best, np.concatenate([o.least[o.least < math.inf] for o in open_] or [np.zeros(0)])
    if math.isinf(best) and len(every):
        # Where nothing is known to be possible the most promising ones say how good the others must be.
        first = float(np.sort(every)[len(every) // FIRST])
    sized = [np.zeros(o.least.shape, dtype=bool) for o in open_]
    for limit in (first, None):
        bound = min([best, *(c.objective[0] for c in found)]) if limit is None else limit
        for o, done in zip(open_, sized, strict=True):
            keep = np.asarray((o.least < math.inf) & (o.least <= bound + SAME * abs(bound)) & ~done)
            if keep.any():
                found += o.sized(keep)
                done |= keep
    return found
