"""Questions at which other planners fail their users: what the answer must be here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from servegen.errors import InfeasibleError
from servegen.service import size
from servegen.service.disciplines import DISCIPLINES
from servegen.solve.search import choose, search, solve
from tests.solver.specs import problem

POOL = "[{accelerator: h100, nodes: 4, perNode: 8, fabric: {bandwidth: 400Gbps, rdma: true}}]"


def test_the_highest_tested_rate_is_not_the_capacity() -> None:
    """2.67 requests/s of 70B chat: a planner that takes the rates it has tested for what hardware carries asks for 32 H100."""
    traffic = "{rate: 2.67/s, isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}, burstiness: 1.5}"
    plan = solve(problem(pool=POOL, traffic=traffic, slo="{ttft: {p95: 1s}, itl: {p95: 50ms}}"))
    assert plan.choice.devices <= 8


def test_a_gain_of_one_per_cent_does_not_buy_a_split() -> None:
    """5P3D for 1.01 times the throughput: a split pays for its second kind of server only from disaggregationGain on."""
    bounds = "{ttft: {p95: 3s}, itl: {p95: 40ms}}"
    question = problem(pool=POOL, traffic="{isl: 4000, osl: 500}", slo=bounds, objective="throughput")
    seen = search(question)
    together = min(c.objective[0] for c in seen.candidates if c.topology == "aggregated")
    split = min((c for c in seen.candidates if c.topology == "disaggregated"), key=lambda c: c.key(question))
    better = dataclasses.replace(split, objective=(together * 1.01, *split.objective[1:]))
    others = tuple(c for c in seen.candidates if c.topology == "aggregated")
    best, gain = choose(question, (*others, better))
    assert gain == pytest.approx(1.01)
    assert best is not None and best.topology == "aggregated"


def test_queues_count_and_not_service_times_alone() -> None:
    """One prefill server at 160 s of first token under a bound of 3 s: sized by service time it had seemed enough."""
    traffic = "{rate: 5/s, isl: 4000, osl: 300, burstiness: 2}"
    question = problem(pool=POOL, traffic=traffic, slo="{ttft: {p95: 3s}}", constraints="{topology: disaggregated}")
    assert solve(question).prediction.ttft.p95 <= 3.0
    best = search(question).best
    assert best is not None
    role = best.roles[0]
    everywhere = np.ones(len(role.block.rows))
    full = DISCIPLINES["prefill"](role.block.server, question.demand, 0.999 * everywhere)
    late = size.exceeds("ttft", full, question.demand, 3.0 * everywhere)
    assert late[role.row] > 0.05  # the same server, busy all the time, breaks the bound


def test_what_no_number_of_replicas_mends_is_infeasible() -> None:
    """A first token that even a lone request cannot have in time."""
    with pytest.raises(InfeasibleError) as caught:
        solve(problem(pool=POOL, slo="{ttft: {p95: 20ms}}", traffic="{rate: 1/s, isl: 4000, osl: 100}"))
    assert caught.value.bound == "ttft.p95"
    assert "even a single request" in caught.value.message
    assert caught.value.best.startswith("ttft.p95 = ")
    assert not any(f.key.startswith("hardware") for f in caught.value.fixes)
