"""The models of the catalogue, how names find them, and models of the user's own."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from servegen.catalog import models
from servegen.errors import CatalogError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hf_configs"
PUBLISHED = YAML(typ="safe").load((FIXTURES.parent / "published_params.yaml").read_text(encoding="utf-8"))


def test_the_catalogue_is_read_in_full() -> None:
    ids = models.list_models()
    assert len(ids) >= 45 and len(set(map(str.lower, ids))) == len(ids)
    for id in ids:
        model = models.resolve_model(id)
        assert model.id == id
        assert 0 < model.params_active <= model.params_total
        assert model.sources["config"]
        assert model.max_context >= 2048


@pytest.mark.parametrize("id", sorted(PUBLISHED))
def test_totals_are_those_of_the_checkpoints(id: str) -> None:
    """To the last parameter; bytes within what files hold beside tensors (tokenizers, rotary tables)."""
    model, published = models.resolve_model(id), PUBLISHED[id]
    mtp = model.hf_config["mtp_params"] if published.get("mtp") else 0
    assert isinstance(mtp, int)
    if "params" in published:
        assert model.params_total + mtp == published["params"]
    if "bytes" in published:
        assert model.checkpoint_bytes == pytest.approx(published["bytes"], rel=1e-3)


def test_files_are_named_after_their_model() -> None:
    for path in models.FOLDER.glob("*.yaml"):
        first, second, third = path.read_text(encoding="utf-8").splitlines()[:3]
        assert path.stem == first.removeprefix("id: ").lower().replace("/", "--")
        assert second.startswith("aliases: [") and second.endswith("]") and third.startswith("source: ")


def test_no_two_models_share_a_name() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for _, id, aliases in models._index():
        for name in (id, *aliases):
            owners[models._key(name)].add(id)
    assert not {key: ids for key, ids in owners.items() if len(ids) > 1}


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("META-LLAMA/llama-3.1-70b", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("llama3_1-70b", "meta-llama/Llama-3.1-70B"),
        ("some-mirror/Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B"),
        ("llama3-70b", "meta-llama/Meta-Llama-3-70B"),
        ("Llama-3-8B", "meta-llama/Meta-Llama-3-8B"),
        ("llama2-70b-99", "meta-llama/Llama-2-70b-hf"),
        ("BLOOM-176B", "bigscience/bloom"),
        ("zhipuai/GLM-5", "zai-org/GLM-5"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("Llama-4-Maverick-17B-128E", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "amd/Llama-3.1-405B-Instruct-FP8-KV"),
        ("gemma-2-27b-it", "google/gemma-2-27b"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
    ],
)
def test_names_and_aliases(name: str, id: str) -> None:
    assert models.resolve_model(name).id == id


def test_llama_3_is_not_llama_3_1() -> None:
    old, new = models.resolve_model("llama3-70b"), models.resolve_model("Llama-3.1-70B")
    assert (old.max_context, new.max_context) == (8192, 131072)
    assert "rope_scaling" in new.hf_config and "rope_scaling" not in old.hf_config
    assert old.params_total == new.params_total == 70_553_706_496


@pytest.mark.parametrize(
    ("name", "total"),
    [  # totals that the safetensors indices of the checkpoints state, to the last digit
        ("bigscience/bloom", 176_247_271_424),
        ("deepseek-ai/DeepSeek-V2", 235_741_434_880),
        ("google/gemma-2-27b", 27_227_128_320),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("google/gemma-3-4b-it", 4_300_079_472),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 401_583_781_376),
        ("microsoft/phi-4", 14_659_507_200),
        ("microsoft/Phi-3-mini-4k-instruct", 3_821_079_552),
        ("mistralai/Mistral-Large-Instruct-2407", 122_610_069_504),
        ("mistralai/Mistral-Small-24B-Base-2501", 23_572_403_200),
        ("mistralai/Mixtral-8x22B-v0.1", 140_620_634_112),
        ("Qwen/Qwen2.5-72B", 72_706_203_648),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("openai/gpt-oss-20b", 20_914_757_184),
    ],
)
def test_exact_totals(name: str, total: int) -> None:
    assert models.resolve_model(name).params_total == total


def test_exact_total_with_mtp() -> None:
    glm = models.resolve_model("zai-org/GLM-4.5")
    mtp = glm.hf_config["mtp_params"]
    assert isinstance(mtp, int) and (glm.params_total + mtp) / 1e9 == pytest.approx(
        358.34, abs=0.01
    )  # its safetensors index


def test_quantized_checkpoints_keep_the_parameters_of_their_base() -> None:
    for quantized, base, precision in [
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "Llama-3.1-70B", "fp8"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "DeepSeek-V3.1", "nvfp4"),
        ("Qwen/Qwen3-32B-FP8", "Qwen3-32B", "fp8"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "Qwen3-235B-A22B", "nvfp4"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "Llama-3.1-70B", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen2.5-7B-Instruct", "int4"),
    ]:
        model, whole = models.resolve_model(quantized), models.resolve_model(base)
        assert model.native_precision == precision
        assert model.params_total == whole.params_total
        assert model.checkpoint_bytes < whole.checkpoint_bytes


def test_only_the_files_that_match_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = models._parsed
    monkeypatch.setattr(models, "_parsed", lambda path: parsed.append(path.stem) or parse(path))
    models.resolve_model("Llama-3.3-70B")
    assert parsed == ["meta-llama--llama-3.3-70b-instruct", "meta-llama--llama-3.1-70b"]


def test_unknown_names_tell_the_nearest() -> None:
    with pytest.raises(CatalogError) as caught:
        models.resolve_model("meta-llama/Llama-3.1-7OB")
    message = str(caught.value)
    assert "Llama-3.1-70B" in message and "config.json" in message
    with pytest.raises(CatalogError) as caught:
        models.resolve_model("zzzzzz")
    assert "spec.model.config" in str(caught.value)


def test_ambiguous_names_list_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for org in ("a", "b"):
        (tmp_path / f"{org}--m.yaml").write_text(
            f"id: {org}/M-1\naliases: []\nsource: s\nconfig: {{}}\n", encoding="utf-8"
        )
    monkeypatch.setattr(models, "FOLDER", tmp_path)
    models._index.cache_clear()
    try:
        with pytest.raises(CatalogError) as caught:
            models.resolve_model("m-1")
    finally:
        monkeypatch.undo()
        models._index.cache_clear()
    assert "a/M-1" in str(caught.value) and "b/M-1" in str(caught.value)


def test_a_users_config_file(tmp_path: Path) -> None:
    config = json.loads((FIXTURES / "nvidia--Llama-3.1-70B-Instruct-FP8.json").read_text(encoding="utf-8"))
    folder = tmp_path / "my--model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plain = models.model_from_file(folder / "config.json")
    assert (plain.id, plain.native_precision, plain.params_total) == ("my/model", "bf16", 70_553_706_496)
    quantization = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantization), encoding="utf-8")
    quantized = models.model_from_file(str(folder / "config.json"))
    assert (quantized.native_precision, quantized.quantization) == ("fp8", "modelopt")
    assert quantized.sources["config.quantization_config"].endswith("hf_quant_config.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "model_type"),
        (b'{"hidden_size": 1}', "model_type"),
    ],
)
def test_bad_files_are_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CatalogError) as caught:
        models.model_from_file(path)
    assert message in str(caught.value)


def test_unreadable_files_are_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(CatalogError) as caught:
            models.model_from_file(path)
        assert str(path) in str(caught.value)


def test_inline_architecture() -> None:
    fields = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    model = models.model_from_architecture(fields)
    assert (model.id, model.params_total) == ("inline", 8_030_261_248)
    assert model.sources == {"config": "spec.model.architecture"}


def test_explain_gives_every_figure_its_source() -> None:
    rows = models.explain(models.resolve_model("nvidia/DeepSeek-V3.1-NVFP4"))
    paths = [path for path, _, _, _ in rows]
    assert len(paths) == len(set(paths))
    assert all(source for _, _, _, source in rows)
    figures = {path: (value, unit) for path, value, unit, _ in rows}
    assert figures["params_total"] == (671_026_419_200, "parameters")
    assert figures["layers[1].num_experts"] == (256, "")
    assert figures["checkpoint_bytes"][1] == "bytes"
