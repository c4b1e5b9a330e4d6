"""Pools that yield what they can: what is easier never yields less, and of a split each pair's most that is on time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.service.size import Slo
from servegen.solve import filled
from servegen.solve.candidate import least_of, place_of, three_digits
from servegen.solve.filled import Tops
from servegen.solve.problem import Problem
from servegen.solve.search import search, solve
from servegen.solve.split import joining
from tests.solver.specs import LLAMA_8B, problem, problem_of, reduced, spec_text
from tests.solver.test_timed_pairs import pairs_of, pool_of
from tests.solver.test_whole_language import SETTINGS, SMALL


def eased(question: Problem, factor: float, *metrics: str) -> Problem:
    """Bounds on these metrics ``factor`` times as long."""

    def longer(bounds: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(dataclasses.replace(b, seconds=b.seconds * factor) if b.metric in metrics else b for b in bounds)  # type: ignore[attr-defined,type-var]

    slo = question.slo
    return dataclasses.replace(question, slo=Slo(longer(slo.bounds), slo.attainment, longer(slo.jointly)))  # type: ignore[arg-type]


EASIER: dict[str, Callable[[Problem, float], Problem]] = {
    "whole requests": lambda q, f: eased(q, f, "e2e"),
    "first tokens": lambda q, f: eased(q, f, "ttft"),
    "gaps": lambda q, f: eased(q, f, "itl", "tpot"),
    "utilization": lambda q, f: dataclasses.replace(q, utilization=min(q.utilization * f, 1.0)),
}


@st.composite
def full(draw: st.DrawFn, topology: str) -> str:
    """A pool that is to yield what it can, with bounds on whole requests near what it can do."""
    kinds = draw(st.lists(st.sampled_from(("h100", "l40s", "a100-sxm-80gb")), min_size=1, max_size=2, unique=True))
    prompt, answer = draw(st.sampled_from((200, 1024, 3000))), draw(st.sampled_from((2, 20, 60)))
    first, gap = draw(st.sampled_from((100, 200, 400, 900))), draw(st.sampled_from((12, 20, 40)))
    seconds = draw(st.integers(10, 30)) / 10 * (answer * 0.008 + prompt * 0.0001)  # about what an idle server takes, and more
    slo = draw(
        st.sampled_from(
            (
                f"{{ttft: {{p95: {first}ms}}, itl: {{p95: {gap}ms}}, e2e: {{mean: {seconds:.3g}s}}}}",
                f"{{ttft: {{mean: {first}ms}}, e2e: {{p95: {seconds:.3g}s}}}}",
                f"{{ttft: {first}ms, tpot: {gap}ms, e2e: {seconds:.3g}s, attainment: 0.9}}",
            )
        )
    )
    load = draw(st.sampled_from(("", "", "burstiness: 2, ", "rate: 2/s, ", "users: {active: 20, thinkTime: 3s}, ")))
    return spec_text(
        model=LLAMA_8B,
        slo=slo,
        traffic=f"{{{load}isl: {prompt}, osl: {answer}}}",
        pool=pool_of(*((kind, draw(st.sampled_from((1, 2, 5))), 1) for kind in kinds)),
        objective="throughput",
        constraints=f"{{engines: [sglang], topology: {topology}, tp: [1, 2], weights: [bf16], "
        f"utilization: {draw(st.sampled_from((0.6, 0.85, 1.0)))}}}",
    )


def never_less(topology: str, examples: int) -> None:
    answered = 0

    @given(text=full(topology), what=st.sampled_from(sorted(EASIER)), factor=st.sampled_from((1.01, 1.1, 1.5, 4.0)))
    @settings(max_examples=examples, **SETTINGS)
    def yields(text: str, what: str, factor: float) -> None:
        nonlocal answered
        question = problem_of(text)
        with reduced(*SMALL):
            before, after = search(question).best, search(EASIER[what](question, factor)).best
        if before is None:
            return
        answered += 1
        assert after is not None
        assert after.objective <= before.objective

    yields()
    assert answered >= examples / 4


@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_what_is_easier_never_yields_less(topology: str) -> None:
    never_less(topology, 60)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["aggregated", "disaggregated"])
def test_what_is_easier_never_yields_less_of_many(topology: str) -> None:
    never_less(topology, 600)


def tight() -> Problem:
    return problem(
        model=LLAMA_8B,
        slo="{ttft: {p95: 900ms}, e2e: {mean: 450ms}}",
        traffic="{isl: 1024, osl: 60}",
        pool=pool_of(("h100", 4, 3)),
        objective="throughput",
        constraints="{engines: [sglang], topology: disaggregated, tp: [1, 2], weights: [bf16]}",
    )


@pytest.mark.parametrize("few", [1, 100])
def test_the_most_that_is_on_time_is_yielded_and_no_more(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """Of every largest pair of counts some load with the digits of the best yield is on time, and none of higher ones."""
    monkeypatch.setattr(filled, "FEW", few)
    question = tight()
    whole, pairs = joining(question.slo), pairs_of(question)
    tops = Tops.of(pairs)
    most = tops.most(whole, Counter())
    field, limited = tops.field, 0
    for k in np.flatnonzero(most >= 0).tolist():
        rows = np.flatnonzero(field.of == k)
        for place in range(int(most[k]), int(most[k]) + 12):
            able = rows[tops.place[rows] >= place]
            load = np.full(len(able), float(least_of(np.array(place))) / question.demand.osl_mean)
            fine = field.loaded(able, load).on_time(whole, Counter()).any() if len(able) else False
            assert fine == (place == most[k])
        limited += int(tops.place[rows].max() > most[k])
    assert limited > 1


def test_a_plan_of_a_full_pool_is_on_time_below_what_it_sustains() -> None:
    """What a pool is loaded with is on time, and with the utilization that is allowed it would not be."""
    question = tight()
    plan, best = solve(question), search(question).best
    assert best is not None
    assert plan.prediction.bounds["e2e.mean"] <= plan.slo["e2e.mean"]
    assert max(r.load / r.sustained for r in best.roles) < question.utilization


def test_a_pool_that_holds_no_pair_yields_nothing() -> None:
    seen = search(dataclasses.replace(tight(), max_accelerators=1))
    assert seen.best is None
    assert seen.rejected["split: more accelerators needed than there are"] == seen.searched


def test_three_digits_are_numbered_as_they_rise() -> None:
    values = np.array([1.0, 1.004, 1.006, 9.99, 9.994, 9.996, 123.4, 99950.1, 3.2e-7])
    places = place_of(values)
    assert (np.diff(places[np.argsort(values)]) >= 0).all()
    assert (places[:-1][values[:-1] >= 1] - place_of(np.array([1.0]))).tolist() == [0, 0, 1, 899, 899, 900, 1823, 4500]
    least = least_of(places)
    assert (three_digits(least) == three_digits(values)).all()
    assert (three_digits(least * (1 - 3e-9)) < three_digits(values)).all()
