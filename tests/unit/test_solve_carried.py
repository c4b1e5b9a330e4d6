"""What few candidates carry tells which others are needed: the search finds what it finds when it computes all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.solve import carried
from servegen.solve.frame import frames
from servegen.solve.search import Searched, search
from tests.solver.specs import LENGTHS, LLAMA_8B, NODE, problem_of, spec_text

SLO = "{ttft: {p95: 1s}, itl: {p95: 50ms}}"
DRAFT = ", speculative: {method: ngram, steps: 4, acceptance: 0.7}"
QUESTIONS = {
    "cost": {"slo": SLO},
    "cost, too much for the pool": {"slo": SLO, "traffic": f"{{rate: 400/s, {LENGTHS}}}"},
    "energy in bursts": {"slo": SLO, "objective": "energy", "traffic": f"{{rate: 30/s, burstiness: 3, {LENGTHS}}}"},
    "throughput": {"slo": SLO, "objective": "throughput"},
    "latency": {"slo": SLO, "objective": "latency"},
    "saturated": {"slo": SLO, "traffic": f"{{{LENGTHS}}}"},
    "a closed loop": {"slo": SLO, "traffic": f"{{concurrency: 300, {LENGTHS}}}"},
    "drafting": {"slo": SLO, "objective": "latency", "more_model": DRAFT},
}


def told(seen: Searched) -> Any:
    """Everything, figures but for their last bits: those computed side by side with others may differ in these."""
    roles = [(c.name, c.devices, tuple(r.replicas for r in c.roles)) for c in seen.candidates]
    figures = [(*c.objective, c.headroom, c.output_tokens_per_s, *(r.sustained for r in c.roles)) for c in seen.candidates]
    return roles, seen.rejected, seen.searched, np.array(figures), [o.most for o in seen.outcomes]


@pytest.mark.parametrize("question", QUESTIONS)
def test_few_candidates_tell_of_all(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: Counter[bool] = Counter()
    fill = carried.Carried.fill

    def counted(self: carried.Carried, cells: NDArray[np.bool_]) -> bool:
        computed[carried.LARGE == 0] += int(np.count_nonzero(cells & ~self.known))
        return fill(self, cells)

    monkeypatch.setattr(carried.Carried, "fill", counted)
    found = []
    for large in (10**9, 0):
        monkeypatch.setattr(carried, "LARGE", large)
        found.append(told(search(problem_of(spec_text(model=LLAMA_8B, pool=NODE, **QUESTIONS[question])))))
    every, few = found
    assert every[:3] == few[:3] and (every[1] if "too much" in question else every[0])
    np.testing.assert_allclose(few[3], every[3], rtol=1e-12)
    np.testing.assert_allclose(few[4], every[4], rtol=1e-12)
    fewer = question != "a closed loop"  # where what is held beside the slots counts, each limit is its own
    assert (computed[True] < 0.8 * computed[False]) == fewer


@given(
    osl=st.integers(2, 2000),
    isl=st.sampled_from(["{mean: 1024, p95: 3000}", "200", "{p50: 4000, p99: 16000}"]),
    burstiness=st.sampled_from([1.0, 1.5, 4.0]),
    load=st.sampled_from(["rate: 5/s, burstiness: {}", "concurrency: 40", "users: {{active: 300, thinkTime: 5s}}"]),
    model=st.sampled_from([(LLAMA_8B, ""), (LLAMA_8B, DRAFT), ("Qwen/Qwen3-235B-A22B", ""), ("deepseek-ai/DeepSeek-V3", "")]),
)
@settings(max_examples=60)
def test_a_replica_that_holds_more_carries_no_less(
    osl: int, isl: str, burstiness: float, load: str, model: tuple[str, str]
) -> None:
    traffic = f"{{{load.format(burstiness)}, isl: {isl}, osl: {osl}}}"
    name, more = model
    pool = "[{accelerator: h200, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}]"
    p = problem_of(spec_text(model=name, more_model=more, slo=SLO, traffic=traffic, pool=pool))
    rising = 0
    for frame in frames(p, p.engines[0], p.pool[0], Counter())[1]:
        block = frame.block
        if block.discipline not in carried.RISING:
            continue
        server, step = means_only(block.server, rates_only=True), DISCIPLINES[block.discipline]
        levels = np.geomspace(1e-4, 1024.0, 300)
        rates = np.array([step(server, p.demand, np.full(len(block.rows), level)).rate for level in levels])
        assert np.all(np.diff(rates, axis=0) >= -1e-12 * rates[1:])
        rising += 1
    assert rising
