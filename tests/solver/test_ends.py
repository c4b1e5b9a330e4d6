"""The best plan at the other ends of the band, found from what the search saw, is what a search at that end finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.solve.candidate import Candidate
from servegen.solve.ends import candidates_at
from servegen.solve.reuse import open_question
from servegen.solve.search import choose, search
from servegen.solve.uncertainty import ENDS
from tests.solver.specs import problem_of, reduced
from tests.solver.test_whole_language import BOUNDS, SETTINGS, SMALL, TRACES, questions


def agree(examples: int, engine: str = "") -> None:
    feasible = 0

    @given(text=questions(engine=engine, bounds=BOUNDS[1:]), alone=st.booleans())
    @settings(max_examples=examples, **SETTINGS)
    def agreed(text: str, alone: bool) -> None:
        nonlocal feasible
        question = problem_of(text, str(TRACES / "asked.yaml"))
        if open_question(question):
            return
        asked = question
        with reduced(*SMALL):
            seen = search(question)
            if alone and seen.best is not None:  # as a member of a fleet: on the kinds that it is given
                asked = dataclasses.replace(question, pool=seen.best.kinds, topology=seen.best.topology, groups=False)
            for end in ENDS:
                other = dataclasses.replace(asked, confidence=end)
                found = choose(other, candidates_at(other, seen.outcomes, question.confidence))[0]
                best = search(other).best
                assert told(found) == told(best)
                feasible += best is not None

    agreed()
    assert feasible >= examples / 4


def told(found: Candidate | None) -> Any:
    """What a plan's case says of it, and what it carries but for the last bits: a sum over other rows may end in others."""
    if found is None:
        return None
    carried = tuple(f"{r.sustained:.9g}" for r in found.roles)
    return found.name, tuple(r.replicas for r in found.roles), found.devices, found.cost_per_h, carried


def test_the_ends_of_the_band_are_those_that_a_search_there_finds() -> None:
    agree(60)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm, sglang", "megatron"])
def test_of_many_more_too(engine: str) -> None:
    agree(400, engine)
