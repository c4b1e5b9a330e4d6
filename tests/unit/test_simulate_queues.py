"""Replays whose answer is known: queues with one server, and the laws that every run must keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.simulate.arrivals import gamma, poisson
from servegen.simulate.deployment import Deployment, Handoff, replay
from servegen.simulate.requests import Closed, Open
from servegen.simulate.steps import Window
from tests.unit.simulations import make_model, make_pool, one, plainly, send

N = 40_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_equal_prompts_one_at_a_time_are_an_md1_queue(busy: float) -> None:
    service = 0.1
    model = make_model(fixed_s=0.02, flop_s=0.0008)
    at = poisson(busy / service, N, rng())
    sent = Open(at, np.full(N, 100), np.ones(N, np.int64))
    found = replay(one(make_pool(model, chunk=100)), sent)
    assert found.ttft.mean == pytest.approx(service + busy * service / (2 * (1 - busy)), rel=0.03)
    assert found.utilization == pytest.approx(busy, rel=0.02)
    assert found.waiting_mean == pytest.approx(busy**2 / (2 * (1 - busy)), rel=0.06)


def test_exponential_prompts_are_an_mm1_queue() -> None:
    busy, service = 0.6, 0.1
    isl = np.ceil(rng(2).exponential(5000, N)).astype(np.int64)
    at = poisson(busy / service, N, rng(3))
    found = replay(one(make_pool(make_model(flop_s=service / 5000), max_running=1)), Open(at, isl, np.ones(N, np.int64)))
    assert found.ttft.mean == pytest.approx(service / (1 - busy), rel=0.04)
    assert found.ttft.p95 == pytest.approx(service / (1 - busy) * math.log(20), rel=0.05)


def test_two_kinds_of_answers_are_an_mg1_queue() -> None:
    """The server is taken for a whole answer: Pollaczek-Khinchine for its length."""
    step = 0.001
    osl = np.where(rng(4).random(N) < 0.8, 21, 321)  # 20 or 320 steps behind the first token
    mean, square = np.mean((osl - 1) * step), np.mean(((osl - 1) * step) ** 2)
    rate = 0.6 / mean
    found = replay(
        one(make_pool(make_model(decode_s=step), max_running=1)), Open(poisson(rate, N, rng(5)), np.ones(N, np.int64), osl)
    )
    assert found.ttft.mean == pytest.approx(rate * square / (2 * (1 - rate * mean)), rel=0.05)


def test_gamma_arrivals_have_their_rate_and_burstiness() -> None:
    gaps = np.diff(gamma(4.0, 2.5, N, rng()))
    assert 1 / gaps.mean() == pytest.approx(4.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(2.5, rel=0.05)
    assert np.diff(gamma(4.0, 0.0, 5, rng())).tolist() == [0.25] * 4


def test_users_turn_at_the_rate_of_the_loop() -> None:
    """c users, answers of n equal steps: rate = c / (duration + pause) (Little's law of a closed loop)."""
    model = make_model(fixed_s=0.01)
    found = replay(one(make_pool(model)), Closed(8, np.full(800, 10), np.full(800, 20), 0.05))
    # All eight march in step: a prefill and 19 decodes, then the pause.
    assert found.duration_s == pytest.approx(100 * 0.2 + 99 * 0.05)
    assert found.ttft.mean == pytest.approx(0.01)
    assert found.itl.mean == pytest.approx(0.01)


MODELS = st.builds(
    make_model,
    fixed_s=st.floats(1e-4, 0.02),
    prompt_s=st.floats(0, 0.05),
    sequence_s=st.floats(0, 1e-4),
    decode_s=st.floats(0, 1e-3),
    weight_s=st.floats(0, 0.02),
    expert_s=st.floats(0, 0.02),
    expert_idle=st.floats(0, 0.99),
    flop_s=st.floats(1e-6, 1e-4),
    wire_s=st.floats(0, 1e-5),
    read_s=st.floats(0, 1e-6),
    pair_s=st.floats(0, 1e-9),
    sequence_bytes=st.floats(0, 50),
)
SCHEDULERS = st.sampled_from(["prefill-first", "mixed", "whole", "static"])
REQUESTS = st.lists(st.tuples(st.floats(0, 2), st.integers(1, 900), st.integers(1, 120)), min_size=1, max_size=60)


def columns(requests: list[tuple[float, int, int]]) -> tuple[list[float], list[int], list[int]]:
    requests = sorted(requests)
    return [r[0] for r in requests], [r[1] for r in requests], [r[2] for r in requests]


@settings(max_examples=100)
@given(MODELS, SCHEDULERS, st.sampled_from([64, 200, 4096]), st.sampled_from([1, 3, 16, 1000]), REQUESTS)
def test_steps_taken_together_are_the_steps_taken_one_by_one(model, scheduler, chunk, slots, requests) -> None:  # type: ignore[no-untyped-def]
    at, isl, osl = columns(requests)
    first, last = plainly(model, scheduler, chunk, slots, at, isl, osl)
    pool = make_pool(model, scheduler, chunk=chunk, max_running=slots)
    found = replay(one(pool), send(at, isl, osl))
    assert found.completed == len(at)
    np.testing.assert_allclose(found.ttft_s + at, first, rtol=1e-7)
    np.testing.assert_allclose(found.e2e_s + at, last, rtol=1e-7)


@settings(max_examples=150)
@given(
    MODELS,
    SCHEDULERS,
    st.sampled_from([64, 200, 4096]),
    st.sampled_from([1, 3, 16, 1000]),
    st.sampled_from([700.0, 1500.0, 5000.0, 1e9]),
    st.sampled_from([0.0, 0.6, 1.0]),
    st.sampled_from([(), (Window(100, 1e-7, 1e-10, 0.5),), (Window(30, 1e-7, 0.0, 0.5), Window(400, 0.0, 1e-9, 2.0))]),
    st.integers(1, 3),
    st.booleans(),
    REQUESTS,
)
def test_every_run_keeps_the_laws(  # type: ignore[no-untyped-def]
    model, scheduler, chunk, slots, pool_bytes, reserve, windows, count, hashed, requests
) -> None:
    import dataclasses

    from servegen.simulate.deployment import _Run

    model = dataclasses.replace(model, windows=windows)
    at, isl, osl = columns(requests)
    blocks = [tuple(range(j // 64)) for j in isl] if hashed else None
    limits = {"chunk": chunk, "max_running": slots, "pool_bytes": pool_bytes, "reserve_share": reserve}
    pool = make_pool(model, scheduler, count, block_tokens=64 if hashed else 0, **limits)
    run = _Run(one(pool), send(at, isl, osl, blocks=blocks), 0)
    run.play(math.inf, None)
    log = run.log
    ends, firsts, sent = np.array(log.end), np.array(log.first_token), np.array(at)
    done = ~np.isnan(ends)
    # Every request is answered, or larger than the pool.
    assert done.sum() + log.refused == len(at)
    served = int(np.array(osl)[done].sum())
    # Tokens are neither lost nor made up.
    assert log.generated == served
    asked = int(np.array(isl)[done].sum())
    if log.retracted:
        assert log.prefilled + log.cached > asked
    else:
        assert log.prefilled + log.cached == asked
    # Little's law: requests in the system over time are the times of all requests.
    np.testing.assert_allclose(log.queue.area + log.running.area, (ends - sent)[done].sum(), rtol=1e-6, atol=1e-9)
    # Every gap between two tokens is counted once, and a request's gaps fill the time from its first token to its last.
    log.gaps()
    assert log.gap_count == served - done.sum()
    np.testing.assert_allclose(log.gap_sum, (ends - firsts)[done].sum(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(log.gaps().sum(), log.gap_count, rtol=1e-9, atol=1e-9)
    assert (firsts[done] >= sent[done]).all() and (ends[done] >= firsts[done]).all()
    # Nothing is left behind in a replica.
    for replica in run.pools[0]:
        assert replica.in_flight == 0 and not replica.waiting and not replica.batch.running
        assert replica.batch.held_bytes == pytest.approx(0, abs=1e-6)
        assert replica._prefill_bytes == pytest.approx(0, abs=1e-6)
        assert replica._reserved_bytes == pytest.approx(0, abs=1e-3)
        if replica.cache is not None:
            assert replica.cache.locked == 0
            assert replica.cache.idle * 64 <= pool_bytes + 1e-6


@settings(max_examples=40)
@given(MODELS, REQUESTS, st.floats(0, 0.5), st.sampled_from([1200.0, 1e9]))
def test_a_split_deployment_keeps_them_too(model, requests, transfer, pool_bytes) -> None:  # type: ignore[no-untyped-def]
    at, isl, osl = columns(requests)
    pools = (
        make_pool(model, "prefill", 2, chunk=200, pool_bytes=pool_bytes),
        make_pool(model, "decode", 2, max_running=7, pool_bytes=pool_bytes),
    )
    found = replay(Deployment(pools, "power-of-two", Handoff(transfer, 1e-6)), send(at, isl, osl))
    assert found.completed == len(at) and found.refused == 0
    assert found.output_tokens == sum(osl)
    assert found.prefilled_tokens >= sum(isl)
    assert (found.ttft_s >= 0).all() and (found.e2e_s >= found.ttft_s).all()
