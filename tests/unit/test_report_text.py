"""Plain text and the blocks under it."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from servegen.errors import Fix, InfeasibleError
from servegen.plan import Band, Plan
from servegen.rationale import Alternative, Flip, ParetoPoint
from servegen.report import figures, terminal, view
from servegen.report.blocks import Items, Table, Text, Title, table
from servegen.report.text import estimate_blocks, infeasible_blocks, plain, plan_blocks
from tests.unit.estimates import make_estimate
from tests.unit.plans import make_plan, make_split_plan


def full_plan() -> Plan:
    """Every part that may be empty is not."""
    plan = make_split_plan(
        flips=(Flip("price", "Below $1.10/h each, four L40S are cheaper."),),
        alternatives=(
            Alternative("agg", "aggregated", "4x tp8 fp8", 32, 94.4, 0.61, 0.031, 5000.0, "costs $23.60/h more"),
        ),
        pareto=(ParetoPoint("2P3D tp4", 20, 59.0, 0.4, 0.03, 6144.0),),
        rejected={"memory": 40, "ttft.p95": 7, "itl.p95": 40},
        notes=("The price is two months old.",),
        deploy_args={"schedule-policy": "lpm"},
        deploy_env={"NCCL_IB_HCA": "mlx5"},
    )
    return replace(plan, prediction=replace(plan.prediction, extrapolated=("eta_kv of h20: that of h100",)))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.042061, "0.0421"), (12.34, "12.3"), (999.6, "1,000"), (12345.6, "12,300"), (-2.5, "-2.5")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert figures.number(value) == text


def test_figures_without_a_value() -> None:
    assert figures.seconds(math.nan) == "-"
    assert figures.seconds(math.inf) == "unbounded"
    assert figures.money(math.nan) == "-"
    assert figures.percent(math.nan) == "-"
    assert figures.count(math.nan) == "-"
    assert figures.gigabytes(math.nan) == "-"


def test_figures_carry_their_unit() -> None:
    assert figures.seconds(0.41234) == "412ms"
    assert figures.size(70.6e9) == "70.6GB"
    assert figures.gigabytes(70.64e9) == "70.6"
    assert figures.percent(0.9543) == "95.4 %"
    assert figures.deviation(0.85) == "-15 %"
    assert figures.deviation(1.25) == "+25 %"


def test_control_characters_are_shown_not_obeyed() -> None:
    assert figures.visible("a\x1b[31mb\u202e\x9b") == "a\\x1b[31mb\\u202e\\x9b"
    assert figures.one_line("a\n  b\tc") == "a b c"


def test_columns_are_aligned() -> None:
    text = plain([table(("name", "n"), [("a", "1"), ("long name", "1,000")])])
    assert text == "name           n\n---------  -----\na              1\nlong name  1,000\n"


def test_wide_characters_keep_the_columns() -> None:
    lines = plain([table(("name", "n"), [("模型", "1"), ("abcd", "2")])]).splitlines()
    assert lines[2] == "模型  1"
    assert lines[3] == "abcd  2"


def test_a_title_stays_with_its_list() -> None:
    text = plain([Title("One"), Items(("a", "b")), Text("Two"), Title("Three")])
    assert text == "One\n- a\n- b\n\nTwo\n\nThree\n"


def test_no_line_ends_with_a_space() -> None:
    assert all(line == line.rstrip() for line in plain(plan_blocks(full_plan())).splitlines())


def test_a_plan_says_everything_once() -> None:
    text = plain(plan_blocks(full_plan()))
    assert text.startswith(
        "llama-chat: 2P3D sglang 0.5.23 of meta-llama/Llama-3.1-70B-Instruct on 20 x h100-sxm-80gb "
        "(split serving), $59.00/h\n"
    )
    for piece in (
        "8 accelerators hold the weights and 256 sequences.",
        "Binding: itl.p95",
        "Below $1.10/h each, four L40S are cheaper.",
        "costs $23.60/h more",
        "2P3D tp4",
        "Searched 120 candidates",
        "eta_kv of h20: that of h100",
        "argument schedule-policy = lpm",
        "environment NCCL_IB_HCA = mlx5",
        "The price is two months old.",
    ):
        assert text.count(piece) == 1, piece
    assert text == plain(plan_blocks(full_plan()))


def test_empty_parts_leave_no_heading() -> None:
    text = plain(plan_blocks(make_plan(why=(), binding=(), rejected={})))
    for heading in ("Why", "Binding", "Runners-up", "Pareto", "Overrides", "Notes", "What would change"):
        assert heading not in text
    assert "None was rejected." in text


def test_bounds_say_whether_they_hold_over_the_band() -> None:
    plan = make_plan(slo={"ttft.p95": 0.5, "itl.p95": 0.05, "e2e.p99": 29.0, "attainment": 0.95})
    rows = {row[0]: row for row in view.bounds(plan).rows}
    assert rows["TTFT p95"] == ("TTFT p95", "at most 500ms", "400ms", "340ms to 500ms", "yes")
    assert rows["ITL p95"][3:] == ("-", "yes")
    assert rows["E2E p99"][4] == "NO"
    assert rows["attainment"] == ("attainment", "at least 95 %", "98 %", "-", "yes")
    wider = replace(plan, prediction=replace(plan.prediction, band={"ttft": Band(0.5, 1.5)}))
    assert view.bounds(wider).rows[0][4] == "yes, but not at the high end"


def test_rejections_are_ordered_by_count_then_name() -> None:
    assert [row[0] for row in view.rejected({"b": 1, "c": 9, "a": 1}).rows] == ["c", "a", "b"]


def test_memory_is_in_gigabytes_per_device() -> None:
    rows = dict(view.memory(make_plan()).rows)  # type: ignore[arg-type]
    assert rows["weights"] == "17.6"
    assert rows["usable"] == "84.0"
    assert rows["not used"] == "9.9"
    assert rows["tokens a replica's pool holds"] == "1,220,000"


def test_infeasible_names_bound_best_and_fix() -> None:
    fixes = (Fix("slo.ttft.p95", "100ms", "180ms", 0.8, "Raise slo.ttft.p95 from 100ms to 180ms."),)
    error = InfeasibleError("chat", "ttft.p95", "no candidate answers in 100ms", "173ms", fixes, {"ttft.p95": 12}, 12)
    text = plain(infeasible_blocks(error))
    assert "chat: infeasible: no candidate answers in 100ms" in text
    assert "- binding bound: ttft.p95" in text
    assert "- best attainable: 173ms" in text
    assert "- Raise slo.ttft.p95 from 100ms to 180ms." in text
    assert "Searched 12 candidates" in text


def test_an_estimate_shows_terms_and_band() -> None:
    text = plain(estimate_blocks(make_estimate()))
    assert "weights on one device" in text
    assert "collectives" in text
    assert "output tokens/s per accelerator" in text


def test_the_terminal_shows_the_same_words() -> None:
    stream = io.StringIO()
    terminal.show([Title("T"), Table(("a",), (("NO",), ("[bold]x[/bold]",))), Items(("i",)), Text("\x1b[0m")], stream)
    text = stream.getvalue()
    assert "[bold]x[/bold]" in text and "- i" in text and "NO" in text
    assert "\x1b" not in text  # no terminal behind it, and foreign escapes stay words
