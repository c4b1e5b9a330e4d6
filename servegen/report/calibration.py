"""A calibration as a report: what moved, how wrong predictions are, what the rows cannot tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servegen.report.blocks import Block, Items, Text, Title, table
from servegen.report.figures import count, number, one_line, seconds

#: What rows measure, as a person says it.
METRICS = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "output_tokens_per_s": "throughput", "step_s": "decode step", "prefill_s": "prefill",
    "batch_s": "whole batch",
}  # fmt: skip


def percent(value: float) -> str:
    """``7.2 %``; ``-`` where there is no such figure."""
    return f"{value * 100:.1f} %" if math.isfinite(value) else "-"


def fit_blocks(
    constants: Sequence[tuple[str, float, float, float, int]],
    errors: Sequence[tuple[str, str, int, float, float]],
    findings: Sequence[str],
) -> list[Block]:
    """``constants`` are (name, before, after, relative error, rows), ``errors`` (stage, metric, rows, mean, median)."""
    moved = [
        (one_line(name), f"{old:.4g}", f"{new:.4g}", f"{(new / old - 1) * 100:+.1f} %", percent(error), count(rows))
        for name, old, new, error, rows in constants
    ]
    wrong = [
        (stage, METRICS[metric], count(rows), percent(mean), percent(median)) for stage, metric, rows, mean, median in errors
    ]
    blocks: list[Block] = [
        Title("Constants"),
        table(("constant", "before", "after", "moved", "error", "rows"), moved),
        Title("Errors, absolute"),
        table(("stage", "metric", "rows", "mean", "median"), wrong, left=2),
    ]
    if not any(stage == "left out" for stage, *_ in errors):
        blocks.append(Text("The rows differ in no setting, so none could be left out."))
    return [*blocks, Title("What the rows cannot tell"), Items(tuple(findings))] if findings else blocks


def score_blocks(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Rows of ``calibrate --score``: by, group, metric, rows, mean, median, p90, bias; one table per way of grouping."""
    blocks: list[Block] = []
    for by in dict.fromkeys(row["by"] for row in rows):
        cells = [
            (
                one_line(r["group"]),
                METRICS[r["metric"]],
                count(r["rows"]),
                *(percent(r[k]) for k in ("mean", "median", "p90")),
                f"{r['bias'] * 100:+.1f} %",
            )
            for r in rows
            if r["by"] == by
        ]
        blocks += [
            Title(f"Errors by {by}" if by != "all" else "Errors"),
            table((by, "metric", "rows", "mean", "median", "p90", "bias"), cells, left=2),
        ]
    return blocks or [Text("No row could be predicted.")]


#: What a probe measures, with the names of the sizes of a case.
CASES = {
    "copy": ("copy", "{0:,} bytes"), "gemm": ("product", "{0:,} x ({1:,} x {2:,})"), "prefill": ("prompt", "{0:,} tokens"),
    "decode": ("cache", "{0:,} x {1:,} tokens"), "allreduce": ("all-reduce", "{0} devices, {1:,} bytes"),
}  # fmt: skip


def probe_blocks(
    id: str,
    about: str,
    model: str,
    constants: Sequence[tuple[str, float, float, float, int]],
    measured: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
) -> list[Block]:
    """``constants`` are (name, the catalogue's value or nan, measured, relative error, measurements), ``measured`` the cases:
    kind, dtype, size, seconds, bytesPerSecond, flopsPerSecond.
    """
    shares = [
        (one_line(name), number(old), number(new) if new >= 1e-3 else f"{new:.3g}", percent(error), count(rows))
        for name, old, new, error, rows in constants
    ]
    cases = [
        (
            CASES[m["kind"]][0], m["dtype"] or "-", CASES[m["kind"]][1].format(*m["size"]), seconds(m["seconds"]),
            number(m["bytesPerSecond"] / 1e9) if m["bytesPerSecond"] else "-",
            number(m["flopsPerSecond"] / 1e12) if m["flopsPerSecond"] else "-",
        )
        for m in measured
    ]  # fmt: skip
    blocks: list[Block] = [
        Title(f"{one_line(id)}: {one_line(about)}, at the shapes of {one_line(model)}"),
        table(("constant", "catalogue", "measured", "error", "measurements"), shares),
        Title("Measurements"),
        table(("what", "precision", "size", "time", "GB/s", "TFLOP/s"), cases, left=3),
    ]
    return [*blocks, Title("Notes"), Items(tuple(one_line(n) for n in notes))] if notes else blocks
