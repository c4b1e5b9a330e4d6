"""One replica in the steady state: queueing limits, Little's law, directions, and the searches over the level."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.demand import EDGE_WEIGHTS, EDGES, WIDTHS, Demand
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.point import Point
from servegen.service.server import Server, batching_gain, server
from servegen.service.size import Bound, Slo
from servegen.solve.problem import Problem
from servegen.solve.space import build, chunks_for
from tests.solver.specs import LLAMA_8B, LLAMA_70B, problem
from tests.unit.quantiles import quantile

OPEN = ("prefill-first", "mixed", "static", "prefill", "decode")
METRICS = ("ttft", "itl", "tpot", "e2e")
LENGTHS = (
    "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}",
    "isl: 2000, osl: 100",
    "isl: {mean: 200, p95: 500}, osl: {mean: 900, p95: 2000}",
    "isl: {mean: 6000, p95: 14000}, osl: 30",
)


@functools.cache
def asked(model: str = LLAMA_70B, lengths: str = LENGTHS[0], engine: str = "sglang", more: str = "") -> tuple[Problem, Server]:
    """A problem on H100 and its servers, one row per (precision, TP, chunk)."""
    p = problem(
        model=model,
        traffic=f"{{rate: 1/s, {lengths}{more}}}",
        constraints=f"{{engines: [{engine}]}}",
        deploy="{image: 'registry/image:1', modelCache: {claim: weights}}",
    )
    rows = build(p, p.engines[0], p.pool[0], chunks_for(p), Counter())
    assert rows is not None
    return p, server(rows.terms, rows.chunk, p.engines[0].facts.request_s.value, p.demand)


def at(discipline: str, s: Server, d: Demand, level: float) -> Point:
    return DISCIPLINES[discipline](s, d, np.full(len(s.chunk), level))


def levels(discipline: str, most: float = 300.0) -> np.ndarray:
    top = 1 - 1e-6 if discipline == "prefill" else most
    return np.exp(np.linspace(math.log(1e-3), math.log(top), 24))


# ---- queues -------------------------------------------------------------------------------------------------------------


def lone(s: Server, d: Demand, service_s: float, cv2: float, arrivals_cv2: float) -> tuple[Server, Demand]:
    """One prefill server of that service time that never batches."""
    one = dataclasses.replace(
        s,
        chunk=np.full_like(s.chunk, 1.0),
        prefill_mean_s=np.full_like(s.chunk, service_s),
        prefill_cv2=np.full_like(s.chunk, cv2),
        request_s=np.zeros_like(s.chunk),
        prefill_edges_s=np.full_like(s.prefill_edges_s, service_s),
        first_edges_s=np.full_like(s.first_edges_s, service_s),
        extra_mean_s=np.zeros_like(s.chunk),
        left_s=np.zeros_like(s.chunk),
    )
    # Attention alone, so that prompts gain nothing from each other.
    free = dataclasses.replace(
        s.terms, launch_s=0 * s.chunk, latency_s=0 * s.chunk, weight_s=0 * s.chunk, token_wire_s=0 * s.chunk
    )
    one = dataclasses.replace(one, terms=free, alone_s=d.uncached_mean * free.token_flop_s + free.sequence_s + s.attention_mean_s)
    return one, dataclasses.replace(d, arrival_cv2=arrivals_cv2, queue_cv2=arrivals_cv2)


@pytest.mark.parametrize("busy", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("cv2", [0.0, 0.4, 1.0, 3.0])
def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(busy: float, cv2: float) -> None:
    p, s = asked()
    one, d = lone(s, p.demand, 0.1, cv2, 1.0)
    seen = at("prefill", one, d, busy)
    rate = busy / 0.1
    np.testing.assert_allclose(seen.rate, rate, rtol=1e-9)
    second_moment = 0.1**2 * (1 + cv2)
    np.testing.assert_allclose(seen.delayed * seen.wait_s, rate * second_moment / (2 * (1 - busy)), rtol=1e-9)


def test_deterministic_service_is_the_published_prefill_queue() -> None:
    """I01 (F42): D = 100 ms at 5 requests/s make a mean first token of 150 ms."""
    p, s = asked()
    one, d = lone(s, p.demand, 0.1, 0.0, 1.0)
    np.testing.assert_allclose(latency.ttft_mean(at("prefill", one, d, 0.5)), 0.15, rtol=1e-9)


@pytest.mark.parametrize("burst", [0.0, 0.5, 1.5, 4.0])
def test_near_saturation_bursts_lengthen_the_queue_in_proportion(burst: float) -> None:
    """Kingman's limit; away from it they lengthen it, too."""
    p, s = asked()
    calm, bursty = lone(s, p.demand, 0.1, 0.0, 1.0), lone(s, p.demand, 0.1, 0.0, burst**2)

    def mean(case: tuple[Server, Demand], busy: float) -> np.ndarray:
        seen = at("prefill", *case, busy)
        return np.asarray(seen.delayed * seen.wait_s)

    np.testing.assert_allclose(mean(bursty, 0.9999), mean(calm, 0.9999) * burst**2, rtol=0.01, atol=1e-3)
    assert np.all((mean(bursty, 0.5) > mean(calm, 0.5)) == (burst > 1.0))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("discipline", ["prefill-first", "mixed", "decode"])
def test_littles_law_of_the_decodes(discipline: str, lengths: str) -> None:
    """Mean number decoding = rate x gaps x mean gap."""
    p, s = asked(lengths=lengths, engine="vllm" if discipline == "mixed" else "sglang")
    for level in levels(discipline):
        seen = at(discipline, s, p.demand, level)
        np.testing.assert_allclose(seen.rate * p.demand.gaps * seen.gap_mean_s, seen.level, rtol=1e-3)
        assert np.all(seen.level <= level * (1 + 1e-9))


def test_littles_law_where_prompts_set_the_pace() -> None:
    """No more sequences decode than prefills feed, whatever level is asked for."""
    p, s = asked(lengths=LENGTHS[3], engine="vllm")
    seen = at("mixed", s, p.demand, 200.0)
    assert np.all(seen.level < 200.0)
    np.testing.assert_allclose(seen.rate * p.demand.gaps * seen.gap_mean_s, seen.level, rtol=1e-9)
    assert seen.rate.tolist() == at("mixed", s, p.demand, 400.0).rate.tolist()


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("more", ["", ", burstiness: 2.5"])
def test_a_mixed_step_holds_no_more_tokens_than_its_budget(lengths: str, more: str) -> None:
    """Those that decode take a token each; what they leave is all that prompts have."""
    p, s = asked(lengths=lengths, engine="vllm", more=more)
    d = p.demand
    for level in levels("mixed", 4096.0):
        seen = at("mixed", s, d, level)
        assert np.all(seen.rate * (d.uncached_mean + d.gaps) * seen.gap_mean_s <= s.chunk * 1.02)


def test_no_replica_carries_a_million_requests_in_flight() -> None:
    """In a closed loop no more can wait than there are slots; open arrivals beyond the stability limit wait for ever."""
    p, s = asked(lengths=LENGTHS[0], engine="vllm")
    closed = dataclasses.replace(p.demand, open_loop=False)
    assert np.all(size.load("concurrency", at("mixed", s, closed, 400.0), closed) < 1e6)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_prefill_first_stalls_are_the_time_that_prefills_take(lengths: str) -> None:
    """Over a long time whoever runs decodes or stands still, and the mean gap counts both. While a prompt is computed those stand
    who run on average, and who was computed before it in its queue; the fewer of these the less time prompts take."""
    p, s = asked(lengths=lengths)
    for level in levels("prefill-first"):
        seen = at("prefill-first", s, p.demand, level)
        standing = (level - seen.rate * p.demand.gaps * seen.gap_s) / seen.busy
        assert np.all(standing >= level * (1.0 - 1e-9))
        assert np.all(standing - level <= 3.0 * seen.busy / (1.0 - seen.busy) * (1.0 + s.prefill_cv2) + 1e-9)
        np.testing.assert_allclose(seen.rate * p.demand.gaps * seen.gap_mean_s, level, rtol=1e-9)


# ---- directions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["prefill-first", "mixed", "prefill", "decode"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B])
def test_a_fuller_replica_carries_more(discipline: str, lengths: str, model: str) -> None:
    p, s = asked(model, lengths, "vllm" if discipline == "mixed" else "sglang")
    before = None
    for level in levels(discipline):
        seen = at(discipline, s, p.demand, level)
        loads = [seen.rate, size.load("concurrency", seen, p.demand), size.load("users", seen, p.demand, 8.0)]
        for now, then in zip(loads, before or loads, strict=True):
            assert np.all(now >= then * (1 - 1e-9))
        before = loads


@pytest.mark.parametrize("discipline", OPEN)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_later_bound_is_missed_less_often(discipline: str, lengths: str) -> None:
    p, s = asked(
        LLAMA_70B if discipline != "static" else LLAMA_8B,
        lengths,
        {"mixed": "vllm", "static": "megatron"}.get(discipline, "sglang"),
    )
    times = np.exp(np.linspace(math.log(1e-4), math.log(1e3), 60))
    for level in levels(discipline)[::6]:
        seen = at(discipline, s, p.demand, level)
        for metric in METRICS:
            missed = np.array([size.exceeds(metric, seen, p.demand, np.full(len(s.chunk), t)) for t in times])
            assert np.all((missed >= -1e-12) & (missed <= 1 + 1e-12)), metric
            assert np.all(np.diff(missed, axis=0) <= 1e-12), metric


@pytest.mark.parametrize("discipline", ["prefill-first", "mixed", "prefill", "decode"])
@pytest.mark.parametrize("lengths", LENGTHS[:2])
@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B])
def test_a_fuller_replica_misses_more(discipline: str, lengths: str, model: str) -> None:
    """Beyond the median, where bounds lie; prompts that share a step give back less than two thousandths."""
    p, s = asked(model, lengths, "vllm" if discipline == "mixed" else "sglang")
    for metric in METRICS:
        for t in (0.01, 0.03, 0.1, 0.5, 2.0, 10.0, 60.0):
            before = np.zeros(len(s.chunk))
            for level in levels(discipline):
                seen = at(discipline, s, p.demand, level)
                missed = size.exceeds(metric, seen, p.demand, np.full(len(s.chunk), t))
                assert np.all((missed >= before - 2e-3)[before < 0.5]), (metric, t, level)
                before = np.maximum(before, missed)


@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_prompts_that_share_a_step_cost_less_each_and_no_less_together(model: str, lengths: str) -> None:
    p, s = asked(model, lengths)
    counts = [1.0, 1.5, 2.0, 4.0, 9.0, 40.0]
    gains = np.array([batching_gain(s, p.demand, np.full(len(s.chunk), k)) for k in counts])
    np.testing.assert_allclose(gains[0], 1.0)
    assert np.all(np.diff(gains, axis=0) <= 1e-12)
    assert np.all(np.diff(gains * np.array(counts)[:, None], axis=0) >= -1e-12)


# ---- percentiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", OPEN)
@pytest.mark.parametrize("probability", [0.3, 0.5, 0.9, 0.95, 0.99])
def test_a_quantile_is_where_the_chance_crosses(discipline: str, probability: float) -> None:
    p, s = asked(
        LLAMA_8B if discipline == "static" else LLAMA_70B,
        LENGTHS[0],
        {"mixed": "vllm", "static": "megatron"}.get(discipline, "sglang"),
    )
    for level in (0.01, 0.4, 0.9) if discipline == "prefill" else (0.01, 2.0, 60.0):
        seen = at(discipline, s, p.demand, level)
        for metric in METRICS:
            found = quantile(lambda t, m=metric, q=seen: size.exceeds(m, q, p.demand, t), probability, len(s.chunk))
            inside = (found > 2e-7) & (found < 9e4)  # a role without gaps, or without first tokens, has none
            above = size.exceeds(metric, seen, p.demand, found * (1 + 1e-6))
            below = size.exceeds(metric, seen, p.demand, found * (1 - 1e-6))
            assert np.all((above <= 1 - probability + 1e-9)[inside])
            assert np.all((below >= 1 - probability - 1e-9)[inside])


@pytest.mark.parametrize("discipline", ["prefill-first", "prefill", "static"])
def test_the_mean_first_token_is_the_area_under_the_chances(discipline: str) -> None:
    """Where nothing waits for a step; binning the prompts may add a little, never take away."""
    p, s = asked(LLAMA_8B, LENGTHS[0], "megatron" if discipline == "static" else "sglang")
    seen = at(discipline, s, p.demand, 0.5 if discipline == "prefill" else 8.0)
    times = np.concatenate(([0.0], np.exp(np.linspace(math.log(1e-4), math.log(200.0), 6000))))
    chances = np.array([latency.ttft_exceeds(seen, np.full(len(s.chunk), t)) for t in times])
    area = np.sum((chances[1:] + chances[:-1]) / 2 * np.diff(times)[:, None], axis=0)
    mean = latency.ttft_mean(seen)
    assert np.all(area >= mean * 0.98)
    # A request can come just after a step began (the percentiles count a whole one), and bins are linear in between.
    assert np.all(area <= mean * 1.12 + seen.gap_s)


def test_weights_of_the_edges() -> None:
    assert WIDTHS.sum() == pytest.approx(1.0) and EDGE_WEIGHTS.sum() == pytest.approx(1.0)
    values = np.linspace(0.0, 3.0, len(EDGES))
    assert EDGE_WEIGHTS @ values == pytest.approx(((values[1:] + values[:-1]) / 2) @ WIDTHS)


def test_the_edges_hold_the_stated_percentiles() -> None:
    d = asked()[0].demand
    at_p95 = float(np.interp(0.95, EDGES, d.total_edges))
    assert at_p95 == pytest.approx(3000, rel=1e-6)
    assert d.total_nodes @ d.node_weights == pytest.approx(1024, rel=1e-6)


def test_a_shared_head_adds_to_every_prompt() -> None:
    p, _ = asked(LLAMA_8B, "isl: {mean: 2200, p95: 4000}, osl: 100", "sglang", ", prefix: {shared: 2000}")
    d = p.demand
    long = d.uncached_nodes > 1.0  # prompts shorter than the head have one token left
    np.testing.assert_allclose((d.total_nodes - d.uncached_nodes)[long], 2000.0, rtol=0.02)


def test_a_hit_rate_shortens_every_prompt_alike() -> None:
    p, _ = asked(LLAMA_8B, "isl: {mean: 2200, p95: 4000}, osl: 100", "sglang", ", prefix: {hitRate: 0.75}")
    d = p.demand
    np.testing.assert_allclose(d.uncached_nodes, d.total_nodes / 4, rtol=1e-6)
    assert d.uncached_mean == pytest.approx(d.total_mean / 4)


# ---- an idle static batch -----------------------------------------------------------------------------------------------


def test_an_idle_static_server_answers_after_the_prefill() -> None:
    p, s = asked(LLAMA_8B, "isl: 1000, osl: 200", "megatron")
    seen = at("static", s, p.demand, 1e-4)
    alone = s.request_s + s.terms.chunk_s(np.full(len(s.chunk), 1000.0)) + s.attention_mean_s + s.terms.sequence_s
    np.testing.assert_allclose(latency.ttft_mean(seen), alone, rtol=0.05)


# ---- the level ----------------------------------------------------------------------------------------------------------


def bound(metric: str, seconds: float, probability: float = 0.95) -> Slo:
    return Slo((Bound(f"{metric}.p95", metric, probability, seconds),), math.nan, ())  # type: ignore[arg-type]


@given(
    discipline=st.sampled_from(["prefill-first", "decode"]),
    metric=st.sampled_from(METRICS),
    seconds=st.floats(0.004, 40.0),
    probability=st.sampled_from([0.5, 0.95, 0.99, math.nan]),
    high=st.floats(0.5, 600.0),
)
@settings(max_examples=60)
def test_the_largest_level_meets_the_bound_and_a_larger_one_does_not(
    discipline: str, metric: str, seconds: float, probability: float, high: float
) -> None:
    p, s = asked()
    slo, top = bound(metric, seconds, probability), np.full(len(s.chunk), high)
    level, idle = size.largest_level(DISCIPLINES[discipline], s, p.demand, slo, top, {})
    met = level > 0
    key = slo.bounds[0].id
    np.testing.assert_array_equal(met, ~idle[key])
    assert np.all(level <= high)
    some = np.where(met, level, 1.0)
    assert not np.any(size.violations(DISCIPLINES[discipline](s, p.demand, some), p.demand, slo, {})[key][met])
    more = np.where(met & (level < high), level * 1.0001, high * 1e-9)
    inside = met & (level < high)
    assert np.all(size.violations(DISCIPLINES[discipline](s, p.demand, more), p.demand, slo, {})[key][inside])


@pytest.mark.parametrize("discipline", ["prefill-first", "mixed", "static", "prefill", "decode"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("metric", "seconds"), [("ttft", 1.5), ("itl", 0.03), ("tpot", 0.03), ("e2e", 12.0)])
def test_the_largest_level_is_the_last_before_the_least_that_breaks_the_bound(
    discipline: str, metric: str, seconds: float, many: bool
) -> None:
    p, s = asked()
    s = take(s, np.resize(np.arange(len(s.chunk)), size.FEW + 7 if many else len(s.chunk)))
    slo, top = bound(metric, seconds), np.full(len(s.chunk), 1 - 1e-6 if discipline == "prefill" else 300.0)
    step, rows = DISCIPLINES[discipline], len(s.chunk)
    found = size.largest_level(step, s, p.demand, slo, top, {})[0]
    low, first = np.log(size.IDLE), size.FIRST_STATIC if discipline == "static" else size.FIRST

    def broken(edge: NDArray[np.float64]) -> NDArray[np.bool_]:
        level = np.exp(low + (np.log(top) - low) * edge / size.CELLS)
        return size.violations(step(s, p.demand, level), p.demand, slo, {})[slo.bounds[0].id]

    over = np.stack([broken(np.full(rows, edge)) for edge in first], axis=1)
    never, at = ~over.any(axis=1), np.maximum(over.argmax(axis=1), 1)
    good, bad = first[at - 1], first[at]
    while np.any(bad - good > 1):
        middle = np.floor((good + bad) / 2)
        up = broken(middle)
        good, bad = np.where(up, good, middle), np.where(up, middle, bad)
    expected = np.where(never, top, np.where(over[:, 0], 0.0, np.exp(low + (np.log(top) - low) * good / size.CELLS)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_without_bounds_the_level_is_as_high_as_can_be() -> None:
    p, s = asked()
    top = np.full(len(s.chunk), 77.0)
    level, idle = size.largest_level(DISCIPLINES["prefill-first"], s, p.demand, Slo((), math.nan, ()), top, {})
    np.testing.assert_array_equal(level, 77.0)
    assert not idle


@given(
    discipline=st.sampled_from(["prefill-first", "decode", "prefill"]),
    kind=st.sampled_from(["rate", "concurrency", "users"]),
    share=st.floats(0.001, 1.0),
)
@settings(max_examples=40)
def test_a_load_finds_its_level(discipline: str, kind: str, share: float) -> None:
    p, s = asked()
    top = np.full(len(s.chunk), 1 - 1e-6 if discipline == "prefill" else 120.0)
    most = size.load(kind, DISCIPLINES[discipline](s, p.demand, top), p.demand, 5.0)  # type: ignore[arg-type]
    level = size.level_at(DISCIPLINES[discipline], s, p.demand, kind, share * most, top, 5.0)  # type: ignore[arg-type]
    carried = size.load(kind, DISCIPLINES[discipline](s, p.demand, level), p.demand, 5.0)  # type: ignore[arg-type]
    # Near saturation the load explodes with the level: there the level is what must be right.
    near = size.load(kind, DISCIPLINES[discipline](s, p.demand, np.minimum(level * (1 + 1e-7), top)), p.demand, 5.0)  # type: ignore[arg-type]
    assert np.all((np.abs(carried / (share * most) - 1) < 1e-5) | (near >= share * most * (1 - 1e-5)))


def test_pessimism_is_a_tighter_bound() -> None:
    p, s = asked()
    top = np.full(len(s.chunk), 300.0)
    for metric in METRICS:
        half = size.largest_level(DISCIPLINES["prefill-first"], s, p.demand, bound(metric, 6.0), top, {metric: 2.0})[0]
        tight = size.largest_level(DISCIPLINES["prefill-first"], s, p.demand, bound(metric, 3.0), top, {})[0]
        np.testing.assert_allclose(half, tight)


def test_attainment_adds_what_single_bounds_miss() -> None:
    p, s = asked()
    seen = at("prefill-first", s, p.demand, 30.0)
    first, whole = Bound("ttft.p95", "ttft", 0.95, 0.5), Bound("e2e.p95", "e2e", 0.95, 25.0)
    one = [1 - size.attainment(seen, p.demand, (b,), {}) for b in (first, whole)]
    both = 1 - size.attainment(seen, p.demand, (first, whole), {})
    np.testing.assert_allclose(both, np.minimum(one[0] + one[1], 1.0), atol=1e-12)
    assert np.all(size.attainment(seen, p.demand, (), {}) == 1.0)


@pytest.mark.parametrize("limit", [1.0, 2.0, 16.0, 300.0])
def test_free_slots(limit: float) -> None:
    """The level leaves a slot free for all but a thousandth of arrivals, by Sakasegawa's formula."""
    level = float(size.slot_level(np.array([limit]))[0])
    assert 0 < level < limit
    assert (level / limit) ** (math.sqrt(2 * (limit + 1)) - 1) == pytest.approx(size.SLOT_WAIT)


@pytest.mark.parametrize("discipline", OPEN)
def test_means_alone_are_the_same_means(discipline: str) -> None:
    p, s = asked(LLAMA_8B, LENGTHS[0], {"mixed": "vllm", "static": "megatron"}.get(discipline, "sglang"))
    full, lean = at(discipline, s, p.demand, 0.7), at(discipline, means_only(s), p.demand, 0.7)
    for name in ("rate", "gap_mean_s", "service_mean_s", "wait_s", "busy"):
        np.testing.assert_array_equal(getattr(full, name), getattr(lean, name))
    bare = at(discipline, means_only(s, rates_only=True), p.demand, 0.7)
    np.testing.assert_array_equal(full.rate, bare.rate)
    if discipline in ("mixed", "prefill-first"):  # whoever asks it for a first token must notice
        assert np.isnan(latency.ttft_mean(bare)).all()
