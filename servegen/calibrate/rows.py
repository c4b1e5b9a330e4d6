"""One measured configuration, whatever tool wrote it down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

from servegen.record import record

#: ``closed``: users who send anew when they are answered, all at once at first. ``offline``: all requests queued at once.
#: ``decode``: the mean step of a batch while its outputs grow. ``prefill``: a batch of prompts computed together.
#: ``batch``: from the first prompt to the last token of a batch.
Kind = Literal["closed", "offline", "decode", "prefill", "batch"]
Metric = Literal["ttft_s", "tpot_s", "output_tokens_per_s", "step_s", "prefill_s", "batch_s"]
METRICS: tuple[Metric, ...] = ("ttft_s", "tpot_s", "output_tokens_per_s", "step_s", "prefill_s", "batch_s")

#: Upper ends of the bands of concurrency in which errors are told apart.
CONCURRENCY_BANDS = (8, 32, 128)


@record
class Row:
    """A configuration and what was measured of it, in seconds and tokens per second.

    ``isl`` and ``osl`` are nominal; lengths are spread evenly from ``shortest`` times that to that. ``requests`` 0 is ten
    per user; ``warm`` leaves the first wave out of the statistics. ``concurrency`` 0 is as many as fit.
    ``weight`` is what a metric counts in a fit (1 unless said), ``skip`` the reason why a row is not used at all.
    """

    id: str
    source: str
    engine: str
    model: str
    accelerator: str
    isl: float
    osl: float
    concurrency: int
    measured: Mapping[Metric, float]
    tp: int = 1
    pp: int = 1
    weights: str = ""
    kv: str = ""
    version: str = ""
    kind: Kind = "closed"
    requests: int = 0
    shortest: float = 1.0
    warm: bool = False
    weight: Mapping[Metric, float] = field(default_factory=dict)
    date: str = ""
    skip: str = ""

    @property
    def group(self) -> tuple[str, str, str]:
        """Model, accelerator and engine: what leave-one-group-out leaves out together."""
        return self.model, self.accelerator, self.engine

    @property
    def concurrency_band(self) -> str:
        """``1-8``, ``9-32``, ``33-128``, ``above 128``, or ``all that fit``."""
        low = 1
        for high in CONCURRENCY_BANDS:
            if self.concurrency <= high:
                return f"{low}-{high}" if self.concurrency else "all that fit"
            low = high + 1
        return f"above {CONCURRENCY_BANDS[-1]}"

    @property
    def mean_osl(self) -> float:
        return self.osl * (1.0 + self.shortest) / 2.0

    def with_throughput(self) -> Row:
        """With the output rate of a closed loop worked out where only latencies were measured.

        Each of c users gets one answer every ttft + (osl - 1) * tpot (Little's law).
        """
        m = self.measured
        if self.kind != "closed" or "output_tokens_per_s" in m or not {"ttft_s", "tpot_s"} <= m.keys() or not self.concurrency:
            return self
        each_s = m["ttft_s"] + max(self.mean_osl - 1.0, 0.0) * m["tpot_s"]
        return replace(self, measured={**m, "output_tokens_per_s": self.concurrency * self.mean_osl / each_s})


def usable(rows: list[Row]) -> list[Row]:
    """Rows that may be scored and fitted: nothing speaks against them, and every figure is positive."""
    return [r for r in rows if not r.skip and r.measured and all(math.isfinite(v) and v > 0 for v in r.measured.values())]
