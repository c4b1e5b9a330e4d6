"""Pools that yield what they can, where how loaded a pair's servers are decides: each pair's most that is on time.

A pair is loaded with ``utilization`` of what the pool sustains, or less where only that is on time. Yields are compared by three
digits, and so the most is found to three digits: of two loads with the same digits the lesser one is on time if any is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from servegen.record import record
from servegen.service.size import Slo
from servegen.solve.alike import begins
from servegen.solve.candidate import least_of, place_of
from servegen.solve.field import Chosen, Field, groups, on_time
from servegen.solve.pair import Pair
from servegen.solve.split import NONE, Array, Index, Mask
from servegen.solve.ways import ANY, NEARLY, Needs, Ways, filling, headroom_of, objective_of

#: Steps of three digits below the most that a pool sustains, beyond which its servers are as good as idle: six decades.
IDLE = 6 * 900
#: Of more largest pairs of counts than twice as many about so many are looked at first.
FEW = 16


def filled(pairs: Sequence[Pair], bounds: Slo, late: Counter[str]) -> list[Chosen | None]:
    """The best of each pair that carries the load, where the pool yields what it can.

    Without bounds each candidate yields the most. With them a pair yields the most that is on time; and where something else than
    the yield is minimised, so do its candidates that are on time at the most they sustain.
    """
    if not bounds.any or not pairs:
        return _fullest(pairs, [math.inf] * len(pairs), bounds, late)
    places = Tops.of(pairs).most(bounds, late)
    able = np.flatnonzero(places >= 0).tolist()
    some, most = [pairs[k] for k in able], places[able]
    found = _yielding(some, most, bounds, late)
    if some and some[0].problem.objective != "throughput":
        below = least_of(most + 1) / some[0].problem.demand.osl_mean
        others = _fullest(some, below.tolist(), bounds, late)
        found = [_better(*each) for each in zip(some, found, others, strict=True)]
    out: list[Chosen | None] = [None] * len(pairs)
    for k, best in zip(able, found, strict=True):
        out[k] = best
    return out


def _better(pair: Pair, *ways: Chosen | None) -> Chosen | None:
    return min((way for way in ways if way), key=functools.partial(_order, pair), default=None)


def _order(pair: Pair, chosen: Chosen) -> tuple[object, ...]:
    """The total order among the ways of a pair."""
    carried = np.array(_carried(pair, chosen))
    devices = np.add(*pair.devices(np.array(chosen.x), np.array(chosen.y)))
    return chosen.objective, float(devices), -float(headroom_of(pair.problem, carried)), chosen.i, chosen.j


def _fullest(pairs: Sequence[Pair], below: Sequence[float], bounds: Slo, late: Counter[str]) -> list[Chosen | None]:
    """The best way of each pair that is on time, of those that get the most out of the pool and yield less than ``below``."""
    out: list[Chosen | None] = []
    for group in groups(pairs):
        ways = [filling(pair, below[len(out) + k]) for k, pair in enumerate(group)]
        field = Field.join(group, ways, group[0].problem.objective == "latency")
        found = field.best(bounds, late)
        out += [found[k].chosen(field, None) if k in found else None for k in range(len(group))]
    return out


def _yielding(pairs: Sequence[Pair], places: Index, bounds: Slo, late: Counter[str]) -> list[Chosen | None]:
    """Of each pair the way that takes the least for a yield whose digits stand at ``places``; it is loaded with all that it is to
    sustain where that is on time, else with the least that has these digits."""
    needs = [Needs.of(pair, _asked(pair, place)) for pair, place in zip(pairs, places.tolist(), strict=True)]
    least = on_time(needs, bounds, late) if pairs else {}
    out: list[Chosen | None] = [None] * len(pairs)
    if not least:
        return out
    some, chosen = [pairs[k] for k in least], list(least.values())
    ways = [_way(pair, c, pair.problem.utilization * _carried(pair, c)) for pair, c in zip(some, chosen, strict=True)]
    fine = Field.join(some, ways).on_time(bounds, Counter())
    loaded = [full if ok else _way(pair, c, c.load) for full, ok, pair, c in zip(ways, fine, some, chosen, strict=True)]
    field = Field.join(some, loaded)
    by_latency = some[0].problem.objective == "latency"
    columns = (field.paces(), field.first_tokens()) if by_latency else (field.way.objective,)
    objectives = zip(*(c.tolist() for c in columns), strict=True)
    for k, c, load, objective in zip(least, chosen, field.way.load.tolist(), objectives, strict=True):
        out[k] = dataclasses.replace(c, load=load, objective=objective)
    return out


def _carried(pair: Pair, chosen: Chosen) -> float:
    """Requests/s that the servers sustain."""
    return float(min(chosen.x * pair.rates[0][chosen.i, 0], chosen.y * pair.rates[1][0, chosen.j]))


def _way(pair: Pair, chosen: Chosen, load: float) -> Ways:
    """The chosen way alone, at a load."""
    i, j = np.array([chosen.i]), np.array([chosen.j])
    x, y, loads = np.array([chosen.x]), np.array([chosen.y]), np.array([load])
    nothing = np.zeros(1)
    return Ways(i, j, x, y, loads, objective_of(pair, x, y, loads), nothing, nothing, x, y)


def _asked(pair: Pair, place: int) -> Array:
    """Requests/s of a yield whose digits stand at a ``place``, or those of the load where they are more; shape (p, 1)."""
    return np.maximum(least_of(np.array(place)) / pair.problem.demand.osl_mean, pair.load * (1.0 - NEARLY))


@record
class Tops:
    """The largest pairs of counts of each prefill candidate of the field's pairs, at the ``place`` of the three digits that they
    yield at the most; ``least`` is the place of what they are asked to yield. ``few`` are some of them that stand for their
    neighbours, ``alone`` one of each candidate. Shapes (rows,)."""

    field: Field
    place: Index
    least: Index
    few: Mask
    alone: Mask

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Tops:
        ways, places, least, few, alone = list[Ways](), [NONE], [NONE], [NONE > 0], [NONE > 0]
        for pair in pairs:
            rate_p, rate_d = pair.rates
            most = pair.problem.utilization * np.minimum(pair.front.x * rate_p, pair.front.y * float(rate_d.max()))
            i, k = np.nonzero(most >= pair.load * (1.0 - NEARLY))
            x, y, output, nothing = pair.front.x[k], pair.front.y[k], most[i, k] * pair.problem.demand.osl_mean, np.zeros(len(i))
            load = pair.load[i, 0] * (1.0 - NEARLY)
            place = place_of(output)
            places.append(place - (least_of(place) > output))
            least.append(np.where(load > 0.0, place_of(np.maximum(load, 1e-9) * pair.problem.demand.osl_mean), 0))
            few.append(k % max(len(pair.front.x) // FEW, 1) == 0)
            alone.append(begins(i))
            ways.append(Ways(i, np.full_like(i, ANY), x, y, load, nothing, nothing, nothing, x, y))
        field = Field.join(pairs, ways)
        return cls(field, np.concatenate(places), np.concatenate(least), np.concatenate(few), np.concatenate(alone))

    def most(self, bounds: Slo, late: Counter[str]) -> Index:
        """The highest place at whose load some way of a pair is on time, -1 where none is: first of few ways, then of the others
        that yield more."""
        alive, none = self._idle(bounds, late), np.full(len(self.field.pairs), -1)
        found = self._highest(alive & self.few, none, bounds, late)
        return found if self.few.all() else self._highest(alive, found, bounds, late)

    def _idle(self, bounds: Slo, late: Counter[str]) -> Mask:
        """The ways of candidates that are on time when idle, which is the same of any counts."""
        rows = np.flatnonzero(self.alone)
        idle = np.maximum(self.place[rows] - IDLE, 1)
        fine = self.field.loaded(rows, least_of(idle) / self._answer).on_time(bounds, late)
        return np.asarray(np.repeat(fine, np.diff(rows, append=len(self.place))))

    @property
    def _answer(self) -> float:
        return self.field.problem.demand.osl_mean

    def _highest(self, alive: Mask, found: Index, bounds: Slo, late: Counter[str]) -> Index:
        """The highest place at which one of the ``alive`` is on time, where it is above what is ``found``, -1 being nothing: in
        ever larger steps from there up, or from the most that they sustain down, and then between."""
        of, pairs = self.field.of, len(self.field.pairs)
        high, low = np.zeros(pairs, dtype=np.int64), np.full(pairs, np.iinfo(np.int64).max)
        np.maximum.at(high, of[alive], self.place[alive] + 1)
        np.minimum.at(low, of[alive], self.least[alive])
        low, alive, step = np.minimum(np.maximum(low, high - IDLE), high), alive.copy(), 1
        while (open_ := np.where(found < 0, high > low, high - found > 1)).any():
            up = found + np.minimum(step, (high - found) // 2)
            place = np.where(found < 0, np.maximum(high - step, low), up)
            rows = np.flatnonzero(alive & open_[of] & (self.place >= place[of]))
            load = np.maximum(least_of(place[of[rows]]) / self._answer, self.field.way.load[rows])
            fine = self.field.loaded(rows, load).on_time(bounds, late)
            good = np.zeros(pairs, dtype=bool)
            good[of[rows[fine]]] = True
            # What is late where others are on time yields less.
            alive &= ~good[of]
            alive[rows[fine]] = True
            found, high = np.where(good, place, found), np.where(open_ & ~good, place, high)
            step *= 2
        return found
