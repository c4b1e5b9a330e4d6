"""``plan --explain`` and ``plan --against`` as tables and sentences, and as stable keys."""

from __future__ import annotations

from typing import Any

from servegen.codec import to_jsonable
from servegen.explanation import Against, Binding, Explanation, NextBest
from servegen.rationale import Waterfall
from servegen.report import view
from servegen.report.blocks import Block, Items, Table, Text, Title, table
from servegen.report.figures import NONE, count, money, one_line, percent, seconds


def explanation_blocks(found: Explanation) -> list[Block]:
    """The decision walked through: waterfalls, what binds, one replica less, the next-best in every dimension."""
    blocks: list[Block] = []
    for waterfall in found.waterfalls:
        blocks += [Title(f"{_metric(waterfall)}: from the ideal roofline to the prediction"), _waterfall(waterfall)]
    if found.binding:
        blocks += [Title("What binds"), Items(tuple(_binding(b) for b in found.binding))]
    loads = [f"{one_line(role)}: each at {percent(share)} of what it sustains" for role, share in found.utilization]
    fewer = [f"{one_line(f.role)}, one less: {one_line(f.text)}" for f in found.fewer]
    blocks += [Title("Utilization, and one replica less"), Items((*loads, *fewer))]
    blocks += [Title("Next-best in each dimension, all else chosen anew"), _next_best(found.next_best)]
    return blocks


def _metric(w: Waterfall) -> str:
    return one_line(f"{w.metric.upper()} {w.statistic}")


def _waterfall(w: Waterfall) -> Table:
    """Shape (effects that add something + 2, 4): what each adds, the sum so far, and the share of the prediction."""
    so_far = w.floor_s
    rows = [(view.EFFECTS["floor"], seconds(w.floor_s), seconds(so_far), percent(w.floor_s / w.total_s))]
    for effect in w.effects:
        so_far += effect.adds_s
        if effect.adds_s > view.NOISE * w.total_s:
            share = percent(effect.adds_s / w.total_s)
            name = view.EFFECTS.get(effect.name, one_line(effect.name))
            rows.append((name, f"+{seconds(effect.adds_s)}", seconds(so_far), share))
    rows.append(("predicted", NONE, seconds(w.total_s), percent(1.0)))
    return table(("effect", "adds", "so far", "share"), rows)


def _binding(b: Binding) -> str:
    return f"{one_line(b.constraint)}: {one_line(b.text)}"


def _next_best(found: tuple[NextBest, ...]) -> Table:
    """Shape (dimensions, 9)."""
    headers = ("dimension", "chosen", "next best", "accelerators", "cost", "TTFT p95", "ITL p95", "why it lost", "the plan")
    rows = [
        (
            n.dimension, one_line(n.chosen), one_line(n.value) or NONE, count(n.devices) if n.summary else NONE,
            f"{money(n.cost_per_hour)}/h" if n.summary else NONE, seconds(n.ttft_p95_s), seconds(n.itl_p95_s),
            one_line(n.why_lost), one_line(n.summary) or NONE,
        )
        for n in found
    ]  # fmt: skip
    return Table(headers, tuple(rows), frozenset(range(3, 7)))


def against_blocks(found: Against) -> list[Block]:
    """What differs from the locked plan, and which input caused it."""
    blocks: list[Block] = [Title("Against the locked plan"), Text(one_line(found.text))]
    if found.inputs:
        rows = [tuple(one_line(t) for t in (i.name, i.old, i.new, i.text)) for i in found.inputs]
        blocks.append(Table(("input", "locked", "now", "what it does"), tuple(rows)))
    if found.changes:
        changes = [tuple(one_line(t) or NONE for t in (c.what, c.old, c.new)) for c in found.changes]
        blocks.append(Table(("what changed", "locked", "now"), tuple(changes)))
    return blocks


def explanation_json(found: Explanation) -> dict[str, Any]:
    """The ``explain`` key of ``plan -o json``; seconds, dollars, shares of one, null where there is no figure."""
    plain: dict[str, Any] = to_jsonable({
        "waterfalls": [
            {
                "metric": w.metric,
                "statistic": w.statistic,
                "floor": w.floor_s,
                "effects": [{"name": e.name, "adds": e.adds_s} for e in w.effects],
                "total": w.total_s,
            }
            for w in found.waterfalls
        ],
        "binding": found.binding,
        "utilization": dict(found.utilization),
        "fewer": found.fewer,
        "nextBest": [
            {
                "dimension": n.dimension,
                "chosen": n.chosen,
                "value": n.value or None,
                "summary": n.summary or None,
                "devices": n.devices if n.summary else None,
                "costPerHour": n.cost_per_hour,
                "ttftP95": n.ttft_p95_s,
                "itlP95": n.itl_p95_s,
                "outputTokensPerSecond": n.output_tokens_per_second,
                "whyLost": n.why_lost,
            }
            for n in found.next_best
        ],
    })  # fmt: skip
    return plain


def against_json(found: Against) -> dict[str, Any]:
    """The ``against`` key of ``plan -o json``."""
    plain: dict[str, Any] = to_jsonable({
        "moved": found.moved,
        "causes": found.causes,
        "inputs": found.inputs,
        "changes": found.changes,
        "text": found.text,
    })  # fmt: skip
    return plain
