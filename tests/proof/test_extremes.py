"""Legal but extreme: nothing crashes or warns, exit codes are right, and what cannot be had explains itself.

Every accelerator with five models: ``python -m pytest tests/proof/test_extremes.py -m slow``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
from servegen.catalog.engines import resolve_engine
from tests.proof.harness import Ran, command, spec, write_spec

NODE, POOL = "hardware__pool__0", "hardware__pool"
FABRIC = {"bandwidth": "400Gbps", "resource": "rdma/ib"}
SPLIT: dict[str, Any] = {"constraints__topology": "disaggregated", f"{NODE}__fabric": FABRIC}
ONE: dict[str, Any] = {f"{NODE}__nodes": 1, f"{NODE}__perNode": 1}
QUIET: dict[str, Any] = {"traffic__rate": "0.01/s"}

BUILT: dict[str, dict[str, Any]] = {
    "a request in thirty years": {"traffic__rate": "1e-9/s"},
    "one token in": {"traffic__isl": 1},
    "one token out": {"traffic__osl": 1},
    "one token in and out, split": {"traffic__isl": 1, "traffic__osl": 1} | SPLIT,
    "one token out, with bounds on the gaps": {"traffic__osl": 1, "slo__tpot": "10ms", "slo__itl": "20ms"},
    "the model's whole context": {"model__contextLength": 131072},
    "one device": ONE | QUIET,
    "three devices a node": {f"{NODE}__perNode": 3},
    "a thousand devices a node": {f"{NODE}__perNode": 1024},
    "a hundred thousand nodes": {f"{NODE}__nodes": 100_000},
    "a hundred thousand nodes, saturated": {f"{NODE}__nodes": 100_000, "traffic__rate": None},
    "for nothing": {f"{NODE}__price": "0/h"},
    "for nothing, split": {f"{NODE}__price": "0/h"} | SPLIT,
    "for nothing, split or not": {f"{NODE}__price": "0/h", f"{NODE}__fabric": FABRIC},
    "a billion dollars": {f"{NODE}__price": "1e9/h"},
    "a hundredth of what could be": {"constraints__utilization": 0.01},
    "all spares but one": {"constraints__spareReplicas": 14},
    "arrivals by a metronome": {"traffic__burstiness": 0},
    "arrivals in crowds": {"traffic__burstiness": 10} | QUIET,
    "cached to 99 %": {"traffic__prefix": {"hitRate": 0.99}},
    "cached to the last token": {"traffic__prefix": {"hitRate": 0.999999}},
    "prompts that are all head": {"traffic__prefix": {"shared": 1024}},
    "one bucket": {"traffic__isl": {"histogram": [[4096, 1]]}},
    "a bucket of one token": {"traffic__isl": {"histogram": [[1, 1]]}},
    "a bucket that weighs nothing": {"traffic__isl": {"histogram": [[1, 0], [4096, 1]]}},
    "percentiles that are one": {"traffic__isl": {"p50": 1000, "p99": 1000}},
    "the widest lognormal": {"traffic__isl": {"mean": 1000, "p95": 3868}},
    "the oldest Kubernetes": {"deploy__kubernetesVersion": "1.29", "deploy__autoscaling": "hpa", "deploy__monitoring": True},
    "the youngest Kubernetes": {"deploy__kubernetesVersion": "1.37", "deploy__autoscaling": "keda", "deploy__monitoring": True},
    "scaling one replica of one": {"deploy__autoscaling": "keda"} | ONE | QUIET,
    "scaling by HPA with nothing to scale": {"deploy__autoscaling": "hpa"} | ONE | QUIET,
    "scaling a split": {"deploy__autoscaling": "hpa", "traffic__trough": "0.1/s", "constraints__spareReplicas": 1} | SPLIT,
    "scaling a saturated pool": {"traffic__rate": None, "deploy__autoscaling": "keda"},
    "weights on the node": {"deploy__modelCache": {"hostPath": "/var/lib/models"}},
    "one request at a time": {"traffic__rate": None, "traffic__concurrency": 1},
    "one user who never thinks": {"traffic__rate": None, "traffic__users": {"active": 1, "thinkTime": "0s"}},
    "a million users who think for weeks": {"traffic__rate": None, "traffic__users": {"active": 1_000_000, "thinkTime": "1000h"}},
    "no bounds": {"slo": None},
    "everything on time": {"slo__attainment": 1},
    "all objectives at rest": {"objective": "energy", "traffic__rate": None},
    "throughput under a load": {"objective": "throughput"},
    "latency of a saturated pool": {"objective": "latency", "traffic__rate": None},
    "a node with one processor": {f"{NODE}__cpu": 1, f"{NODE}__memory": "64GiB"},
    "a modem for a disk": {f"{NODE}__storage": {"bandwidth": "1MB/s"}},
    "a modem for a fabric": {f"{NODE}__fabric": {"bandwidth": "1MB/s"}},
    "two kinds of one each": {POOL: [{"accelerator": a, "nodes": 1, "perNode": 1} for a in ("h100-sxm-80gb", "l40s-48gb")]}
    | QUIET,
    "no labels and no tolerations": {f"{NODE}__nodeSelector": {}, f"{NODE}__tolerations": []},
    "empty sections": {"slo": {}, "constraints": {}, "deploy": {}},
    "every precision": {"constraints__weights": ["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]},
    "every engine that needs no image": {"constraints__engines": ["sglang", "vllm", "jetstream", "sglang-jax"]},
    "the pessimist": {"constraints__confidence": "low"},
}
#: What cannot be had: what the explanation must name.
INFEASIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "a million requests a second": ({"traffic__rate": "1e6/s"}, "best attainable: .*requests/s"),
    "a million at once": ({"traffic__rate": None, "traffic__concurrency": 1_000_000}, "in flight"),
    "tp 3": ({"constraints__tp": [3]}, "TP 3"),
    "tp 16": ({"constraints__tp": [16]}, "TP"),
    "tp 4096": ({"constraints__tp": [4096]}, "TP"),
    "more spares than the pool": ({"constraints__spareReplicas": 10_000}, "pool|spare"),
    "nothing but spares": ({"constraints__spareReplicas": 16}, "hardware.pool|spare"),
    "the first token in a microsecond": ({"slo__ttft": "1us"}, "ttft.p95"),
    "gaps of a microsecond": ({"slo__itl": "1us"}, "itl.p95"),
    "the longest prompt in two seconds": ({"traffic__isl": 131071, "traffic__osl": 1}, "ttft.p95"),
    "a split of one device": (SPLIT | ONE, "split|pool"),
    "a split without a fabric": ({"constraints__topology": "disaggregated"}, "fabric"),
    "a cache that the engine has not": ({"constraints__kvCache": ["int8"]}, "kv cache"),
    "a checkpoint that is not there": ({"constraints__weights": ["int4"]}, "checkpoint"),
    "a model that fits nowhere": ({"model__name": "deepseek-ai/DeepSeek-V3"} | ONE, "memory"),
    "an engine for other chips": ({"constraints__engines": ["jetstream"]}, "jetstream"),
}


def build(changes: dict[str, Any], folder: Path) -> Ran:
    return command("build", write_spec(folder / "s.yaml", spec(**changes)), "-o", folder / "out")


@pytest.mark.parametrize("name", BUILT)
def test_extremes_are_built(name: str, tmp_path: Path) -> None:
    ran = build(BUILT[name], tmp_path)
    assert ran.code == 0 and ("warning[bundle-resources]" in ran.err if "one processor" in name else ran.err == ""), ran


@pytest.mark.parametrize("name", INFEASIBLE)
def test_what_cannot_be_had_explains_itself(name: str, tmp_path: Path) -> None:
    changes, says = INFEASIBLE[name]
    ran = build(changes, tmp_path)
    assert ran.code == 3 and ran.out == "", ran
    assert "infeasible" in ran.err and "binding bound:" in ran.err and "best attainable:" in ran.err
    assert re.search(says, ran.err), ran.err
    assert not re.search(r"\bnan\b|\binf\b|Traceback", ran.err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"traffic__rate": "1e10/s"}, r"out-of-range\]: spec\.traffic\.rate"),
        ({"traffic__rate": "1e300/s"}, r"out-of-range\]: spec\.traffic\.rate"),
        ({"slo__ttft": "1e300h"}, r"out-of-range\]: spec\.slo\.ttft"),
        ({f"{NODE}__memory": "1e200TB"}, r"out-of-range\]: spec\.hardware\.pool\.0\.memory"),
        ({f"{NODE}__storage": {"bandwidth": "1e-300B/s"}}, r"out-of-range\]: spec\.hardware\.pool\.0\.storage\.bandwidth"),
        ({f"{NODE}__price": "1e300/h"}, r"out-of-range\]: spec\.hardware\.pool\.0\.price"),
        ({"deploy__modelCache": {"size": "1e30TB"}}, r"out-of-range\]: spec\.deploy\.modelCache\.size"),
        ({"deploy__modelCache": {"hostPath": "/"}}, r"bad-path\]: spec\.deploy\.modelCache\.hostPath"),
        ({f"{NODE}__cpu": 0.001}, r"out-of-range\]: spec\.hardware\.pool\.0\.cpu"),
        ({"model__contextLength": 131073}, r"context-too-long\]: contextLength 131073"),
        ({"model__contextLength": 1}, r"context-too-short\]: contextLength 1"),
        ({"traffic__isl": 1_000_000_000}, r"context-too-long\]: .*1000000128 tokens"),
        ({"traffic__prefix": {"shared": 1025}}, r"conflict\]: spec\.traffic\.prefix\.shared"),
    ],
    ids=str,
)
def test_figures_of_no_real_thing_are_refused_at_their_line(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    ran = build(changes, tmp_path)
    assert ran.code == 1 and re.search(rf"s\.yaml:\d+:\d+: error\[{says}", ran.err), ran


MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen3-235B-A22B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("accelerator", list_accelerators())
def test_every_accelerator_with_every_model(accelerator: str, model: str, tmp_path: Path) -> None:
    engines = ["jetstream", "sglang-jax"] if accelerator.startswith("tpu") else ["sglang"]
    base: dict[str, Any] = {
        "model__name": model,
        "constraints__engines": engines,
        "slo": {"ttft": "10s", "itl": "200ms"},
        **QUIET,
    }
    codes = []
    for nodes, per_node, more in ((2, 8, {}), (1, 1, {}), (2, 8, SPLIT)):
        more = {**more, "deploy__image": "registry.example.com/team/engine:1"}
        entry = {"accelerator": accelerator, "nodes": nodes, "perNode": per_node, "price": "1/h"}
        ran = build(base | {POOL: [entry]} | more, tmp_path)
        assert ran.code in (0, 3) and (ran.code == 0 or "best attainable:" in ran.err), (nodes, per_node, ran)
        assert (tmp_path / "out").exists() == (ran.code == 0)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        codes.append(ran.code)
    runs = resolve_accelerator(accelerator).vendor in {v for e in engines for v in resolve_engine(e).vendors}
    if not runs:
        assert codes == [3, 3, 3]
        assert "does not run on" in ran.err, ran.err
    elif model == MODELS[0] and not accelerator.startswith("tpu"):  # eight billion parameters fit sixteen of anything
        assert codes[0] == 0
