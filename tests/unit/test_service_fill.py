"""How full steps are that prompts share with decodes: against counting, and against a replay of the very same replica."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.service import fill, latency, mixed, size
from servegen.service.disciplines import DISCIPLINES
from servegen.simulate.engine import Part, Replica
from servegen.solve.arrivals import Traffic
from servegen.solve.problem import Problem
from servegen.solve.replay import of_problem, requests, run
from servegen.solve.search import explained, search
from tests.solver.specs import LLAMA_8B, problem, reduced, scheduling

REQUESTS, BATCH = 8000, 128
LENGTHS = ("isl: 1024, osl: 256", "isl: {mean: 300, p95: 840}, osl: {mean: 50, p95: 130}", "isl: {mean: 700, p95: 800}, osl: 300")


def asked(lengths: str, rate: float, burstiness: float) -> Problem:
    """One replica that mixes its steps."""
    bursts = f", burstiness: {burstiness}" if burstiness != 1.0 else ""
    out = problem(
        model=LLAMA_8B,
        pool="[{accelerator: h100, nodes: 1, perNode: 1}]",
        traffic=f"{{rate: {rate}/s, {lengths}{bursts}}}",
        slo="{ttft: {p95: 20s}}",
        constraints="{utilization: 1.0, tp: [1], engines: [sglang], topology: aggregated, weights: [bf16]}",
    )
    return scheduling(out, "mixed")


@pytest.mark.parametrize(
    ("lengths", "chunk", "rate", "burstiness"),
    [
        ("isl: 1500, osl: 50", 2048, 12.0, 2.0),  # one prompt fits a step, two do not, and answers are short
        ("isl: 1024, osl: 256", 1024, 8.0, 1.0),  # a prompt leaves a little for a second step
        ("isl: {mean: 300, p95: 840}, osl: {mean: 50, p95: 130}", 1024, 25.0, 3.0),  # bursts that fill whole steps
        ("isl: {mean: 300, p95: 840}, osl: {mean: 50, p95: 130}", 1024, 55.0, 1.0),  # nearly all steps have prompts
        ("isl: {mean: 2000, p95: 6000}, osl: {mean: 40, p95: 120}", 2048, 10.0, 1.0),  # few long prompts, short answers
        ("isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}", 2048, 9.0, 2.0),
    ],
)  # fmt: skip
def test_steps_with_prompts_are_as_a_replay_finds_them(
    lengths: str, chunk: int, rate: float, burstiness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = asked(lengths, rate, burstiness)
    with reduced((BATCH,), (chunk,)):
        seen = search(p)
        assert seen.best is not None
        plan = explained(p, seen, seen.best)
    (role,) = seen.best.roles
    srv, d, step = role.block.server, p.demand, DISCIPLINES["mixed"]
    load = np.full(len(srv.chunk), rate)
    point = step(srv, d, size.level_at(step, srv, d, "rate", load, np.full(len(load), float(BATCH))))
    beside, full, tokens = [], [], []
    run_step = Replica.step

    def watched(self: Replica, now: float, parts: list[Part], decodes: bool) -> None:
        beside.append(self.batch.size)
        tokens.append(sum(n for _, n in parts))
        full.append(tokens[-1] >= self.limits.chunk - self.batch.size)
        run_step(self, now, parts, decodes)

    monkeypatch.setattr(Replica, "step", watched)
    subject = of_problem(p, plan)
    replay = run(subject, requests(subject, Traffic("gamma" if burstiness != 1.0 else "poisson", REQUESTS, 1)), 1)
    gaps = REQUESTS * d.gaps
    assert float(point.stall_share[role.row]) == pytest.approx(sum(beside) / gaps, rel=0.13)
    entire = float(point.stall_weights[role.row, -len(mixed.OF_FULL) :].sum())
    assert entire == pytest.approx(np.dot(beside, full) / sum(beside), abs=0.13)
    assert float(point.gap_mean_s[role.row]) == pytest.approx(replay.itl.mean, rel=0.07)
    assert 0.85 <= float(latency.ttft_mean(point)[role.row]) / replay.ttft.mean <= 1.2


@given(
    lengths=st.sampled_from(LENGTHS),
    room=st.floats(60.0, 9000.0),
    seen=st.floats(1.0, 300.0),
    begin=st.floats(1.0, 8.0),
    followed=st.floats(0.0, 1.0),
    between=st.floats(0.0, 1.0),
)
@settings(deadline=None)
def test_as_many_tokens_are_in_the_steps_as_in_the_prompts(
    lengths: str, room: float, seen: float, begin: float, followed: float, between: float
) -> None:
    d, one = asked(lengths, 1.0, 1.0).demand, np.ones(1)
    whole = d.uncached_mean / room
    left = fill.empty(d, seen * one, room * one)
    assert ((left >= 0.0) & (left <= 1.0)).all()
    lone = np.maximum(d.uncached_nodes / room + left, 1.0) @ d.node_weights
    steps = max(whole, 1.0 / begin) * (1.0 - between) + float(lone[0]) * between
    of = fill.sharing(whole * one, steps * one, begin * one, lone, followed * one)
    tokens, single, others = fill.fills(d, room * one, lone, followed * one, of)
    assert (single + others).sum() == pytest.approx(1.0) and (single >= -1e-12).all() and (others >= -1e-12).all()
    assert (np.diff(tokens) >= 0.0).all() and tokens[0, -1] <= room * (1.0 + 1e-12)


@given(tokens=st.integers(20, 9000), room=st.floats(300.0, 5000.0), seen=st.floats(1.0, 100.0))
@settings(deadline=None)
def test_what_a_prompt_leaves_of_its_last_step_is_counted(tokens: int, room: float, seen: float) -> None:
    d = asked(f"isl: {tokens}, osl: 40", 1.0, 1.0).demand
    varies = min(math.sqrt(3.0 * seen) / room, 0.5)
    sizes = tokens / room * (1.0 + varies * np.linspace(-1.0, 1.0, 20_001))
    counted = float(np.mean(np.ceil(sizes) - sizes))
    assert float(fill.empty(d, np.array([seen]), np.array([room]))[0, 0]) == pytest.approx(counted, abs=2e-3)


@pytest.mark.parametrize(
    ("lengths", "burstiness"), [("isl: 64, osl: 2", 3.0), ("isl: 1500, osl: 10", 2.0), ("isl: 64, osl: 40", 1.0)]
)
def test_a_fuller_replica_carries_more_however_short_its_answers_are(lengths: str, burstiness: float) -> None:
    """Where nearly all steps have prompts no more run beside these than run at all."""
    p = asked(lengths, 1.0, burstiness)
    with reduced((BATCH,), (2048,)):
        best = search(p).best
    assert best is not None
    srv, before = best.roles[0].block.server, 0.0
    for level in (0.3, 0.6, 0.9, 1.0, 1.1, 1.2, 1.4, 1.8, 2.5, 4.0, 8.0, 16.0, 32.0, 64.0):
        point = DISCIPLINES["mixed"](srv, p.demand, np.full(len(srv.chunk), level))
        assert float(point.rate[0]) >= before * (1.0 - 1e-9)
        before = float(point.rate[0])
