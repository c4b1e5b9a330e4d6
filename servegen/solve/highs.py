"""Integer programs for HiGHS, by way of scipy: columns, rows, and one objective after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servegen.errors import Diagnostic, NotBuiltError

OPTIMAL, INFEASIBLE = 0, 2  # status of scipy.optimize.milp
#: What the first objective's unit is scaled to: far above HiGHS' absolute tolerance of 1e-6.
SCALE = 1e3
#: Slack of an objective that later ones must keep, of SCALE: values that differ by less than 1e-7 of it count as equal.
SLACK = 1e-4
#: What the rounded values may break a row by: less than any whole number, more than rounding of sums.
PROOF = 1e-3


class Program:
    """All columns are whole numbers of at least 0. Rows say that a sum is at most, or exactly, something."""

    def __init__(self) -> None:
        self._least: list[float] = []
        self._most: list[float] = []
        self._rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, most: float = math.inf, least: float = 0.0) -> int:
        """A new column; returns its index."""
        self._least.append(least)
        self._most.append(most)
        return len(self._least) - 1

    def at_most(self, row: Mapping[int, float], most: float) -> None:
        self._rows.append((dict(row), -math.inf, most))

    def exactly(self, row: Mapping[int, float], value: float) -> None:
        self._rows.append((dict(row), value, value))

    def forbid(self, column: int) -> None:
        """The column is 0 from now on."""
        self._most[column] = 0.0

    def least(self, objective: Mapping[int, float]) -> list[int] | None:
        """Values of all columns where the objective is least, None where no values satisfy the rows.

        The same program has the same answer: one thread, no clock, a gap of nothing. NotBuiltError without scipy.
        """
        milp, bounds_of, constraint, sparse = _scipy()
        cost = np.zeros(len(self._least))
        for column, value in objective.items():
            cost[column] = value
        entries = [(i, c, v) for i, (row, _, _) in enumerate(self._rows) for c, v in row.items()]
        rows, columns, weights = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = sparse((np.array(weights, dtype=float), (rows, columns)), shape=(len(self._rows), len(cost)))
        found = milp(
            cost,
            integrality=np.ones(len(cost)),
            bounds=bounds_of(np.array(self._least), np.array(self._most)),
            constraints=constraint(matrix, [low for _, low, _ in self._rows], [high for _, _, high in self._rows]),
            options={"mip_rel_gap": 0.0},
        )
        if found.status == INFEASIBLE:
            return None
        if found.status != OPTIMAL:
            raise RuntimeError(f"HiGHS ended with status {found.status}: {found.message}")
        values = [round(float(value)) for value in found.x]
        self._prove(values)
        return values

    def _prove(self, values: Sequence[int]) -> None:
        """HiGHS takes a millionth beside a whole number for whole: the rounded values must keep every row, too."""
        for row, low, high in self._rows:
            total = sum(weight * values[column] for column, weight in row.items())
            if not low - PROOF <= total <= high + PROOF:
                raise RuntimeError(f"the rounded solution of HiGHS breaks a row by {max(low - total, total - high):.3g}")

    def keep(self, objective: Mapping[int, float], value: float) -> None:
        """From now on the objective is no larger than ``value`` but for :data:`SLACK`."""
        self.at_most(objective, value + SLACK)


def _scipy() -> tuple[Any, Any, Any, Any]:
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError as error:
        message = "a fleet takes scipy, which is not installed"
        raise NotBuiltError(Diagnostic("no-scipy", message, hint="pip install 'servegen-compiler[fleet]'")) from error
    return milp, Bounds, LinearConstraint, csr_array


def require() -> None:
    """NotBuiltError without scipy, before any work was done for nothing."""
    _scipy()
