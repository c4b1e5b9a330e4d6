"""A stated concurrency: all of it in one replica, or shared by several as a Service deals requests out."""

from __future__ import annotations

import pytest

from servegen.solve.arrivals import Traffic
from servegen.solve.replay import of_problem, requests, run, verdicts
from servegen.solve.search import search, solve
from tests.solver.specs import LLAMA_8B, problem

LENGTHS = "isl: {mean: 800, p95: 2000}, osl: {mean: 300, p95: 700}"


@pytest.mark.parametrize(
    ("model", "accelerator", "users", "slo"),
    [
        (LLAMA_8B, "h100", 600, "{ttft: {p95: 2s}, itl: {p95: 100ms}}"),
        (LLAMA_8B, "l40s", 200, "{ttft: {p95: 2s}, itl: {p95: 60ms}}"),
        ("Qwen/Qwen3-32B", "h100", 120, "{ttft: {p95: 1s}, itl: {p95: 50ms}}"),
    ],
)
def test_what_several_replicas_share_keeps_its_bounds(model: str, accelerator: str, users: int, slo: str) -> None:
    asked = problem(
        model=model,
        slo=slo,
        traffic=f"{{concurrency: {users}, {LENGTHS}}}",
        pool=f"[{{accelerator: {accelerator}, nodes: 4, perNode: 8}}]",
        constraints="{engines: [sglang], topology: aggregated}",
    )
    plan = solve(asked)
    (role,) = plan.choice.roles
    assert role.replicas > 1
    # Numbers vary: as many slots as each has requests on average would be taken half of the time.
    assert role.max_running_requests > 1.2 * users / role.replicas
    subject = of_problem(asked, plan)
    for seed in (1, 2):
        replayed = run(subject, requests(subject, Traffic("", 24 * users, seed)), seed)  # all come at once in the beginning
        assert all(v.met for v in verdicts(subject, replayed))
        assert 0.8 <= plan.prediction.ttft.p95 / replayed.ttft.p95 <= 1.3
        assert 0.9 <= plan.prediction.itl.p95 / replayed.itl.p95 <= 1.1


def test_one_replica_needs_slots_for_its_users_only() -> None:
    asked = problem(
        model=LLAMA_8B,
        slo="{ttft: {p95: 2s}}",
        traffic=f"{{concurrency: 40, {LENGTHS}}}",
        pool="[{accelerator: h100, nodes: 1, perNode: 4}]",
        constraints="{engines: [sglang], topology: aggregated, utilization: 1.0, tp: [1]}",
    )
    seen = search(asked)
    assert seen.best is not None
    (role,) = seen.best.roles
    assert (role.replicas, role.batch_limit) == (1, 40)
    counts = {c.roles[0].replicas for c in seen.candidates}
    assert 1 in counts and max(counts) > 1
