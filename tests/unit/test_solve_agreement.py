"""The closed form that sizes plans against a replay of them (`tests/tools/agreement.py`)."""

from __future__ import annotations

import pytest

from servegen.solve.search import solve
from tests.tools.agreement import (
    CASES,
    CAUSES,
    DRAWN,
    DRAWN_TABLE,
    Case,
    Found,
    kept_ones,
    measure,
    outliers,
    row,
    shape,
    shares,
    stored,
)
from tests.tools.agreement_cases import AMONG

#: Cases that CI solves and replays: every scheduler, bursts, several replicas and a split, each with few requests.
QUICK = [*(CASES[i] for i in (4, 9, 22, 31, 41, 59, 65)), AMONG[0]]
REQUESTS = 6000
#: All cases are predicted in so many parts, one worker's each.
PARTS = 8


def test_the_kept_table_agrees_as_it_must() -> None:
    table = stored()
    assert [f.name for f in table] == [c.name for c in CASES] and len(table) >= 64
    first, gaps = shares(table)
    assert first >= 0.9 and gaps >= 0.9
    assert {f.name for f in outliers(table)} == set(CAUSES)
    assert all(min(f.ttft, f.itl) >= 0.9 for f in table)  # never optimistic by more than a tenth


def test_specs_that_were_drawn_at_random_agree_nearly_as_well() -> None:
    table = stored(DRAWN_TABLE)
    first, gaps = shares(table)
    assert len(table) == DRAWN and first >= 0.9 and gaps >= 0.75
    assert sum(min(f.ttft, f.itl) < 0.9 for f in table) <= DRAWN / 10


def test_the_cases_are_of_many_kinds() -> None:
    assert {c.utilization for c in CASES} >= {0.3, 0.5, 0.7, 0.85, 0.9}
    assert {c.burstiness for c in CASES} == {1.0, 1.5, 2.0, 3.0, 4.0}
    assert len({(c.model, c.accelerator) for c in CASES}) >= 16 and len({c.lengths for c in CASES}) == 15


@pytest.mark.parametrize("case", QUICK, ids=lambda c: c.name)
def test_a_case_is_still_predicted_as_the_table_says_and_replays_alike(case: Case) -> None:
    kept = next(f for f in stored() if f.name == case.name)
    found = measure(case, REQUESTS)
    assert found.plan == kept.plan
    assert found.ttft_s == pytest.approx(kept.ttft_s, rel=1e-3) and found.itl_s == pytest.approx(kept.itl_s, rel=1e-3)
    # Few requests: within their own noise, a tenth more than is asked of the table.
    assert 0.7 <= found.ttft <= 1.4 and 0.85 <= found.itl <= 1.2


@pytest.mark.parametrize("part", range(PARTS))
def test_all_kept_cases_are_still_predicted_as_the_tables_say(part: int) -> None:
    cases = [*((c, found) for c, found in zip(CASES, stored(), strict=True)), *_drawn_ones()]
    for case, kept in cases[part::PARTS]:
        plan = solve(case.problem())
        assert shape(plan) == kept.plan
        p95 = plan.prediction.ttft.p95, plan.prediction.itl.p95
        assert p95 == pytest.approx((kept.ttft_s, kept.itl_s), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_kept_table_is_current(case: Case) -> None:
    kept = next(f for f in stored() if f.name == case.name)
    assert row(measure(case)) == row(kept)


def test_a_plan_is_named_by_what_it_runs() -> None:
    assert shape(solve(CASES[18].problem())).startswith("2x: fp8 tp2")


@pytest.mark.slow
def test_the_drawn_table_is_current() -> None:
    for case, kept in _drawn_ones():
        assert row(measure(case)) == row(kept)


def _drawn_ones() -> list[tuple[Case, Found]]:
    cases = kept_ones()
    return [(cases[found.name], found) for found in stored(DRAWN_TABLE)]
