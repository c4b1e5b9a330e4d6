"""The plan at the ends of its band, and with a replica less."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.codec import dumps
from servegen.plan import loads
from servegen.report import view
from servegen.solve.search import solve
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
