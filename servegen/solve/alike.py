"""Rows of columns that are like the one before them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def begins(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a row differs in some column from the one before it, as the first does; shape (rows,)."""
    out = np.ones(len(columns[0]), dtype=bool)
    out[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return out
