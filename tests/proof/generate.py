"""Specs at random that a person could have written: legal, mostly feasible, all over the language."""

from __future__ import annotations

import random
from typing import Any

#: Model, and a pool that holds it with room: (accelerator, most per node).
PLACES: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("meta-llama/Llama-3.1-8B-Instruct", (("h100-sxm-80gb", 8), ("a100-sxm-80gb", 8), ("l40s-48gb", 4), ("l4-24gb", 8))),
    ("Qwen/Qwen2.5-7B-Instruct", (("a100-sxm-40gb", 8), ("rtx-4090-24gb", 8), ("a10g-24gb", 4), ("mi300x-192gb", 8))),
    ("meta-llama/Llama-3.1-70B-Instruct", (("h100-sxm-80gb", 8), ("h200-sxm-141gb", 8), ("mi325x-256gb", 8))),
    ("Qwen/Qwen3-32B", (("h200-sxm-141gb", 8), ("b200-sxm-180gb", 8), ("a100-sxm-80gb", 8))),
    ("Qwen/Qwen3-235B-A22B", (("h200-sxm-141gb", 8), ("b200-sxm-180gb", 8), ("mi355x-288gb", 8))),
    ("deepseek-ai/DeepSeek-V3", (("h200-sxm-141gb", 8), ("b300-sxm-288gb", 8))),
    ("openai/gpt-oss-120b", (("h100-sxm-80gb", 8), ("gb200-192gb", 4), ("rtx-pro-6000-96gb", 8))),
    ("google/gemma-3-27b-it", (("h100-sxm-80gb", 8), ("a100-pcie-80gb", 4))),
)
LARGE = {"meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"}


def generate(seed: int) -> dict[str, Any]:
    """The spec of one seed, always the same."""
    rng = random.Random(seed)
    name, places = rng.choice(PLACES)
    body: dict[str, Any] = {"model": _model(rng, name), "traffic": _traffic(rng, name in LARGE)}
    body["hardware"] = {"pool": [_pool(rng, *rng.choice(places), large=name in LARGE) for _ in range(rng.choice((1, 1, 1, 2)))]}
    if rng.random() < 0.3:
        body["preset"] = rng.choice(("chat", "api", "batch", "long-context"))
    if rng.random() < 0.8:
        body["slo"] = _slo(rng)
    if rng.random() < 0.4 and "preset" not in body:
        body["objective"] = rng.choice(("cost", "latency", "energy", "throughput"))
    if body.get("objective") == "latency":  # the best latency of many nodes is that of one
        for entry in body["hardware"]["pool"]:
            entry["nodes"] = 1
    if rng.random() < 0.7:
        body["constraints"] = _constraints(rng, name)
    if all("fabric" in entry for entry in body["hardware"]["pool"]) and rng.random() < 0.25:
        body["constraints"] = {**body.get("constraints", {}), "topology": "disaggregated"}
    if rng.random() < 0.9:
        body["deploy"] = _deploy(rng, f"s{seed}")
    if any(entry["accelerator"].startswith("mi") for entry in body["hardware"]["pool"]):  # only CUDA images are known
        body.setdefault("deploy", {})["image"] = "registry.example.com/team/sglang:rocm-1"
    return {"apiVersion": "servegen/v1alpha1", "kind": "ServingSpec", "metadata": {"name": f"s{seed}"}, "spec": body}


def _model(rng: random.Random, name: str) -> dict[str, Any]:
    model: dict[str, Any] = {"name": name}
    if rng.random() < 0.2:
        model["contextLength"] = rng.choice((16384, 20480, 32768))
    if rng.random() < 0.1:
        model["trustRemoteCode"] = True
    return model


def _length(rng: random.Random, mean: int) -> Any:
    kind = rng.random()
    if kind < 0.3:
        return mean
    if kind < 0.7:
        return {"mean": mean, "p95": int(mean * rng.uniform(1.2, 3.0))}
    if kind < 0.85:
        return {"p50": mean, "p99": int(mean * rng.uniform(1.5, 4.0))}
    return {"histogram": [[mean, rng.randint(1, 9)], [mean * 2, rng.randint(1, 9)], [mean * 3, 1]]}


def _traffic(rng: random.Random, large: bool) -> dict[str, Any]:
    mean = rng.choice((64, 200, 512, 1000, 2048))
    traffic: dict[str, Any] = {"isl": _length(rng, mean), "osl": _length(rng, rng.choice((16, 100, 256, 512)))}
    load = rng.random()
    if load < 0.6:
        rate = round(rng.uniform(0.05, 1.0 if large else 3.0), 2)
        traffic["rate"] = rng.choice((f"{rate}/s", f"{rate * 60:g}/min"))
        if rng.random() < 0.4:
            traffic["trough"] = f"{rate / 4:g}/s"
        if rng.random() < 0.4:
            traffic["burstiness"] = rng.choice((0, 0.5, 1.3, 2, 3.5))
    elif load < 0.75:
        traffic["concurrency"] = rng.choice((1, 4, 16, 40))
    elif load < 0.9:
        traffic["users"] = {"active": rng.choice((1, 10, 60)), "thinkTime": rng.choice(("0s", "5s", "1min"))}
    if rng.random() < 0.3:
        traffic["prefix"] = rng.choice(({"hitRate": 0.3}, {"hitRate": 0.9}, {"shared": mean // 2}, {"shared": 0}))
    return traffic


def _pool(rng: random.Random, accelerator: str, most: int, *, large: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "accelerator": accelerator,
        "nodes": rng.choice((1, 2, 4, 16)),
        "perNode": most if large else rng.choice((1, 2, most)),
        "price": rng.choice(("1.5/h", "$2.95/h", "0.01/h")),
    }
    if rng.random() < 0.6:
        entry["fabric"] = rng.choice(({"bandwidth": "400Gbps", "resource": "rdma/ib"}, {"bandwidth": "100Gbps"}))
    if rng.random() < 0.6:
        entry["storage"] = {"bandwidth": rng.choice(("200MB/s", "2GB/s", "10GB/s"))}
    if rng.random() < 0.3:
        entry |= {"cpu": rng.choice((16, 96, 223.5)), "memory": rng.choice(("256GiB", "2TiB"))}
    if rng.random() < 0.2:
        entry["nodeSelector"] = rng.choice(({}, {"zone": "a", "example.com/pool": "gpu-1"}))
    if rng.random() < 0.2:
        entry["tolerations"] = rng.choice(([], [{"operator": "Exists"}], [{"key": "a.b/c", "value": "d", "effect": "NoExecute"}]))
    return entry


def _slo(rng: random.Random) -> dict[str, Any]:
    slo: dict[str, Any] = {}
    if rng.random() < 0.7:
        slo["ttft"] = rng.choice(("5s", {"p95": "8s"}, {"mean": "3s", "p99": "20s"}, {"p50": "4s"}))
    if rng.random() < 0.7:
        slo["itl"] = rng.choice(("150ms", {"p95": "200ms", "p99": "1s"}, {"mean": "100ms"}))
    if rng.random() < 0.2:
        slo["e2e"] = {"p95": "5min"}
    if rng.random() < 0.2:
        slo["tpot"] = {"p90": "200ms"}
    if "ttft" in slo and rng.random() < 0.2:
        slo["attainment"] = 0.9
    return slo


def _constraints(rng: random.Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rng.random() < 0.3:
        found["kvCache"] = rng.choice((["bf16"], ["bf16", "fp8"]))
    if rng.random() < 0.5:
        found["topology"] = rng.choice(("auto", "aggregated", "auto"))
    if rng.random() < 0.3:
        found["spareReplicas"] = rng.choice((0, 1, 1))
    if rng.random() < 0.3:
        found["utilization"] = rng.choice((0.5, 0.7, 1.0))
    if rng.random() < 0.2:
        found["confidence"] = "low"
    if rng.random() < 0.1 and name.startswith("meta-llama"):
        found["engines"] = ["sglang", "vllm"]
    return found


def _deploy(rng: random.Random, name: str) -> dict[str, Any]:
    deploy: dict[str, Any] = {"kubernetesVersion": f"1.{rng.randint(29, 37)}", "namespace": rng.choice(("llm", "default", "a-1"))}
    choices: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("autoscaling", ("none", "hpa", "keda", "keda")),
        ("monitoring", (True, False)),
        (
            "modelCache",
            ({"claim": "models"}, {"hostPath": "/var/models"}, {"size": "1500GB"}, {"size": "2TiB", "storageClass": "x"}),
        ),
        ("hfTokenSecret", ({"name": "hf-token"}, {"name": "hf", "key": "token"})),
        ("imagePullSecrets", (["regcred"], ["a", "b.c"])),
        ("priorityClass", ("serving",)),
        ("runtimeClass", ("nvidia",)),
        ("networkPolicy", ({"from": [{"podSelector": {}}]}, {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]})),
        ("image", ("registry.example.com:5000/team/sglang:v1@sha256:" + "ab" * 32,)),
    )
    for key, values in choices:
        if rng.random() < 0.4:
            deploy[key] = rng.choice(values)
    if rng.random() < 0.3:
        deploy["overrides"] = {
            "args": rng.choice(({"schedule-policy": "lpm"}, {"log-level": "warning", "schedule-conservativeness": 0.8})),
            "env": rng.choice(({"NCCL_IB_HCA": "mlx5"}, {"A": 'it\'s "$(B)" {{ c }} `d` $HOME %s'}, {"EMPTY": ""})),
        }
    return deploy
