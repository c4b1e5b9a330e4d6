"""Integrals over time in a bounded number of buckets: what a replay shows of queue, batch and KV occupancy."""

from __future__ import annotations

#: Buckets of a series at most; beyond them neighbours are merged.
BUCKETS = 240


class Series:
    """The integral of a quantity that is constant from event to event, exact per bucket of ``width_s`` seconds."""

    __slots__ = ("_areas", "area", "end_s", "width_s")

    def __init__(self) -> None:
        self.width_s = 1.0
        self.area = 0.0
        self.end_s = 0.0
        self._areas = [0.0]

    def add(self, start_s: float, end_s: float, value: float) -> None:
        """The quantity was ``value`` from ``start_s`` to ``end_s``; starts may lie in past buckets."""
        span = end_s - start_s
        if span <= 0.0:
            return
        self.area += span * value
        if end_s > self.end_s:
            self.end_s = end_s
        width, areas = self.width_s, self._areas
        first = int(start_s / width)
        if end_s <= (first + 1) * width and first < len(areas):
            areas[first] += span * value
            return
        self._spread(start_s, end_s, value)

    def _spread(self, start_s: float, end_s: float, value: float) -> None:
        while end_s > BUCKETS * self.width_s:
            merged = [sum(self._areas[i : i + 2]) for i in range(0, len(self._areas), 2)]
            self._areas[:] = merged
            self.width_s *= 2.0
        width, areas = self.width_s, self._areas
        last = int(end_s / width)
        areas.extend([0.0] * (last + 1 - len(areas)))
        for i in range(int(start_s / width), last + 1):
            areas[i] += max(min(end_s, (i + 1) * width) - max(start_s, i * width), 0.0) * value

    def close(self, end_s: float) -> None:
        """The quantity was 0 from its last event to ``end_s``; series that end together have equal buckets."""
        if end_s > self.end_s:
            self._spread(self.end_s, end_s, 0.0)
            self.end_s = end_s

    def means(self) -> list[float]:
        """The mean in every bucket up to the last that was reached."""
        out = []
        for i, area in enumerate(self._areas):
            span = min(self.end_s, (i + 1) * self.width_s) - i * self.width_s
            if span > 0.0:
                out.append(area / span)
        return out
