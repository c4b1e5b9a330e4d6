"""Splits where how loaded the servers are decides: the counts of each role, and in which order and company they are tried."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve import field, ways
from servegen.solve.counts import spans, spread
from servegen.solve.ends import candidates_at
from servegen.solve.field import Field, Loaded
from servegen.solve.pair import Pair
from servegen.solve.problem import Problem
from servegen.solve.search import choose, search, solve
from servegen.solve.split import joining
from servegen.solve.timed_pairs import timed
from servegen.solve.ways import Needs, Ways
from tests.solver.specs import LLAMA_8B, problem, reduced, spec_text
from tests.solver.test_rate_pairs import told
from tests.solver.test_whole_language import SETTINGS, SMALL, agree, both

ENTRY = "{{accelerator: {}, nodes: {}, perNode: 4, price: {}/h, fabric: {{bandwidth: 400Gbps}}}}"
SPLIT = "{engines: [sglang], topology: disaggregated, tp: [1], weights: [bf16]}"


def pool_of(*entries: tuple[str, int, float]) -> str:
    return f"[{', '.join(ENTRY.format(*entry) for entry in entries)}]"


@pytest.mark.parametrize(
    ("stated", "counts"),
    [
        # Seven and two accelerators would do as well as eight and one, for 15 $/h in place of 12.
        (
            {
                "slo": "{e2e: {mean: 2.89s}}",
                "traffic": "{rate: 20/s, isl: 3000, osl: 100}",
                "pool": pool_of(("a100-sxm-80gb", 2, 4), ("l40s", 2, 1)),
            },
            (8, 1),
        ),
        # One prefill server and four decode servers would do as well, with less headroom.
        (
            {
                "slo": "{e2e: {p95: 1.26s}}",
                "traffic": "{rate: 20/s, isl: 200, osl: 100}",
                "pool": pool_of(("a100-sxm-80gb", 2, 3)),
            },
            (2, 3),
        ),
    ],
)
def test_what_is_paid_decides_and_then_the_headroom(stated: dict[str, str], counts: tuple[int, int]) -> None:
    found, plain = both(spec_text(model=LLAMA_8B, constraints=SPLIT, **stated))
    assert found == plain
    assert found[1] == counts


@st.composite
def tight(draw: st.DrawFn) -> str:
    """Bounds on whole requests near what the pool can do, and prices that differ."""
    kinds = draw(st.lists(st.sampled_from(("h100", "l40s", "a100-sxm-80gb")), min_size=1, max_size=2, unique=True))
    prices = draw(st.sampled_from(((4, 0.3), (1, 4), (3, 3), (0, 2))))
    seconds = draw(st.integers(6, 30)) / 10
    slo = draw(st.sampled_from((f"{{e2e: {{mean: {seconds}s}}}}", f"{{e2e: {{p95: {seconds}s}}}}")))
    load = draw(st.sampled_from(("rate: 5/s, ", "rate: 20/s, ", "users: {active: 90, thinkTime: 3s}, ", "")))
    return spec_text(
        model=LLAMA_8B,
        slo=slo,
        traffic=f"{{{load}isl: {draw(st.sampled_from((200, 1024, 3000)))}, osl: {draw(st.sampled_from((40, 100)))}}}",
        pool=pool_of(*((kind, 2, price) for kind, price in zip(kinds, prices, strict=False))),
        objective=draw(st.sampled_from(("cost", "cost", "energy", "throughput", "latency"))),
        constraints=SPLIT,
    )


def test_tight_bounds_on_whole_requests_are_met_at_the_least() -> None:
    agree(tight(), 12)


@pytest.mark.slow
def test_tight_bounds_on_whole_requests_are_met_at_the_least_in_many_more() -> None:
    agree(tight(), 300)


WHOLE = ("{e2e: {p95: 3s}}", "{ttft: 1s, tpot: 30ms, attainment: 0.9}")
LOADS = ("rate: 9/s, burstiness: 2, ", "users: {active: 60, thinkTime: 3s}, ", "")


def asked(objective: str, load: str, slo: str) -> Problem:
    return problem(
        model=LLAMA_8B,
        slo=slo,
        traffic=f"{{{load}isl: {{mean: 1024, p95: 3000}}, osl: {{mean: 60, p99: 200}}}}",
        pool=pool_of(("h100", 2, 3), ("l40s", 3, 1)),
        objective=objective,
        constraints="{engines: [sglang], topology: disaggregated, tp: [1, 2]}",
    )


@pytest.mark.parametrize(
    ("objective", "load", "slo"),
    [
        *itertools.product(("cost", "latency", "throughput"), LOADS, WHOLE),
        *itertools.product(("cost", "latency"), LOADS[1:], ("{}",)),
    ],
)
def test_pairs_are_the_same_whoever_they_are_computed_with(
    monkeypatch: pytest.MonkeyPatch, objective: str, load: str, slo: str
) -> None:
    """One by one and few points at a time, or many together: the same candidates and refusals."""
    question = asked(objective, load, slo)
    with reduced(*SMALL):
        together = search(question)
        for name, value in (("GROUP", 1), ("CELLS", 5), ("FIRST", 1)):
            monkeypatch.setattr(field, name, value)
        apart = search(question)
    assert together.best is not None
    assert rounded(told(together.candidates)) == rounded(told(apart.candidates))
    assert together.rejected == apart.rejected


def rounded(value: Any) -> Any:
    """Without the last bits: sums of few rows are added in another order than sums of many."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


def pairs_of(question: Problem) -> list[Pair]:
    """Every pair of configurations that a search asks about."""
    seen: list[Pair] = []
    with pytest.MonkeyPatch.context() as patch, reduced(*SMALL):
        patch.setattr("servegen.solve.pairs.timed", lambda _, pairs, *counts: seen.extend(pairs) or timed(_, pairs, *counts))
        search(question)
    return seen


@given(
    objective=st.sampled_from(("cost", "energy", "latency")),
    load=st.sampled_from(LOADS[:2]),
    prices=st.sampled_from(((3, 1), (0, 0), (0, 2), (1, 1))),
    box=st.sampled_from((1, 2, 4)),
    spares=st.sampled_from((0, 1)),
)
@settings(max_examples=8, deadline=None, **SETTINGS)
def test_every_way_is_tried_once_and_none_before_a_better_one(
    objective: str, load: str, prices: tuple[int, int], box: int, spares: int
) -> None:
    question = problem(
        model=LLAMA_8B,
        slo="{e2e: {p95: 9s}}",
        traffic=f"{{{load}isl: 1024, osl: 60}}",
        pool=pool_of(("h100", 3, prices[0]), ("l40s", 2, prices[1])),
        objective=objective,
        constraints=f"{{engines: [sglang], topology: disaggregated, tp: [1, 2], weights: [bf16], spareReplicas: {spares}}}",
    )
    tried = 0
    for pair in pairs_of(question):
        needs = Needs.of(pair, pair.load)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ways, "BOX", box)
            parts = [part for part in needs.ways() if len(part)]
        xs, ys = spans(pair.front, float(needs.x.min()), float(needs.y.min()))
        if objective == "latency":
            xs, ys = (spread(counts, ways.SPREAD) for counts in (xs, ys))
        least = np.broadcast_to(needs.y.min(axis=1), len(pair.p))
        expected = {
            (i, x, y)
            for i, x, y in itertools.product(range(len(pair.p)), xs.tolist(), ys.tolist())
            if x >= needs.x[i, 0] and y >= least[i] and pair.front.holds(np.array(x), np.array(y))
        }
        met = Counter(way for part in parts for way in zip(part.i.tolist(), part.x.tolist(), part.y.tolist(), strict=True))
        assert met == Counter(expected)
        for part, after in itertools.pairwise(parts):
            worst = max(zip(part.objective.tolist(), part.devices.tolist(), strict=True))
            assert worst < min(zip(after.objective.tolist(), after.devices.tolist(), strict=True))
        tried += len(met)
    assert tried > 100


def test_what_is_asked_twice_is_computed_once() -> None:
    pair = pairs_of(asked("cost", LOADS[0], "{e2e: {p95: 3s}}"))[0]
    row, load = np.array([3, 1, 3, 3, 1]), np.array([0.5, 0.5, 0.25, 0.5, 0.5])
    once, of = Loaded(pair.dec, row, load).once()
    assert len(once.row) == 3
    assert once.row[of].tolist() == row.tolist()
    assert once.load[of].tolist() == load.tolist()


def test_a_pool_that_carries_too_little_has_no_way() -> None:
    """Neither one that yields what it can, nor one that is asked for a load."""
    for objective in ("throughput", "latency", "cost"):
        question = dataclasses.replace(asked(objective, LOADS[0], "{e2e: {p95: 3s}}"), load=1e6)
        with reduced(*SMALL):
            seen = search(question)
        assert seen.best is None
        assert sum(seen.rejected[reason] for reason in seen.rejected if reason.startswith("split: more")) == seen.searched
    question = asked("latency", LOADS[0], "{e2e: {p95: 3s}}")
    nothing = Field.join(pairs_of(question)[:1], [Ways(*(np.zeros(0, dtype=np.int64) for _ in dataclasses.fields(Ways)))])
    assert nothing.best(question.slo, Counter()) == {}


def split_of(**stated: str) -> Problem:
    given = {"model": LLAMA_8B, "constraints": "{engines: [sglang], topology: disaggregated, tp: [1], utilization: 1.0}"}
    return problem(**{**given, **stated})


def test_no_role_is_left_without_a_server() -> None:
    """In bursts one sequence at a time is so slow that of the other role next to nothing is needed."""
    seen = search(
        split_of(
            slo="{e2e: {p95: 14s}}",
            traffic="{burstiness: 3, isl: 16, osl: 2000}",
            pool="[{accelerator: h200, nodes: 1, perNode: 4, price: 2/h, fabric: {bandwidth: 400Gbps}}]",
            constraints="{engines: [vllm], topology: disaggregated}",
            deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
        )
    )
    assert seen.candidates
    assert all(r.replicas >= 1 for c in seen.candidates for r in c.roles)


@pytest.mark.parametrize("bound", ["700ms", "2s"])
def test_servers_that_the_fabric_holds_back_are_predicted_where_they_stand(bound: str) -> None:
    plan = solve(
        split_of(
            slo=f"{{e2e: {{p95: {bound}}}}}",
            traffic="{isl: 1000, osl: 40}",
            pool="[{accelerator: h100, nodes: 1, perNode: 8, fabric: {bandwidth: 25Gbps}}]",
            objective="throughput",
        )
    )
    assert plan.prediction.bounds["e2e.p95"] <= plan.slo["e2e.p95"]


def test_counts_off_the_grid_are_looked_at_where_none_on_it_will_do() -> None:
    stated = {
        "slo": "{e2e: {p99: 508ms}}",
        "traffic": "{rate: 300/s, burstiness: 2, isl: 1000, osl: 40}",
        "pool": "[{accelerator: h200, nodes: 20, perNode: 8, price: 3/h, fabric: {bandwidth: 400Gbps}}]",
        "constraints": "{engines: [sglang], topology: disaggregated, tp: [1], weights: [bf16], "
        "utilization: 1.0, maxAccelerators: 34}",
    }
    for objective in ("cost", "latency"):
        assert search(split_of(objective=objective, **stated)).best is not None


def many(objective: str) -> Problem:
    """A pool so large that the least servers that carry the load are far fewer than those that have it on time."""
    return split_of(
        slo="{e2e: {mean: 790ms}}",
        traffic="{rate: 3000/s, isl: 200, osl: 100}",
        pool="[{accelerator: h100, nodes: 60, perNode: 8, fabric: {bandwidth: 400Gbps}}]",
        objective=objective,
        constraints="{topology: disaggregated, tp: [1], weights: [bf16]}",
    )


@pytest.mark.parametrize("objective", ["cost", "energy", "latency", "throughput"])
def test_no_count_is_too_large_to_be_looked_at(objective: str) -> None:
    assert search(many(objective)).best is not None


def test_of_very_many_counts_the_fewest_that_are_on_time() -> None:
    question = many("cost")
    best, (pair,) = search(question).best, pairs_of(question)
    assert best is not None
    x, y = (v.reshape(-1) + 1.0 for v in np.indices((best.devices, best.devices)))
    enough = (x + y < best.devices) & (x >= Needs.of(pair, pair.load).x.min()) & (y >= Needs.of(pair, pair.load).y.min())
    x, y = x[enough], y[enough]
    assert len(x) > 10_000
    for i in range(len(pair.p)):
        of, nothing = np.full(len(x), i), np.zeros(len(x))
        way = Ways(of, of * 0, x, y, nothing + pair.load[i, 0], nothing, nothing, nothing, x, y)
        assert not Field.join([pair], [way]).on_time(joining(question.slo), Counter()).any()


def test_where_the_load_follows_from_the_bounds_the_ends_of_the_band_are_sized_anew() -> None:
    question = split_of(
        slo="{ttft: {mean: 268ms}, itl: {p95: 10ms}, e2e: {p95: 560ms}}",
        traffic="{rate: 5/s, isl: 3000, osl: 2}",
        pool="[{accelerator: h100, nodes: 1, perNode: 3, price: 1/h, fabric: {bandwidth: 400Gbps}}]",
        objective="throughput",
        constraints="{engines: [sglang], topology: disaggregated, tp: [1, 2], utilization: 1.0}",
    )
    seen = search(question)
    low = dataclasses.replace(question, confidence="low")
    first = search(low).best
    assert first is not None
    assert choose(low, candidates_at(low, seen.outcomes, "best"))[0].name == first.name  # type: ignore[union-attr]
