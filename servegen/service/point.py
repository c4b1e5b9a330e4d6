"""Where a replica stands at one load: what its clients see, as distributions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.step import join
from servegen.service.burst import Burst
from servegen.service.demand import WIDTHS

Array = NDArray[np.float64]


@record
class Point:
    """A replica at one load; seconds, requests/s; shape (rows,), with a trailing axis for edges or bins.

    First token: ``const`` + rest + wait + service. The rest of the step in progress lies evenly between 0 and ``rest_s``.
    The wait is 0 with chance 1 - ``delayed`` and else has the mean ``wait_s`` and the squared coefficient of variation
    ``wait_cv2`` (1 is exponential). Service lies between ``service_edges_s``. Gap: ``gap_s`` (spread ``gap_sd_s``, skewness
    ``gap_skew``), with chance ``stall_share`` lengthened by a stall: one prompt's, in bins from ``stall_low_s`` to
    ``stall_high_s`` that weigh ``stall_weights``, and with chance ``joined`` that of others, ``joined_least_s`` and a time of
    mean ``joined_s`` and variation ``joined_cv2`` more (all by bin); ``stall_most_s`` at the most. ``gap_mean_s`` counts the
    stalls. With a ``burst`` that gap is a round's, behind which its other tokens follow at once; ``gap_mean_s`` is the mean over
    all of them. ``seen`` is the mean number of sequences in the step of a gap, its own with them, ``level`` that at any time.
    ``busy`` is the share of time that prompts are computed.
    """

    level: Array
    seen: Array
    rate: Array
    const_s: Array
    rest_s: Array
    busy: Array
    delayed: Array
    wait_s: Array
    wait_cv2: Array
    service_edges_s: Array
    service_mean_s: Array
    gap_s: Array
    gap_sd_s: Array
    gap_skew: Array
    stall_share: Array
    stall_low_s: Array
    stall_high_s: Array
    stall_weights: Array
    joined: Array
    joined_least_s: Array
    joined_s: Array
    joined_cv2: Array
    stall_most_s: Array
    gap_mean_s: Array
    burst: Burst | None = None


#: Columns of edges or bins.
_BY_BIN = frozenset(
    ("service_edges_s", "stall_low_s", "stall_high_s", "stall_weights", "joined", "joined_least_s", "joined_s", "joined_cv2")
)


#: Columns of the bins of stalls, of which disciplines have their own number.
_OF_STALLS = ("stall_low_s", "stall_high_s", "stall_weights", "joined", "joined_least_s", "joined_s", "joined_cv2")


def stacked(parts: Sequence[Point]) -> Point:
    """The rows of several points under each other, those of fewer bins of stalls filled up with bins that hold none."""
    widest = max(p.stall_weights.shape[1] for p in parts)
    return join([_widened(p, widest - p.stall_weights.shape[1]) for p in parts])


def _widened(p: Point, by: int) -> Point:
    if not by or not p.stall_weights.shape[1]:
        return p
    more: dict[str, Any] = {name: np.pad(getattr(p, name), ((0, 0), (0, by))) for name in _OF_STALLS}
    more["joined_cv2"][:, -by:] = 1.0
    return dataclasses.replace(p, **more)


def even(level: Array) -> Array:
    """Weights of bins that count by their chance alone."""
    weights = np.empty((len(level), len(WIDTHS)))
    weights[:] = WIDTHS
    return weights


def bins(edges: Array) -> Array:
    return (edges[:, 1:] + edges[:, :-1]) / 2.0


def without_edges(burst: Burst | None, **means: Array) -> Point:
    """A point of means only: of no distribution that :mod:`servegen.service.latency` asks for."""
    none = np.zeros((len(means["level"]), 0))
    zeros = np.zeros_like(means["level"])
    blank = {
        "service_edges_s": none, "gap_sd_s": zeros, "gap_skew": zeros, "stall_share": zeros, "stall_low_s": none,
        "stall_high_s": none, "stall_weights": none, "joined": none, "joined_least_s": none, "joined_s": none, "joined_cv2": none,
        "stall_most_s": zeros,
    }  # fmt: skip
    return Point(**means, **blank, burst=burst)


def of_rate(level: Array, rate: Array) -> Point:
    """A point that is asked for its rate alone: all else but its level is nan, or has no bins."""
    none, unknown = np.zeros((len(level), 0)), np.full_like(level, np.nan)
    blank = {f.name: none if f.name in _BY_BIN else unknown for f in dataclasses.fields(Point) if f.name != "burst"}
    return Point(**{**blank, "level": level, "rate": rate}, burst=None)


def unstalled(burst: Burst | None, service_edges_s: Array, gap_sd_s: Array, gap_skew: Array, **means: Array) -> Point:
    """A point of these first tokens and gaps, which nothing ever stalls."""
    if not service_edges_s.shape[1]:
        return dataclasses.replace(without_edges(burst, **means), gap_sd_s=gap_sd_s, gap_skew=gap_skew)
    shape = (len(service_edges_s), len(WIDTHS))
    never, none = np.zeros(shape[0]), np.zeros(shape)
    return Point(
        **means,
        service_edges_s=service_edges_s,
        gap_sd_s=gap_sd_s,
        gap_skew=gap_skew,
        stall_share=never,
        stall_low_s=none,
        stall_high_s=none,
        stall_weights=even(never),
        joined=none,
        joined_least_s=none,
        joined_s=none,
        joined_cv2=np.ones(shape),
        stall_most_s=never,
        burst=burst,
    )
