"""What one replica of every candidate carries within the bounds, computed where it can decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.step import take
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.solve.alike import begins
from servegen.solve.candidate import Block
from servegen.solve.problem import Problem
from servegen.solve.space import BATCH_LIMITS

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

#: Candidates that are computed at a time: as many as a processor's cache holds.
AT_ONCE = 4096
#: Of more candidates than that one of so many in each row is computed first, and of the others those that may be needed.
LARGE = 2048
STRIDE = 16
#: Disciplines in which a replica that holds more sequences never carries fewer requests. Where prompts share the steps of decodes
#: it can, near saturation; and a larger static batch waits for a longer answer.
RISING = frozenset({"prefill-first"})


@dataclass(eq=False)
class Carried:
    """The ``load`` and the requests/s ``rate`` that one replica of each candidate carries at ``level``; all shape (rows, limits),
    0 where not ``known``. The last candidate of a row that is ``alive`` is always known.
    """

    problem: Problem
    block: Block
    level: Array
    alive: Mask
    load: Array
    rate: Array
    known: Mask

    @classmethod
    def of(cls, problem: Problem, block: Block, level: Array, alive: Mask, whole: bool) -> Carried:
        """Of those ``alive``: the ``whole`` of them, or the fewest that tell where the others are needed."""
        nothing = np.zeros(level.shape)
        made = cls(problem, block, level, alive, nothing, nothing.copy(), np.zeros(level.shape, dtype=bool))
        some = alive
        if not whole and np.count_nonzero(alive) > LARGE and bool((np.diff(level, axis=1) >= 0.0).all()):
            some = alive & ((np.arange(level.shape[1]) % STRIDE == 0) | (np.cumsum(alive[:, ::-1], axis=1)[:, ::-1] == 1))
        made.fill(some)
        return made

    def fill(self, cells: Mask) -> bool:
        """Compute what is not known of ``cells``; whether there is any."""
        row, column = np.nonzero(cells & ~self.known)
        if not len(row):
            return False
        problem, level = self.problem, self.level[row, column]
        # Limits that allow more than the bounds do are all alike.
        new = begins(row, level)
        of, place, asked = np.cumsum(new) - 1, row[new], level[new]
        lean, step = means_only(self.block.server, rates_only=problem.load_kind == "rate"), DISCIPLINES[self.block.discipline]
        load, rate = np.empty(len(asked)), np.empty(len(asked))
        for start in range(0, len(asked), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            p = step(take(lean, place[some]), problem.demand, asked[some])
            load[some], rate[some] = size.load(problem.load_kind, p, problem.demand, problem.think_s), p.rate
        load, rate = load[of], rate[of]
        if not problem.open_loop:  # those who are served hold a slot; only those who think hold none
            load = np.minimum(load, BATCH_LIMITS[column] + rate * problem.think_s)
        self.load[row, column], self.rate[row, column], self.known[row, column] = load, rate, True
        return True

    def before(self, cells: Mask) -> Mask:
        """The candidates that are not known and come right before ones of ``cells``, which are."""
        return np.asarray(self.alive & ~self.known & self.next_known(cells))

    def next_known(self, values: Any) -> Any:
        """Of ``values`` (rows, limits) that of each candidate, or where it is not known that of the next in its row which is."""
        width = self.level.shape[1]
        if self.known[self.alive].all():
            return values
        place = np.where(self.known, np.arange(width), width - 1)
        place = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1]
        return np.take_along_axis(values, place, axis=1)
