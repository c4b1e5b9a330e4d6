from __future__ import annotations

import json
from pathlib import Path

import pytest

from servegen.calibrate.readers import parse, read
from servegen.calibrate.rows import Row, usable
from servegen.errors import SpecError

DATA = Path(__file__).parents[1] / "data"
GIVEN = {"accelerator": "H100", "tp": 2, "weights": "fp8"}

SGLANG = {
    "backend": "sglang", "dataset_name": "random", "request_rate": "inf", "max_concurrency": 16, "random_input_len": 1024,
    "random_output_len": 512, "random_range_ratio": 0.8, "duration": 60.0, "completed": 160, "total_input_tokens": 147456,
    "total_output_tokens": 73728, "output_throughput": 1228.8, "mean_ttft_ms": 120.5, "median_ttft_ms": 110.0,
    "mean_tpot_ms": 11.0, "mean_itl_ms": 11.1,
    "server_info": {
        "model_path": "meta-llama/Llama-3.1-8B-Instruct", "tp_size": 4, "version": "0.5.10", "kv_cache_dtype": "fp8_e4m3",
    },
}  # fmt: skip
VLLM = {
    "date": "20260401-101010", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 320, "tp": "8",
    "request_rate": "inf", "max_concurrency": 32, "completed": 320, "total_input_tokens": 320000, "total_output_tokens": 32000,
    "output_throughput": 900.0, "mean_ttft_ms": 80.0, "mean_tpot_ms": 9.5,
}  # fmt: skip
GENAI_PERF = {
    "input_config": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"], "perf_analyzer": {"stimulus": {"concurrency": 10}}},
    "time_to_first_token": {"unit": "ms", "avg": 60.0, "p50": 50.0}, "inter_token_latency": {"unit": "ms", "avg": 8.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 1100.0}, "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 150.0}, "request_count": {"unit": "requests", "avg": 100.0},
}  # fmt: skip
AIPERF = {
    **GENAI_PERF,
    "input_config": {"endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"]}, "loadgen": {"concurrency": 12}},
    "time_to_first_token": {"unit": "s", "avg": 0.06},
}
GUIDELLM = {
    "benchmarks": [
        {
            "config": {
                "strategy": {"type_": "concurrent", "streams": 8},
                "backend": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
            },
            "request_totals": {"successful": 80},
            "metrics": {
                "time_to_first_token_ms": {"successful": {"mean": 70.0}},
                "inter_token_latency_ms": {"successful": {"mean": 7.5}},
                "output_tokens_per_second": {"successful": {"mean": 950.0}},
                "prompt_token_count": {"successful": {"mean": 256.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
            },
        },
        {
            "config": {"strategy": {"type_": "constant", "rate": 2.0}},
            "metrics": {"time_to_first_token_ms": {"successful": {"mean": 70.0}}},
        },
    ]
}
CSV = """Metric,avg,min,max,p99,p95,p90,p75,p50,p25
Time To First Token (ms),"1,060.50",40.1,80.2,79.0,78.0,77.0,70.0,60.0,50.0
Inter Token Latency (ms),8.00,7.0,9.0,9.0,9.0,9.0,8.5,8.0,7.5
Output Sequence Length (tokens),150.00,150,150,150,150,150,150,150,150
Input Sequence Length (tokens),550.00,550,550,550,550,550,550,550,550

Metric,Value
Output Token Throughput (per sec),1100.00
Request Throughput (per sec),7.33
"""


def one(document: object, **given: object) -> Row:
    (row,) = parse(json.dumps(document), "results.json", {**GIVEN, **given})
    return row


def test_sglang() -> None:
    row = one(SGLANG)
    assert (row.engine, row.version, row.model, row.tp, row.kv) == (
        "sglang",
        "0.5.10",
        "meta-llama/Llama-3.1-8B-Instruct",
        4,
        "fp8",
    )
    assert (row.isl, row.osl, row.shortest, row.concurrency) == (1024, 512, 0.8, 16)
    assert row.measured == pytest.approx({"ttft_s": 0.1205, "tpot_s": 0.011, "output_tokens_per_s": 1228.8})
    assert (row.accelerator, row.weights) == ("H100", "fp8")


def test_sglang_appends_lines() -> None:
    text = json.dumps(SGLANG) + "\n" + json.dumps({**SGLANG, "max_concurrency": 32}) + "\n"
    rows = parse(text, "r.jsonl", GIVEN)
    assert [r.concurrency for r in rows] == [16, 32]
    assert len({r.id for r in rows}) == 2


def test_vllm_says_what_its_metadata_says() -> None:
    row = one(VLLM)
    assert (row.engine, row.model, row.tp, row.concurrency, row.requests) == (
        "vllm",
        "meta-llama/Llama-3.1-8B-Instruct",
        8,
        32,
        320,
    )
    assert (row.isl, row.osl, row.date) == (1000, 100, "20260401")


def test_requests_at_a_rate_are_no_closed_loop() -> None:
    row = one({**VLLM, "request_rate": 4.0})
    assert "rate" in row.skip and not usable([row])


def test_genai_perf_and_aiperf_keep_their_units() -> None:
    for document, users in ((GENAI_PERF, 10), (AIPERF, 12)):
        row = one(document, engine="vllm")
        assert (row.concurrency, row.isl, row.osl, row.requests) == (users, 550, 150, 100)
        assert row.measured == pytest.approx({"ttft_s": 0.06, "tpot_s": 0.008, "output_tokens_per_s": 1100.0})


def test_the_csv_of_genai_perf() -> None:
    (row,) = parse(CSV, "export.csv", {**GIVEN, "engine": "vllm", "model": "llama-3.1-8b", "concurrency": 10})
    assert row.measured == pytest.approx({"ttft_s": 1.0605, "tpot_s": 0.008, "output_tokens_per_s": 1100.0})
    assert (row.isl, row.osl, row.concurrency) == (550, 150, 10)


def test_guidellm_takes_streams_and_leaves_rates() -> None:
    rows = parse(json.dumps(GUIDELLM), "g.json", {**GIVEN, "engine": "vllm"})
    assert [(r.concurrency, bool(r.skip)) for r in rows] == [(8, False), (0, True)]
    assert rows[0].measured["tpot_s"] == pytest.approx(0.0075)


def test_what_is_given_never_overrules_the_file() -> None:
    assert one(SGLANG, tp=8, model="other", concurrency=64).tp == 4
    assert one(SGLANG, model="other").model == "meta-llama/Llama-3.1-8B-Instruct"


def test_what_is_missing_is_asked_for() -> None:
    with pytest.raises(SpecError, match="does not say its engine") as caught:
        parse(json.dumps(GENAI_PERF), "g.json", {"accelerator": "H100"})
    assert "--engine" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1}', "result of no benchmark"),
        ('{"a": 1}\n{oops', "no JSON"),
        ("a,b\n1,2\n", "no table"),
        ("[1, 2]", "holds no results"),
        (json.dumps({**SGLANG, "completed": "many"}), "another type"),
    ],
)
def test_other_files_say_so(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        parse(text, "x", GIVEN)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        read(tmp_path / "none.json")


def test_throughput_of_a_closed_loop_follows_from_its_latencies() -> None:
    row = Row("x", "", "vllm", "m", "h100", 1000, 101, 10, {"ttft_s": 1.0, "tpot_s": 0.01})
    assert row.with_throughput().measured["output_tokens_per_s"] == pytest.approx(10 * 101 / 2.0)


def test_published_runs() -> None:
    rows = read(DATA / "serving.csv")
    good = usable(rows)
    assert (len(rows), len(good)) == (535, 498)
    assert {r.kv for r in good if r.weights == "bf16"} == {"bf16"} and {r.kv for r in good if r.weights == "fp8"} == {"fp8"}
    spread = {r.shortest for r in good if r.model == "meta-llama/Llama-3.1-70B"}
    fixed = {(r.shortest, r.warm) for r in good if r.model != "meta-llama/Llama-3.1-70B"}
    assert spread == {0.8} and fixed == {(1.0, False)}
    why = {r.skip for r in rows if r.skip}
    assert any("87 %" in w for w in why) and any("factor of four" in w for w in why)


def test_tables_of_one_metric_a_line() -> None:
    rows = {r.id: r for r in read(DATA / "measured.csv")}
    tpu = rows["sglang_jax_tpu-0002"]
    assert (tpu.engine, tpu.accelerator, tpu.tp, tpu.kind) == ("sglang-jax", "tpu-v6e-32gb", 4, "closed")
    assert tpu.measured == pytest.approx({"tpot_s": 0.01111, "output_tokens_per_s": 5296.6})
    split = [r for r in rows.values() if r.skip.startswith("layers are split")]
    assert split and all(r.engine in ("llama-cpp", "tensorrt-llm") for r in split)
    decode = [r for r in rows.values() if r.kind == "decode" and r.engine == "llama-cpp" and not r.skip]
    assert decode and all(set(r.measured) == {"output_tokens_per_s"} and r.concurrency == 1 for r in decode)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("silicon_ttft_ms,isl,isl\n1,2,3\n", 1, "the column isl stands twice"),
        ("silicon_ttft_ms,isl\n1,2\n1,2,3\n", 3, "more cells than the header has"),
        ('{"completed": 1, "completed": 2}', 1, "the key 'completed' stands twice"),
        ('{\n"completed": 1,\n"completed": 2}', 1, "the key 'completed' stands twice"),
        ('{"completed": 1}\n{"a": 1, "a": 2}', 2, "the key 'a' stands twice"),
    ],
)
def test_what_is_said_twice(text: str, line: int, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text, "f.x")
    (found,) = caught.value.diagnostics
    assert (found.where.file, found.where.line, found.where.column) == ("f.x", line, 1) and says in found.message
