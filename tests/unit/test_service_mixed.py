"""Mixed steps where prompts set the pace, against a replay of the very same replica."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.service import size
from servegen.service.disciplines import DISCIPLINES
from servegen.solve.arrivals import Traffic
from servegen.solve.replay import of_problem, requests, run
from servegen.solve.search import explained, search
from tests.solver.specs import LLAMA_8B, problem, reduced, scheduling


@pytest.mark.parametrize(
    ("isl", "osl", "chunk", "users"),
    [
        (64, 560, 512, 512),  # as many decode as a step has tokens
        (200, 500, 512, 512),
        (300, 300, 512, 320),
        (1024, 256, 512, 128),  # a prompt takes two steps and more
        (1024, 128, 2048, 256),
    ],
)
def test_a_full_replica_carries_what_its_replay_does(isl: int, osl: int, chunk: int, users: int) -> None:
    stated = problem(
        model=LLAMA_8B,
        pool="[{accelerator: h200, nodes: 1, perNode: 1}]",
        traffic=f"{{concurrency: {users}, isl: {isl}, osl: {{mean: {osl}, p95: {2 * osl}}}}}",
        constraints="{utilization: 1.0, tp: [1], engines: [sglang], topology: aggregated, weights: [bf16]}",
    )
    asked = scheduling(stated, "mixed")
    with reduced((users,), (chunk,)):
        seen = search(asked)
        assert seen.best is not None
        plan = explained(asked, seen, seen.best)
    (role,) = seen.best.roles
    level = np.full(len(role.block.server.chunk), float(users))
    d, step = asked.demand, DISCIPLINES["mixed"]
    level = size.level_at(step, role.block.server, d, "concurrency", level, level)
    predicted = float(step(role.block.server, d, level).rate[role.row])
    subject = of_problem(asked, plan)
    replayed = run(subject, requests(subject, Traffic("", 6 * users, 1)), 1).output_tokens_per_s / osl
    assert predicted == pytest.approx(replayed, rel=0.1)
