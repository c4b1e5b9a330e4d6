"""The specs whose plans are replayed by :mod:`tests.tools.agreement`: model, hardware and traffic of each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from servegen.solve.arrivals import Arrivals, Traffic
from servegen.solve.problem import Problem
from tests.solver.specs import LLAMA_8B, LLAMA_70B, problem_of, scheduling, spec_text

QWEN_32B = "Qwen/Qwen3-32B"
LLAMA_405B = "meta-llama/Llama-3.1-405B-Instruct"
GPT_OSS = "openai/gpt-oss-120b"
QWEN_MOE = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
MODELS = {
    "8B": LLAMA_8B, "70B": LLAMA_70B, "32B": QWEN_32B, "405B": LLAMA_405B, "oss120B": GPT_OSS, "235B-A22B": QWEN_MOE,
    "1.5B": "Qwen/Qwen2.5-1.5B-Instruct", "3B": "meta-llama/Llama-3.2-3B", "12B": "google/gemma-3-12b-it",
    "14B": "Qwen/Qwen2.5-14B", "24B": "mistralai/Mistral-Small-24B-Base-2501", "27B": "google/gemma-3-27b-it",
    "8x7B": "mistralai/Mixtral-8x7B-v0.1", "R1-70B": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "V3": "deepseek-ai/DeepSeek-V3",
    "7B": "Qwen/Qwen2.5-7B-Instruct", "30B-A3B": "Qwen/Qwen3-30B-A3B",
    "nemo": "mistralai/Mistral-Nemo-Base-2407", "oss20B": "openai/gpt-oss-20b", "phi-4": "microsoft/phi-4",
}  # fmt: skip
LENGTHS = {
    "chat": "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}",
    "long in": "isl: {mean: 6000, p95: 12000}, osl: {mean: 400, p95: 900}",
    "short": "isl: {mean: 150, p95: 400}, osl: {mean: 50, p95: 120}",
    "long out": "isl: {mean: 500, p95: 1500}, osl: {mean: 2000, p95: 5000}",
    "fixed": "isl: 1024, osl: 256",
    "steps": "isl: {histogram: [[256, 5], [2048, 4], [8192, 1]]}, osl: {histogram: [[64, 3], [512, 4], [1024, 1]]}",
    "code": "isl: {mean: 2000, p95: 6000}, osl: {mean: 40, p95: 120}",
    "narrow": "isl: {mean: 1024, p95: 1130}, osl: {mean: 256, p95: 282}",
    "even": "isl: {mean: 700, p95: 800}, osl: {mean: 300, p95: 340}",
    "rag": "isl: {mean: 3500, p95: 7000}, osl: {mean: 150, p95: 350}",
    "think": "isl: {mean: 300, p95: 900}, osl: {mean: 3000, p95: 8000}",
    "brief": "isl: {mean: 300, p95: 840}, osl: {mean: 50, p95: 130}",
    "brief, fixed": "isl: 1500, osl: 50",
    "wide": "isl: {mean: 3000, p95: 8400}, osl: {mean: 300, p95: 780}",
    "shared": "isl: {mean: 2048, p95: 4096}, osl: {mean: 200, p95: 500}, prefix: {shared: 1024}",
}


@dataclass(frozen=True)
class Case:
    """``load`` is YAML of the traffic's load; "" = what the pool sustains under the bounds, at the utilisation."""

    engine: str
    model: str
    accelerator: str
    devices: int
    lengths: str
    ttft: str
    itl: str
    utilization: float
    burstiness: float = 1.0
    load: str = ""
    replica: str = ""  # constraints that say how the pool is cut
    requests: int = 30_000

    @property
    def name(self) -> str:
        load = self.load or "full pool"
        cut = f" {self.replica}" if self.replica else ""
        return (
            f"{self.engine} {self.model} {self.accelerator}x{self.devices} {self.lengths} {self.ttft}/{self.itl} "
            f"u{self.utilization:g} cv{self.burstiness:g} {load}{cut}"
        )

    def spec(self) -> str:
        split = "topology: disaggregated" in self.replica
        nodes, each = (max(self.devices // 8, 1), min(self.devices, 8))
        fabric = ", fabric: {bandwidth: 400Gbps}" if split or nodes > 1 else ""
        pool = f"[{{accelerator: {self.accelerator}, nodes: {nodes}, perNode: {each}{fabric}}}]"
        burst = f", burstiness: {self.burstiness:g}" if self.burstiness != 1.0 else ""
        load = f"{self.load}, " if self.load else ""
        more = f", {self.replica}" if self.replica else ""
        constraints = f"{{engines: [{self.engine.split()[0]}], utilization: {self.utilization:g}{more}}}"
        slo = ", ".join(f"{m}: {{p95: {v}}}" for m, v in (("ttft", self.ttft), ("itl", self.itl)) if v)
        return spec_text(
            model=MODELS[self.model],
            slo=f"{{{slo}}}",
            traffic=f"{{{load}{LENGTHS[self.lengths]}{burst}}}",
            pool=pool,
            objective="cost" if self.load else "throughput",
            constraints=constraints,
            deploy="{image: registry.test/engine:1, modelCache: {claim: weights}}",
        )

    def problem(self) -> Problem:
        problem = problem_of(self.spec())
        return scheduling(problem, "prefill-first") if " " in self.engine else problem

    def traffic(self, seed: int) -> Traffic:
        """A saturated pool is replayed at the rate that it was sized for, not in a closed loop."""
        kind: Arrivals | str = "" if self.load else "poisson" if self.burstiness == 1.0 else "gamma"
        return Traffic(kind, self.requests, seed)  # type: ignore[arg-type]


SPLIT = "topology: disaggregated"
ONE_OF_TWO = "tp: [2]"
USERS = "users: {active: 220, thinkTime: 20s}"
#: Requests in flight that several replicas share, as a Service deals them out.
AMONG: tuple[Case, ...] = (
    Case("sglang", "32B", "h100", 4, "chat", "1s", "50ms", 0.85, 1.0, "concurrency: 120"),
    Case("sglang", "70B", "h100", 8, "chat", "1s", "50ms", 0.85, 1.0, "concurrency: 48"),
    Case("sglang prompts first", "8B", "h100", 8, "chat", "1s", "80ms", 0.85, 1.0, "concurrency: 600"),
    Case("vllm", "8B", "l40s", 8, "chat", "1s", "60ms", 0.85, 1.0, "concurrency: 200"),
    Case("sglang", "12B", "a100-sxm-80gb", 4, "fixed", "1s", "50ms", 0.85, 1.0, "concurrency: 90"),
)
#: Drawn at random by someone who looked for what the closed form says too little of, and kept.
FOUND: tuple[Case, ...] = (
    Case("sglang", "7B", "a100-sxm-80gb", 8, "brief", "1s", "100ms", 0.85, 3.0, "rate: 12/s"),
    Case("sglang", "phi-4", "h100", 8, "brief, fixed", "1s", "100ms", 0.85, 2.0, "rate: 25/s"),
    Case("vllm", "30B-A3B", "h200", 8, "wide", "1s", "200ms", 0.85, 1.0, "rate: 5/s"),
)
#: Written down before the closed form was last worked on, and first replayed after that.
HELD_OUT: tuple[Case, ...] = (
    Case("sglang", "14B", "a100-sxm-80gb", 2, "chat", "1s", "40ms", 0.6, 1.0),
    Case("sglang", "27B", "h100", 2, "rag", "3s", "60ms", 0.8, 1.5),
    Case("sglang", "oss20B", "l40s", 2, "code", "1s", "40ms", 0.7, 2.0),
    Case("sglang prompts first", "nemo", "l40s", 1, "code", "1s", "150ms", 0.7, 1.0),
    Case("sglang prompts first", "8x7B", "h200", 2, "chat", "1s", "120ms", 0.75, 1.0),
    Case("sglang prompts first", "phi-4", "h100", 1, "even", "500ms", "60ms", 0.9, 1.0),
    Case("sglang prompts first", "R1-70B", "mi300x", 4, "rag", "4s", "400ms", 0.5, 2.0),
    Case("sglang prompts first", "3B", "l4-24gb", 1, "short", "500ms", "80ms", 0.4, 1.0),
    Case("sglang prompts first", "24B", "h200", 1, "shared", "1s", "100ms", 0.8, 3.0),
    Case("vllm", "12B", "a100-sxm-80gb", 1, "chat", "1s", "60ms", 0.6, 1.0),
    Case("vllm", "24B", "h100", 2, "rag", "3s", "60ms", 0.85, 1.0),
    Case("vllm", "nemo", "l40s", 2, "even", "1s", "60ms", 0.9, 1.5),
    Case("vllm", "V3", "h200", 8, "chat", "3s", "100ms", 0.7, 1.0),
    Case("vllm", "1.5B", "l4-24gb", 1, "short", "300ms", "30ms", 0.8, 1.0),
    Case("vllm", "8x7B", "mi300x", 1, "code", "2s", "80ms", 0.5, 4.0),
    Case("sglang", "70B", "b200", 4, "think", "2s", "40ms", 0.8, 1.0),
    Case("vllm", "14B", "h100", 2, "rag", "2s", "60ms", 0.8, 1.0, "users: {active: 120, thinkTime: 15s}", "", 60_000),
    Case("sglang prompts first", "24B", "h100", 4, "chat", "1s", "80ms", 0.8, 1.0, "rate: 20/s"),
    Case("sglang", "phi-4", "h100", 8, "rag", "2s", "30ms", 0.8, 1.5, "rate: 12/s", SPLIT),
    Case("megatron", "phi-4", "h100", 1, "fixed", "30s", "60ms", 0.6, 1.0),
)  # fmt: skip
#: The same of the work on bursts: prefill servers, groups of attention, the skewness of a step.
BURSTS: tuple[Case, ...] = (
    Case("sglang", "70B", "h200", 16, "rag", "3s", "40ms", 0.8, 2.0, "rate: 5/s", SPLIT),
    Case("sglang", "32B", "h100", 8, "chat", "1s", "30ms", 0.7, 3.0, "rate: 8/s", SPLIT),
    Case("sglang", "14B", "a100-sxm-80gb", 8, "code", "2s", "60ms", 0.85, 1.5, "rate: 6/s", SPLIT),
    Case("sglang prompts first", "8x7B", "h100", 4, "rag", "3s", "150ms", 0.6, 1.5),
    Case("sglang prompts first", "V3", "h200", 8, "chat", "3s", "200ms", 0.8, 1.0),
    Case("vllm", "32B", "h100", 2, "chat", "1s", "50ms", 0.6, 3.0),
    Case("sglang", "27B", "h200", 2, "even", "1s", "40ms", 0.8, 4.0),
    Case("sglang prompts first", "oss120B", "h200", 2, "think", "1s", "60ms", 0.7, 2.0),
)  # fmt: skip
#: Closed loops: all requests in flight in one replica, or before a split.
LOOPS: tuple[Case, ...] = (
    Case("sglang prompts first", "8B", "l40s", 1, "chat", "8s", "500ms", 1.0, 1.0, "concurrency: 60"),
    Case("sglang prompts first", "8B", "l40s", 1, "narrow", "8s", "500ms", 1.0, 1.0, "concurrency: 60"),
    Case("sglang prompts first", "8B", "l40s", 1, "fixed", "8s", "500ms", 1.0, 1.0, "concurrency: 60"),
    Case("sglang prompts first", "70B", "mi300x", 1, "chat", "8s", "900ms", 1.0, 1.0, "concurrency: 150"),
    Case("sglang prompts first", "8B", "h100", 1, "short", "2s", "200ms", 1.0, 1.0, "concurrency: 128"),
    Case("sglang prompts first", "oss20B", "h100", 1, "code", "8s", "900ms", 1.0, 1.0, "concurrency: 48"),
    Case("sglang prompts first", "14B", "a100-sxm-80gb", 1, "rag", "8s", "900ms", 1.0, 1.0, "concurrency: 12"),
    Case("sglang prompts first", "32B", "h200", 2, "steps", "8s", "900ms", 1.0, 1.0, "concurrency: 40", ONE_OF_TWO),
    Case("sglang", "32B", "h200", 2, "long out", "8s", "200ms", 1.0, 1.0, "concurrency: 100", ONE_OF_TWO),
    Case("vllm", "8B", "l40s", 1, "chat", "8s", "200ms", 1.0, 1.0, "concurrency: 60"),
    Case("vllm", "8B", "l40s", 1, "narrow", "8s", "200ms", 1.0, 1.0, "concurrency: 60"),
    Case("vllm", "8B", "l40s", 1, "fixed", "8s", "200ms", 1.0, 1.0, "concurrency: 60"),
    Case("vllm", "8B", "h100", 1, "chat", "8s", "200ms", 1.0, 1.0, "concurrency: 120"),
    Case("vllm", "14B", "a100-sxm-80gb", 1, "even", "8s", "200ms", 1.0, 1.0, "concurrency: 40"),
    Case("vllm", "oss20B", "h100", 1, "code", "8s", "200ms", 1.0, 1.0, "concurrency: 48"),
    Case("vllm", "24B", "h100", 2, "wide", "8s", "200ms", 1.0, 1.0, "concurrency: 16", ONE_OF_TWO),
    Case("sglang", "8B", "h100", 8, "chat", "1s", "30ms", 0.85, 1.0, "concurrency: 200", SPLIT),
    Case("sglang", "8B", "h100", 8, "fixed", "1s", "30ms", 0.85, 1.0, "concurrency: 200", SPLIT),
    Case("sglang", "32B", "h200", 8, "long out", "2s", "30ms", 0.85, 1.0, "concurrency: 100", SPLIT),
    Case("sglang", "32B", "h100", 8, "code", "2s", "40ms", 0.85, 1.0, "concurrency: 16", SPLIT),
    Case("sglang", "14B", "l40s", 8, "chat", "2s", "80ms", 0.85, 1.0, "concurrency: 24", SPLIT),
    Case("sglang", "oss120B", "h100", 8, "chat", "1s", "30ms", 0.85, 1.0, "concurrency: 120", SPLIT),
    Case("sglang", "8B", "h100", 8, "chat", "1s", "30ms", 0.85, 1.0, "users: {active: 600, thinkTime: 10s}", SPLIT, 60_000),
    Case("sglang", "70B", "h200", 16, "rag", "3s", "40ms", 0.85, 1.0, "users: {active: 180, thinkTime: 10s}", SPLIT, 60_000),
    Case("sglang", "70B", "h100", 16, "chat", "1s", "40ms", 0.85, 1.0, "users: {active: 180, thinkTime: 10s}", SPLIT, 60_000),
)  # fmt: skip
CASES: tuple[Case, ...] = (
    # SGLang chooses between prompts first and mixed chunks; the cases that want prompts first leave it no choice.
    Case("sglang", "70B", "h100", 8, "chat", "500ms", "50ms", 0.85, 1.5, "rate: 6/s"),
    Case("sglang", "70B", "h100", 8, "chat", "1s", "50ms", 0.7, 1.0, "rate: 6/s"),
    Case("sglang", "70B", "h200", 8, "chat", "1s", "40ms", 0.9, 2.0),
    Case("sglang", "70B", "b200", 8, "long in", "3s", "40ms", 0.7, 1.0),
    Case("sglang", "8B", "h100", 1, "chat", "500ms", "30ms", 0.5, 1.0),
    Case("sglang", "8B", "l40s", 4, "chat", "1s", "60ms", 0.85, 1.5, "rate: 8/s"),
    Case("sglang", "8B", "a100-sxm-80gb", 1, "short", "300ms", "30ms", 0.7, 2.0),
    Case("sglang", "32B", "h200", 2, "long out", "2s", "40ms", 0.85, 1.0),
    Case("sglang", "32B", "h200", 2, "fixed", "1s", "40ms", 0.9, 1.0),
    Case("sglang", "32B", "mi300x", 1, "chat", "1s", "50ms", 0.7, 4.0),
    Case("sglang", "405B", "h200", 8, "chat", "2s", "80ms", 0.85, 1.0),
    Case("sglang", "oss120B", "h100", 2, "chat", "1s", "30ms", 0.7, 1.0),
    Case("sglang", "235B-A22B", "h200", 8, "chat", "1s", "50ms", 0.85, 1.5),
    Case("sglang", "8B", "h100", 2, "steps", "1s", "40ms", 0.5, 4.0),
    Case("sglang", "70B", "h100", 8, "shared", "1s", "50ms", 0.7, 1.0),
    Case("sglang", "8B", "h100", 4, "chat", "500ms", "30ms", 0.7, 1.0, "rate: 60/s"),
    Case("sglang prompts first", "70B", "h100", 4, "chat", "1s", "150ms", 0.85, 1.0),
    Case("sglang prompts first", "70B", "h100", 4, "chat", "1s", "150ms", 0.5, 1.0),
    Case("sglang prompts first", "70B", "h100", 4, "chat", "1s", "50ms", 0.7, 1.0),
    Case("sglang prompts first", "70B", "h100", 4, "chat", "2s", "300ms", 0.9, 2.0),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "500ms", "60ms", 0.3, 1.0),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "500ms", "60ms", 0.7, 1.0),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "500ms", "60ms", 0.9, 1.0),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "500ms", "100ms", 0.7, 1.5),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "500ms", "100ms", 0.9, 4.0),
    Case("sglang prompts first", "8B", "a100-sxm-80gb", 1, "short", "300ms", "40ms", 0.7, 1.0),
    Case("sglang prompts first", "8B", "l40s", 1, "long out", "2s", "60ms", 0.85, 1.5),
    Case("sglang prompts first", "32B", "h200", 2, "long out", "2s", "40ms", 0.9, 1.0),
    Case("sglang prompts first", "32B", "h200", 2, "fixed", "1s", "100ms", 0.85, 1.0),
    Case("sglang prompts first", "32B", "h200", 1, "long in", "5s", "800ms", 0.5, 1.0),
    Case("sglang prompts first", "32B", "h200", 8, "chat", "1s", "100ms", 0.85, 2.0, "rate: 30/s"),
    Case("sglang prompts first", "8B", "h100", 4, "chat", "500ms", "60ms", 0.85, 1.0, "rate: 55/s"),
    Case("sglang prompts first", "8B", "h100", 1, "chat", "1s", "60ms", 0.85, 1.0, "concurrency: 24"),
    Case("sglang prompts first", "32B", "h200", 2, "chat", "1s", "100ms", 0.85, 1.0, USERS, "", 120_000),
    Case("sglang prompts first", "8B", "h200", 1, "steps", "1s", "100ms", 0.7, 1.0),
    Case("vllm", "70B", "h100", 4, "chat", "1s", "60ms", 0.85, 1.0),
    Case("vllm", "70B", "h100", 4, "chat", "1s", "60ms", 0.5, 2.0),
    Case("vllm", "70B", "h100", 8, "chat", "600ms", "50ms", 0.85, 1.5, "rate: 6/s"),
    Case("vllm", "70B", "h200", 4, "long in", "4s", "80ms", 0.7, 1.0),
    Case("vllm", "70B", "h200", 4, "long in", "4s", "80ms", 0.3, 1.0),
    Case("vllm", "8B", "h100", 1, "chat", "500ms", "40ms", 0.3, 1.0),
    Case("vllm", "8B", "h100", 1, "chat", "500ms", "40ms", 0.7, 1.0),
    Case("vllm", "8B", "h100", 1, "chat", "500ms", "40ms", 0.9, 1.0),
    Case("vllm", "8B", "h100", 1, "chat", "500ms", "40ms", 0.9, 2.0),
    Case("vllm", "8B", "h100", 1, "chat", "500ms", "40ms", 0.7, 4.0),
    Case("vllm", "8B", "a100-sxm-80gb", 1, "short", "300ms", "30ms", 0.85, 1.0),
    Case("vllm", "8B", "l40s", 1, "short", "500ms", "50ms", 0.5, 1.5),
    Case("vllm", "8B", "mi300x", 1, "long out", "1s", "30ms", 0.85, 1.0),
    Case("vllm", "32B", "h200", 2, "long out", "1s", "40ms", 0.7, 2.0),
    Case("vllm", "32B", "h200", 2, "fixed", "1s", "60ms", 0.9, 1.0),
    Case("vllm", "32B", "a100-sxm-80gb", 4, "steps", "1500ms", "100ms", 0.85, 1.0),
    Case("vllm", "405B", "h200", 8, "chat", "2s", "100ms", 0.7, 1.0),
    Case("vllm", "oss120B", "h200", 1, "chat", "1s", "40ms", 0.85, 1.0),
    Case("vllm", "235B-A22B", "b200", 8, "long in", "3s", "60ms", 0.7, 1.5),
    Case("vllm", "8B", "h100", 4, "chat", "500ms", "40ms", 0.85, 1.0, "rate: 64/s"),
    Case("vllm", "8B", "h100", 1, "chat", "1s", "40ms", 0.85, 1.0, "concurrency: 32"),
    Case("vllm", "32B", "h200", 2, "chat", "1s", "60ms", 0.85, 1.0, "users: {active: 300, thinkTime: 20s}", "", 120_000),
    Case("vllm", "70B", "b200", 4, "shared", "1s", "60ms", 0.7, 1.5),
    Case("vllm", "32B", "mi300x", 2, "chat", "1s", "60ms", 0.9, 1.0),
    Case("megatron", "8B", "h100", 1, "chat", "20s", "60ms", 0.5, 1.0),
    Case("megatron", "8B", "h100", 1, "chat", "30s", "60ms", 0.85, 1.0),
    Case("megatron", "70B", "h100", 4, "fixed", "30s", "60ms", 0.7, 1.0),
    Case("megatron", "32B", "h200", 2, "short", "10s", "60ms", 0.7, 2.0),
    Case("megatron", "70B", "h100", 8, "chat", "60s", "80ms", 0.85, 1.5),
    Case("sglang", "70B", "h100", 16, "long in", "4s", "20ms", 0.85, 1.0, "rate: 2.2/s", SPLIT),
    Case("sglang", "70B", "h100", 16, "chat", "500ms", "30ms", 0.85, 1.5, "rate: 10/s", SPLIT),
    Case("sglang", "8B", "h100", 8, "chat", "500ms", "20ms", 0.7, 1.0, "rate: 60/s", SPLIT),
    Case("sglang", "32B", "h200", 8, "long in", "3s", "30ms", 0.9, 2.0, "rate: 4/s", SPLIT),
    Case("sglang", "405B", "h200", 16, "chat", "2s", "60ms", 0.7, 1.0, "rate: 3/s", SPLIT),
    Case("sglang", "70B", "h100", 16, "chat", "1s", "30ms", 0.9, 4.0, "rate: 1.5/s", SPLIT),
    *HELD_OUT,
    *BURSTS,
    *AMONG,
    *FOUND,
    *LOOPS,
)  # fmt: skip


def drawn(seed: int) -> Iterator[Case]:
    """Specs at random, endless; some have no plan."""
    rng = random.Random(seed)
    models = [m for m in MODELS if m not in ("405B", "235B-A22B", "V3")]  # which need a pool of their own
    accelerators = ("a100-sxm-80gb", "h100", "h200", "l40s", "mi300x", "b200")
    bounds = (("1s", "100ms"), ("2s", "200ms"), ("1s", "50ms"), ("500ms", "60ms"), ("3s", "80ms"))
    while True:
        engine, model = rng.choice(("sglang", "sglang prompts first", "vllm", "vllm")), rng.choice(models)
        accelerator, devices, lengths = rng.choice(accelerators), rng.choice((1, 2, 4, 8)), rng.choice(list(LENGTHS))
        (ttft, itl), utilization = rng.choice(bounds), rng.choice((0.3, 0.5, 0.7, 0.85))
        burstiness = rng.choice((1.0, 1.0, 1.5, 2.0, 3.0, 4.0))
        yield Case(engine, model, accelerator, devices, lengths, ttft, itl, utilization, burstiness)
