"""Rounds of speculative decoding: what they yield, what they take, and what clients see of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.drafts import usual_head
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.lower import Config, Lowered, Physics, lower
from servegen.roofline.speculation import yield_moments
from servegen.service import latency
from servegen.service.demand import Demand, demand
from servegen.service.disciplines import DISCIPLINES
from servegen.service.point import Point
from servegen.service.server import server
from servegen.solve.drafting import Speculation, depths, lower_drafting
from servegen.workload import Lengths, Workload
from tests.reference import formulas
from tests.unit import quantiles

ENGINE = resolve_engine("sglang")
TARGET = resolve_model("meta-llama/Llama-3.1-70B-Instruct")
HEAD = usual_head(TARGET, "eagle3", "own/head")
WORKLOAD = Workload(Lengths.stated(mean=1024, p95=3000), Lengths.stated(mean=256, p95=600), rate_per_s=1.0)

depth = st.integers(0, 64)
share = st.floats(0.0, 1.0)


def lowered(drafted: int, acceptance: float = 0.7, physics: Physics = "calibrated", ngram: bool = False) -> Lowered:
    asked = Speculation("ngram" if ngram else "eagle3", None if ngram else HEAD, "own/head", max(drafted, 1), acceptance)
    configs = [Config(resolve_accelerator(a), w, kv, tp, drafted=drafted) for a, w, kv, tp in ROWS]
    return lower_drafting(TARGET, ENGINE, configs, asked, physics)


ROWS = [("h100", "fp8", "bf16", 2), ("h100", "bf16", "fp8", 8), ("l40s", "fp8", "fp8", 4), ("a100-sxm-80gb", "bf16", "bf16", 4)]
PLAIN = lower(TARGET, ENGINE, [Config(resolve_accelerator(a), w, kv, tp) for a, w, kv, tp in ROWS])


# ---- what a round yields ----------------------------------------------------------------------------------------------


@given(drafted=depth, acceptance=share)
def test_the_mean_yield_is_that_of_the_literature(drafted: int, acceptance: float) -> None:
    mean, square = (float(v[0]) for v in yield_moments(np.array([float(drafted)]), np.array([acceptance])))
    expected = drafted + 1.0 if acceptance == 1.0 else formulas.speculated_tokens(acceptance, drafted)
    assert mean == pytest.approx(expected, rel=1e-6)
    assert mean * mean * (1 - 1e-12) <= square <= (drafted + 1) * mean * (1 + 1e-12)


def test_the_moments_are_those_of_drawn_rounds() -> None:
    rng = np.random.default_rng(1)
    accepted = np.cumprod(rng.random((200_000, 5)) < 0.6, axis=1).sum(axis=1) + 1.0
    mean, square = yield_moments(np.array([5.0]), np.array([0.6]))
    assert mean[0] == pytest.approx(accepted.mean(), rel=5e-3)
    assert square[0] == pytest.approx((accepted**2).mean(), rel=1e-2)


@given(drafted=st.integers(1, 64), low=share, high=share)
def test_more_is_accepted_and_more_is_yielded(drafted: int, low: float, high: float) -> None:
    low, high = sorted((low, high))
    few, many = (float(yield_moments(np.array([float(drafted)]), np.array([a]))[0][0]) for a in (low, high))
    assert few <= many * (1 + 1e-12)


# ---- what a round takes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ngram", [False, True])
def test_no_drafted_token_is_the_plain_step(ngram: bool) -> None:
    terms, memory = lowered(0, ngram=ngram).terms, lowered(0, ngram=ngram).memory
    n, kv = np.full(len(ROWS), 37.0), PLAIN.terms.kv_s(1500.0)
    assert terms.kv_s(1500.0) == pytest.approx(kv)
    assert terms.decode_s(n, kv) == pytest.approx(PLAIN.terms.decode_s(n, kv))
    prompts, chunk = np.array([100.0, 5000.0]), np.full(len(ROWS), 2048.0)
    assert terms.prefill_s(prompts, prompts, chunk) == pytest.approx(PLAIN.terms.prefill_s(prompts, prompts, chunk))
    assert memory.sequence_bytes(3000.0) == pytest.approx(PLAIN.memory.sequence_bytes(3000.0))


@given(drafted=st.integers(1, 64), sequences=st.floats(0.01, 1024.0), context=st.floats(1.0, 1e5))
def test_a_round_lies_above_the_step_and_above_its_own_roofline(drafted: int, sequences: float, context: float) -> None:
    n = np.full(len(ROWS), sequences)
    calibrated, ideal = lowered(drafted).terms, lowered(drafted, physics="ideal").terms
    round_s = calibrated.decode_s(n, calibrated.kv_s(context))
    assert np.all(round_s >= PLAIN.terms.decode_s(n, PLAIN.terms.kv_s(context)))
    assert np.all(round_s >= ideal.decode_s(n, ideal.kv_s(context)) * (1 - 1e-12))
    # The verification alone multiplies this much, and reads this much.
    bare = lower(TARGET, ENGINE, calibrated_configs(), "ideal").terms
    assert np.all(round_s >= bare.gemm_s(n * (drafted + 1)) + bare.kv_s(context) * n)


def calibrated_configs() -> list[Config]:
    return [Config(resolve_accelerator(a), w, kv, tp) for a, w, kv, tp in ROWS]


@given(drafted=st.integers(1, 63), sequences=st.floats(0.01, 1024.0))
def test_a_deeper_round_takes_longer(drafted: int, sequences: float) -> None:
    n = np.full(len(ROWS), sequences)
    one, more = (lowered(d).terms for d in (drafted, drafted + 1))
    assert np.all(more.decode_s(n, more.kv_s(2000.0)) >= one.decode_s(n, one.kv_s(2000.0)))


def test_the_parts_of_a_round_sum_to_it() -> None:
    terms = lowered(4).terms
    n, kv = np.full(len(ROWS), 20.0), terms.kv_s(1500.0)
    parts = terms.decode_breakdown_s(n, kv)
    assert sum(parts.values()) == pytest.approx(terms.decode_s(n, kv))
    chunk = np.full(len(ROWS), 2048.0)
    prompt = np.array([5000.0])
    prefill = terms.prefill_breakdown_s(5000.0, 5000.0, chunk)
    assert sum(prefill.values()) == pytest.approx(terms.prefill_s(prompt, prompt, chunk)[:, 0])
    assert np.all(parts["draft"] > 0) and np.all(prefill["draft"] > 0)


def test_a_prompt_is_prefilled_by_the_draft_as_well() -> None:
    prompt, chunk = np.array([4000.0]), np.full(len(ROWS), 2048.0)
    alone = PLAIN.terms.prefill_s(prompt, prompt, chunk)
    drafted = lowered(3).terms.prefill_s(prompt, prompt, chunk)
    assert np.all(drafted > alone) and np.all(drafted < 1.3 * alone)


def test_queries_share_one_reading_until_their_work_outlasts_it() -> None:
    read = PLAIN.terms.token_read_s[:, 0]
    assert lowered(3, ngram=True).terms.kv_s(1.0) == pytest.approx(read)
    assert np.all(lowered(64, ngram=True).terms.kv_s(1.0) > 1.2 * read)


def test_latent_attention_multiplies_for_every_query() -> None:
    target = resolve_model("deepseek-ai/DeepSeek-V3")
    configs = [Config(resolve_accelerator("h200"), "fp8", "bf16", 1, drafted=d) for d in (0, 1, 3)]
    terms = lower_drafting(target, ENGINE, configs, Speculation("ngram", None, "", 3, 0.7)).terms
    kv = terms.kv_s(4096.0)
    assert kv[1:] == pytest.approx([2.0 * kv[0], 4.0 * kv[0]])  # bound by its work from one query on


def test_the_draft_takes_memory() -> None:
    plain, drafting = lowered(0).memory, lowered(3).memory
    assert plain.draft is not None and drafting.draft is not None
    assert np.all(plain.draft.weight_bytes == 0) and np.all(plain.draft.kv_share == 0)
    least = ENGINE.drafts["eagle3"]
    assert np.all(drafting.draft.weight_bytes >= least)
    assert drafting.draft.kv_share == pytest.approx(1 / 81)  # one layer more than the target's 80, of the same shape
    assert np.all(drafting.sequence_bytes(1000.0) > plain.sequence_bytes(1000.0))


def test_a_recurrent_state_is_kept_for_every_token() -> None:
    target = resolve_model("Qwen/Qwen3.5-27B")
    configs = [Config(resolve_accelerator("h100"), "bf16", "bf16", 2, drafted=d) for d in (0, 3)]
    memory = lower_drafting(target, ENGINE, configs, Speculation("ngram", None, "", 3, 0.7)).memory
    assert memory.state_bytes[1] == pytest.approx(5.0 * memory.state_bytes[0])


def test_depths() -> None:
    assert depths(None) == (0,)
    asked = Speculation("ngram", None, "", 5, 0.5)
    assert depths(asked) == (0, 1, 2, 3, 4, 5)
    assert depths(dataclasses.replace(asked, steps=20)) == (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20)


# ---- what clients see -------------------------------------------------------------------------------------------------

D = demand(WORKLOAD)


def point(drafted: int, acceptance: float, level: float, discipline: str = "decode", d: Demand = D) -> Point:
    terms = lowered(drafted, acceptance).terms
    s = server(terms, np.full(len(ROWS), 4096.0), 0.05, d)
    return DISCIPLINES[discipline](s, d, np.full(len(ROWS), level))


def quantile(p: Point, metric: str, probability: float, d: Demand = D) -> np.ndarray:
    exceeds = {
        "itl": lambda t: latency.itl_exceeds(p, t),
        "tpot": lambda t: latency.tpot_exceeds(p, t, d),
        "pace": lambda t: latency.pace_exceeds(p, t, d),
    }[metric]
    return quantiles.quantile(exceeds, probability, len(ROWS))


def test_one_gap_of_a_burst_is_a_round_and_the_others_are_nothing() -> None:
    p = point(4, 0.8, 16.0)
    assert p.burst is not None
    tokens = p.burst.tokens
    assert 3.2 < tokens[0] < formulas.speculated_tokens(0.8, 4)
    tiny = latency.itl_exceeds(p, np.full(len(ROWS), 1e-6))
    assert tiny == pytest.approx(1.0 / tokens, rel=5e-3)  # a normal step is hardly ever nothing
    assert np.all(quantile(p, "itl", 0.5) < 1e-6)
    # p95 over gaps is p(1 - 0.05 E) over rounds.
    plain = dataclasses.replace(p, burst=None)
    assert quantile(p, "itl", 0.95)[0] == pytest.approx(quantile(plain, "itl", 1 - 0.05 * tokens[0])[0], rel=1e-6)
    assert p.gap_mean_s == pytest.approx(p.gap_s / tokens)
    assert quantile(p, "pace", 0.95) == pytest.approx(quantile(p, "tpot", 0.95))


@pytest.mark.parametrize("discipline", ["prefill-first", "decode", "mixed"])
def test_the_pace_of_an_answer_is_one_formula(discipline: str) -> None:
    """Rounds of one token are no rounds."""
    p = point(0, 0.8, 16.0, discipline)
    assert p.burst is not None
    none = dataclasses.replace(p, burst=None)
    for t in (0.9, 1.0, 1.1, 1.5):
        assert latency.tpot_exceeds(p, t * p.gap_mean_s, D) == pytest.approx(latency.tpot_exceeds(none, t * p.gap_mean_s, D))


def test_certain_acceptance_yields_all_and_none_yields_one() -> None:
    sure, never = point(3, 1.0, 8.0), point(3, 1e-9, 8.0)
    assert sure.burst is not None and never.burst is not None
    assert sure.burst.variance == pytest.approx(0.0, abs=1e-9) and sure.burst.past == pytest.approx(1.5)
    assert sure.burst.tokens == pytest.approx(4.0 * D.gaps / (D.gaps + 1.5))
    assert never.burst.tokens == pytest.approx(1.0)
    assert sure.gap_s == pytest.approx(never.gap_s)  # a round lasts as long whatever is accepted


@given(
    drafted=st.integers(1, 32),
    low=st.floats(0.01, 1.0),
    high=st.floats(0.01, 1.0),
    level=st.floats(0.01, 500.0),
    discipline=st.sampled_from(["prefill-first", "decode"]),
)
def test_higher_acceptance_is_never_slower(drafted: int, low: float, high: float, level: float, discipline: str) -> None:
    low, high = sorted((low, high))
    few, many = (point(drafted, a, level, discipline) for a in (low, high))
    assert np.all(many.rate >= few.rate * (1 - 1e-9))
    if discipline == "decode":  # with prefills in between more answers at a time mean more of them
        assert np.all(many.gap_mean_s <= few.gap_mean_s * (1 + 1e-9))


@given(
    drafted=st.integers(0, 64),
    acceptance=st.floats(0.01, 1.0),
    level=st.floats(0.01, 1024.0),
    osl=st.floats(1.0, 2000.0),
    discipline=st.sampled_from(["prefill-first", "decode", "mixed", "prefill"]),
)
def test_figures_are_finite_for_answers_of_every_length(
    drafted: int, acceptance: float, level: float, osl: float, discipline: str
) -> None:
    d = demand(Workload(Lengths.fixed(300), Lengths.fixed(max(round(osl), 1)), rate_per_s=1.0))
    p = point(drafted, acceptance, min(level, 0.9) if discipline == "prefill" else level, discipline, d)
    for value in (p.rate, p.gap_mean_s, latency.e2e_mean(p, d), latency.itl_exceeds(p, np.full(len(ROWS), 0.02))):
        assert np.all(np.isfinite(value)) and np.all(value >= 0)
    if p.burst is not None:
        assert np.all(p.burst.tokens >= 1.0) and np.all(p.burst.tokens <= max(d.gaps, 1.0))
        assert np.all((latency.tpot_exceeds(p, p.gap_mean_s, d) >= 0) & (latency.tpot_exceeds(p, p.gap_mean_s, d) <= 1))
