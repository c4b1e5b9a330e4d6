"""A replay as tables and as stable keys: every bound against what was played out, latencies, load over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from servegen.codec import to_jsonable
from servegen.plan import Plan
from servegen.record import record
from servegen.report import view
from servegen.report.blocks import Block, Table, Text, Title, table
from servegen.report.figures import NONE, count, number, one_line, percent, seconds

_LATENCIES = ("ttft", "itl", "tpot", "e2e")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Rows of the table over time.
SPANS = 12


@record
class Scene:
    """One replay: ``name`` tells it from the others of a run, ``result`` and ``verdicts`` have the fields of
    `simulate.result.Result` and `solve.replay.Verdict`.
    """

    name: str
    result: Any
    verdicts: Sequence[Any]

    @property
    def met(self) -> bool:
        """Whether every bound was kept and every request answered."""
        whole = self.result.completed == self.result.requests
        return whole and all(v.met for v in self.verdicts)


def replay_blocks(plan: Plan, scenes: Sequence[Scene], sent: str, router: str) -> list[Block]:
    """The whole report; ``sent`` says what was sent, ``router`` by which policy. The table over time is the last scene's."""
    blocks: list[Block] = [Title(one_line(f"{plan.name}: {view.headline(plan)}"))]
    blocks.append(Text(one_line(f"Sent: {sent}; router: {router}")))
    if plan.slo:
        blocks.append(_bounds(plan, scenes))
    for scene in scenes:
        blocks += [Title(scene.name), _latencies(plan, scene)]
    blocks += [_figures(scenes), Title(f"Over time, {scenes[-1].name}"), _over_time(scenes[-1].result.timeline)]
    return blocks


def replay_json(plan: Plan, scenes: Sequence[Scene], arrivals: str, sent: str, router: str) -> dict[str, Any]:
    """Stable keys; seconds, tokens, shares."""
    replays = [_scene_json(scene) for scene in scenes]
    told = {"name": plan.name, "arrivals": arrivals, "sent": sent, "router": router, "replays": replays}
    data: dict[str, Any] = to_jsonable(told)
    return data


def _scene_json(scene: Scene) -> dict[str, Any]:
    r = scene.result
    return {
        "scene": scene.name,
        "met": scene.met,
        "bounds": [{"bound": v.bound, "allowed": v.allowed, "found": v.found, "met": v.met} for v in scene.verdicts],
        **{name: {s: getattr(getattr(r, name), s) for s in _STATISTICS} for name in _LATENCIES},
        "sloAttainment": r.attainment,
        "requests": {
            "sent": r.requests,
            "completed": r.completed,
            "leftOut": r.left_out,
            "refused": r.refused,
            "unserved": r.unserved,
            "resent": r.resent,
            "retracted": r.retracted,
        },
        "tokens": {
            "prompt": r.prompt_tokens,
            "prefilled": r.prefilled_tokens,
            "cached": r.cached_tokens,
            "output": r.output_tokens,
        },
        "durationS": r.duration_s,
        "requestsPerSecond": r.request_rate,
        "outputTokensPerSecond": r.output_tokens_per_s,
        "utilization": r.utilization,
        "kv": {"mean": r.kv_mean, "peak": r.kv_peak},
        "waiting": {"mean": r.waiting_mean, "peak": r.waiting_peak},
        "overTime": {
            "spanS": r.timeline.width_s,
            "waiting": r.timeline.waiting,
            "running": r.timeline.running,
            "kv": r.timeline.kv,
        },
    }


def _bounds(plan: Plan, scenes: Sequence[Scene]) -> Table:
    rows = []
    for scene in scenes:
        for v in scene.verdicts:
            share = v.bound == "attainment"
            show = percent if share else seconds
            predicted = plan.prediction.slo_attainment if share else view.predicted(plan, v.bound)
            allowed = ("at least " if share else "at most ") + show(v.allowed)
            rows.append((scene.name, v.bound, allowed, show(predicted), show(v.found), "yes" if v.met else "NO"))
    return Table(("replay", "bound", "allowed", "predicted", "replayed", "met"), tuple(rows), frozenset((2, 3, 4)))


def _latencies(plan: Plan, scene: Scene) -> Table:
    rows = []
    for name in _LATENCIES:
        found = getattr(scene.result, name)
        figures = (seconds(getattr(found, s)) for s in _STATISTICS)
        rows.append((name.upper(), *figures, seconds(view.predicted(plan, f"{name}.p95"))))
    return table(("replayed", *_STATISTICS, "predicted p95"), rows)


def _figures(scenes: Sequence[Scene]) -> Table:
    def row(label: str, show: Any, name: str) -> tuple[str, ...]:
        return (label, *(show(getattr(s.result, name)) for s in scenes))

    rows = [
        row("requests sent", count, "requests"),
        row("answered", count, "completed"),
        row("outside the steady state", count, "left_out"),
        row("refused, longer than the context or the KV pool", count, "refused"),
        row("never served", count, "unserved"),
        row("sent again after the loss", count, "resent"),
        row("retracted for want of KV", count, "retracted"),
        row("requests/s", number, "request_rate"),
        row("output tokens/s", number, "output_tokens_per_s"),
        row("meet every bound of a request", percent, "attainment"),
        row("time that steps were running", percent, "utilization"),
        row("KV pool in use, mean", percent, "kv_mean"),
        row("KV pool in use, peak", percent, "kv_peak"),
        row("requests waiting, mean", number, "waiting_mean"),
        row("requests waiting, peak", number, "waiting_peak"),
        row("prompt tokens found in the cache", count, "cached_tokens"),
        row("seconds replayed", number, "duration_s"),
    ]
    kept = [r for r in rows if r[0] in _ALWAYS or any(cell not in ("0", NONE) for cell in r[1:])]
    return table(("replay", *(s.name for s in scenes)), kept)


_ALWAYS = frozenset({"requests sent", "answered", "requests waiting, mean"})


def _over_time(timeline: Any) -> Table:
    """A dozen spans of the replay, means over each."""
    spans = len(timeline.kv)
    step = max(math.ceil(spans / SPANS), 1)
    rows = []
    for begin in range(0, spans, step):
        part = slice(begin, begin + step)
        rows.append(
            (
                f"{begin * timeline.width_s:,.0f} s",
                number(_mean(timeline.waiting[part])),
                number(_mean(timeline.running[part])),
                percent(_mean(timeline.kv[part])),
            )
        )
    return table(("from", "waiting", "running", "KV pool in use"), rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
