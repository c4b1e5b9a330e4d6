"""How long a first token waits, and for whom."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from servegen.service import latency, waiting
from servegen.service.demand import EDGES
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.service.server import server
from servegen.service.waiting import Work
from servegen.solve.space import build, chunks_for
from tests.solver.specs import problem
from tests.unit.quantiles import quantile


def seen_with(wait_cv2: float, delayed: float, rest: float, edges: float, wait: float = 0.1) -> Point:
    """A server of one row whose prompts all take ``edges`` seconds."""
    p = problem(traffic="{rate: 1/s, isl: 1000, osl: 100}", deploy="{image: 'registry/image:1', modelCache: {claim: weights}}")
    rows = build(p, p.engines[0], p.pool[0], chunks_for(p), Counter())
    assert rows is not None
    one = rows.at(np.arange(1))
    ones = np.ones(1)
    return dataclasses.replace(
        DISCIPLINES["prefill-first"](server(one.terms, one.chunk, 0.0, p.demand), p.demand, ones),
        const_s=0.0 * ones,
        rest_s=rest * ones,
        delayed=delayed * ones,
        wait_s=wait * ones,
        wait_cv2=wait_cv2 * ones,
        service_edges_s=edges * np.ones((1, len(EDGES))),
    )


def ttft_at(p: Point, probability: float) -> float:
    return float(quantile(lambda t: latency.ttft_exceeds(p, t), probability, len(p.level))[0])


def test_the_rest_of_a_step_lies_evenly_within_it() -> None:
    """An idle replica: a first token waits for the rest of a step, and no more."""
    p = seen_with(1.0, delayed=0.0, rest=0.2, edges=1.0)
    assert ttft_at(p, 0.5) == pytest.approx(1.1, rel=1e-6)
    assert ttft_at(p, 0.95) == pytest.approx(1.19, rel=1e-6)


@pytest.mark.parametrize(("cv2", "p95"), [(1 / 3, 1.9), (1.0, math.log(20.0)), (0.5, 3.0 * (1.0 - 0.05**0.5)), (0.2, 1.9)])
def test_a_wait_is_even_exponential_or_between(cv2: float, p95: float) -> None:
    """In mean waits; none varies less than the rest of an even step."""
    p = seen_with(cv2, delayed=1.0, rest=0.0, edges=0.0, wait=0.1)
    assert ttft_at(p, 0.95) == pytest.approx(0.1 * p95, rel=1e-6)


def test_who_shares_a_step_waits_for_no_other() -> None:
    """Where one more prompt adds nothing, one waits for the step in progress alone, however busy; where it adds all, M/G/1."""
    d = dataclasses.replace(problem().demand, arrival_cv2=1.0, queue_cv2=1.0)
    one = np.ones(1)
    for busy in (0.3, 0.9, 0.999):
        shared = Work(0.1 * one, 0.0 * one, 3.0 * one, 0.0 * one, one, one)
        delayed, mean = waiting.wait(shared, busy * one, one, d, 1.0)
        np.testing.assert_allclose(delayed * mean, busy * 0.3 / 2.0)  # half of the step of three
        alone = dataclasses.replace(shared, more_s=0.1 * one)
        delayed, mean = waiting.wait(alone, busy * one, one, d, 1.0)
        np.testing.assert_allclose(delayed * mean, busy * 0.1 / 2.0 / (1.0 - busy))


def test_a_burst_finds_fewer_computed_prompts_than_it_has() -> None:
    """Those who come in one decode step wait together: only who came before it is found being computed."""
    busy, delayed = np.full(1, 0.2), np.full(1, 0.7)
    assert waiting.interrupting(busy, delayed, np.full(1, 1.0)) == pytest.approx(0.7)
    assert waiting.interrupting(busy, delayed, np.full(1, 0.5)) == pytest.approx(0.4)
    assert waiting.interrupting(busy, delayed, np.full(1, 0.3)) == pytest.approx(0.2)
