"""Plans made by hand: sensible values that a test changes where it cares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servegen.plan import (
    Band,
    CachePlan,
    Choice,
    DeployPlan,
    MemoryPlan,
    ModelPlan,
    Plan,
    PoolPlan,
    Prediction,
    Quantiles,
    Role,
    RoleName,
    TrafficPlan,
)

LLAMA_70B_CONFIG: Mapping[str, Any] = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
MEMORY = MemoryPlan(
    usable_bytes=84e9, weight_bytes=17.6e9, kv_pool_bytes=50e9, activation_bytes=2e9, graph_bytes=1e9,
    collective_bytes=0.5e9, runtime_bytes=3e9, kv_bytes_per_token=40960.0, kv_tokens=1_220_000,
)  # fmt: skip
POOL = PoolPlan(
    accelerator="h100-sxm-80gb", name="H100 SXM 80GB", vendor="nvidia", nodes=4, per_node=8, price_per_hour=2.95,
    price_source="spec", node_cpus=96, node_memory_bytes=float(2**40), resource="nvidia.com/gpu",
    node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
    fabric_bytes_per_s=50e9, rdma=True, rdma_resource="rdma/ib", storage_bytes_per_s=2e9,
)  # fmt: skip
DEPLOY = DeployPlan(
    image="lmsysorg/sglang:v0.5.23", namespace="llm", kubernetes_version="1.34", image_pull_secrets=(),
    cache=CachePlan(claim="model-cache"), hf_token_secret=("hf-token", "HF_TOKEN"), autoscaling="none",
    autoscaling_min={}, autoscaling_max={}, autoscaling_queue={}, monitoring=True, network_policy_from=None,
    priority_class="", runtime_class="", args={}, env={}, patches=(),
)  # fmt: skip
MODEL = ModelPlan(
    id="meta-llama/Llama-3.1-70B-Instruct", served_name="meta-llama/Llama-3.1-70B-Instruct",
    architecture="LlamaForCausalLM", params_total=70_553_706_496, params_active=70_553_706_496, trust_remote_code=False,
    context_length=8192, max_context=131072, hf_config=LLAMA_70B_CONFIG,
)  # fmt: skip
TRAFFIC = TrafficPlan(
    rate=12.0, trough=3.0, concurrency=0.0, isl_mean=2048.0, osl_mean=512.0, isl_p95=6000.0, osl_p95=1024.0,
    longest_output=2048, prefix_hit=0.0, burstiness=1.0, objective="cost",
)  # fmt: skip


def make_role(role: RoleName = "serve", **changes: Any) -> Role:
    """A server of Llama 70B in bf16 on 8 H100; ``devices`` follows tp and pp unless given."""
    base = Role(
        role=role, accelerator="h100-sxm-80gb", pool=0, weights="bf16", kv="bf16", tp=8, pp=1, dp=1, ep=1, replicas=2,
        spares=0, devices=8, max_running_requests=256, chunked_prefill_size=8192, mixed_chunk=False,
        mem_fraction_static=0.857, context_length=8192, load="meta-llama/Llama-3.1-70B-Instruct", quantization="",
        checkpoint_bytes=141.1e9, memory=MEMORY, utilization=0.7, running_requests=60.0, step_time_s=0.021,
        prefill_time_s=0.18, breakdown_s={"weights": 0.006, "kv": 0.004, "compute": 0.001, "attention": 0.002,
                                          "collectives": 0.003, "overhead": 0.005}, bound="weights",
    )  # fmt: skip
    made = replace(base, **changes)
    return made if "devices" in changes else replace(made, devices=made.tp * made.pp)


def make_plan(*roles: Role, **changes: Any) -> Plan:
    """A feasible SGLang plan of these roles (default: one aggregated role of two replicas).

    ``changes`` names fields of Plan, or fields of its parts by prefix: ``model_context_length``, ``deploy_args``,
    ``traffic_prefix_hit``, ``choice_engine``. Two roles make a disaggregated plan.
    """
    roles = roles or (make_role(),)
    devices = sum(r.total_devices for r in roles)
    choice = Choice(
        engine="sglang", engine_version="0.5.23", topology="aggregated" if len(roles) == 1 else "disaggregated",
        roles=roles, devices=devices, cost_per_hour=devices * 2.95, cost_per_million_output_tokens=2.1,
        watts=700.0 * devices,
    )  # fmt: skip
    quantiles = Quantiles(mean=0.2, p50=0.18, p95=0.4, p99=0.7)
    prediction = Prediction(
        ttft=quantiles, itl=Quantiles(mean=0.021, p50=0.02, p95=0.03, p99=0.04),
        e2e=Quantiles(mean=11.0, p50=10.0, p95=22.0, p99=30.0), output_tokens_per_second=6144.0, utilization=0.7,
        slo_attainment=0.98, sustained_rate=17.0, load_rate=12.0, band={"ttft": Band(0.85, 1.25)},
        floor={"prefill_time_s": 0.09, "step_time_s": 0.011}, extrapolated=(),
    )  # fmt: skip
    parts: dict[str, Any] = {"model": MODEL, "traffic": TRAFFIC, "deploy": DEPLOY, "choice": choice}
    own: dict[str, Any] = {}
    for key, value in changes.items():
        part, _, field = key.partition("_")
        if part in parts and field:
            parts[part] = replace(parts[part], **{field: value})
        else:
            own[key] = value
    plan = Plan(
        name="llama-chat", feasible=True, slo={"ttft.p95": 0.5, "itl.p95": 0.05}, prediction=prediction,
        binding=("itl.p95",), why=("8 accelerators hold the weights and 256 sequences.",),
        flips=(), cases=(), missing=(), alternatives=(), pareto=(), searched=120, rejected={"memory": 40}, pool=(POOL,),
        spec={}, inputs={}, facts={}, notes=(), **parts,
    )  # fmt: skip
    return replace(plan, **own)


def make_split_plan(**changes: Any) -> Plan:
    """2P3D with the same TP on both sides."""
    prefill = make_role("prefill", tp=4, replicas=2, max_running_requests=32)
    decode = make_role("decode", tp=4, replicas=3, max_running_requests=128)
    return make_plan(prefill, decode, **changes)
