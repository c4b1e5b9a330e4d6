"""Megatron's command: the model flag by flag, and a clear refusal of what the flags cannot say."""

from __future__ import annotations

from typing import Any

import pytest

from servegen.engines.contract import load_contract
from servegen.engines.launch import Launch
from servegen.engines.megatron import checkpoint_dir
from servegen.engines.registry import get_engine, script_template
from servegen.errors import NotBuiltError, UserError
from servegen.plan import Plan
from tests.unit.plans import LLAMA_70B_CONFIG, make_plan, make_role, make_split_plan


def megatron(*roles: Any, config: dict[str, Any] | None = None, **changes: Any) -> Plan:
    if config is not None:
        changes["model_hf_config"] = {**LLAMA_70B_CONFIG, **config}
    return make_plan(*roles, choice_engine="megatron", choice_engine_version="0.19.2", **changes)


def launch(plan: Plan) -> Launch:
    (only,) = get_engine("megatron").launches(plan)
    return only


def flags(plan: Plan) -> dict[str, str | None]:
    return {a.flag: " ".join(a.values) if a.values else None for a in launch(plan).args}


def test_llama_70b_word_by_word() -> None:
    serve = launch(megatron())
    assert serve.argv() == (
        "torchrun", "--nproc-per-node", "8", "/opt/megatron-lm/tools/run_text_generation_server.py",
        "--load", "/models/megatron/meta-llama--Llama-3.1-70B-Instruct", "--ckpt-format", "torch_dist",
        "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "meta-llama/Llama-3.1-70B-Instruct",
        "--port", "5000", "--inference-max-requests", "256", "--inference-max-seq-length", "8192",
        "--micro-batch-size", "1", "--tensor-model-parallel-size", "8",
        "--num-layers", "80", "--hidden-size", "8192", "--ffn-hidden-size", "28672", "--num-attention-heads", "64",
        "--group-query-attention", "--num-query-groups", "8", "--seq-length", "8192",
        "--max-position-embeddings", "131072", "--position-embedding-type", "rope", "--rotary-base", "500000",
        "--use-rope-scaling", "--rope-scaling-factor", "8", "--normalization", "RMSNorm", "--norm-epsilon", "1e-05",
        "--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights",
        "--make-vocab-size-divisible-by", "16", "--bf16",
    )  # fmt: skip
    assert serve.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (serve.port, serve.metrics_port, serve.probes.liveness, serve.probes.readiness) == (5000, 0, "", "")
    assert script_template(serve) == "megatron/launch.sh.j2"
    assert load_contract(serve.contract).check(serve.args) == []


def test_what_the_config_changes() -> None:
    given = flags(megatron(config={"tie_word_embeddings": True, "num_key_value_heads": 64, "rope_scaling": None}))
    assert "--untie-embeddings-and-output-weights" not in given
    assert "--group-query-attention" not in given
    assert "--use-rope-scaling" not in given
    assert flags(megatron(config={"head_dim": 64}))["--kv-channels"] == "64"
    assert "--qk-layernorm" in flags(megatron(model_architecture="Qwen3ForCausalLM"))
    assert "--add-qkv-bias" in flags(megatron(model_architecture="Qwen2ForCausalLM"))


def test_rope_in_the_newer_form_of_configs() -> None:
    newer = {"rope_theta": None, "rope_scaling": None,
             "rope_parameters": {**LLAMA_70B_CONFIG["rope_scaling"], "rope_theta": 500000.0}}  # fmt: skip
    assert flags(megatron(config=newer)) == flags(megatron())


@pytest.mark.parametrize(("tp", "divisor"), [(1, 128), (2, 64), (4, 32), (8, 16)])
def test_vocabulary_padding_does_not_depend_on_tp(tp: int, divisor: int) -> None:
    assert flags(megatron(make_role(tp=tp)))["--make-vocab-size-divisible-by"] == str(divisor)


def test_parallelism_and_fp8() -> None:
    plan = megatron(make_role(tp=4, pp=2, weights="fp8", quantization="fp8"))
    given = flags(plan)
    assert launch(plan).program[:3] == ("torchrun", "--nproc-per-node", "8")
    assert (given["--tensor-model-parallel-size"], given["--pipeline-model-parallel-size"]) == ("4", "2")
    assert given["--fp8-format"] == "e4m3"
    assert "--bf16" in given


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (megatron(model_architecture="DeepseekV3ForCausalLM"), "the architecture DeepseekV3ForCausalLM"),
        (megatron(model_architecture="MixtralForCausalLM"), "the architecture MixtralForCausalLM"),
        (megatron(config={"num_experts": 8}), "mixtures of experts"),
        (megatron(config={"hidden_act": "gelu"}), "the activation gelu"),
        (megatron(config={"sliding_window": 4096}), "sliding-window attention"),
        (megatron(config={"attention_bias": True}), "attention_bias"),
        (megatron(config={"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "RoPE scaling 'yarn'"),
        (megatron(config={"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0}}), "RoPE low"),
        (megatron(config={"rope_theta": 10000.5}), "a RoPE base of 10000.5"),
        (megatron(config={"num_hidden_layers": None}), "a model without num_hidden_layers"),
        (megatron(make_role(tp=8), config={"num_key_value_heads": 4}), "tensor parallelism 8 over 4 KV heads"),
        (megatron(make_role(kv="fp8")), "no fp8 KV cache"),
        (megatron(make_role(weights="int4")), "cannot load int4 weights"),
        (megatron(make_role(weights="fp8")), "cannot load fp8 weights"),
        (make_split_plan(choice_engine="megatron", choice_engine_version="0.19.2"), "cannot split prefill and decode"),
    ],
)  # fmt: skip
def test_what_megatron_cannot_serve_is_named(plan: Plan, said: str) -> None:
    with pytest.raises(UserError) as caught:
        get_engine("megatron").launches(plan)
    assert said in str(caught.value)
    assert caught.value.diagnostics[0].hint


def test_a_replica_over_nodes_is_not_built() -> None:
    with pytest.raises(NotBuiltError, match="16 accelerators spans nodes of 8"):
        launch(megatron(make_role(tp=8, pp=2)))


def test_an_unused_sliding_window_is_no_obstacle() -> None:
    assert flags(megatron(config={"sliding_window": 4096, "use_sliding_window": False})) == flags(megatron())


def test_overrides_and_port() -> None:
    serve = launch(megatron(deploy_args={"port": 5001, "attention-backend": "flash"}, deploy_env={"A": "1"}))
    assert serve.port == 5001
    assert serve.args[-1].words() == ("--attention-backend", "flash")
    assert serve.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "A": "1"}
    with pytest.raises(UserError, match=r"deploy\.overrides\.args\.use-te"):
        launch(megatron(deploy_args={"use-te": True}))


def test_checkpoint_dir() -> None:
    assert checkpoint_dir("/ckpt/llama") == "/ckpt/llama"
    assert checkpoint_dir("org/model") == "/models/megatron/org--model"
