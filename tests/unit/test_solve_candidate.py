"""The total order, whose first candidates are found without all of its keys; what a role is, row by row."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from servegen.solve.candidate import Candidate, first_of, leading, three_digits
from servegen.solve.problem import Problem
from servegen.solve.search import Searched, search
from tests.solver.specs import LLAMA_8B, problem, reduced

POOL = "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}, {accelerator: l40s, nodes: 2, perNode: 4}]"


@pytest.fixture(scope="module", params=["cost", "latency"])
def asked(request: pytest.FixtureRequest) -> tuple[Problem, Searched]:
    slo = "{ttft: {p95: 1s}, itl: {p95: 50ms}}"
    question = problem(model=LLAMA_8B, slo=slo, pool=POOL, objective=request.param, constraints="{kvCache: [bf16, fp8]}")
    with reduced((8, 32, 128), (1024, 2048)):
        return question, search(question)


def spelled(problem: Problem, c: Candidate) -> tuple[object, ...]:
    return (*c.key(problem)[:-1], c.name)


def test_the_leading_ones_are_the_first_of_all_sorted(asked: tuple[Problem, Searched]) -> None:
    question, seen = asked
    every = list(seen.candidates)
    random.Random(1).shuffle(every)
    ordered = sorted(every, key=lambda c: spelled(question, c))
    assert len(ordered) > 30
    for count in (1, 2, 24, len(ordered), len(ordered) + 1):
        assert leading(question, every, count) == ordered[:count]
    assert first_of(question, every) is ordered[0]
    assert first_of(question, []) is None


def test_a_name_decides_where_nothing_else_does(asked: tuple[Problem, Searched]) -> None:
    question, seen = asked
    one, other = seen.candidates[:2]
    mine, its = one.key(question)[-1], other.key(question)[-1]
    assert (mine < its, mine > its, mine == its) == (one.name < other.name, one.name > other.name, False)  # type: ignore[operator]
    assert one.key(question) == one.key(question)


@pytest.mark.parametrize("headroom", [1.055, 1.145])  # which are halfway, and rounded as text to 1.05 and 1.15
def test_headroom_is_rounded_as_it_is_in_columns(asked: tuple[Problem, Searched], headroom: float) -> None:
    question, seen = asked
    key = dataclasses.replace(seen.candidates[0], headroom=headroom).key(question)
    assert -float(three_digits(np.array([headroom]))[0]) in key


def test_a_role_has_the_memory_of_its_row(asked: tuple[Problem, Searched]) -> None:
    _, seen = asked
    for c in seen.candidates[::7]:
        for role in c.roles:
            whole, own = role.block.budget, role.budget
            assert (own.pool[0] == whole.pool[role.row]).all()
            assert (own.fraction[0] == whole.fraction[role.row]).all()
            assert own.fits[0, role.limit]
