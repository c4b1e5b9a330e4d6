"""The plan at the ends of its band, and with a replica less."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.codec import dumps
from servegen.plan import loads
from servegen.report import view
from servegen.solve.flips import under_the_band
from servegen.solve.problem import Problem
from servegen.solve.search import search, solve
from tests.solver.specs import LENGTHS, problem

BOUNDS = "{ttft: {p95: 800ms}, itl: {p95: 50ms}}"
POOL = "[{accelerator: h100, nodes: 4, perNode: 8}]"


def solved(**stated: str):
    return solve(problem(**{"slo": BOUNDS, "pool": POOL, **stated}))


def test_worse_measurements_never_need_less() -> None:
    plan = solved(traffic=f"{{rate: 20/s, {LENGTHS}}}")
    low, best, high = plan.cases
    assert (low.end, best.end, high.end) == ("low", "best", "high")
    assert low.cost_per_hour >= best.cost_per_hour >= high.cost_per_hour
    assert low.devices > high.devices  # the band is wide enough to matter
    assert best.devices == plan.choice.devices and best.cost_per_hour == plan.choice.cost_per_hour


def test_the_low_end_is_what_confidence_low_gives() -> None:
    traffic = f"{{rate: 20/s, {LENGTHS}}}"
    low = solved(traffic=traffic).cases[0]
    asked = solved(traffic=traffic, constraints="{confidence: low}")
    assert asked.choice.devices == low.devices
    assert next(c.devices for c in asked.cases) == low.devices


def test_nothing_depends_on_the_band_without_bounds() -> None:
    assert solved(slo="{}").cases == ()


def test_a_case_that_cannot_be_met_says_so() -> None:
    plan = solved(slo="{ttft: {p95: 450ms}, itl: {p95: 50ms}}", pool="[{accelerator: h100, nodes: 1, perNode: 8}]")
    assert plan.cases[0].replicas == {} and plan.cases[0].devices == 0
    assert "nothing" in plan.cases[0].summary
    kept = loads(dumps(plan)).cases[0]
    assert kept.summary == plan.cases[0].summary and math.isnan(kept.cost_per_hour)


@given(st.floats(2.0, 25.0), st.integers(0, 2))
def test_one_less_serves_the_same_load(rate: float, spares: int) -> None:
    plan = solved(traffic=f"{{rate: {rate:.3f}/s, {LENGTHS}}}", constraints=f"{{spareReplicas: {spares}, topology: aggregated}}")
    (gap,), role = plan.missing, plan.choice.roles[0]
    assert gap.left == role.total_replicas - 1
    assert loads(dumps(plan)).missing[0].bounds_hold == gap.bounds_hold == (gap.left > 0 and gap.utilization <= 1.0)
    said = view.missing(loads(dumps(plan))).rows[0]
    assert said[5] == ("yes" if gap.bounds_hold else "NO")
    if not gap.left:
        assert math.isnan(gap.utilization) and said[2:5] == ("-", "-", "-")
        return
    assert gap.utilization == pytest.approx(role.utilization * role.replicas / gap.left)
    if gap.utilization <= 1.0:
        assert gap.ttft_p95_s <= 0.8 * (1 + 1e-6) and gap.itl_p95_s <= 0.05 * (1 + 1e-6)
        if spares == 0:
            assert gap.ttft_p95_s >= plan.prediction.ttft.p95 * (1 - 1e-9)
    else:
        assert spares == 0 and math.isnan(gap.ttft_p95_s)


def test_a_spare_carries_the_load_of_one_that_is_down() -> None:
    """N+1: what is left is what the load needs."""
    for rate in (3, 9, 27):
        (gap,) = solved(traffic=f"{{rate: {rate}/s, {LENGTHS}}}", constraints="{spareReplicas: 1, topology: aggregated}").missing
        assert gap.utilization <= 0.85 * (1 + 1e-9)


def test_each_role_of_a_split_is_looked_at() -> None:
    pool = "[{accelerator: h100, nodes: 4, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
    plan = solved(pool=pool, constraints="{topology: disaggregated}", traffic=f"{{rate: 20/s, {LENGTHS}}}")
    assert [g.role for g in plan.missing] == ["prefill", "decode"]


def test_a_pool_that_is_filled_has_no_load_to_carry_with_less() -> None:
    assert solved(traffic="{isl: 1000, osl: 200}", objective="throughput").missing == ()


def band_flips(plan) -> list[str]:
    return [f.parameter for f in plan.flips if f.parameter.startswith("band")]


def with_band_of(question: Problem, metric: str) -> Problem:
    """The pessimistic end of an engine whose predictions of every other metric are never wrong. It has no other source of error
    where constants were fitted on the very accelerator, and replicas are cut by TP inside a node."""
    engines = []
    for e in question.engines:
        sure = {m: c if m == metric else dataclasses.replace(c, value=0.0) for m, c in e.facts.band.items()}
        engines.append(dataclasses.replace(e, facts=dataclasses.replace(e.facts, band=sure)))
    return dataclasses.replace(question, confidence="low", engines=tuple(engines))


TIGHT, LOOSE = "{ttft: {p95: 500ms}, itl: {p95: 20ms}}", "{ttft: {p95: 90s}, itl: {p95: 20ms}}"


@pytest.mark.parametrize(
    ("slo", "rate", "parameter"),
    [(BOUNDS, 16, ""), (BOUNDS, 8, "band.ttft"), (LOOSE, 16, "band.itl"), (TIGHT, 5, "band"), ("{e2e: {p95: 15s}}", 2, "band")],
)
def test_a_flip_names_the_band_that_does_it(slo: str, rate: int, parameter: str) -> None:
    """Against whole searches with one band each, the other one of no width."""
    question = problem(slo=slo, pool=POOL, traffic=f"{{rate: {rate}/s, {LENGTHS}}}")
    chosen, plan = search(question).best, solve(question)
    assert chosen is not None
    turned = []
    for metric in ("itl", "ttft"):
        best = search(with_band_of(question, metric)).best
        if best is None or (best.name, best.devices) != (chosen.name, chosen.devices):
            turned.append(f"band.{metric}")
    low = search(dataclasses.replace(question, confidence="low")).best
    stays = low is not None and (low.name, low.devices) == (chosen.name, chosen.devices)
    expected = [] if stays else (turned if len(turned) == 1 else ["band"])
    assert band_flips(plan) == expected == [p for p in [parameter] if p]
    said = [w for w in plan.why if "pessimistic end" in w]
    assert bool(said) == stays and all(w.endswith("the choice stays the same.") for w in said)


@pytest.mark.parametrize(
    ("turning", "parameter", "sentence"),
    [
        (["itl"], "band.itl", "Of these the ITL band alone turns it."),
        (["ttft"], "band.ttft", "Of these the TTFT band alone turns it."),
        (["itl", "ttft"], "band", "Either of these alone turns it."),
        ([], "band", "Neither of these alone turns it, only both together."),
    ],
)
def test_what_each_band_alone_does_is_said(turning: list[str], parameter: str, sentence: str) -> None:
    question = problem(slo=BOUNDS, pool=POOL)
    chosen = search(question).best
    assert chosen is not None
    flip = under_the_band(question, chosen, None, lambda metric: None if metric in turning else chosen).flip
    assert flip is not None and flip.parameter == parameter and flip.text.endswith(sentence)


@pytest.mark.parametrize(("slo", "metric", "rate"), [("{ttft: {p95: 2s}}", "ttft", 8), ("{itl: {p95: 13ms}}", "itl", 20)])
def test_the_only_band_that_a_bound_depends_on_is_named_without_asking(slo: str, metric: str, rate: int) -> None:
    plan = solved(slo=slo, traffic=f"{{rate: {rate}/s, {LENGTHS}}}")
    assert band_flips(plan) == [f"band.{metric}"]
    assert f"The {metric.upper()} band does it: no bound depends on" in next(f.text for f in plan.flips if "band" in f.parameter)


@pytest.mark.parametrize("per_node", [2, 8])
def test_the_band_that_is_stated_is_that_of_the_chosen_replicas(per_node: int) -> None:
    """It is wider where they span nodes."""
    pool = f"[{{accelerator: h100, nodes: 2, perNode: {per_node}, fabric: {{bandwidth: 400Gbps}}}}]"
    slo, constraints = "{itl: {p95: 80ms}, ttft: {p95: 5s}}", "{weights: [bf16], tp: [4]}"
    plan = solved(slo=slo, pool=pool, traffic=f"{{rate: 0.3/s, {LENGTHS}}}", constraints=constraints)
    itl, ttft = (plan.prediction.band[m].high for m in ("itl", "ttft"))
    assert (itl > 1.5) == (per_node == 2)
    said = [w for w in (*plan.why, *(f.text for f in plan.flips)) if "pessimistic end" in w]
    assert len(said) == 1 and f"(ITL x {itl:.2f}, TTFT x {ttft:.2f})" in said[0]
