"""Models that draft: their sizes against published checkpoints, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servegen.catalog.drafts import head_from_file, mtp_layer, usual_head
from servegen.catalog.models import list_models, resolve_model
from servegen.errors import CatalogError

#: Bytes of published EAGLE-3 heads, all of them bf16: thoughtworks/Qwen3-32B-Eagle3 (1.56 GB) and
#: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B (850 MB, as its model card's file list shows).
HEADS = {"Qwen/Qwen3-32B": 1.56e9, "meta-llama/Llama-3.1-8B-Instruct": 0.85e9}
CONFIG: dict[str, Any] = {
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "draft_vocab_size": 32000,
    "vocab_size": 151936,
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


@pytest.mark.parametrize("target", HEADS)
def test_the_usual_head_has_the_size_of_a_published_one(target: str) -> None:
    head = usual_head(resolve_model(target), "eagle3", "own/head")
    assert head.checkpoint_bytes == pytest.approx(HEADS[target], rel=0.005)
    assert (head.num_layers, head.vocab_size, head.native_precision) == (1, 32000, "bf16")


def test_an_eagle_head_shares_the_unembedding() -> None:
    target = resolve_model("meta-llama/Llama-3.1-8B-Instruct")
    head = usual_head(target, "eagle", "own/head")
    assert head.vocab_size == target.vocab_size
    assert {t.kind for t in head.tensors} == {"attention", "mlp"}
    # One layer of the target and 2 h -> h; the heads of Llama-2 7B and 13B are published as 0.24B and 0.37B parameters.
    assert usual_head(resolve_model("meta-llama/Llama-2-7b-hf"), "eagle", "x").params_total == pytest.approx(0.24e9, rel=0.02)
    assert usual_head(resolve_model("meta-llama/Llama-2-13b-hf"), "eagle", "x").params_total == pytest.approx(0.37e9, rel=0.02)


def test_a_config_says_what_the_usual_head_is(tmp_path: Path) -> None:
    target = resolve_model("Qwen/Qwen3-32B")
    stated = head_from_file(target, "eagle3", "own/head", written(tmp_path))
    assert stated.tensors == usual_head(target, "eagle3", "own/head").tensors
    inner = {k: v for k, v in CONFIG.items() if k != "draft_vocab_size"}
    nested = tmp_path / "nested.json"  # as the speculators library writes it
    nested.write_text(json.dumps({"transformer_layer_config": inner, "draft_vocab_size": 32000}))
    assert head_from_file(target, "eagle3", "own/head", nested).tensors == stated.tensors
    wider = head_from_file(target, "eagle3", "own/head", written(tmp_path, draft_vocab_size=None))
    assert wider.vocab_size == 151936 and wider.checkpoint_bytes > stated.checkpoint_bytes


def test_a_head_narrower_than_its_target(tmp_path: Path) -> None:
    target = resolve_model("meta-llama/Llama-3.1-70B-Instruct")
    path = written(tmp_path, target_hidden_size=8192)
    head = head_from_file(target, "eagle3", "own/head", path)
    assert head.hidden_size == 5120
    projection = 3 * 8192 * 5120
    assert sum(t.params for t in head.tensors if t.kind == "mlp") == projection + 3 * 5120 * 25600


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 4096}, "hidden_size"),
        ({"target_hidden_size": 4096}, "hidden_size"),
        ({"num_attention_heads": "64"}, "num_attention_heads"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
    ],
)
def test_a_config_that_fits_no_head_is_refused(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CatalogError, match=field):
        head_from_file(resolve_model("Qwen/Qwen3-32B"), "eagle3", "own/head", written(tmp_path, **changes))


@pytest.mark.parametrize("target", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it"])
def test_the_head_of_another_kind_of_model_needs_a_config(target: str) -> None:
    with pytest.raises(CatalogError) as caught:
        usual_head(resolve_model(target), "eagle3", "own/head")
    assert "draftConfig" in caught.value.diagnostics[0].hint


WITH_MTP = [name for name in list_models() if resolve_model(name).hf_config.get("mtp_layers")]


@pytest.mark.parametrize("name", WITH_MTP)
def test_the_mtp_layer_is_what_the_checkpoint_holds(name: str) -> None:
    """All of it but copies of the embeddings, which the engine takes from the target."""
    target = resolve_model(name)
    layer = mtp_layer(target)
    params, stored = (target.hf_config[k] for k in ("mtp_params", "mtp_bytes"))
    assert isinstance(params, int) and isinstance(stored, int)
    copies = 2 * target.vocab_size * target.hidden_size
    copied = copies if params - layer.params_total > copies / 2 else 0
    assert layer.params_total + copied == pytest.approx(params, rel=1e-3)
    # A 4-bit checkpoint may keep attention wider in the layers that it describes than in its MTP layer.
    assert layer.checkpoint_bytes + 2 * copied == pytest.approx(stored, rel=0.05 if target.native_precision == "nvfp4" else 1e-3)


def test_a_model_without_an_mtp_layer_says_so() -> None:
    with pytest.raises(CatalogError, match="no multi-token-prediction layer"):
        mtp_layer(resolve_model("meta-llama/Llama-3.1-8B-Instruct"))
