"""What each engine does with a handful of requests, worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from servegen.simulate.deployment import Deployment, Handoff, replay
from servegen.simulate.prefix import PrefixCache
from servegen.simulate.requests import Closed
from servegen.simulate.result import binned_quantile
from servegen.simulate.started import Started, started
from tests.unit.simulations import make_model, make_pool, one, send

#: A step takes 10 ms, a prompt token 1 ms more.
MODEL = make_model(fixed_s=0.01, flop_s=0.001)
#: The same without a cost per decoding sequence: flop_s counts them, too, so a batch of b takes b ms more.


def test_prefill_first_stalls_the_decodes() -> None:
    found = replay(one(make_pool(MODEL, chunk=100)), send([0, 0.115], [100, 200], [4, 2]))
    # 0: prefill to 0.110; a decode to 0.121 sees the second prompt, whose two chunks stall the first: 0.231, 0.341.
    assert found.ttft_s.tolist() == pytest.approx([0.110, 0.341 - 0.115])
    # Both decode to 0.353, where the second ends; the first ends a step of 11 ms later.
    assert found.e2e_s.tolist() == pytest.approx([0.364, 0.353 - 0.115])
    assert binned_quantile(found.gap_bins, 1.0) == pytest.approx(0.353 - 0.121, rel=2e-3)
    assert found.itl.mean == pytest.approx((0.011 + 0.232 + 0.011 + 0.012) / 4)


def test_mixed_steps_carry_decodes_along() -> None:
    found = replay(one(make_pool(MODEL, "mixed", chunk=100)), send([0, 0.115], [100, 150], [4, 2]))
    # One decode takes a token of the budget, so 99 tokens of the second prompt come along, then 51.
    assert found.ttft_s.tolist() == pytest.approx([0.110, 0.121 + 0.110 + 0.062 - 0.115])
    assert found.e2e_s.tolist() == pytest.approx([0.293, 0.293 + 0.011 - 0.115])


def test_whole_prompts_wait_until_they_fit() -> None:
    found = replay(one(make_pool(MODEL, "whole", chunk=100)), send([0, 0], [60, 60], [3, 1]))
    # Beside the first prompt there is no room for the second; it joins the first decode step.
    assert found.ttft_s.tolist() == pytest.approx([0.070, 0.070 + 0.071])
    alone = replay(one(make_pool(MODEL, "whole", chunk=100)), send([0], [250], [1]))
    assert alone.ttft_s.tolist() == pytest.approx([0.260])


def test_prompts_wait_for_company_if_they_are_to() -> None:
    # 0: prefill to 0.070, then decodes of 11 ms. The second prompt comes during the first of them, and waits for 5 more.
    alone = replay(one(make_pool(MODEL, "whole", chunk=1000, wait_steps=5)), send([0, 0.075], [60, 60], [50, 1]))
    assert alone.ttft_s[1] == pytest.approx(0.081 + 5 * 0.011 + 0.071 - 0.075)
    # A third one that comes meanwhile does not make the second wait longer, and goes with it.
    company = replay(one(make_pool(MODEL, "whole", chunk=1000, wait_steps=5)), send([0, 0.075, 0.1], [60, 60, 60], [50, 1, 1]))
    assert company.ttft_s[1] == pytest.approx(0.081 + 5 * 0.011 + 0.131 - 0.075)
    assert company.ttft_s[2] == pytest.approx(company.ttft_s[1] - 0.025)
    # Nine tenths of a step are company enough, and without decodes there is nothing to wait for.
    full = replay(one(make_pool(MODEL, "whole", chunk=66, wait_steps=5)), send([0, 0.075], [60, 60], [50, 1]))
    assert full.ttft_s[1] == pytest.approx(0.081 + 0.071 - 0.075)
    assert alone.ttft_s[0] == pytest.approx(0.070)


def test_a_step_with_a_prompt_takes_what_its_launch_does() -> None:
    model = dataclasses.replace(MODEL, prompt_s=0.05)
    for scheduler in ("prefill-first", "mixed", "whole", "static"):
        found = replay(one(make_pool(model, scheduler)), send([0, 1], [10, 90], [3, 1]))
        assert found.ttft_s.tolist() == pytest.approx([0.05, 0.1])
        assert found.e2e_s[0] == pytest.approx(0.05 + 2 * 0.011)


@pytest.mark.parametrize(
    ("engine", "capability", "tp", "users", "isl", "osl", "expected"),
    [
        ("vllm", 9.0, 4, 16, 1024, 1024, Started(8192, 16)),
        ("vllm", 10.0, 4, 16, 1024, 1024, Started(8192, 16, launches=1.5)),  # graphs of decode steps alone
        ("vllm", 10.0, 4, 16, 1024, 128, Started(8192, 16)),
        ("vllm", 12.0, 4, 16, 1024, 1024, Started(8192, 16)),
        ("sglang", 9.0, 4, 16, 1024, 128, Started(8192, 16)),
        ("sglang", 10.0, 4, 16, 1024, 128, Started(16384, 16)),
        # InferenceX: batch waiting for 1024/1024 below TP 8
        ("tensorrt-llm", 10.0, 4, 16, 1024, 1024, Started(2248, 16, 20)),
        ("tensorrt-llm", 10.0, 8, 16, 1024, 1024, Started(2248, 16)),
        ("tensorrt-llm", 10.0, 4, 16, 8192, 1024, Started(9416, 16)),
        # powers of two: one prompt per step, one place fewer than users
        ("tensorrt-llm", 9.0, 1, 8, 1024, 128, Started(1152, 7)),
        ("tensorrt-llm", 9.0, 1, 1, 1024, 128, Started(1152, 1)),
        # anybody else's
        ("tensorrt-llm", 9.0, 1, 8, 500, 200, Started(8192, 8)),
        ("tensorrt-llm", 9.0, 1, 8, 20000, 200, Started(20096, 8)),
    ],
)
def test_how_publishers_start_their_engines(
    engine: str, capability: float, tp: int, users: int, isl: int, osl: int, expected: Started
) -> None:
    assert started(engine, capability, 8192, tp, users, isl, osl) == expected


def test_a_static_batch_waits_for_its_longest() -> None:
    found = replay(one(make_pool(MODEL, "static")), send([0, 0, 0.2], [50, 50, 50], [2, 5, 2]))
    assert found.ttft_s[:2].tolist() == pytest.approx([0.110, 0.110])
    # Four steps of two places each, although one ended after the first.
    assert found.e2e_s[:2].tolist() == pytest.approx([0.122, 0.158])
    # The third comes while nothing runs.
    assert found.ttft_s[2] == pytest.approx(0.060)
    late = replay(one(make_pool(MODEL, "static")), send([0, 0, 0.111], [50, 50, 50], [2, 5, 2]))
    assert late.ttft_s[2] == pytest.approx(0.158 + 0.060 - 0.111)


def test_slots_limit_the_batch() -> None:
    found = replay(one(make_pool(MODEL, max_running=1)), send([0, 0], [10, 10], [3, 1]))
    assert found.ttft_s.tolist() == pytest.approx([0.020, 0.020 + 0.022 + 0.020])


def test_admission_keeps_room_for_a_share_of_the_output() -> None:
    def second(reserve: float) -> float:
        pool = make_pool(MODEL, pool_bytes=230.0, reserve_share=reserve)
        return float(replay(one(pool), send([0, 0.0001], [100, 100], [20, 20])).ttft_s[1])

    assert second(0.5) < 0.3  # 100 + 10 for each
    assert second(1.0) > 0.3  # 240 do not fit: it waits until the first has ended


def test_a_full_pool_retracts_who_came_last() -> None:
    found = replay(one(make_pool(MODEL, pool_bytes=222.0, reserve_share=0.0)), send([0, 0.0001], [100, 100], [20, 20]))
    assert found.retracted == 1 and found.completed == 2
    # The one that was retracted is computed again with what it had generated.
    assert found.prefilled_tokens > 300
    assert found.e2e_s[1] > found.e2e_s[0]


def test_a_request_larger_than_the_pool_is_refused_and_counted() -> None:
    found = replay(one(make_pool(MODEL, pool_bytes=100.0)), send([0, 0, 0], [50, 90, 50], [10, 20, 10]))
    assert (found.completed, found.refused, found.unserved) == (2, 1, 0)
    loop = replay(one(make_pool(MODEL, pool_bytes=100.0)), Closed(2, np.full(6, 99), np.full(6, 9), 0.1))
    assert (loop.completed, loop.refused) == (0, 6)


def test_hand_off_delays_the_first_token_and_leaves_the_gaps_alone() -> None:
    pools = (make_pool(MODEL, "prefill", chunk=100), make_pool(MODEL, "decode"))
    found = replay(Deployment(pools, handoff=Handoff(0.03, 0.0)), send([0, 0.1], [100, 100], [3, 3]))
    # One chunk: nothing of the transfer is hidden. The second prompt is computed while the first decodes elsewhere.
    assert found.ttft_s.tolist() == pytest.approx([0.140, 0.110 + 0.110 + 0.03 - 0.1])
    assert found.e2e_s[0] == pytest.approx(0.140 + 2 * 0.011)
    long = replay(Deployment(pools, handoff=Handoff(0.03, 0.0)), send([0], [300], [1]))
    assert long.ttft_s[0] == pytest.approx(3 * 0.110 + 0.01)  # of three chunks the last one's transfer remains


def test_prompts_with_a_common_head_are_computed_once() -> None:
    pool = make_pool(MODEL, block_tokens=50)
    sent = send([0, 1, 2], [120, 120, 120], [1, 1, 1], blocks=[(1, 2, 3), (1, 2, 4), (1, 5, 6)])
    found = replay(one(pool), sent)
    assert found.ttft_s.tolist() == pytest.approx([0.130, 0.030, 0.080])
    assert found.cached_tokens == 150 and found.prefilled_tokens == 120 + 20 + 70
    declared = replay(one(make_pool(MODEL)), send([0, 1], [120, 120], [1, 1], cached=np.array([0, 100])))
    assert declared.ttft_s.tolist() == pytest.approx([0.130, 0.030])


def test_the_cache_gives_way_to_running_requests() -> None:
    pool = make_pool(MODEL, block_tokens=50, pool_bytes=260.0)
    at, isl = [0.0, 1.0, 2.0, 3.0], [100, 200, 100, 100]
    blocks = [(1, 2), (3, 4, 5, 6), (1, 2), (1, 2)]
    found = replay(one(pool), send(at, isl, [2] * 4, blocks=blocks))
    # The second prompt drives out the tail of the first, which has then to be computed; the head survives.
    assert found.ttft_s.tolist() == pytest.approx([0.110, 0.210, 0.060, 0.011])


def test_the_longest_unused_block_goes_first_and_tails_before_heads() -> None:
    cache = PrefixCache(16)
    cache.lock((1, 2, 3))
    cache.lock((1, 2, 9))
    cache.release((1, 2, 3))
    assert (cache.locked, cache.idle) == (3, 1)
    cache.release((1, 2, 9))
    cache.evict(2)
    assert cache.match((1, 2, 3)) == 2 and cache.match((1, 2, 9)) == 2
    cache.evict(1)
    assert cache.match((1, 2)) == 1
    assert cache.match((7, 1)) == 0


@pytest.mark.parametrize("policy", ["random", "round-robin", "power-of-two", "cache-aware"])
def test_routers_use_every_replica(policy: str) -> None:
    at = np.arange(400) / 50.0
    one_replica = replay(one(make_pool(MODEL, count=1)), send(at, [40] * 400, [20] * 400))
    four = replay(Deployment((make_pool(MODEL, count=4),), policy), send(at, [40] * 400, [20] * 400))
    assert four.ttft.mean < one_replica.ttft.mean / 3
    assert four.completed == 400


def test_the_emptier_of_two_is_better_than_taking_turns() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    at = np.cumsum(rng.exponential(1 / 25, 4000))
    osl = np.where(rng.random(4000) < 0.9, 5, 300)
    pool = make_pool(MODEL, count=6, max_running=4)
    turns = replay(Deployment((pool,), "round-robin"), send(at, [20] * 4000, osl))
    emptier = replay(Deployment((pool,), "power-of-two"), send(at, [20] * 4000, osl))
    assert emptier.ttft.p95 < turns.ttft.p95


def test_random_replicas_are_each_as_likely_and_worse_than_turns() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    at = np.cumsum(rng.exponential(1 / 60, 6000))
    pool = make_pool(MODEL, count=4, max_running=1)
    turns = replay(Deployment((pool,), "round-robin"), send(at, [20] * 6000, [2] * 6000))
    random = replay(Deployment((pool,), "random"), send(at, [20] * 6000, [2] * 6000))
    # Of a Poisson stream each gets a Poisson stream of a quarter of it: M/D/1 of 41 ms of service at 15/s.
    busy, service = 15 * 0.041, 0.041
    assert random.ttft.mean == pytest.approx(0.030 + busy * service / (2 * (1 - busy)), rel=0.08)
    assert turns.ttft.mean < random.ttft.mean


def test_following_the_cache_finds_more_in_it() -> None:
    rng = np.random.Generator(np.random.PCG64(7))
    at = np.cumsum(rng.exponential(0.2, 1000))
    blocks = [(int(k), 100 + int(k), 1000 + i) for i, k in enumerate(rng.integers(0, 40, 1000))]
    pool = make_pool(MODEL, count=4, block_tokens=50, pool_bytes=2500.0)
    sent = {"at": at, "isl": [170] * 1000, "osl": [10] * 1000, "blocks": blocks}
    turns = replay(Deployment((pool,), "round-robin"), send(**sent))
    follows = replay(Deployment((pool,), "cache-aware"), send(**sent))
    assert follows.cached_tokens > 1.5 * turns.cached_tokens


def test_a_lost_replica_sends_its_requests_to_the_others() -> None:
    at = np.arange(300) / 30.0
    sent = {"at": at, "isl": [40] * 300, "osl": [30] * 300}
    whole = replay(one(make_pool(MODEL, count=3)), send(**sent))
    lost = replay(one(make_pool(MODEL, count=3)), send(**sent), fail_s=5.0)
    assert lost.completed == 300 and lost.resent > 0 and lost.unserved == 0
    assert lost.e2e.p99 > whole.e2e.p99
    # Before the loss nothing differs.
    before = whole.e2e_s + at < 5.0
    assert (lost.e2e_s[before] == whole.e2e_s[before]).all()


def test_without_a_replica_nobody_is_served() -> None:
    found = replay(one(make_pool(MODEL)), send([0, 1, 5], [40] * 3, [3] * 3), fail_s=2.0)
    assert (found.completed, found.unserved) == (2, 1)
    assert math.isnan(found.ttft_s[2])


def test_the_same_seed_gives_the_same_bits() -> None:
    at = np.cumsum(np.random.Generator(np.random.PCG64(3)).exponential(0.02, 500))

    def once(seed: int) -> tuple[bytes, bytes]:
        pool = make_pool(MODEL, count=3)
        found = replay(Deployment((pool,), "power-of-two"), send(at, [50] * 500, [40] * 500), seed)
        return found.e2e_s.tobytes(), found.gap_bins.tobytes()

    assert once(1) == once(1) != once(2)


def test_progress_is_told() -> None:
    told: list[int] = []
    replay(one(make_pool(MODEL)), send(np.arange(2500.0), [1] * 2500, [1] * 2500), progress=told.append)
    assert told == [1000, 2000]


def test_windows_stop_the_growth_of_what_they_see() -> None:
    from servegen.simulate.steps import Window

    windowed = dataclasses.replace(MODEL, windows=(Window(120, 0.0001, 0.0, 1.0),))
    found = replay(one(make_pool(windowed)), send([0], [100], [41]))
    # A step reads min(context, 120) tokens: 101, 102, ... 120, and 120 ever after.
    seen = sum(min(c, 120) for c in range(101, 141))
    assert found.e2e_s[0] == pytest.approx(0.110 + 40 * 0.011 + 0.0001 * seen)
