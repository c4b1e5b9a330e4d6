"""Traces and the workloads made of them."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.errors import UserError
from servegen.workload import (
    Lengths,
    TraceRequests,
    Workload,
    arrival_burstiness,
    of_trace,
    prefix_hit_share,
    trace_requests,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
LENGTHS = {"isl": Lengths.fixed(1000), "osl": Lengths.fixed(100)}


def from_trace(path: str | os.PathLike[str]) -> Workload:
    return of_trace(trace_requests(path), os.fspath(path))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def problem(path: Path) -> tuple[str, int, str, str]:
    """Code, line, message and hint of the one diagnostic that reading ``path`` ends with; it names the file."""
    with pytest.raises(UserError) as caught:
        trace_requests(path)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.where.file == str(path)
    return diagnostic.code, diagnostic.where.line, diagnostic.message, diagnostic.hint


# ---- reading


def test_azure() -> None:
    requests = trace_requests(FIXTURES / "azure.csv")
    assert len(requests) == 40
    assert requests.input_tokens[:3].tolist() == [374, 396, 879]
    assert requests.output_tokens[:3].tolist() == [44, 109, 55]
    assert requests.arrival_s[:3].tolist() == pytest.approx([0, 4.314579, 4.541877], abs=2e-6)
    assert requests.hashes is None


def test_mooncake() -> None:
    requests = trace_requests(FIXTURES / "mooncake.jsonl")
    rows = [json.loads(line) for line in (FIXTURES / "mooncake.jsonl").read_text().splitlines()]
    assert requests.arrival_s.tolist() == pytest.approx([(row["timestamp"] - 3000) / 1000 for row in rows])
    assert requests.input_tokens.tolist() == [row["input_length"] for row in rows]
    assert requests.output_tokens.tolist() == [row["output_length"] for row in rows]
    assert requests.hashes == tuple(tuple(row["hash_ids"]) for row in rows)
    # 25,966 of 88,619 tokens, counted apart.
    assert prefix_hit_share(requests) == pytest.approx(25966 / 88619)


def test_plain_csv_with_more_columns() -> None:
    requests = trace_requests(FIXTURES / "plain.csv")
    with (FIXTURES / "plain.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert requests.arrival_s.tolist() == pytest.approx([float(row["arrival_s"]) - 0.0002 for row in rows])
    assert requests.output_tokens.tolist() == [int(row["output_tokens"]) for row in rows]


def test_plain_json_lines_and_gzip(tmp_path: Path) -> None:
    lines = [
        '{"arrival_s": 1.5, "input_tokens": 10, "output_tokens": 3}',
        "",
        '{"arrival_s": 2, "input_tokens": 11.0, ',
    ]
    lines[2] += '"output_tokens": 4, "note": "a\\u2028b\u2028c"}'
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\r\n".join(lines).encode()))
    requests = trace_requests(path)
    assert requests.arrival_s.tolist() == [0, 0.5]
    assert requests.input_tokens.tolist() == [10, 11]
    assert requests.input_tokens.dtype == np.int64


def test_the_format_is_told_by_the_content_not_by_the_name(tmp_path: Path) -> None:
    as_json = tmp_path / "trace.csv"
    as_json.write_bytes((FIXTURES / "mooncake.jsonl").read_bytes())
    assert len(trace_requests(as_json)) == 30
    as_csv = tmp_path / "trace.jsonl"
    as_csv.write_bytes(b"\xef\xbb\xbf" + (FIXTURES / "azure.csv").read_bytes().replace(b"\n", b"\r\n"))
    assert len(trace_requests(as_csv)) == 40


def test_zones_are_honoured(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,10,1",
        "2024-05-10 02:00:01.009930+02:00,10,1",
    )
    assert trace_requests(path).arrival_s.tolist() == pytest.approx([0, 1])


def test_requests_are_sorted_by_arrival_and_ties_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "arrival_s,input_tokens,output_tokens", "5,1,1", "3,2,1", "5,3,1", "3,4,1")
    requests = trace_requests(path)
    assert requests.arrival_s.tolist() == [0, 0, 2, 2]
    assert requests.input_tokens.tolist() == [2, 4, 1, 3]
    many = [f"{i % 3},{i + 1},1" for i in range(300)]
    requests = trace_requests(write(tmp_path / "many.csv", "arrival_s,input_tokens,output_tokens", *many))
    assert requests.input_tokens.tolist() == [i + 1 for first in range(3) for i in range(first, 300, 3)]
    path = write(
        tmp_path / "t.jsonl",
        '{"timestamp": 9, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}',
        '{"timestamp": 8, "input_length": 700, "output_length": 1, "hash_ids": [1, 3]}',
    )
    assert trace_requests(path).hashes == ((1, 3), (1, 2))


HEADER = "arrival_s,input_tokens,output_tokens"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2", "2 cells where the header has 3"),
        ("1,2,3,4", "4 cells where the header has 3"),
        ("x,2,3", "arrival_s must be a number, not 'x'"),
        ("nan,2,3", "arrival_s must be a number, not 'nan'"),
        ("1,2.5,3", "input_tokens must be a whole number, not '2.5'"),
        ("1,0,3", "input_tokens must be at least 1, not '0'"),
        ("1,2,-3", "output_tokens must be at least 1, not '-3'"),
        ("1,2,", "output_tokens must be a number, not ''"),
        ("1,2,1e30", "output_tokens is out of range"),
        ('1,"2,3', "not CSV"),
    ],
)
def test_a_broken_csv_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    code, number, text, _ = problem(write(tmp_path / "t.csv", HEADER, "0,5,5", "", line))
    assert (code, number) == ("trace-line", 4)
    assert message in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "line 2 is no JSON object"),
        ('{"timestamp": 1, "input_length": 5}', "output_length is missing"),
        ('{"timestamp": true, "input_length": 5, "output_length": 5, "hash_ids": []}', "timestamp must be a number"),
        ('{"timestamp": 1, "input_length": null, "output_length": 5, "hash_ids": []}', "input_length must be a number"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5}', "hash_ids must stand on every line or on none"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1.5]}', "list of whole numbers"),
        ('{"timestamp": 1, "input_length": 512, "output_length": 5, "hash_ids": [1, 2]}', "2 hash_ids for 512 tokens"),
        ('{"timestamp": 1, "input_length": ' + "9" * 400 + ', "output_length": 5, "hash_ids": []}', "input_length"),
        ('{"timestamp": 1, "input_length": ' + "9" * 9000 + ', "output_length": 5, "hash_ids": []}', "not JSON"),
    ],
)
def test_a_broken_json_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [7]}'
    code, number, text, _ = problem(write(tmp_path / "t.jsonl", good, line, good))
    assert (code, number) == ("trace-line", 2)
    assert message in text


def test_a_broken_date_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,5,5")
    assert problem(path)[:3] == ("trace-line", 2, "timestamp must be an ISO date and time, not 'yesterday'")


@pytest.mark.parametrize("content", ["time,in,out\n1,2,3\n", '\n{"t": 1}\n', "1,2,3\n4,5,6\n"])
def test_an_unknown_format_says_what_is_known(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    code, line, _, hint = problem(path)
    assert code == "trace-format"
    assert line == (2 if content.startswith("\n") else 1)
    assert "ContextTokens" in hint and "hash" not in hint


@pytest.mark.parametrize("content", ["", "\n\n", HEADER + "\n"])
def test_an_empty_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    assert problem(path)[0] == "trace-empty"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.csv")[0] == "trace-file"
    assert problem(tmp_path)[0] == "trace-file"
    whole = gzip.compress((FIXTURES / "azure.csv").read_bytes())
    for content in (b"no gzip", whole[:-9], whole[:200] + b"\0\0\0\0" + whole[204:], b""):
        path = tmp_path / "t.csv.gz"
        path.write_bytes(content)
        assert problem(path)[0] in ("trace-file", "trace-empty" if not content else "")
    hidden = tmp_path / "t.csv"
    hidden.write_bytes(whole)
    code, _, message, hint = problem(hidden)
    assert (code, message, hint) == ("trace-file", "the trace is not UTF-8 text", "a gzipped trace must be named .gz")


def test_twenty_thousand_lines_are_read_fast(tmp_path: Path) -> None:
    lines = [
        f"2023-11-16 18:{i // 600:02}:{i // 10 % 60:02}.{i % 10}000000,{i % 4000 + 1},{i % 300 + 1}"
        for i in range(20_000)
    ]
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", *lines)
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        assert len(trace_requests(path)) == 20_000
        best = min(best, time.process_time() - start)
    assert best < 0.3


# ---- burstiness


def poisson(rate: float, seconds: float, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.random(rng.poisson(rate * seconds)) * seconds)


@pytest.mark.parametrize("rate", [0.3, 1, 20])
def test_poisson_arrivals_have_burstiness_one(rate: float) -> None:
    assert arrival_burstiness(poisson(rate, 20_000 / rate)) == pytest.approx(1, abs=0.03)


def test_the_swing_between_minutes_is_not_counted() -> None:
    quiet_and_busy = np.concatenate(
        [poisson(5 if minute % 2 else 50, 60, minute) + 60 * minute for minute in range(60)]
    )
    gaps = np.diff(quiet_and_busy)
    assert gaps.std() / gaps.mean() > 1.3
    assert arrival_burstiness(quiet_and_busy) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_gaps_have_their_own_coefficient(cv: float) -> None:
    shape = 1 / cv**2
    gaps = np.random.default_rng(5).gamma(shape, 0.05 / shape, 40_000)
    assert arrival_burstiness(np.cumsum(gaps)) == pytest.approx(cv, rel=0.03)


def test_a_coarse_clock_does_not_read_as_bursts() -> None:
    fine = poisson(4, 3600)
    coarse = fine // 3 * 3
    gaps = np.diff(coarse)
    assert gaps.std() / gaps.mean() > 3
    assert arrival_burstiness(coarse) == pytest.approx(1, abs=0.04)
    # Real bursts still show: arrivals come in fours, so the counts scatter twice as much.
    fours = np.repeat(poisson(2, 7200) // 10 * 10, 4)
    assert arrival_burstiness(fours) == pytest.approx(2, abs=0.1)


def test_regular_arrivals_and_too_few_of_them() -> None:
    assert arrival_burstiness(np.arange(600.0)) == 0
    assert arrival_burstiness(np.array([0.0, 5.0])) == 1
    assert arrival_burstiness(np.zeros(50)) == 1
    # One request an hour: no minute has enough, so the whole counts.
    assert arrival_burstiness(np.cumsum(np.random.default_rng(2).exponential(3600, 3000))) == pytest.approx(1, abs=0.05)


# ---- prefix hits


def requests_with(hashes: list[tuple[int, ...]], tokens: list[int]) -> TraceRequests:
    n = np.arange(len(tokens))
    return TraceRequests(n * 1.0, np.array(tokens), np.ones_like(n), tuple(hashes))


def test_only_leading_blocks_hit() -> None:
    requests = requests_with([(1, 2, 3), (1, 2, 9), (7, 2, 3), (1, 2)], [1500, 1500, 1500, 600])
    # Nothing; two blocks; none since block 7 is new; all 600 tokens though two blocks could hold 1024.
    assert prefix_hit_share(requests) == pytest.approx((1024 + 600) / 5100)


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=12))
def test_a_hit_share_is_a_share(blocks: list[list[int]]) -> None:
    requests = requests_with([tuple(row) for row in blocks], [512 * len(row) for row in blocks])
    assert 0 <= prefix_hit_share(requests) < 1


# ---- workloads of traces


def minutes(path: Path, *counts: int) -> Path:
    rows = [f"{60 * m + 60 * i / count},{100 + i},{10 + i}" for m, count in enumerate(counts) for i in range(count)]
    return write(path, HEADER, *rows)


def test_rate_is_the_busiest_minute_and_trough_the_quietest_full_one(tmp_path: Path) -> None:
    workload = from_trace(minutes(tmp_path / "t.csv", 30, 90, 12, 2))
    assert workload.rate_per_s == pytest.approx(1.5)
    assert workload.trough_per_s == pytest.approx(0.2)
    assert workload.isl.longest == 189 and workload.osl.longest == 99
    assert workload.longest_context() == 288
    assert workload.prefix_hit == 0 and workload.hit_share() == 0


def test_a_short_trace_has_its_mean_rate(tmp_path: Path) -> None:
    workload = from_trace(write(tmp_path / "t.csv", HEADER, *(f"{i},10,5" for i in range(101))))
    assert workload.rate_per_s == workload.trough_per_s == pytest.approx(1)
    assert workload.burstiness == 0


def test_a_trace_without_a_span_has_no_rate(tmp_path: Path) -> None:
    for rows in (["1,10,5"], ["1,10,5", "1,20,5"]):
        with pytest.raises(UserError, match="no rate"):
            from_trace(write(tmp_path / "t.csv", HEADER, *rows))


def test_a_trace_brings_its_prefix_hits() -> None:
    workload = from_trace(FIXTURES / "mooncake.jsonl")
    assert workload.prefix_hit == pytest.approx(25966 / 88619)
    assert workload.hit_share() == pytest.approx(workload.prefix_hit)
    assert workload.uncached_isl().mean == pytest.approx(workload.isl.mean * (1 - workload.prefix_hit))


# ---- workloads


def test_shared_tokens_and_hit_rates() -> None:
    isl = Lengths.empirical([500, 1500, 4000])
    plain = Workload(isl, Lengths.fixed(10), saturate=True)
    assert plain.uncached_isl() == isl and plain.hit_share() == 0
    shared = Workload(isl, Lengths.fixed(10), saturate=True, prefix_shared=1000)
    assert shared.uncached_isl().mean == pytest.approx((1 + 500 + 3000) / 3)
    assert shared.hit_share() == pytest.approx(1 - 3501 / 6000)
    rated = Workload(isl, Lengths.fixed(10), saturate=True, prefix_hit=0.25)
    assert rated.uncached_isl().quantile([0.1, 0.5, 0.9]).tolist() == [375, 1125, 3000]
    assert rated.hit_share() == pytest.approx(0.25)
    tiny = Workload(Lengths.fixed(2), Lengths.fixed(10), saturate=True, prefix_hit=0.9)
    assert tiny.uncached_isl().mean == 1


@given(hit=st.floats(0, 0.999), mean=st.floats(1, 1e4))
@settings(max_examples=50)
def test_at_least_one_token_is_computed(hit: float, mean: float) -> None:
    workload = Workload(Lengths.fixed(mean), Lengths.fixed(1), rate_per_s=1, prefix_hit=hit)
    assert workload.uncached_isl().mean >= 1
    assert 0 <= workload.hit_share() <= hit + 1e-12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "not none"),
        ({"rate_per_s": 1, "saturate": True}, "not rate_per_s and saturate"),
        ({"concurrency": 1, "users": 1}, "not concurrency and users"),
        ({"rate_per_s": -1}, "rate_per_s must be 0 or more"),
        ({"rate_per_s": math.nan}, "rate_per_s must be 0 or more"),
        ({"rate_per_s": 1, "trough_per_s": 2}, "trough_per_s = 2 is above rate_per_s = 1"),
        ({"concurrency": 1, "think_time_s": 2}, "think_time_s belongs to users"),
        ({"saturate": True, "prefix_hit": 1}, "below 1"),
        ({"saturate": True, "prefix_hit": 0.1, "prefix_shared": 5}, "not both"),
    ],
)
def test_contradictions_are_explained(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(**LENGTHS, **fields)


# ---- whole traces, where they are at hand

SHARED = os.environ.get("SERVEGEN_REFERENCE_DATA", "")
whole_traces = pytest.mark.skipif(not SHARED, reason="SERVEGEN_REFERENCE_DATA does not name a folder of reference data")


@whole_traces
def test_the_whole_azure_trace() -> None:
    path = Path(SHARED) / "data" / "traces" / "azure2023_conv.csv"
    requests = trace_requests(path)
    gaps = np.diff(requests.arrival_s)
    assert len(requests) == 19_366
    assert len(requests) / requests.arrival_s[-1] == pytest.approx(5.530, abs=1e-3)
    assert gaps.std() / gaps.mean() == pytest.approx(1.094, abs=1e-3)
    workload = from_trace(path)
    assert workload.rate_per_s == pytest.approx(8.45, abs=5e-3)
    assert workload.burstiness == pytest.approx(1.031, abs=1e-3)
    assert workload.isl.mean == pytest.approx(1154.7, abs=0.05)
    assert workload.isl.quantile([0.5, 0.95, 0.99]).tolist() == [1020, 4083, 4142]
    assert workload.osl.mean == pytest.approx(211.1, abs=0.05)
    assert workload.osl.quantile([0.5, 0.95, 0.99]).tolist() == [129, 451, 601]


@whole_traces
def test_the_whole_mooncake_trace() -> None:
    workload = from_trace(Path(SHARED) / "data" / "traces" / "mooncake_conversation.jsonl")
    assert workload.prefix_hit == pytest.approx(0.374, abs=5e-4)
    assert workload.rate_per_s == pytest.approx(4.12, abs=5e-3)
    assert workload.isl.mean == pytest.approx(12035, abs=0.5)
    assert workload.osl.mean == pytest.approx(342.6, abs=0.05)
    # The published 3.03 is the clock's: it ticks every 3 s.
    assert workload.burstiness == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "lines", "line", "says"),
    [
        ("t.csv", ["arrival_s,input_tokens,arrival_s,output_tokens", "0,1,2,3"], 1, "the column arrival_s stands twice"),
        ("t.csv", ["arrival_s,input_tokens,output_tokens", "0,10,1", "1,1_000,3"], 3, "must be a number, not '1_000'"),
        ("t.csv", ["arrival_s,input_tokens,output_tokens", "1,\u0661\u0662,3"], 2, "must be a number"),
        ("t.jsonl", ['{"arrival_s": 0, "input_tokens": 1, "input_tokens": 2}'], 1, "'input_tokens' stands twice"),
        ("t.jsonl", ['[{"arrival_s": 0}]'], 1, "line 1 is no JSON object"),
        ("t.jsonl", ["3", '{"arrival_s": 0}'], 1, "line 1 is no JSON object"),
        ("t.jsonl", ["null"], 1, "line 1 is no JSON object"),
        ("t.jsonl", ["", '"x"'], 2, "line 2 is no JSON object"),
    ],
)
def test_what_would_be_taken_silently(name: str, lines: list[str], line: int, says: str, tmp_path: Path) -> None:
    code, at, message, _ = problem(write(tmp_path / name, *lines))
    assert code in ("trace-line", "trace-format") and at == line and says in message


def test_a_damaged_gzip_is_told_with_its_place(tmp_path: Path) -> None:
    whole = gzip.compress(b"arrival_s,input_tokens,output_tokens\n0,1,1\n" * 100)
    for number, data in enumerate((whole[:-20], b"no gzip at all", whole[:15] + b"xxxx" + whole[19:])):
        (tmp_path / f"{number}.csv.gz").write_bytes(data)
        code, at, message, _ = problem(tmp_path / f"{number}.csv.gz")
        assert (code, at) == ("trace-file", 1) and "cannot be read" in message
