"""All pairs at once, where rates alone decide, are the pairs one by one: the same candidates, counts and refusals, bit by bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve import pairs
from servegen.solve.candidate import Candidate, three_digits
from servegen.solve.counts import frontier
from servegen.solve.problem import Problem
from servegen.solve.rate_pairs import rates_decide
from servegen.solve.search import search
from tests.solver.specs import FABRIC, LENGTHS, LLAMA_8B, LLAMA_70B, problem, reduced
from tests.solver.test_whole_language import SETTINGS

CHAT = "{ttft: {p95: 1s}, itl: {p95: 50ms}}"
ENTRY = "{{accelerator: {}, nodes: {}, perNode: {}, price: {}/h, fabric: {{bandwidth: 200Gbps}}}}"
POOLS = (
    (("h100", 1, 8, 3),),
    (("h100", 5, 8, 0),),
    (("h100", 2, 8, 3), ("a100-sxm-80gb", 3, 8, 2)),
    (("h100", 1, 4, 3), ("l40s", 40, 4, 1)),
)
RATES = ("0.00003", "0.4", "3", "11", "70")
CONSTRAINTS = ("spareReplicas: 0", "spareReplicas: 2", "maxAccelerators: 6", "utilization: 0.6")


def told(candidates: tuple[Candidate, ...]) -> list[Any]:
    """Everything that a candidate has, but for its columns."""

    def plain(part: Any) -> dict[str, Any]:
        return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.name not in ("roles", "engine", "block")}

    return [(c.name, plain(c), [(r.block.discipline, plain(r)) for r in c.roles]) for c in candidates]


@given(
    model=st.sampled_from((LLAMA_8B, LLAMA_70B)),
    pool=st.sampled_from(POOLS),
    rate=st.sampled_from(RATES),
    slo=st.sampled_from((CHAT, "{}", "{itl: {mean: 30ms}}")),
    objective=st.sampled_from(("cost", "energy")),
    constraint=st.sampled_from(CONSTRAINTS),
)
@settings(max_examples=25, deadline=None, **SETTINGS)
def test_all_pairs_at_once_are_the_pairs_one_by_one(constraint: str, rate: str, pool: Any, **stated: str) -> None:
    pool = f"[{', '.join(ENTRY.format(*entry) for entry in pool)}]"
    traffic, constraints = f"{{rate: {rate}/s, {LENGTHS}}}", f"{{topology: disaggregated, {constraint}}}"
    question = problem(traffic=traffic, constraints=constraints, pool=pool, **stated)
    assert rates_decide(question)
    with pytest.MonkeyPatch.context() as patch, reduced((1, 2, 7, 8, 31, 32, 64, 128), (1024, 2048, 8192)):
        together = search(question)
        patch.setattr(pairs, "rates_decide", lambda _: False)
        apart = search(question)
    assert told(together.candidates) == told(apart.candidates)
    assert together.rejected == apart.rejected
    for one, other in zip(together.outcomes, apart.outcomes, strict=True):
        assert (one.searched, one.stage, one.most, one.late) == (other.searched, other.stage, other.most, other.late)


@pytest.mark.parametrize(
    "stated",
    [
        {"slo": "{e2e: {p95: 25s}}"},
        {"slo": "{ttft: 2s, attainment: 0.9}"},
        {"objective": "latency"},
        {"objective": "throughput"},
        {"traffic": f"{{concurrency: 12, {LENGTHS}}}"},
        {"traffic": f"{{{LENGTHS}}}"},
    ],
)
def test_elsewhere_rates_do_not_decide(stated: dict[str, str]) -> None:
    assert not rates_decide(problem(**stated))


def test_more_never_has_less_to_three_digits() -> None:
    for power in range(-20, 24):
        digits = np.concatenate((np.linspace(1.0, 1.0061, 2001), np.linspace(9.9401, 10.0, 2001), 1.0 + np.arange(9) * 2.0**-53))
        near = np.sort(float(f"1e{power}") * digits)
        assert (np.diff(three_digits(near)) >= 0.0).all()
        told = np.abs(np.sort(digits) * 100.0 % 1.0 - 0.5) > 1e-9  # the middle between two is rounded to either
        assert three_digits(near)[told].tolist() == [float(f"{value:.3g}") for value in near[told].tolist()]


SIZES = st.tuples(st.integers(1, 18), st.integers(1, 18))


@given(per=st.integers(1, 9), nodes=st.integers(1, 4), sizes=SIZES, most=st.integers(0, 40))
def test_where_the_fewest_do_not_stand_more_do_not_either(per: int, nodes: int, sizes: tuple[int, int], most: int) -> None:
    question: Problem = problem(pool=FABRIC)
    (kind,) = question.pool
    kind = dataclasses.replace(kind, plan=dataclasses.replace(kind.plan, nodes=nodes, per_node=per))
    front = frontier((kind, kind), *sizes, 0, most)
    if front.any:
        counts = np.arange(1.0, 40.0)
        holds = front.holds(counts[:, None], counts[None, :])
        assert not (holds[1:] & ~holds[:-1]).any()
        assert not (holds[:, 1:] & ~holds[:, :-1]).any()
