"""Where requests come from: draws, recorded traces in every format, cuts of them, users in a loop; and the benchmark."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from servegen.errors import UserError
from servegen.simulate import benchmark
from servegen.simulate.arrivals import Cut, closed_loop, open_loop, recorded
from servegen.simulate.benchmark import Benchmark, as_published
from servegen.simulate.requests import Closed, Open, Request, Source
from servegen.simulate.series import BUCKETS, Series
from servegen.workload import Lengths, Workload, trace_requests
from tests.unit.simulations import make_model, make_pool, one

WORKLOAD = Workload(isl=Lengths.lognormal(500, p=0.95, q=1500), osl=Lengths.fixed(30), rate_per_s=5)


def taken(source: Source, n: int) -> list[tuple[float, int, int]]:
    requests: list[Request] = [source.take() for _ in range(n)]
    return [(r.arrival_s, r.isl, r.osl) for r in requests]


def test_the_seed_decides_what_is_sent() -> None:
    a, b, c = (taken(open_loop(WORKLOAD, 5.0, 1.0, 50, seed), 50) for seed in (1, 1, 2))
    assert a == b != c
    assert np.mean([r[1] for r in taken(open_loop(WORKLOAD, 5.0, 1.0, 4000, 1), 4000)]) == pytest.approx(500, rel=0.05)


def test_declared_sharing_is_found_in_the_cache() -> None:
    import dataclasses

    shared = dataclasses.replace(WORKLOAD, prefix_shared=200.0)
    requests = [open_loop(shared, 5.0, 1.0, 50, 1).take() for _ in range(3)]
    assert all(r.cached == min(200, r.isl - 1) for r in requests)
    hit = closed_loop(dataclasses.replace(WORKLOAD, prefix_hit=0.5), 4, 0.1, 50, 1).take()
    assert hit.cached == hit.isl // 2


TEXTS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.50,374,44\n2023-11-16 18:15:48.00,396,109\n",
    "plain.csv": "arrival_s,input_tokens,output_tokens\n0.0,374,44\n1.5,396,109\n",
    "plain.jsonl": '{"arrival_s":3,"input_tokens":374,"output_tokens":44}\n'
    '{"arrival_s":4.5,"input_tokens":396,"output_tokens":109}\n',
    "mooncake.jsonl": '{"timestamp":0,"input_length":374,"output_length":44,"hash_ids":[0]}\n'
    '{"timestamp":1500,"input_length":396,"output_length":109,"hash_ids":[1]}\n',
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_every_format_gives_the_same_requests(name: str, packed: bool, tmp_path: Path) -> None:
    file = tmp_path / (name + ".gz" if packed else name)
    file.write_bytes(gzip.compress(TEXTS[name].encode()) if packed else TEXTS[name].encode())
    source = recorded(trace_requests(file))
    assert source.count == 2
    assert taken(source, 2) == [(0.0, 374, 44), (1.5, 396, 109)]


def test_a_bad_line_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,ten,5\n")
    with pytest.raises(UserError) as caught:
        trace_requests(file)
    assert (caught.value.diagnostics[0].where.file, caught.value.diagnostics[0].where.line) == (str(file), 3)


def test_a_window_and_a_speedup_cut_and_press_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{t},{100 + t},5\n" for t in range(10)))
    trace = trace_requests(file)
    assert taken(recorded(trace, Cut(2.0, 6.0, 2.0)), 4) == [(0.0, 102, 5), (0.5, 103, 5), (1.0, 104, 5), (1.5, 105, 5)]
    assert recorded(trace, Cut(), 3).count == 3
    with pytest.raises(UserError, match="no request of the trace lies between 20 s and 30 s"):
        recorded(trace, Cut(20.0, 30.0))


def test_users_wait_for_their_answers() -> None:
    source = Closed(2, np.full(4, 9), np.full(4, 9), 0.5)
    first, second = source.take(), source.take()
    assert (first.arrival_s, second.arrival_s, source.next_s) == (0.0, 0.0, float("inf"))
    source.finished(first, 3.0)
    assert source.next_s == 3.5
    source.take()
    source.finished(second, 4.0)
    assert source.take().arrival_s == 4.5
    source.finished(first, 9.0)
    assert source.next_s == float("inf")  # four were asked for


def test_users_who_think_briefly_overtake_others() -> None:
    """Pauses are exponential around the stated think time, each request's its own, and the same with the same seed."""
    source, again = (closed_loop(WORKLOAD, 1000, 4.0, 2000, seed=7) for _ in range(2))
    for request in [source.take() for _ in range(1000)]:
        source.finished(request, 10.0)
        again.finished(request, 10.0)
    sends = [source.take().arrival_s - 10.0 for _ in range(1000)]
    assert sends == sorted(sends) and sends[0] < 0.1
    assert np.mean(sends) == pytest.approx(4.0, rel=0.1)
    assert np.std(sends) == pytest.approx(4.0, rel=0.15)
    assert [again.take().arrival_s for _ in range(2000)][1000:] == [s + 10.0 for s in sends]


def test_a_series_keeps_its_integral_however_long_it_grows() -> None:
    series = Series()
    for second in range(5000):
        series.add(second * 0.7, second * 0.7 + 0.7, second % 7)
    assert series.area == pytest.approx(sum(0.7 * (s % 7) for s in range(5000)))
    means = series.means()
    assert len(means) <= BUCKETS and all(2.0 < m < 4.0 for m in means[:-1])
    spans = [min(series.end_s, (i + 1) * series.width_s) - i * series.width_s for i in range(len(means))]
    assert sum(m * s for m, s in zip(means, spans, strict=True)) == pytest.approx(series.area)


def test_equal_requests_march_in_step_and_drawn_ones_do_not() -> None:
    """16 prompts of 100 ms: in step each waits for those before it, 850 ms on average, in every one of the ten rounds."""
    pool = make_pool(make_model(flop_s=0.001, decode_s=0.001), chunk=100)
    fixed = benchmark.run(one(pool), Benchmark(16, 100, 200))
    assert fixed.ttft_s == pytest.approx(0.85, rel=1e-6)
    drawn = benchmark.run(one(pool), Benchmark(16, 100, 200, 0.5))
    assert drawn.ttft_s < 0.6
    warm = benchmark.run(one(pool), Benchmark(16, 100, 200, 0.5, first_wave=False))
    assert warm.ttft_s < drawn.ttft_s
    assert benchmark.run(one(pool), Benchmark(16, 100, 200, 0.5)) == drawn
    assert benchmark.run(one(pool), Benchmark(16, 100, 200, 0.5, seed=1)) != drawn


def test_a_benchmark_that_does_not_fit_has_no_figures() -> None:
    found = benchmark.run(one(make_pool(make_model(fixed_s=0.01), pool_bytes=50.0)), Benchmark(2, 100, 10))
    assert np.isnan([found.ttft_s, found.tpot_s, found.output_tokens_per_s]).all()


def test_shared_heads_are_not_computed() -> None:
    pool = make_pool(make_model(flop_s=0.001), chunk=1000)
    assert benchmark.run(one(pool), Benchmark(1, 100, 1, cached=60)).ttft_s == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("isl", "osl", "expected"),
    [
        (8192, 1024, Benchmark(4, 8192, 1024, 0.8)),
        (2048, 256, Benchmark(4, 2048, 256)),
        (4000, 500, Benchmark(4, 4000, 500, first_wave=False)),
        (900, 90, Benchmark(4, 1000, 100, 0.8)),
    ],
)
def test_lengths_name_the_load_generator(isl: int, osl: int, expected: Benchmark) -> None:
    assert as_published(4, isl, osl) == expected


def test_open_requests_end() -> None:
    source = Open(np.array([1.0]), np.array([5]), np.array([6]))
    source.take()
    assert source.next_s == float("inf")
