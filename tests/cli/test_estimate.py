"""``servegen estimate``: one configuration, and tables with every kind of broken row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import servegen.solve.estimate
from servegen.cli.app import run

ONE = ["estimate", "--model", "Llama-3.1-8B", "--accelerator", "h100-sxm-80gb", "--batch", "16"]
HEADER = "id,engine,model,accelerator,tp,pp,dp,ep,weights,kv,isl,osl,concurrency,mode"


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> str:
    file = tmp_path / "configs.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return str(file)


def bulk(file: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    capsys.readouterr()
    assert run(["estimate", "--from", file, "-o", "csv"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("id,ttft_ms,tpot_ms,output_tokens_per_s,fits,error\n")
    return list(csv.DictReader(io.StringIO(out)))


def test_the_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ONE, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: set(part) for key, part in found.items()} == {
        "model": {"params_total", "params_active"},
        "memory": {"weight_bytes_per_device", "kv_bytes_per_token", "kv_pool_bytes", "max_running_requests", "fits"},
        "prefill": {"time_s", "bound", "breakdown_s"},
        "decode": {"step_time_s", "bound", "breakdown_s"},
        "serving": {"ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_device"},
        "band": {"low", "high"},
    }
    for phase in ("prefill", "decode"):
        terms = {"weights", "kv", "compute", "attention", "collectives", "overhead"}
        assert set(found[phase]["breakdown_s"]) == terms
    assert set(found["band"]["low"]) == set(found["band"]["high"]) == set(found["serving"])
    assert found["memory"]["weight_bytes_per_device"] == 2 * found["model"]["params_total"]


def test_text_and_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ONE) == 0
    assert "weights on one device" in capsys.readouterr().out
    assert run([*ONE, "-o", "yaml"]) == 0
    assert "  params_total: 8030261248\n" in capsys.readouterr().out


def test_every_flag_reaches_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(request: Any) -> Any:
        seen.append(request)
        raise KeyboardInterrupt

    monkeypatch.setattr(servegen.solve.estimate, "estimate", record)
    flags = {
        "model": "m", "accelerator": "a", "engine": "e", "tp": 2, "pp": 3, "dp": 4, "ep": 5, "weights": "fp8",
        "kv": "int8", "batch": 6, "isl": 7, "osl": 8, "cached": 9, "chunk": 10, "mode": "static", "physics": "ideal",
    }  # fmt: skip
    arguments = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    assert run(["estimate", *arguments]) == 130
    assert {key: getattr(seen[0], key) for key in flags} == flags


@pytest.mark.parametrize(
    "flags", [["--mode", "x"], ["--physics", "x"], ["--tp", "0"], ["-o", "csv"], ["--accelerator", ""]]
)
def test_wrong_flags_exit_1(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ONE, *flags]) == 1
    assert capsys.readouterr().out == ""


def test_an_unknown_model_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ONE, "--model", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err


def test_a_row_says_what_the_single_call_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ONE, "-o", "json", "--isl", "512", "--osl", "64"]) == 0
    single = json.loads(capsys.readouterr().out)["serving"]
    row = bulk(table(tmp_path, "a,sglang,Llama-3.1-8B,h100-sxm-80gb,,,,,,,512,64,16,"), capsys)[0]
    assert row["id"] == "a" and row["fits"] == "true" and row["error"] == ""
    assert float(row["ttft_ms"]) == pytest.approx(1e3 * single["ttft_s"], rel=1e-5)
    assert float(row["tpot_ms"]) == pytest.approx(1e3 * single["tpot_s"], rel=1e-5)
    assert float(row["output_tokens_per_s"]) == pytest.approx(single["output_tokens_per_s"], rel=1e-5)


def test_broken_rows_stay_in_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = "sglang,Llama-3.1-8B,h100-sxm-80gb,1,1,1,1,bf16,bf16,512,64,8,aggregated"
    rows = bulk(
        table(
            tmp_path,
            f"1,{good}",
            f"2,{good.replace('Llama-3.1-8B', 'no-such-model')}",
            f"3,{good.replace('h100-sxm-80gb', 'abacus')}",
            f"4,{good.replace('sglang', 'steam')}",
            f"5,{good.replace(',1,1,1,1,', ',x,1,1,1,')}",
            f"6,{good.replace('512', '1.5')}",
            f"7,{good.replace('aggregated', 'sideways')}",
            f"8,{good.replace('64', '')}",
            "9,sglang",
            f"10,{good.replace('Llama-3.1-8B', 'Llama-3.1-70B')}",
            f"11,{good}",
        ),
        capsys,
    )
    assert [row["id"] for row in rows] == [str(n) for n in range(1, 12)]
    assert [bool(row["error"]) for row in rows] == [n not in (1, 10, 11) for n in range(1, 12)]
    assert all(not row["ttft_ms"] and not row["fits"] for row in rows if row["error"])
    assert rows[9]["fits"] == "false" and rows[9]["ttft_ms"] == ""
    assert rows[0] == {**rows[10], "id": "1"}
    assert "x" in rows[4]["error"] and "sideways" in rows[6]["error"]


def test_a_bug_in_one_row_is_that_rows_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request: Any) -> Any:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(servegen.solve.estimate, "estimate", broken)
    row = bulk(table(tmp_path, "a,sglang,Llama-3.1-8B,h100-sxm-80gb,,,,,,,512,64,16,"), capsys)[0]
    assert row["error"] == "bug in servegen: ZeroDivisionError: by zero"


def test_split_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = HEADER + ",prefill_tp,prefill_workers,decode_tp,decode_workers"
    row = "sglang,Llama-3.1-8B,h100-sxm-80gb,1,1,1,1,bf16,bf16,512,64,64,disaggregated"
    few, more = bulk(table(tmp_path, f"1,{row},1,1,1,1", f"2,{row},1,1,1,4", header=header), capsys)
    assert float(more["tpot_ms"]) < float(few["tpot_ms"])


def test_a_table_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, "a,sglang,Llama-3.1-8B,h100-sxm-80gb,,,,,,,512,64,16,", "b,sglang,none,h100,,,,,,,1,1,1,")
    assert run(["estimate", "--from", file, "-o", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["fits"] is True and first["error"] is None
    assert second["fits"] is None and "none" in second["error"]


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'id,"engine\n'])
def test_what_is_no_table_exits_1(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(content)
    assert run(["estimate", "--from", str(file), "-o", "csv"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "error[bad-table]" in err


def test_a_missing_table_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--from", "none.csv"]) == 1
    assert "none.csv: error[io]" in capsys.readouterr().err


HEAD = "id,engine,model,accelerator,isl,osl,concurrency"
ROW = "a,sglang,llama-3.1-8b,h100-sxm-80gb,1024,128,4"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f"{HEAD},isl\n{ROW},7\n".encode(), ":1:1: error[bad-table]: the column isl stands twice"),
        (f"{HEAD}\n{ROW}\n{ROW},7\n".encode(), ":3:1: error[bad-table]: 8 cells where the header has 7"),
        (f"{HEAD}\n".encode() + b"a,\xff\n", ":2:3: error[bad-table]: this is no CSV in UTF-8"),
        (b"\x93\x00\xff", ":1:1: error[bad-table]: this is no CSV in UTF-8"),
    ],
)
def test_a_table_that_says_a_thing_twice(content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    assert run(["estimate", "--from", str(tmp_path / "t.csv")]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("figure", ["1_024", "\u0661\u0662"])
def test_a_figure_that_only_python_reads(figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(f"{HEAD}\n{ROW.replace('1024', figure)}\n", encoding="utf-8")
    assert run(["estimate", "--from", str(tmp_path / "t.csv")]) == 0
    assert f"isl: '{figure}' is no number" in capsys.readouterr().out
