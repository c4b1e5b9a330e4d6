"""Reports as plain text: aligned columns, no colour, the same bytes on every machine.

The functions that end in ``_blocks`` say what a report holds, :func:`plain` writes it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from servegen.codec import to_jsonable
from servegen.errors import InfeasibleError
from servegen.plan import Plan
from servegen.report import view
from servegen.report.blocks import Block, Items, Table, Text, Title, table
from servegen.report.figures import NONE, count, number, one_line, seconds, size, visible

_SERVING = {
    "ttft_s": ("TTFT", seconds),
    "tpot_s": ("TPOT", seconds),
    "output_tokens_per_s": ("output tokens/s", number),
    "output_tokens_per_s_per_device": ("output tokens/s per accelerator", number),
}


def plan_blocks(plan: Plan) -> list[Block]:
    """The whole report on a feasible plan: the choice, why, what it costs, the runners-up, what was searched."""
    blocks: list[Block] = [Title(f"{one_line(plan.name)}: {view.headline(plan)}"), view.roles(plan)]
    if plan.slo:
        blocks.append(view.bounds(plan))
    blocks += [view.latencies(plan), view.load(plan), view.cost(plan)]
    blocks += _items("Why", plan.why)
    if plan.binding:
        blocks.append(Text(f"Binding: {', '.join(view.lines(plan.binding))}"))
    blocks += _items("What would change the decision", (flip.text for flip in plan.flips))
    blocks += [view.cases(plan)] if plan.cases else []
    blocks += [Title("When a replica is missing"), view.missing(plan)] if plan.missing else []
    if plan.alternatives:
        blocks += [Title("Runners-up"), view.alternatives(plan)]
    if plan.pareto:
        blocks += [Title("Pareto frontier"), view.pareto(plan)]
    blocks += [Title(f"Searched {count(plan.searched)} candidates"), *_rejected(plan.rejected)]
    blocks += _items("Constants without a fit of their own", plan.prediction.extrapolated)
    blocks += _items("Overrides", view.overrides(plan))
    blocks += _items("Replayed", view.replays(plan))
    blocks += _items("Notes", plan.notes)
    return blocks


def infeasible_blocks(error: InfeasibleError) -> list[Block]:
    """Which bound binds, the best that can be had, the smallest changes that make it feasible, what was rejected."""
    blocks: list[Block] = [
        Title(one_line(f"{error.name}: infeasible: {error.message}")),
        Items((f"binding bound: {one_line(error.bound)}", f"best attainable: {one_line(error.best)}")),
    ]
    blocks += _items("Smallest changes that make it feasible", (fix.text for fix in error.fixes))
    blocks += [Title(f"Searched {count(error.searched)} candidates"), *_rejected(error.rejected)]
    return blocks


def estimate_blocks(estimate: Any) -> list[Block]:
    """One explicit configuration: memory, prefill, decode and the closed loop at the asked concurrency."""
    found = to_jsonable(estimate)
    model, memory, prefill, decode = (found[key] for key in ("model", "memory", "prefill", "decode"))
    facts = [
        ("parameters", _figure(number, model["params_total"])),
        ("active parameters", _figure(number, model["params_active"])),
        ("weights on one device", _figure(size, memory["weight_bytes_per_device"])),
        ("KV cache of one token", _figure(size, memory["kv_bytes_per_token"])),
        ("KV pool", _figure(size, memory["kv_pool_bytes"])),
        ("running requests at most", _figure(count, memory["max_running_requests"])),
        ("fits", "yes" if memory["fits"] else "NO"),
    ]
    terms = dict.fromkeys([*view.TERMS, *prefill["breakdown_s"], *decode["breakdown_s"]])
    both = (prefill["breakdown_s"], decode["breakdown_s"])
    times = [(term, *(_figure(seconds, part.get(term)) for part in both)) for term in terms]
    times.append(("total", _figure(seconds, prefill["time_s"]), _figure(seconds, decode["step_time_s"])))
    times.append(("bound by", one_line(str(prefill["bound"])), one_line(str(decode["bound"]))))
    band = found.get("band") or {}
    serving = [
        (
            label,
            _figure(show, found["serving"].get(key)),
            _figure(show, (band.get("low") or {}).get(key)),
            _figure(show, (band.get("high") or {}).get(key)),
        )
        for key, (label, show) in _SERVING.items()
    ]
    return [
        table(("memory", "figure"), facts),
        table(("time", "prefill", "decode step"), times),
        table(("serving", "predicted", "low", "high"), serving),
    ]


def plain(blocks: Sequence[Block]) -> str:
    """The blocks as text, a blank line between two, columns aligned, no trailing spaces, a final newline."""
    text = ""
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        match block:
            case Title(words) | Text(words):
                text += visible(words)
            case Items(texts):
                text += "\n".join(f"- {visible(words)}" for words in texts)
            case Table():
                text += _aligned(block)
        headed = isinstance(block, Title) and isinstance(following, Items | Table)
        text += "\n" if headed or following is None else "\n\n"
    return text


def _aligned(block: Table) -> str:
    rows = [block.headers, *block.rows]
    widths = [max(_width(row[i]) for row in rows) for i in range(len(block.headers))]
    lines = []
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            pad = " " * (widths[i] - _width(cell))
            cells.append(pad + visible(cell) if i in block.right else visible(cell) + pad)
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in visible(text))
    return len(visible(text)) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _items(title: str, texts: Any) -> list[Block]:
    found = view.lines(texts)
    return [Title(title), Items(found)] if found else []


def _rejected(counts: Mapping[str, int]) -> list[Block]:
    return [view.rejected(counts)] if counts else [Text("None was rejected.")]


def _figure(show: Any, value: Any) -> str:
    return NONE if value is None else str(show(value))
