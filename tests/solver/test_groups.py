"""Two groups of replicas against brute force, and what must hold of them whatever the figures."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve.problem import Problem
from servegen.solve.search import search
from tests.solver.plain import best_aggregated
from tests.solver.plain_groups import best_groups
from tests.solver.specs import LLAMA_8B, problem, reduced

FEW = ((8, 48, 160), (1024,))
CHAT = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"


def pool(*kinds: tuple[str, int]) -> str:
    return "[" + ", ".join(f"{{accelerator: {name}, nodes: 1, perNode: {n}}}" for name, n in kinds) + "]"


def asked(kinds: tuple[tuple[str, int], ...], **stated: str) -> Problem:
    given_ = {
        "model": LLAMA_8B,
        "traffic": f"{{rate: 30/s, {CHAT}}}",
        "slo": "{ttft: {p95: 1s}, itl: {p95: 60ms}}",
        "constraints": "{topology: aggregated, weights: [bf16, fp8]}",
        **stated,
    }
    return problem(pool=pool(*kinds), **given_)


@given(
    kinds=st.sampled_from(
        [
            (("h100", 1), ("l40s", 4)),
            (("l40s", 3), ("h100", 2)),
            (("h200", 1), ("a100-sxm-80gb", 3)),
            (("a100-sxm-80gb", 2), ("l40s", 2), ("h100", 1)),
            (("h100", 2), ("h100", 3)),
        ]
    ),
    load=st.sampled_from(
        ["rate: 12/s", "rate: 25/s", "rate: 40/s, burstiness: 1.6", "concurrency: 150", "users: {active: 400, thinkTime: 5s}"]
    ),
    slo=st.sampled_from(
        ["{ttft: {p95: 1s}, itl: {p95: 60ms}}", "{}", "{ttft: {p99: 3s}, tpot: {mean: 40ms}}", "{e2e: {p95: 20s}}"]
    ),
    objective=st.sampled_from(["cost", "cost", "energy", "throughput"]),
    extra=st.sampled_from(["", ", spareReplicas: 1", ", maxAccelerators: 4", ", utilization: 0.6"]),
)
@settings(max_examples=25, deadline=None)
def test_the_best_groups_are_the_best_of_all(
    kinds: tuple[tuple[str, int], ...], load: str, slo: str, objective: str, extra: str
) -> None:
    if objective == "throughput" and not load.startswith("rate"):
        load = "rate: 12/s"
    question = asked(
        kinds,
        traffic=f"{{{load}, {CHAT}}}",
        slo=slo,
        objective=objective,
        constraints=f"{{topology: aggregated, tp: [1], weights: [bf16, fp8]{extra}}}",
    )
    with reduced(*FEW):
        best = search(question).best
    one, two = best_aggregated(question, *FEW), best_groups(question, *FEW)
    if two is None or (one is not None and one.key[0] <= two.key[0] * (1 + 1e-9 * (1 if two.key[0] > 0 else -1))):  # type: ignore[operator]
        assert (best.name if best else None) == (one.name if one else None)
        return
    assert best is not None and best.grouped
    key = best.key(question)
    assert key[0] == pytest.approx(two.key[0], rel=1e-9)
    assert key[1:6] == two.key[1:6]
    assert key[6] == pytest.approx(two.key[6], rel=0.011)  # three digits of a rate found by halving


@pytest.mark.parametrize("objective", ["cost", "energy"])
def test_replicas_of_several_sizes(objective: str) -> None:
    question = asked(
        (("h100", 3), ("l40s", 4)), objective=objective, constraints="{topology: aggregated, tp: [1, 2], weights: [fp8]}"
    )
    with reduced(*FEW):
        best = search(question).best
    one, two = best_aggregated(question, *FEW), best_groups(question, *FEW)
    assert best is not None and one is not None and two is not None
    assert best.objective[0] == pytest.approx(min(one.key[0], two.key[0]), rel=1e-9)  # type: ignore[type-var]


def test_a_mixture_is_cheaper_where_the_cheap_kind_is_too_few() -> None:
    """One H100 and some L40S carry what takes two H100 or more L40S than there are."""
    both = search(asked((("h100", 8), ("l40s", 2)), traffic=f"{{rate: 24/s, {CHAT}}}")).best
    alone = search(asked((("h100", 8),), traffic=f"{{rate: 24/s, {CHAT}}}")).best
    few = search(asked((("l40s", 2),), traffic=f"{{rate: 24/s, {CHAT}}}")).best
    assert both is not None and alone is not None and few is None
    assert both.grouped and both.topology == "aggregated"
    assert both.cost_per_h < alone.cost_per_h
    assert [r.name for r in both.roles] == ["serve-0", "serve-1"]
    assert sum(r.share for r in both.roles) == pytest.approx(1.0)
    assert sum(r.replicas * r.load for r in both.roles) == pytest.approx(24.0)
    loads = {r.load / r.sustained for r in both.roles}
    assert max(loads) == pytest.approx(min(loads)) and max(loads) <= 0.85 + 1e-9


def test_one_kind_is_preferred_at_the_same_objective() -> None:
    """Two entries of the same accelerator at one price: a mixture of them costs what either does."""
    best = search(asked((("h100", 4), ("h100", 4)))).best
    assert best is not None and not best.grouped


RATES = ["8/s", "16/s", "30/s", "45/s"]


@given(st.sampled_from(RATES), st.integers(1, 3), st.integers(1, 4), st.sampled_from([0.3, 0.6, 1.0]))
@settings(max_examples=25, deadline=None)
def test_more_nodes_or_a_lower_price_never_cost_more(rate: str, big: int, small: int, price: float) -> None:
    def cost(big: int, small: int, price: float) -> float:
        question = asked((("h100", big), ("l40s", small)), traffic=f"{{rate: {rate}, {CHAT}}}")
        kinds = tuple(
            dataclasses.replace(k, plan=dataclasses.replace(k.plan, price_per_hour=k.plan.price_per_hour * price))
            if k.facts.id.startswith("l40s")
            else k
            for k in question.pool
        )
        best = search(dataclasses.replace(question, pool=kinds)).best
        return best.cost_per_h if best is not None else float("inf")

    with reduced((8, 32, 64, 128, 256), (512, 2048)):
        first = cost(big, small, price)
        assert cost(big + 1, small, price) <= first * (1 + 1e-9)
        assert cost(big, small + 1, price) <= first * (1 + 1e-9)
        assert cost(big, small, price * 0.9) <= first * (1 + 1e-9)


def test_throughput_uses_both_kinds() -> None:
    question = asked((("h100", 2), ("l40s", 4)), traffic=f"{{{CHAT}}}", objective="throughput")
    with reduced((8, 32, 64, 128, 256), (512, 2048)):
        best = search(question).best
    assert best is not None and best.grouped and best.devices == 6
