"""A probe finds the constants of a device whose constants are known, and writes a file that a spec and `estimate` can use."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from servegen.calibrate import probe_file
from servegen.calibrate.probe import Case, DeviceInfo, Measured, cases, shapes_of, worlds
from servegen.calibrate.probe import probe as measure
from servegen.calibrate.probe_fit import Profile, fit, line, products
from servegen.catalog.accelerators import list_accelerators, match_accelerator, resolve_accelerator
from servegen.catalog.calibration import load_calibration
from servegen.catalog.engines import attention_of, resolve_engine
from servegen.catalog.facts import BYTES_PER_WEIGHT
from servegen.catalog.models import resolve_model
from servegen.cli.app import run
from servegen.cli.probe import probe as probe_command
from servegen.errors import CatalogError
from servegen.lower import Config, lower
from servegen.solve.bands import KERNELS_ALONE_ERROR, NINETY_OVER_MEAN, band
from servegen.solve.estimate import EstimateRequest, estimate

SMALL = resolve_model("Qwen/Qwen3-0.6B")
CPU = DeviceInfo("Some CPU @ 3 GHz", "cpu", 1, 64e9, 0.0, 16, 64e9, "fake 1")
H200 = DeviceInfo("NVIDIA H200", "nvidia", 8, 150.1e9, 9.0, 192, 2e12, "fake 1")
NEW_GPU = DeviceInfo("NVIDIA GeForce RTX 5090", "nvidia", 2, 33.6e9, 12.0, 32, 256e9, "fake 1")


@dataclass
class Fake:
    """A device that takes exactly as long as the formulas say."""

    info: DeviceInfo
    bytes_per_s: float = 100e9
    flops: dict[str, float] = field(default_factory=lambda: {"bf16": 2e12, "int8": 4e12})
    ew: float = 0.8
    ec: float = 0.6
    kv: float = 0.5
    attention: float = 0.3
    alpha_s: float = 4e-6
    link_bytes_per_s: float = 30e9
    slowdown: float = 1.0
    most_bytes: float = math.inf
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def dtypes(self) -> Sequence[str]:
        return tuple(self.flops)

    def copy_s(self, size_bytes: int, limit_s: float) -> float | None:
        self.asked.append(("copy", size_bytes))
        return 2.0 * size_bytes / self.bytes_per_s * self.slowdown

    def gemm_s(self, dtype: str, m: int, n: int, k: int, limit_s: float) -> float | None:
        self.asked.append(("gemm", dtype, m, n, k))
        if n * k * 2 > self.most_bytes:
            return None
        read = n * k * BYTES_PER_WEIGHT[dtype] / (self.bytes_per_s * self.ew)
        return max(read, 2.0 * m * n * k / (self.flops[dtype] * self.ec)) * self.slowdown

    def prefill_s(self, heads: int, head_dim: int, tokens: int, limit_s: float) -> float | None:
        return 2.0 * heads * head_dim * tokens**2 / (self.flops["bf16"] * self.attention) * self.slowdown

    def decode_s(self, batch: int, heads: int, kv_heads: int, head_dim: int, context: int, limit_s: float) -> float | None:
        return batch * context * kv_heads * head_dim * 2 * 2.0 / (self.bytes_per_s * self.kv) * self.slowdown

    def allreduce_s(self, devices: int, sizes_bytes: Sequence[int], limit_s: float) -> Sequence[float]:
        return [self.alpha_s * devices + 2.0 * v * (devices - 1) / devices / self.link_bytes_per_s for v in sizes_bytes]


def profile(device: Fake, budget_s: float = 1e6) -> tuple[Profile, tuple[Measured, ...]]:
    shapes = shapes_of(SMALL)
    measured = measure(device, shapes, budget_s)
    return fit(device.info, *probe_file.identity(device.info), shapes, measured), measured


def own(device: Fake, folder: Path, name: str = "own.yaml") -> Path:
    path = folder / name
    found, measured = profile(device)
    path.write_text(probe_file.text(device.info, found, measured), "utf-8")
    return path


# -- what is measured --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1"])
def test_the_matrices_of_a_layer_are_those_of_the_model(name: str) -> None:
    model = resolve_model(name)
    shapes, group = shapes_of(model), model.layers[0]
    attention, mlp = shapes.matrices[:2], shapes.matrices[2:]
    kinds = {k: sum(t.params for t in model.tensors if t.kind == k) / model.num_layers for k in ("attention", "mlp", "expert")}
    assert sum(n * k for n, k in attention) == pytest.approx(kinds["attention"], rel=1e-3)
    assert sum(n * k for n, k in mlp) * max(group.num_experts, 1) == pytest.approx(kinds["mlp"] + kinds["expert"], rel=1e-3)


def test_a_model_without_plain_heads_has_no_shapes() -> None:
    with pytest.raises(CatalogError, match="plain attention heads"):
        shapes_of(resolve_model("deepseek-ai/DeepSeek-V2-Lite"))


def test_what_a_case_counts_is_what_the_step_counts() -> None:
    """A layer's cases are rates of the very seconds that the step charges."""
    device = resolve_accelerator("h200")
    step = lower(SMALL, resolve_engine("sglang"), [Config(device, "bf16", "bf16", 1)], "ideal").terms
    todo = cases(H200, ("bf16",), shapes_of(SMALL))
    layers = SMALL.num_layers

    def total(kind: str, size: tuple[int, ...], what: str) -> float:
        return layers * sum(getattr(c, what) for c in todo if c.kind == kind and c.size[: len(size)] == size)

    assert total("gemm", (1,), "flops") / device.peak_flops["bf16"] == pytest.approx(float(step.token_flop_s[0]), rel=1e-3)
    assert total("prefill", (1024,), "flops") / device.peak_flops["bf16"] == pytest.approx(
        float(step.attention_s(np.array([1024.0]), np.array([0.0]))[0, 0])
    )
    assert total("decode", (16, 4096), "moved_bytes") / device.hbm_bytes_per_s == pytest.approx(16 * float(step.kv_s(4096.0)[0]))
    vocabulary = SMALL.vocab_size * SMALL.hidden_size * 2.0
    assert total("gemm", (1,), "moved_bytes") + vocabulary == pytest.approx(
        float(step.weight_s[0]) * device.hbm_bytes_per_s, rel=1e-3
    )


def test_devices_reduce_in_powers_of_two_and_all_together() -> None:
    assert [worlds(n) for n in (0, 1, 2, 3, 6, 8)] == [[], [], [2], [2, 3], [2, 4, 6], [2, 4, 8]]


def test_a_case_that_would_outlast_its_share_is_left_out() -> None:
    slow = Fake(CPU, slowdown=100.0)
    found, measured = profile(slow, budget_s=30.0)
    all_of_them = cases(CPU, slow.dtypes(), shapes_of(SMALL))
    share = 30.0 / len(all_of_them)
    assert 20 < len(measured) < len(all_of_them)
    assert all(m.seconds <= share for m in measured if m.case.kind == "gemm" and m.case.size[0] > 4)
    assert found.constants["gemm.bf16.ec"].value > 0.5


def test_progress_ends_with_everything() -> None:
    told: list[tuple[int, int]] = []
    measure(Fake(NEW_GPU), shapes_of(SMALL), 1e6, lambda done, total: told.append((done, total)))
    assert told == [(i + 1, told[0][1]) for i in range(told[0][1])]


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_a_known_device_gets_back_its_shares_of_the_specified_figures() -> None:
    facts = resolve_accelerator("h200")
    device = Fake(H200, facts.hbm_bytes_per_s, {"bf16": 989e12, "fp8": 1979e12}, link_bytes_per_s=290e9)
    found, _ = profile(device)
    assert found.id == "h200-sxm-141gb" and found.known is facts and not found.notes
    values = {name: c.value for name, c in found.constants.items()}
    expected = {f"gemm.{d}.ew": 0.8 for d in ("bf16", "fp8")} | {f"gemm.{d}.ec": 0.6 for d in ("bf16", "fp8")}
    expected |= {"kv_efficiency": 0.5, "attention_efficiency": 0.3}
    expected |= {f"allreduce_alpha_s.{n}": 4e-6 * n for n in (2, 4, 8)} | {f"allreduce_bytes_per_s.{n}": 290e9 for n in (2, 4, 8)}
    assert values == pytest.approx(expected, rel=1e-6)
    assert all(c.fit_error < 1e-6 and c.rows >= 2 and c.origin == "measured" for c in found.constants.values())


def test_an_unknown_device_is_measured_by_its_own_best() -> None:
    found, _ = profile(Fake(CPU))
    assert found.id == "cpu-local" and found.known is None
    assert found.bytes_per_s == pytest.approx(100e9)  # copies are the fastest
    assert found.peak_flops == pytest.approx({"bf16": 1.2e12, "int8": 2.4e12})
    assert {n: c.value for n, c in found.constants.items()} == pytest.approx(
        {"gemm.bf16.ew": 0.8, "gemm.bf16.ec": 1.0, "gemm.int8.ew": 0.8, "gemm.int8.ec": 1.0, "kv_efficiency": 0.5,
         "attention_efficiency": 0.5}
    )  # fmt: skip


@given(
    bytes_per_s=st.floats(1e9, 1e13), intensity=st.floats(8, 1000), ew=st.floats(0.05, 1), ec=st.floats(0.05, 1),
    kv=st.floats(0.05, 1), attention=st.floats(0.05, 1),
)  # fmt: skip
def test_any_device_of_the_formulas_is_recovered(
    bytes_per_s: float, intensity: float, ew: float, ec: float, kv: float, attention: float
) -> None:
    peak = bytes_per_s * intensity  # FLOP per byte, of a CPU to a GPU
    found, _ = profile(Fake(CPU, bytes_per_s, {"bf16": peak}, ew, ec, kv, attention))
    assert all(0 < c.value <= 1 for c in found.constants.values())
    assert found.constants["kv_efficiency"].value * found.bytes_per_s == pytest.approx(kv * bytes_per_s)
    assert found.constants["attention_efficiency"].value * found.peak_flops["bf16"] == pytest.approx(attention * peak)
    turn = peak * ec / (bytes_per_s * ew)  # tokens at which reading turns into multiplying, bf16
    if 1.01 < turn < 4000:  # both are seen
        assert found.constants["gemm.bf16.ew"].value * found.bytes_per_s == pytest.approx(ew * bytes_per_s)
        assert found.constants["gemm.bf16.ec"].value * found.peak_flops["bf16"] == pytest.approx(ec * peak)


def test_scatter_becomes_the_fit_error() -> None:
    shapes, device = shapes_of(SMALL), Fake(CPU)
    exact = [m for m in measure(device, shapes, 1e6) if m.case.kind == "gemm" and m.case.dtype == "bf16"]
    noisy = [replace(m, seconds=m.seconds * (1.2 if i % 2 else 1 / 1.2)) for i, m in enumerate(exact)]
    read, multiply = products(noisy)
    assert read[0] == pytest.approx(80e9, rel=0.2) and multiply[0] == pytest.approx(1.2e12, rel=0.2)
    assert 0.1 < read[1] < 0.25 and 0.1 < multiply[1] < 0.25
    assert read[2] + multiply[2] == len(exact)


def test_scatter_never_makes_an_allreduce_negative() -> None:
    alpha, speed, error = line([1e3, 1e6, 1e9], [2e-5, 1e-5, 1.2e-5])
    assert alpha > 0 and 0 < speed < math.inf and error > 0.1


def test_a_share_above_one_is_cut_and_said(tmp_path: Path) -> None:
    facts = resolve_accelerator("h200")
    found, _ = profile(Fake(H200, 1.1 * facts.hbm_bytes_per_s, {"bf16": 989e12}, ew=1.0))
    assert found.constants["gemm.bf16.ew"].value == 1.0
    assert any("gemm.bf16.ew: 1.1 of the specified" in note for note in found.notes)


def test_what_cannot_be_is_an_error_and_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    with pytest.raises(CatalogError, match=r"gemm\.bf16\.ew = 0\.001"):
        probe_command("", 1e6, path, "text", Fake(CPU, ew=0.001))
    with pytest.raises(CatalogError, match="too little could be measured"):
        probe_command("", 1e6, path, "text", Fake(CPU, most_bytes=0.0))
    assert not path.exists() and not capsys.readouterr().out


def test_a_precision_without_a_published_peak_is_said() -> None:
    found, _ = profile(Fake(replace(H200, name="AMD Instinct MI300X", vendor="amd", memory_bytes=206e9), 5300e9,
                            {"bf16": 1307e12, "int4": 1e15}))  # fmt: skip
    assert found.id == "mi300x-192gb"
    assert any(note.startswith("int4: measured, but no int4 peak") for note in found.notes)


def test_the_error_of_kernels_alone_is_that_of_the_tables() -> None:
    tables = YAML(typ="safe").load((Path(__file__).parents[1] / "fixtures" / "efficiency.yaml").read_text("utf-8"))
    off = []
    for device, fitted in tables["fitted"].items():
        for precision, (ew, _) in fitted.items():
            kernels = tables["gemm"].get(device, {}).get(precision)
            if kernels is not None:
                seen = sorted(kernels["bw"])[1] * tables["gemm"][device]["hbm_bytes_per_s"]
                off.append(abs(math.log(ew * resolve_accelerator(device).hbm_bytes_per_s / seen)))
    assert len(off) == 5
    assert sum(off) / len(off) == pytest.approx(KERNELS_ALONE_ERROR, abs=0.005)


# -- which device it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory", "id"),
    [
        ("NVIDIA H200", 150.1e9, "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", 85.0e9, "h100-sxm-80gb"),
        ("NVIDIA L4", 23.6e9, "l4-24gb"),
        ("NVIDIA L40S", 47.7e9, "l40s-48gb"),
        ("AMD Instinct MI300X", 206e9, "mi300x-192gb"),
        ("NVIDIA H100 NVL", 99.9e9, None),
        ("NVIDIA H200 MIG 1g.18gb", 18e9, None),
        ("NVIDIA H200", 40e9, None),
    ],
)
def test_a_device_is_known_by_name_and_memory(name: str, memory: float, id: str | None) -> None:
    found = match_accelerator(name, memory)
    assert (found.id if found is not None else None) == id


def test_no_device_is_taken_for_another() -> None:
    for name in list_accelerators():
        facts = resolve_accelerator(name)
        for label in facts.node_selector.values():
            if "nvidia.com/gpu.product" in facts.node_selector:
                found = match_accelerator(label.replace("-", " "), facts.usable_bytes)
                assert found is not None and found.node_selector == facts.node_selector, label


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_of_the_cpu_serves_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(Fake(CPU), tmp_path)
    facts = load_calibration(path).resolve_accelerator("CPU_Local")
    assert (facts.id, facts.name, facts.vendor, facts.scaleup_domain) == ("cpu-local", "Some CPU @ 3 GHz", "cpu", 1)
    assert (facts.hbm_bytes_per_s, facts.usable_bytes, facts.host_cpus) == (100e9, 64e9, 16)
    assert (facts.gemm["bf16"].ew, facts.gemm["bf16"].ec, facts.gemm["bf16"].origin) == (0.8, 1.0, "measured")
    arguments = ["estimate", "--model", SMALL.id, "--accelerator", "cpu-local", "--engine", "vllm", "--osl", "8", "-o", "json"]
    assert run([*arguments, "--calibration", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    linear = SMALL.weight_bytes("bf16") - SMALL.vocab_size * SMALL.hidden_size * 2
    vocabulary = SMALL.vocab_size * SMALL.hidden_size * 2 / (100e9 * 0.75)
    assert found["decode"]["breakdown_s"]["weights"] == pytest.approx(linear / (100e9 * 0.8) + vocabulary, rel=0.01)
    assert run(arguments) == 1
    assert "servegen calibrate --probe --out FILE writes it" in capsys.readouterr().err


def test_a_table_of_estimates_takes_the_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    head = "id,engine,model,accelerator,isl,osl,concurrency"
    table.write_text(f"{head}\na,vllm,{SMALL.id},cpu-local,64,8,1\nb,vllm,{SMALL.id},nothing,64,8,1\n", "utf-8")
    assert run(["estimate", "--from", str(table), "--calibration", str(own(Fake(CPU), tmp_path))]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.split(",")[4] == "true" and "nothing" in second


SPEC = """apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {name: local}
spec:
  model: {name: Qwen/Qwen3-0.6B}
  slo: {itl: {p95: 200ms}}
  traffic: {rate: 0.1/s, isl: 128, osl: 32}
  hardware: {pool: [{accelerator: ACCELERATOR, nodes: 1, perNode: 1, price: 0.1/h}]}
  constraints: {engines: [vllm]}
  deploy: {calibration: own.yaml}
"""


@pytest.mark.parametrize(("info", "id"), [(CPU, "cpu-local"), (NEW_GPU, "geforce-rtx-5090-local")])
def test_a_spec_names_what_a_probe_found(info: DeviceInfo, id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own(Fake(info), tmp_path)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("ACCELERATOR", id), "utf-8")
    assert run(["plan", str(spec), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["feasible"] and found["choice"]["roles"][0]["accelerator"] == id
    assert run(["build", str(spec), "--out", str(tmp_path / "out")]) == 0
    lock = json.loads((tmp_path / "out" / "local" / "plan.lock.json").read_text("utf-8"))
    assert "deploy.calibration" in lock["inputs"]
    assert "measured: servegen calibrate --probe" in (tmp_path / "out" / "local" / "PLAN.md").read_text("utf-8")


def test_a_known_device_gets_constants_by_name(tmp_path: Path) -> None:
    facts, engine = resolve_accelerator("h200"), resolve_engine("sglang")
    path = own(Fake(H200, facts.hbm_bytes_per_s, {"bf16": 989e12}, link_bytes_per_s=200e9), tmp_path)
    calibration = load_calibration(path)
    assert not calibration.accelerators
    changed = calibration.resolve_accelerator("h200")
    assert changed.allreduce_bytes_per_s == {2: 200e9, 4: 200e9, 8: 200e9}
    assert changed.gemm["fp8"] == facts.gemm["fp8"]
    assert [c.value for c in attention_of(engine, changed)] == [0.5, 0.3]
    assert attention_of(engine, facts) == (engine.kv_efficiency, engine.attention_efficiency)
    assert attention_of(engine, calibration.resolve_accelerator("h100-sxm-80gb"))[0] is engine.kv_efficiency
    width = math.hypot(engine.band["itl"].value, NINETY_OVER_MEAN * KERNELS_ALONE_ERROR)
    assert band(SMALL, engine, changed, "bf16")["itl"].high == pytest.approx(1 + width)


def test_shares_of_attention_reach_the_step(tmp_path: Path) -> None:
    request = EstimateRequest(SMALL.id, "cpu-local", engine="vllm", isl=2048, osl=8)
    one = replace(request, calibration=load_calibration(own(Fake(CPU), tmp_path)))
    slow = replace(request, calibration=load_calibration(own(Fake(CPU, kv=0.25, attention=0.15), tmp_path)))
    first, second = estimate(one), estimate(slow)
    assert second.decode.breakdown_s["kv"] == pytest.approx(2 * first.decode.breakdown_s["kv"])
    assert second.prefill.breakdown_s["attention"] == pytest.approx(2 * first.prefill.breakdown_s["attention"])
    ideal = estimate(replace(slow, physics="ideal"))
    assert ideal.decode.step_time_s < first.decode.step_time_s < second.decode.step_time_s


def test_the_file_is_the_same_twice_and_says_nothing_of_where(tmp_path: Path) -> None:
    for info, bytes_per_s in ((CPU, 1e11), (H200, 4.8e12), (NEW_GPU, 1e12)):
        flops = {"bf16": 200 * bytes_per_s}
        first, second = (own(Fake(info, bytes_per_s, flops), tmp_path, name).read_bytes() for name in ("a.yaml", "b.yaml"))
        assert first == second
        assert str(tmp_path) not in first.decode() and "date" not in first.decode()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ew: 0.8,", "ew: 1.8,", "outside its physical range"),
        ("  cpu-local:", "  h200-sxm-141gb:", "is in the catalogue"),
        ("id: cpu-local", "id: other", "another"),
        ("hbm_bytes: {value: 64000000000", "hbm_bytes: {value: 0", "is no amount"),
        ("vendor: cpu", "colour: cpu", "vendor is missing"),
        ("scaleup_domain: {value: 1,", "scaleup_domain: {value: null,", "has no value"),
        ("scaleup_domain: {value: 1,", "scaleup_domain: {value: -1,", "is no amount"),
        ("host_devices: {value: 1,", "host_devices: {value: .inf,", "is no number"),
        ("host_devices: {value: 1,", "host_devices: {value: .nan,", "is no number"),
        ("link_bytes_per_s: {value: 5", "link_bytes_per_s: {value: -5", "is no amount"),
        ("allreduce_alpha_s: {}", "allreduce_alpha_s: {source: probe, 2: 1e-5}", "not of the same TPs"),
        ("    sources:", "    sauces:", "sources is missing"),
        ("accelerators:\n  cpu-local:", "accelerators:\n  cpu-local: []\n  other:", "is no mapping"),
        ("  bf16: 1.2e+12", "  fp8: 1.2e+12", "lacks bf16"),
        ("origin: measured", "origin: guessed", "unknown origin"),
        ("kv_efficiency: {value: 0.5", "kv_efficiency: {value: 1.5", "outside its physical range"),
    ],
)
def test_an_accelerator_that_cannot_be_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = own(Fake(CPU), tmp_path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(CatalogError, match=said):
        load_calibration(path)


def test_own_accelerators_are_judged_and_not_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    path, rows = own(Fake(CPU), tmp_path), tmp_path / "runs.csv"
    head = "id,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,batch_size,tp_size,pp_size"
    rows.write_text(
        f"{head},silicon_ttft_ms,silicon_tpot_ms\n"
        f"a,vllm,0.9,{SMALL.id},cpu-local,,agg,256,32,,1,1,1,900,90\n"
        f"b,vllm,0.9,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,agg,1024,128,,16,1,1,95,7\n",
        "utf-8",
    )
    assert run(["calibrate", str(rows), "--score", "--calibration", str(path), "--by", "accelerator"]) == 0
    assert "cpu-local" in capsys.readouterr().out
    assert run(["calibrate", str(rows), "--calibration", str(path), "--constant", "engine.vllm.step_s"]) == 0
    assert "judged, not fitted" in capsys.readouterr().err


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    assert probe_command("", 1e6, path, "text", Fake(H200, 4800e9, {"bf16": 989e12})) == 0
    said = capsys.readouterr().out
    assert "h200-sxm-141gb: NVIDIA H200, 8 of them, at the shapes of meta-llama/Llama-3.1-8B" in said
    assert "all-reduce" in said and "gemm.bf16.ew" in said
    assert load_calibration(path).constants["accelerator.h200-sxm-141gb.gemm.bf16.ew"].value == 0.8
    assert probe_command("Qwen/Qwen3-1.7B", 1e6, None, "json", Fake(CPU)) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["accelerator"], found["inCatalogue"], found["model"]) == ("cpu-local", False, "Qwen/Qwen3-1.7B")
    assert {m["kind"] for m in found["measurements"]} == {"copy", "gemm", "prefill", "decode"}
    assert not said.err


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    from servegen.errors import EmitError

    with pytest.raises(EmitError, match="cannot write"):
        probe_command("", 1e6, tmp_path / "no" / "own.yaml", "text", Fake(CPU))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--probe", "runs.csv"], "has no use for RESULTS"),
        (["--probe", "--score", "--tp", "2"], "has no use for --score, --tp"),
        (["--probe", "-o", "csv"], "'csv' is not one of"),
        ([], "benchmark results are needed, or --probe"),
        (["runs.csv", "--budget", "5"], "only a probe takes its time"),
    ],
)
def test_flags_that_change_nothing_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *arguments]) == 1
    assert said in " ".join(capsys.readouterr().err.split())


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert run(["calibrate", "--probe"]) == 1
    assert "pip install 'servegen-compiler[probe]'" in capsys.readouterr().err


# -- a real device -----------------------------------------------------------------------------------------------------


def test_the_cpu_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the extra `probe` is not installed")
    from servegen.calibrate.probe_torch import TorchDevice, open_device

    device = open_device()
    assert isinstance(device, TorchDevice) and "bf16" in device.dtypes()
    path = tmp_path / "own.yaml"
    assert probe_command("Qwen/Qwen3-0.6B", 2.0, path, "json", device) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(m["seconds"] > 0 for m in found["measurements"])
    assert all(c["measured"] > 0 for c in found["constants"])
    name = found["accelerator"]
    assert run(["estimate", "--model", SMALL.id, "--accelerator", name, "--engine", "vllm", "--osl", "4",
                "--calibration", str(path), "-o", "json"]) == 0  # fmt: skip
    step = json.loads(capsys.readouterr().out)["decode"]["step_time_s"]
    assert step > SMALL.weight_bytes("bf16") / found["hbmBytesPerSecond"]


def test_two_processes_reduce_together() -> None:
    pytest.importorskip("torch", reason="the extra `probe` is not installed")
    from servegen.calibrate.probe_torch import allreduce_s

    small, large = allreduce_s("gloo", 2, [1 << 13, 1 << 24], 1.0)
    assert 0 < small < large


def test_a_case_is_a_rate() -> None:
    found = Measured(Case("gemm", "bf16", (1, 2, 3), 12.0, 24.0), 2.0)
    assert (found.bytes_per_s, found.flops_per_s) == (6.0, 12.0)
