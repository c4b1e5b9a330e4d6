"""Parameter totals, active parameters and bytes of real configs against what their publishers state."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from servegen.catalog.facts import ModelFacts
from servegen.catalog.hf import model_from_config

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf_configs"

# id: (total, rounding of it, active, rounding of it, source of both); billions
PUBLISHED: dict[str, tuple[float, float, float, float, str]] = {
    "MiniMaxAI/MiniMax-M2.5": (230, 1, 10, 1, "model card of MiniMax-M2: 230B total, 10B active"),
    "Qwen/Qwen3-0.6B": (0.6, 0.1, 0.6, 0.1, "model card: 0.6B"),
    "Qwen/Qwen3-8B": (8.2, 0.1, 8.2, 0.1, "model card: 8.2B"),
    "Qwen/Qwen3-32B": (32.8, 0.1, 32.8, 0.1, "model card: 32.8B"),
    "Qwen/Qwen3-32B-FP8": (32.8, 0.1, 32.8, 0.1, "model card: 32.8B"),
    "Qwen/Qwen3-30B-A3B": (30.5, 0.1, 3.3, 0.1, "model card: 30.5B total, 3.3B activated"),
    "Qwen/Qwen3-235B-A22B": (235, 1, 22, 1, "model card: 235B total, 22B activated"),
    "Qwen/Qwen3-235B-A22B-FP8": (235, 1, 22, 1, "model card: 235B total, 22B activated"),
    "nvidia/Qwen3-235B-A22B-NVFP4": (235, 1, 22, 1, "model card: 235B total, 22B activated"),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480, 1, 35, 1, "model card: 480B total, 35B activated"),
    "Qwen/Qwen3.5-397B-A17B": (397, 1, 17, 1, "model card: 397B total, 17B activated"),
    "deepseek-ai/DeepSeek-V3": (671, 1, 36.7, 0.1, "README_WEIGHTS of DeepSeek-V3: 671B, activated 36.7B"),
    "deepseek-ai/DeepSeek-R1": (671, 1, 37, 1, "model card: 671B total, 37B activated"),
    "deepseek-ai/DeepSeek-V3.2": (671, 1, 37, 1, "model card: 671B total, 37B activated, before its indexer"),
    "nvidia/DeepSeek-V3.1-NVFP4": (671, 1, 37, 1, "model card of DeepSeek-V3.1: 671B total, 37B activated"),
    "google/gemma-4-26B-A4B": (25.75, 0.1, 3.8, 0.1, "model card: 25.2B and a vision encoder of 550M, 3.8B active"),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (109, 1, 17, 1, "model card: 109B total, 17B activated"),
    "meta-llama/Meta-Llama-3.1-8B": (8.030261248, 0, 8.030261248, 0, "safetensors index of the checkpoint"),
    "meta-llama/Meta-Llama-3.1-70B": (70.553706496, 0, 70.553706496, 0, "safetensors index of the checkpoint"),
    "meta-llama/Meta-Llama-3.1-405B": (405.8533888, 0, 405.8533888, 0, "safetensors index of the checkpoint"),
    "nvidia/Llama-3.1-70B-Instruct-FP8": (70.553706496, 0, 70.553706496, 0, "as Llama-3.1-70B"),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 0.1, 12.9, 0.1, "arXiv 2401.04088: 46.7B total, 12.9B per token"),
    "moonshotai/Kimi-K2-Instruct": (1026.408232448, 0, 32, 1, "safetensors total of the checkpoint; model card: 32B activated"),
    "moonshotai/Kimi-K2.5": (1026.879376368, 0, 32, 1, "safetensors total of the checkpoint; model card: 32B activated"),
    "nvidia/Nemotron-H-56B-Base-8K": (56, 1, 56, 1, "model card: 56B"),
    "openai/gpt-oss-120b": (116.83, 0.01, 5.13, 0.01, "model card: 116.83B total, 5.13B active"),
}


# Configs that transformers 5.24's configuration classes hold as their defaults, documented there for this checkpoint.
PUBLISHED |= {
    "CohereForAI/c4ai-command-r-v01": (35, 1, 35, 1, "model card: 35B"),
    "EleutherAI/gpt-j-6b": (6.053381344, 0, 6.053381344, 0, "model card: 6053381344 parameters"),
    "EleutherAI/gpt-neox-20b": (20.55456768, 0, 20.55456768, 0, "model card: 20,554,567,680 parameters"),
    "HuggingFaceTB/SmolLM3-3B": (3, 1, 3, 1, "model card: 3B"),
    "Qwen/Qwen1.5-MoE-A2.7B": (14.3, 0.1, 2.7, 0.1, "model card: 14.3B parameters in total, 2.7B activated"),
    "ai21labs/Jamba-v0.1": (52, 1, 12, 1, "model card: 52B total, 12B active"),
    "allenai/OLMo-7B-hf": (7, 1, 7, 1, "its name: 7B"),
    "bigcode/starcoder2-3b": (3, 1, 3, 1, "model card: 3B"),
    "google/gemma-7b": (8.537680896, 0, 8.537680896, 0, "safetensors total of the checkpoint"),
    "inceptionai/Jais-2-8B-Chat": (8, 1, 8, 1, "its name: 8B"),
    "kyutai/helium-1-preview-2b": (2, 1, 2, 1, "its name: 2B"),
    "microsoft/Phi-3.5-MoE-instruct": (42, 1, 6.6, 0.1, "model card: 16 x 3.8B, 42B in all, 6.6B active"),
    "openai-community/gpt2": (0.124439808, 0, 0.124439808, 0, "its 124,439,808 parameters as transformers builds it"),
    "openbmb/MiniCPM3-4B": (4, 1, 4, 1, "its name: 4B"),
    "skt/A.X-K1": (519, 1, 33, 1, "model card: 519B, 33B active"),
    "stabilityai/stablelm-3b-4e1t": (2.7954432, 0, 2.7954432, 0, "model card: 2,795,443,200 parameters"),
    "tencent/Hy3-preview": (295, 1, 21, 1, "model card: 295B total, 21B active"),
    "tencent/Youtu-LLM-2B": (2, 0.1, 2, 0.1, "its name: 2B"),
    "tiiuae/falcon-7b": (7, 1, 7, 1, "its name: 7B"),
    "upstage/Solar-Open-100B": (102.6, 0.1, 12, 1, "model card: 102.6B total, 12B active"),
}
# Configs put together from public code that quotes them.
PUBLISHED |= {
    "inclusionAI/Ling-mini-2.0": (16, 1, 1.4, 0.1, "model card: 16B total, 1.4B activated"),
    "stepfun-ai/Step-3.5-Flash": (196, 1, 11, 1, "model card: 196B total, 11B active"),
}


def fixture(id: str) -> ModelFacts:
    return model_from_config(json.loads((FIXTURES / f"{id.replace('/', '--')}.json").read_text(encoding="utf-8")), id)


def test_every_fixture_has_a_published_figure() -> None:
    assert {p.stem.replace("--", "/") for p in FIXTURES.glob("*.json")} == set(PUBLISHED)


@pytest.mark.parametrize("id", sorted(PUBLISHED))
def test_parameters_are_as_published(id: str) -> None:
    model = fixture(id)
    total, total_step, active, active_step, _ = PUBLISHED[id]
    assert model.params_total / 1e9 == pytest.approx(total, abs=max(total * 0.01, total_step / 2))
    # Publishers round active counts to one or two digits, so half their last digit (or 2 %) is all that can be asked.
    assert model.params_active / 1e9 == pytest.approx(active, abs=max(active * 0.02, active_step / 2))
    assert 0 < model.params_active <= model.params_total


def test_llama_is_exact() -> None:
    model = fixture("meta-llama/Meta-Llama-3.1-70B")
    assert model.params_total == 70_553_706_496
    assert model.checkpoint_bytes / 2**30 == pytest.approx(131.4165, abs=5e-5)
    assert fixture("meta-llama/Meta-Llama-3.1-8B").params_total == 8_030_261_248
    assert [(g.count, g.intermediate) for g in model.layers] == [(80, 28672)]
    attention = model.layers[0].attention
    assert (attention.kind, attention.num_heads, attention.num_kv_heads, attention.head_dim) == ("full", 64, 8, 128)


def test_other_exact_totals() -> None:
    """Totals that the publishers' safetensors indices state to the last digit."""
    assert fixture("meta-llama/Llama-4-Scout-17B-16E-Instruct").params_total == 108_641_793_536
    assert fixture("openai/gpt-oss-120b").params_total == 116_829_156_672
    assert fixture("mistralai/Mixtral-8x7B-v0.1").params_total == 46_702_792_704


def test_kimi_k2_is_what_its_checkpoint_holds() -> None:
    """The technical report (arXiv 2507.20534) prints 1.04T. The checkpoint holds 1.026T, and its config has no MTP layer.

    With one MTP layer like DeepSeek-V3's the count would round to the report's figure; nothing public says that it
    includes one, so the test holds to the checkpoint: its safetensors index sums to 1,029,173,256,720 bytes.
    """
    model = fixture("moonshotai/Kimi-K2-Instruct")
    assert model.params_total == 1_026_408_232_448 and "mtp_params" not in model.hf_config
    assert model.checkpoint_bytes == pytest.approx(1_029_173_256_720, rel=1e-6)  # without its rotary tables
    path = FIXTURES / "moonshotai--Kimi-K2-Instruct.json"
    with_mtp = model_from_config({**json.loads(path.read_text("utf-8")), "num_nextn_predict_layers": 1}, "k")
    layer = with_mtp.hf_config["mtp_params"]
    assert isinstance(layer, int) and 1.035e12 < with_mtp.params_total + layer - 2 * 163840 * 7168 < 1.045e12


def test_layers_with_heads_of_their_own() -> None:
    groups = {(g.attention.kind, g.attention.num_heads, g.num_experts): g for g in fixture("stepfun-ai/Step-3.5-Flash").layers}
    assert {key: g.count for key, g in groups.items()} == {
        ("full", 64, 0): 1, ("sliding", 96, 0): 2, ("sliding", 96, 288): 31, ("full", 64, 288): 11,
    }  # fmt: skip
    assert {g.attention.window for g in groups.values()} == {0, 512}


def test_mtp_layers_stay_out_of_the_total() -> None:
    model = fixture("deepseek-ai/DeepSeek-V3")
    assert model.hf_config["mtp_layers"] == 1
    mtp = model.hf_config["mtp_params"]
    assert isinstance(mtp, int) and mtp / 1e9 == pytest.approx(
        14, abs=0.6
    )  # README_WEIGHTS: 14B with the shared embedding
    assert (model.params_total + mtp) / 1e9 == pytest.approx(684.5, abs=0.1)  # what the checkpoint's files hold
    assert not any(t.kind == "mtp" for t in model.tensors)


def test_checkpoint_sizes() -> None:
    assert fixture("openai/gpt-oss-120b").checkpoint_bytes / 2**30 == pytest.approx(60.8, abs=0.05)  # its model card
    assert fixture("Qwen/Qwen3-32B-FP8").checkpoint_bytes < 0.53 * fixture("Qwen/Qwen3-32B").checkpoint_bytes


def test_latent_attention() -> None:
    model = fixture("deepseek-ai/DeepSeek-V3")
    assert [
        (g.count, g.intermediate, g.num_experts, g.experts_per_token, g.shared_intermediate) for g in model.layers
    ] == [
        (3, 18432, 0, 0, 0),
        (58, 0, 256, 8, 2048),
    ]
    attention = model.layers[0].attention
    assert (attention.kind, attention.kv_lora_rank, attention.rope_head_dim, attention.num_kv_heads) == (
        "mla",
        512,
        64,
        1,
    )
    sparse = fixture("deepseek-ai/DeepSeek-V3.2")
    assert sparse.hf_config["index_topk"] == 2048
    assert sparse.params_total > model.params_total


def test_local_and_global_layers() -> None:
    groups = Counter({(g.attention.kind, g.attention.window): g.count for g in fixture("openai/gpt-oss-120b").layers})
    assert groups == {("sliding", 128): 18, ("full", 0): 18}
    gemma = {g.attention.kind: g for g in fixture("google/gemma-4-26B-A4B").layers}
    assert gemma["sliding"].count == 25 and gemma["sliding"].attention.window == 1024
    assert (gemma["full"].attention.head_dim, gemma["full"].attention.num_kv_heads) == (512, 2)
    assert gemma["full"].shared_intermediate == 2112
    scout = {g.attention.kind: g.count for g in fixture("meta-llama/Llama-4-Scout-17B-16E-Instruct").layers}
    assert scout == {"chunked": 36, "full": 12}


def test_recurrent_state() -> None:
    qwen = {g.attention.kind: g for g in fixture("Qwen/Qwen3.5-397B-A17B").layers}
    assert (qwen["linear"].count, qwen["full"].count) == (45, 15)
    # 64 value heads x 128 x 128 in fp32, and 3 inputs of 2 x 16 x 128 + 64 x 128 channels in 16 bits
    assert qwen["linear"].attention.state_bytes == 64 * 128 * 128 * 4 + 12288 * 3 * 2
    nemotron = {g.attention.kind: g for g in fixture("nvidia/Nemotron-H-56B-Base-8K").layers}
    assert {kind: g.count for kind, g in nemotron.items()} == {"mamba": 54, "none": 54, "full": 10}
    assert nemotron["mamba"].attention.state_bytes == 256 * 64 * 256 * 4 + (16384 + 2 * 8 * 256) * 3 * 2
    assert nemotron["none"].intermediate == 32768 and nemotron["mamba"].intermediate == 0


def test_vision_is_loaded_but_not_used_by_text() -> None:
    for id in ("Qwen/Qwen3.5-397B-A17B", "moonshotai/Kimi-K2.5", "google/gemma-4-26B-A4B"):
        vision = [t for t in fixture(id).tensors if t.kind == "vision"]
        assert len(vision) == 1 and 0.4e9 < vision[0].params < 0.6e9 and vision[0].active == 0
        assert not vision[0].quantizable


def test_what_an_engine_quantizes_while_loading() -> None:
    model = fixture("Qwen/Qwen3-235B-A22B")
    fixed = {t.kind for t in model.tensors if not t.quantizable}
    assert fixed == {"embedding", "lm_head", "router", "norm"}
    assert model.weight_bytes("bf16") == model.checkpoint_bytes
    kept = sum(t.stored_bytes for t in model.tensors if not t.quantizable)
    assert model.weight_bytes("fp8") == pytest.approx((model.checkpoint_bytes - kept) / 2 + kept)


def test_fields_for_launch_commands() -> None:
    config = fixture("meta-llama/Meta-Llama-3.1-8B").hf_config
    assert config["rope_theta"] == 500000.0 and config["rms_norm_eps"] == 1e-5 and config["hidden_act"] == "silu"
    assert config["head_dim"] == 128 and config["num_hidden_layers"] == 32 and config["torch_dtype"] == "bfloat16"
    assert isinstance(config["rope_scaling"], dict) and config["rope_scaling"]["factor"] == 8.0
    nested = fixture("Qwen/Qwen3.5-397B-A17B").hf_config
    assert nested["rope_theta"] == 10000000 and "rope_scaling" not in nested
    assert fixture("Qwen/Qwen3-8B").hf_config["qk_norm"] is True
