"""`servegen calibrate`, a spec that names its file, and the page on accuracy."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from servegen.calibrate.rows import Row
from servegen.calibrate.score import Pair, crossed
from servegen.catalog.engines import resolve_engine
from servegen.cli.app import run
from servegen.errors import SpecError
from servegen.solve.bands import band
from servegen.solve.resolve import resolve
from servegen.spec.load import load
from tests.tools import accuracy

ROOT = Path(__file__).resolve().parents[2]
HEAD = "backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,batch_size,tp_size,pp_size"
RUNS = f"""id,{HEAD},silicon_ttft_ms,silicon_tpot_ms
a,vllm,0.9,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,agg,1024,128,,8,1,1,90,9
b,vllm,0.9,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,agg,1024,128,,16,2,1,95,7
c,vllm,0.9,no-such-model,h100_sxm,,agg,1024,128,,16,2,1,95,7
"""
SPEC = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {name: own}
spec:
  model: {name: meta-llama/Llama-3.1-8B-Instruct}
  slo: {itl: {p95: 50ms}}
  traffic: {rate: 1/s, isl: 512, osl: 128}
  hardware: {pool: [{accelerator: h100-sxm-80gb, nodes: 1, perNode: 8, price: 2/h}]}
  deploy: {calibration: own.yaml}
"""
OWN = """apiVersion: servegen/v1alpha1
kind: Calibration
constants:
  engine.sglang.step_s: {value: 0.005, fit_error: 0.1, rows: 9, origin: fitted, source: mine}
  accelerator.h100-sxm-80gb.gemm.bf16.ew: {value: 0.5, fit_error: 0.1, rows: 9, origin: fitted, source: mine}
bands:
  sglang:
    itl: {value: 0.07, rows: 40, source: mine}
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(RUNS, "utf-8")
    return path


def test_scoring(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", str(runs), "--score", "--by", "engine", "-o", "csv"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [(r["group"], r["metric"], r["rows"]) for r in rows] == [
        ("vllm", "ttft_s", "2"), ("vllm", "tpot_s", "2"), ("vllm", "output_tokens_per_s", "2"),
    ]  # fmt: skip
    assert all(float(r["median"]) <= float(r["p90"]) for r in rows)
    assert "no-such-model" in said.err


def test_every_grouping_as_text_and_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", str(runs), "--score"]) == 0
    assert "Errors by concurrency" in capsys.readouterr().out
    assert run(["calibrate", str(runs), "--score", "-o", "json"]) == 0
    assert {r["by"] for r in json.loads(capsys.readouterr().out)} >= {"all", "accelerator", "weights"}


def test_nothing_to_score_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.csv"
    path.write_text(RUNS.replace("h100_sxm", "nothing"), "utf-8")
    assert run(["calibrate", str(path), "--score"]) == 1


def test_fitting_writes_a_file_that_scores_better(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    out = tmp_path / "mine.yaml"
    chosen = ["--constant", "engine.vllm.layer_s", "--constant", "engine.vllm.request_s"]
    assert run(["calibrate", str(runs), "--out", str(out), *chosen, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in found["constants"]] == ["engine.vllm.layer_s", "engine.vllm.request_s"]
    assert out.read_text("utf-8") == found["calibration"]
    means = {(e["stage"], e["metric"]): e["mean"] for e in found["errors"]}
    assert means["after", "tpot_s"] < means["before", "tpot_s"]
    assert ("left out", "tpot_s") in means and found["folds"] == ["TP 1", "TP 2"]
    assert run(["calibrate", str(runs), "--score", "--by", "all", "--calibration", str(out), "-o", "json"]) == 0
    (again,) = [r["mean"] for r in json.loads(capsys.readouterr().out) if r["metric"] == "tpot_s"]
    assert again == pytest.approx(means["after", "tpot_s"], rel=0.01)


@pytest.mark.parametrize("flags", [["--by", "colour"], ["--score", "--out", "x"], ["-o", "csv"]])
def test_usage(runs: Path, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", str(runs), *flags]) == 1
    assert capsys.readouterr().err


def test_a_spec_takes_its_own_constants(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, "utf-8")
    (tmp_path / "own.yaml").write_text(OWN, "utf-8")
    (loaded,) = load(tmp_path / "spec.yaml")
    problem = resolve(loaded)
    engine, accelerator = problem.engines[0].facts, problem.pool[0].facts
    assert (engine.step_s.value, accelerator.gemm["bf16"].ew) == (0.005, 0.5)
    assert accelerator.gemm["bf16"].source == "mine"
    assert band(problem.model, engine, accelerator, "bf16")["itl"].high == pytest.approx(1.07)
    before = problem.inputs
    (tmp_path / "own.yaml").write_text(OWN + "# changed\n", "utf-8")
    after = resolve(loaded).inputs
    assert before["facts"] == after["facts"] and before["deploy.calibration"] != after["deploy.calibration"]
    (tmp_path / "own.yaml").write_text(OWN.replace("0.005", "5"), "utf-8")
    with pytest.raises(SpecError, match="physical range") as caught:
        resolve(loaded)
    assert caught.value.diagnostics[0].where.line == 9


def test_a_band_is_wider_where_less_is_known() -> None:
    from servegen.catalog.accelerators import resolve_accelerator
    from servegen.catalog.models import resolve_model

    dense, moe = resolve_model("meta-llama/Llama-3.1-70B"), resolve_model("Qwen/Qwen3-235B-A22B")
    h100, a10g = resolve_accelerator("h100-sxm-80gb"), resolve_accelerator("a10g-24gb")
    vllm, megatron = resolve_engine("vllm"), resolve_engine("megatron")
    known = band(dense, vllm, h100, "fp8")["itl"].high
    assert known == pytest.approx(1 + vllm.band["itl"].value)
    assert known < band(dense, vllm, h100, "int8")["itl"].high < band(dense, vllm, a10g, "bf16")["itl"].high
    assert known < band(moe, vllm, h100, "fp8")["itl"].high
    assert known < band(dense, megatron, h100, "fp8")["itl"].high
    assert band(dense, vllm, h100, "fp8", sequences=128)["itl"].high == known
    assert known < band(dense, vllm, h100, "fp8", sequences=129)["itl"].high


def test_nested_coverage_knows_nothing_of_the_group_it_counts() -> None:
    def rows(model: str, error: float) -> list[Pair]:
        row = Row("x", "test", "vllm", model, "h100", 10, 10, 1, {"tpot_s": 1.0})
        return [(row, {"tpot_s": 1.0 + error * i / 100}) for i in range(100)]

    alike = crossed([*rows("a", 0.1), *rows("b", 0.1)], "tpot_s")
    assert [round(inside / count, 1) for inside, count in alike.values()] == [0.9, 0.9]
    # a group that scatters twice as much is not saved by its own residuals
    unlike = crossed([*rows("a", 0.1), *rows("b", 0.2)], "tpot_s")
    assert unlike["a / h100 / vllm"] == (100, 100)
    assert unlike["b / h100 / vllm"][0] / 100 == pytest.approx(0.45, abs=0.03)


@pytest.mark.slow
def test_the_page_on_accuracy_is_current() -> None:
    assert (ROOT / "docs" / "accuracy.md").read_text("utf-8") == accuracy.page(), "python -m tests.tools.accuracy writes it anew"
