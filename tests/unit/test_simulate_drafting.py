"""Replays of speculative decoding: rounds are drawn, tokens come in bursts, nothing is lost and nothing drifts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.drafts import mtp_layer, usual_head
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.lower import Config
from servegen.simulate.deployment import replay
from servegen.simulate.drafting import Drafting, Rounder
from servegen.simulate.result import Result
from servegen.simulate.steps import StepModel, Window
from servegen.solve.drafting import Speculation, lower_drafting
from tests.unit.simulations import make_model, make_pool, one, send


def make_drafting(drafted: int = 3, acceptance: float = 0.7, draft: StepModel | None = None, **changes: Any) -> Drafting:
    tokens = sum(acceptance**k for k in range(drafted + 1))
    zero = dict.fromkeys(("launch_s", "sequence_s", "wire_s", "chunk_launch_s", "chunk_wire_s"), 0.0)
    return Drafting(drafted, acceptance, tokens, draft=draft or make_model(), **{**zero, **changes})


def drawn(drafting: Drafting, tokens: int, times: int) -> np.ndarray:
    rounder = Rounder(7)
    return np.array([rounder.rounds(drafting, tokens) for _ in range(times)])


def run(model: StepModel, n: int = 400, every_s: float = 0.5, osl: int = 60, seed: int = 0, **limits: Any) -> Result:
    source = send([i * every_s for i in range(n)], [100] * n, [osl] * n)
    return replay(one(make_pool(model, **limits)), source, seed)


@pytest.mark.parametrize(("drafted", "acceptance"), [(3, 0.7), (1, 0.2), (8, 0.95), (64, 0.5)])
def test_rounds_are_those_of_renewal_theory(drafted: int, acceptance: float) -> None:
    drafting = make_drafting(drafted, acceptance)
    rounds = drawn(drafting, 300, 3000)
    square = sum((2 * k + 1) * acceptance**k for k in range(drafted + 1))
    past = (square - drafting.tokens) / (2 * drafting.tokens)
    assert rounds.mean() == pytest.approx((300 + past) / drafting.tokens, rel=0.01)
    variance = square - drafting.tokens**2
    assert rounds.var() == pytest.approx(300 * variance / drafting.tokens**3, rel=0.15)


@given(drafted=st.integers(1, 64), acceptance=st.floats(0.0, 1.0), tokens=st.integers(1, 3000))
def test_rounds_are_never_more_than_tokens_nor_fewer_than_must_be(drafted: int, acceptance: float, tokens: int) -> None:
    (rounds,) = drawn(make_drafting(drafted, acceptance), tokens, 1)
    assert math.ceil(tokens / (drafted + 1)) <= rounds <= tokens
    if acceptance in (0.0, 1.0):
        assert rounds == (tokens if acceptance == 0.0 else math.ceil(tokens / (drafted + 1)))


def test_a_round_costs_what_it_is_made_of() -> None:
    draft = make_model(weight_s=2e-3, flop_s=1e-5)
    drafting = make_drafting(3, draft=draft, launch_s=1e-3, wire_s=1e-5, chunk_launch_s=5e-3, chunk_wire_s=1e-6)
    model = make_model(fixed_s=4e-3, weight_s=3e-3, flop_s=1e-4, decode_s=1e-4, drafting=drafting)
    # 50 sequences verify 200 tokens; the draft sees them twice alone and once with all four.
    assert model.batch_s(50) == pytest.approx(4e-3 + 50e-4 + 200e-4 + 1e-3 + 50e-5 + 2 * 2e-3 + 2e-3)
    assert drafting.chunk_s(1000, 1000) == pytest.approx(5e-3 + 1e-2 + 1e-3)
    found = run(model, n=1, osl=1)
    assert found.ttft.mean == pytest.approx(4e-3 + 1e-2 + drafting.chunk_s(100, 100))


def test_certain_acceptance_is_counted_by_hand() -> None:
    model = make_model(fixed_s=0.01, drafting=make_drafting(3, 1.0))
    found = run(model, n=1, osl=41)  # the first token from the prompt, then ten rounds of four
    assert found.e2e.mean == pytest.approx(0.01 + 10 * 0.01)
    assert found.tpot.mean == pytest.approx(0.01 / 4)
    assert found.itl.mean == pytest.approx(0.01 / 4)
    assert (found.itl.p50, found.itl.p95) == (pytest.approx(1e-7, rel=1e-2), pytest.approx(0.01, rel=1e-2))
    assert found.output_tokens == 41


def test_one_gap_of_a_round_is_long() -> None:
    model = make_model(fixed_s=0.01, drafting=make_drafting(3, 0.7))
    found = run(model, n=600, every_s=5.0, osl=200)
    gaps = found.gap_bins.sum()
    long = found.gap_bins[len(found.gap_bins) // 4 :].sum() / gaps
    assert gaps == 600 * 199
    assert long == pytest.approx((1 + 1.05 / 199) / make_drafting(3, 0.7).tokens, rel=0.01)
    assert found.tpot.mean == pytest.approx(0.01 * long, rel=0.01)


def test_the_same_seed_gives_the_same_replay_and_another_one_another() -> None:
    model = make_model(fixed_s=0.01, read_s=1e-8, drafting=make_drafting())
    one, same, other = (run(model, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.e2e_s, same.e2e_s) and np.array_equal(one.gap_bins, same.gap_bins)
    assert not np.array_equal(one.e2e_s, other.e2e_s)


@given(
    drafted=st.integers(1, 8),
    acceptance=st.floats(0.05, 1.0),
    pool=st.sampled_from([400.0, 700.0, 1500.0, 1e9]),
    window=st.sampled_from([0, 64, 120, 150]),
    slots=st.sampled_from([3, 1 << 30]),
)
def test_nothing_is_lost_where_sequences_are_retracted_or_fill_windows(
    drafted: int, acceptance: float, pool: float, window: int, slots: int
) -> None:
    windows = (Window(window, 1e-7, 0.0, 1.0),) if window else ()
    model = make_model(fixed_s=0.01, read_s=1e-6, windows=windows, drafting=make_drafting(drafted, acceptance))
    found = run(model, n=60, every_s=0.05, osl=80, pool_bytes=pool, max_running=slots)
    assert found.completed == 60 and found.output_tokens == 60 * 80
    assert found.gap_bins.sum() == pytest.approx(60 * 79)
    assert found.kv_peak <= 1.0 + 9.0 * 80 / pool  # a round may pass the end of an answer
    steps = found.e2e.mean
    assert math.isfinite(steps) and steps > 0


def test_the_pool_is_empty_in_the_end() -> None:
    """Mean yields are no whole numbers: what is added must be what is taken away."""
    from servegen.simulate.batch import Batch
    from servegen.simulate.requests import Request
    from servegen.simulate.result import Log

    model = make_model(fixed_s=0.01, windows=(Window(130, 1e-7, 0.0, 1.0),), drafting=make_drafting(5, 0.6))
    log = Log(50, lambda request, now: None)
    batch = Batch(model, log, rounder=Rounder(1))
    for i in range(50):
        request = Request(i, 0.0, 90 + i, 100)
        batch.join(request, 0)
    now = 0.0
    while batch.size:
        if batch.size == 25:
            assert batch.retract() is not None
        steps = batch.steps_to_next()
        first, slope = batch.step_s()
        end = now + steps * first + slope * steps * (steps - 1) / 2
        batch.advance(steps, now, end, first, slope)
        now = end
        assert batch.held_bytes >= -1e-6
        each = 190 + 50 + 6 + 130  # context, longest answer ... and its window
        assert batch.held_bytes <= batch.size * (each + 100) + 1e-6
    assert batch.held_bytes == 0.0 and batch.growth_bytes == 0.0


CASES = [
    ("meta-llama/Llama-3.1-70B-Instruct", "eagle3", 4, 1, 1),
    ("meta-llama/Llama-3.1-70B-Instruct", "ngram", 8, 1, 1),
    ("deepseek-ai/DeepSeek-V3", "nextn", 8, 1, 8),
    ("deepseek-ai/DeepSeek-V3", "nextn", 8, 8, 8),
    ("google/gemma-3-27b-it", "ngram", 2, 1, 1),
]


@pytest.mark.parametrize("drafted", [0, 1, 4])
@pytest.mark.parametrize(("model", "method", "tp", "dp", "ep"), CASES)
def test_a_round_costs_the_same_in_both(model: str, method: str, tp: int, dp: int, ep: int, drafted: int) -> None:
    """The replay's plain numbers against the columns of the search, attention groups and experts included."""
    target = resolve_model(model)
    draft = mtp_layer(target) if method == "nextn" else usual_head(target, "eagle3", "x") if method == "eagle3" else None
    config = Config(resolve_accelerator("h200"), target.native_precision, "bf16", tp, dp=dp, ep=ep, drafted=drafted)
    asked = Speculation(method, draft, "", 4, 0.8)
    low = lower_drafting(target, resolve_engine("sglang"), [config], asked)
    step = StepModel.of(low.terms, 0, low.memory.kv_bytes[0].tolist(), float(low.memory.state_bytes[0]))
    assert (step.drafting is None) == (drafted == 0)
    for n in (1, 7, 64, 200):
        context = 3000
        read = step.read_s * context + sum(w.read_s * min(context, w.tokens) for w in step.windows)
        found = step.batch_s(n) + read * n * step.read_share(n)
        assert found == pytest.approx(float(low.terms.decode_s(np.array([float(n)]), low.terms.kv_s(context))[0]), rel=1e-9)
    for tokens in (100, 4000):
        alone = step.prompts_s(tokens, 1, step.attention_s(0, tokens), 1)
        prompt, chunk = np.array([float(tokens)]), np.array([1e9])
        assert alone == pytest.approx(float(low.terms.prefill_s(prompt, prompt, chunk)[0, 0]), rel=1e-9)
    assert step.held_bytes(context) == pytest.approx(float(low.memory.sequence_bytes(float(context))[0]))
