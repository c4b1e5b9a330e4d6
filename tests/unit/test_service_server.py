"""What a replica takes for its prompts: moments over lengths, and bins that know where a step begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.service.demand import PLACES
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import stacked
from servegen.service.server import Server, server
from servegen.solve.problem import Problem
from servegen.solve.search import search
from tests.solver.specs import LLAMA_8B, problem, scheduling

CHAT = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"


def asked(lengths: str, scheduler: str = "prefill-first") -> Problem:
    stated = problem(
        model=LLAMA_8B,
        pool="[{accelerator: h100, nodes: 1, perNode: 1}]",
        traffic=f"{{rate: 1/s, {lengths}}}",
        constraints="{engines: [sglang], tp: [1], weights: [bf16], topology: aggregated}",
    )
    return scheduling(stated, scheduler)


def servers(asked: Problem, chunks: tuple[float, ...]) -> Server:
    """The replica of a plan, with prefill steps of so many tokens."""
    best = search(asked).best
    assert best is not None
    own = best.roles[0].block.server
    terms = dataclasses.replace(own.terms, **{
        f.name: value[:1].repeat(len(chunks), axis=0)
        for f in dataclasses.fields(own.terms)
        if isinstance(value := getattr(own.terms, f.name), np.ndarray) and f.name != "window"
    })  # fmt: skip
    return server(terms, np.array(chunks), 0.02, asked.demand)


@given(chunk=st.integers(256, 16384), mean=st.integers(200, 6000), spread=st.sampled_from([0.0, 1.1, 2.0, 3.0]))
@settings(deadline=None, max_examples=40)
def test_bins_of_a_prompt_alone_hold_all_prompts_and_their_mean(chunk: int, mean: int, spread: float) -> None:
    lengths = f"isl: {{mean: {mean}, p95: {spread * mean:g}}}" if spread else f"isl: {mean}"
    p = asked(f"{lengths}, osl: 100")
    s = servers(p, (float(chunk),))
    low, high, weights = s.prefill_low_s[0], s.prefill_high_s[0], s.prefill_weights[0]
    assert weights.sum() == pytest.approx(1.0) and (weights >= -1e-12).all() and (low <= high + 1e-15).all()
    assert low[0] >= s.prefill_edges_s[0, 0] - 1e-12 and high[-1] <= s.prefill_edges_s[0, -1] + 1e-12
    # Beyond the longest that is planned for, none is in a bin, but all are in the mean.
    rng = np.random.default_rng(5)
    drawn = np.minimum(p.workload.isl.sample(rng, 4000), p.workload.isl.longest).astype(float)
    alone = s.terms.prefill_s(drawn, drawn, s.chunk)[0]
    assert float((low + high) / 2.0 @ weights) == pytest.approx(alone.mean(), rel=0.1)


def test_an_edge_is_moved_to_the_end_of_its_step() -> None:
    """Of prompts of 400 to 700 tokens the quarter that is the shortest ends where the first step does."""
    s = servers(asked("isl: {histogram: [[400, 0], [700, 1]]}, osl: 100"), (512.0, 4096.0))
    assert s.prefill_weights[0, 0] == pytest.approx((512 - 400) / 300, abs=0.01)
    assert s.prefill_low_s[0, 1] > 1.9 * s.prefill_high_s[0, 0]
    np.testing.assert_allclose(s.prefill_weights[1], np.diff([0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1]))


def test_tokens_are_as_far_in_their_prompts_as_drawn_ones() -> None:
    p = asked(CHAT)
    lengths = p.workload.isl.sample(np.random.default_rng(6), 40_000)
    before = np.concatenate([np.arange(n) for n in lengths])
    np.testing.assert_allclose(p.demand.places[1:], np.quantile(before, PLACES[1:]), rtol=0.08)
    np.testing.assert_allclose(asked("isl: 1000, osl: 9").demand.places, 1000.0 * PLACES, rtol=0.01)


def test_powers_of_lengths_count_the_longest() -> None:
    p = asked(CHAT)
    d, lengths = p.demand, p.workload.isl
    assert d.uncached_cv2 == pytest.approx(lengths.variance / lengths.mean**2, rel=0.04)
    assert d.uncached_fine @ d.fine_weights == pytest.approx(lengths.mean, rel=1e-9)
    np.testing.assert_allclose(d.nodes_of(d.uncached_fine[None, :])[0], d.uncached_nodes, rtol=1e-9)
    s = servers(p, (2048.0,))
    each = s.terms.attention_s(d.total_fine, d.total_fine - d.uncached_fine)[0]
    for i, (x, a) in enumerate([(1, 1), (0, 2), (2, 1), (1, 2), (0, 3)]):
        assert s.attention_moments[0, i] == pytest.approx(d.uncached_fine**x * each**a @ d.fine_weights)
    assert s.attention_nodes_s[0] @ d.node_weights == pytest.approx(s.attention_mean_s[0])


def test_points_of_several_disciplines_stack() -> None:
    p = asked(CHAT)
    s = servers(p, (1024.0,))
    one, other = (DISCIPLINES[name](s, p.demand, np.array([20.0])) for name in ("prefill-first", "mixed"))
    both = stacked([one, other])
    assert both.stall_weights.shape == (2, max(one.stall_weights.shape[1], other.stall_weights.shape[1]))
    np.testing.assert_allclose(both.stall_weights.sum(axis=1), 1.0)
    np.testing.assert_array_equal(both.rate, [one.rate[0], other.rate[0]])
