"""``--explain`` and ``--against`` as text, markdown and stable keys."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from servegen.explanation import Against, Binding, Change, Explanation, Fewer, InputChange, NextBest
from servegen.rationale import Effect, Waterfall
from servegen.render.environment import Environment
from servegen.report import view
from servegen.report.explanation import against_blocks, against_json, explanation_blocks, explanation_json
from servegen.report.json import json_text
from servegen.report.markdown import blocks_markdown, plan_markdown
from servegen.report.text import plain
from servegen.solve.waterfall import EFFECTS
from tests.unit.plans import make_plan

TTFT = Waterfall(
    "ttft", "p95", 0.1, (Effect("efficiency", 0.05), Effect("request", 0.0), Effect("queueing", 0.25)), 0.4
)
ITL = Waterfall("itl", "mean", 0.01, (Effect("efficiency", 0.002), Effect("batch", 1e-10), Effect("queueing", 0.0)), 0.012)
EXPLAINED = Explanation(
    waterfalls=(TTFT, ITL),
    binding=(
        Binding("ttft.p95", 0.5, 0.4, 0.1, "s", "400 ms of at most 500 ms"),
        Binding("fabric", *[math.nan] * 3, "", "all of it"),
    ),
    utilization=(("serve", 0.731),),
    fewer=(Fewer("serve", 3, 0.98, ("utilization",), "3 would carry | more"),),
    next_best=(
        NextBest("TP", "2", "4", "2 serve x TP4", 8, 31.92, 0.333, 0.0129, 1536.0, "same cost with a higher TP"),
        NextBest("topology", "aggregated", "", "", 0, *[math.nan] * 4, "no fabric is declared"),
    ),
)
HELD = Against(
    name="chat",
    moved=("choice",),
    changes=(Change("choice.serve.tp", "2", "4"), Change("choice.serve.quantization", "", "fp8")),
    inputs=(InputChange("spec.traffic.rate", "6/s", "9/s", True, ("choice",), ("choice",), "brings\x1b[31m it back"),),
    causes=("spec.traffic.rate",),
    text="The choice changed because of spec.traffic.rate.",
)


def test_every_effect_has_words() -> None:
    assert set(view.EFFECTS) == {"floor", *EFFECTS}


def test_a_waterfall_shows_what_adds_something_and_the_sum_so_far() -> None:
    text = plain(explanation_blocks(EXPLAINED))
    assert text.startswith(
        "TTFT p95: from the ideal roofline to the prediction\n"
        "effect                   adds  so far   share\n"
        "---------------------  ------  ------  ------\n"
        "ideal roofline          100ms   100ms    25 %\n"
        "efficiency below peak   +50ms   150ms  12.5 %\n"
        "queueing               +250ms   400ms  62.5 %\n"
        "predicted                   -   400ms   100 %\n"
    )
    assert "batches that vary" not in text  # less than the rounding of a percentile
    assert "- ttft.p95: 400 ms of at most 500 ms\n- fabric: all of it\n" in text
    assert "- serve: each at 73.1 % of what it sustains\n- serve, one less: 3 would carry | more\n" in text
    (tp,) = [line for line in text.splitlines() if line.startswith("TP ")]
    assert "$31.92/h" in tp and "333ms" in tp and tp.endswith("2 serve x TP4")
    (topology,) = [line for line in text.splitlines() if line.startswith("topology ")]
    assert "no fabric is declared" in topology and "$" not in topology and "nan" not in topology


def test_the_compact_table_of_a_plan() -> None:
    shown = view.waterfalls(make_plan(waterfalls=(TTFT, ITL)))
    assert shown.headers == ("what adds up", "TTFT p95", "ITL mean")
    assert shown.rows == (
        ("ideal roofline", "100ms", "10ms"),
        ("efficiency below peak", "+50ms", "+2ms"),
        ("queueing", "+250ms", "-"),
        ("predicted", "400ms", "12ms"),
    )


def test_the_page_shows_waterfalls_where_the_plan_has_them() -> None:
    page = plan_markdown(make_plan(waterfalls=(TTFT,)), Environment())
    section = page.partition("## Where the time goes")[2].partition("## ")[0]
    assert "| queueing | +250ms |" in section
    assert "what adds up" not in plan_markdown(make_plan(), Environment())
    assert "\n\n\n" not in page


def test_blocks_as_markdown() -> None:
    page = blocks_markdown([*explanation_blocks(EXPLAINED), *against_blocks(HELD)])
    assert "## What binds\n\n- ttft.p95: 400 ms of at most 500 ms\n- fabric: all of it\n" in page
    assert "3 would carry \\| more" in page
    assert "## Against the locked plan\n\nThe choice changed because of spec.traffic.rate.\n\n| input |" in page
    assert "\x1b" not in page and page.endswith("|\n")


def test_against_in_text_escapes_what_a_terminal_would_obey() -> None:
    text = plain(against_blocks(HELD))
    assert "brings\\x1b[31m it back" in text and "\x1b" not in text
    assert "choice.serve.quantization  -       fp8" in text
    nothing = replace(HELD, moved=(), changes=(), inputs=(), causes=(), text="The plan is the locked one.")
    assert plain(against_blocks(nothing)) == "Against the locked plan\n\nThe plan is the locked one.\n"


def test_stable_keys() -> None:
    found = json.loads(json_text({"explain": explanation_json(EXPLAINED), "against": against_json(HELD)}))
    explain, against = found["explain"], found["against"]
    assert list(explain) == ["waterfalls", "binding", "utilization", "fewer", "nextBest"]
    assert explain["waterfalls"][0] == {
        "metric": "ttft", "statistic": "p95", "floor": 0.1, "total": 0.4,
        "effects": [{"name": "efficiency", "adds": 0.05}, {"name": "request", "adds": 0.0}, {"name": "queueing", "adds": 0.25}],
    }  # fmt: skip
    assert set(explain["binding"][1]) == {"constraint", "allowed", "found", "slack", "unit", "text"}
    assert explain["binding"][1]["slack"] is None and explain["binding"][0]["slack"] == 0.1
    assert explain["utilization"] == {"serve": 0.731}
    assert set(explain["fewer"][0]) == {"role", "replicas", "utilization", "breaks", "text"}
    best, none = explain["nextBest"]
    assert best["costPerHour"] == 31.92 and best["whyLost"] == "same cost with a higher TP"
    assert (none["value"], none["summary"], none["devices"], none["costPerHour"]) == (None, None, None, None)
    assert list(against) == ["moved", "causes", "inputs", "changes", "text"]
    assert against["inputs"][0] == {
        "name": "spec.traffic.rate", "old": "6/s", "new": "9/s", "tried": True, "moves": ["choice"], "restores": ["choice"],
        "text": "brings\x1b[31m it back",
    }  # fmt: skip
    assert against["changes"][0] == {"what": "choice.serve.tp", "old": "2", "new": "4"}
