"""The models of the catalogue, and models of the user's own: all of them read by :mod:`servegen.catalog.hf`.

``models/<slug>.yaml`` holds one model: ``id`` and ``aliases`` (one line each, found without parsing), ``source``, and
``config`` (the fields of its Hugging Face config.json that are read). ``like: <slug>`` takes another file's config,
over which ``config`` is laid (null removes a field).
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from servegen import inputs
from servegen.catalog.facts import LayerGroup, ModelFacts
from servegen.catalog.hf import model_from_config
from servegen.errors import CatalogError, Diagnostic

FOLDER = Path(__file__).with_name("models")
_HINT = "for a model that is not in the catalogue give spec.model.config: path/to/config.json"
#: No config.json comes near this; a larger file is something else.
LARGEST_FILE_BYTES = 8 << 20


@lru_cache(maxsize=1)
def _index() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(name of the file, id, aliases) of every model, from the first lines of each file."""
    entries = []
    folder = str(FOLDER)  # the way to each file as text, as paths take longer than the files
    for file_name in sorted(name for name in os.listdir(folder) if name.endswith(".yaml")):
        with open(f"{folder}/{file_name}", "rb") as file:
            name = file.readline().decode().removeprefix("id:").strip()
            aliases = file.readline().decode().removeprefix("aliases:").strip().strip("[]")
        entries.append((file_name, name, tuple(a.strip() for a in aliases.split(",") if a.strip())))
    return tuple(entries)


def list_models() -> tuple[str, ...]:
    """The ids of all models of the catalogue, sorted without case."""
    return tuple(sorted((name for _, name, _ in _index()), key=str.lower))


@lru_cache(maxsize=1024)
def resolve_model(name: str) -> ModelFacts:
    """The model of that id or alias, without regard to case and organisation.

    Raises CatalogError where no model has that name (with the nearest names) or several have it (with the candidates).
    """
    lowered, key = name.strip().lower(), _key(name)
    matches = [file for file, id, aliases in _index() if lowered in (id.lower(), *(a.lower() for a in aliases))]
    matches = matches or [file for file, id, aliases in _index() if key in (_key(id), *map(_key, aliases))]
    if len(matches) == 1:
        return _load(FOLDER / matches[0])
    if matches:
        candidates = ", ".join(id for file, id, _ in _index() if file in matches)
        raise CatalogError(
            Diagnostic("model-ambiguous", f"{name!r} names several models: {candidates}", hint="give one of these ids")
        )
    names = {_key(n): n for _, id, aliases in _index() for n in (*aliases, id)}
    near = [names[k] for k in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]
    hint = f"did you mean {', '.join(near)}? {_HINT[0].upper()}{_HINT[1:]}" if near else _HINT
    raise CatalogError(Diagnostic("model-unknown", f"no model {name!r} in the catalogue", hint=hint))


def _key(name: str) -> str:
    """A name without case, organisation and the separators that people leave out (llama3_1-70b = Llama-3.1-70B)."""
    plain = re.sub(r"[\s._-]+", "-", name.strip().lower().rsplit("/", 1)[-1])
    return re.sub(r"(?<=[a-z])-(?=\d)", "", plain)


def _load(path: Path) -> ModelFacts:
    entry = _parsed(path)
    config = _config(entry, path)
    source = str(entry["source"])
    aliases = [str(a) for a in _as_list(entry.get("aliases"))]
    return model_from_config(config, str(entry["id"]), aliases, {"config": source})


def _config(entry: Mapping[str, object], path: Path) -> dict[str, object]:
    """The entry's config, over the one that it is like."""
    own = entry.get("config")
    config: dict[str, object] = dict(own) if isinstance(own, Mapping) else {}
    if "like" not in entry:
        return config
    base = path.with_name(f"{entry['like']}.yaml")
    merged = {**_config(_parsed(base), base), **config}
    return {name: value for name, value in merged.items() if value is not None}


def _parsed(path: Path) -> Mapping[str, object]:
    from servegen.catalog.loader import own  # ruamel.yaml only when a model is read

    return {str(key): value for key, value in own(path.read_text(encoding="utf-8"), path).items()}


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def model_from_file(path: str | Path) -> ModelFacts:
    """The model of a user's ``config.json``; without quantization in it, a ``hf_quant_config.json`` beside it counts.

    Its id is the config's ``_name_or_path`` where that is a Hugging Face id, else the name of its folder or file.
    Raises CatalogError where the file cannot be read, is not JSON, or is not a config that can be modelled.
    """
    path = Path(path)
    config = read_config(path)
    id = str(config.get("_name_or_path") or "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", id):
        id = (
            path.resolve().parent.name
            if path.name == "config.json"
            else path.name.removesuffix(".json").removesuffix("_config")
        )
        id = id.replace("--", "/", 1) or "model"
    sources = {"config": str(path)}
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if path.name.endswith("config.json") and not config.get("quantization_config") and beside.is_file():
        quantization = read_config(beside).get("quantization")
        if not isinstance(quantization, Mapping):
            raise CatalogError(Diagnostic("model-config", f"{beside}: 'quantization' must be a mapping"))
        config = {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}
        sources["config.quantization_config"] = str(beside)
    return model_from_config(config, id, sources=sources)


def read_config(path: Path) -> dict[str, object]:
    """The JSON object that a file holds."""
    try:
        value = json.loads(inputs.read(path, LARGEST_FILE_BYTES).decode("utf-8"))
    except OSError as error:
        raise CatalogError(Diagnostic("model-file", f"cannot read {path}: {error.strerror or error}")) from error
    except (ValueError, RecursionError) as error:
        raise CatalogError(Diagnostic("model-file", f"{path} is not valid JSON: {error}")) from error
    if not isinstance(value, dict):
        raise CatalogError(
            Diagnostic("model-file", f"{path} does not hold a JSON object", hint="give the model's config.json")
        )
    return value


def model_from_architecture(architecture: Mapping[str, object], id: str = "inline") -> ModelFacts:
    """The model of ``spec.model.architecture``: the fields of a Hugging Face config, written in the spec."""
    return model_from_config(architecture, id, sources={"config": "spec.model.architecture"})


def explain(model: ModelFacts) -> list[tuple[str, object, str, str]]:
    """Every figure of a model as (path, value, unit, source), for ``servegen catalog show``."""
    return list(_rows(model))


def _rows(model: ModelFacts) -> Iterator[tuple[str, object, str, str]]:
    source = model.sources.get("config", "")
    derived = f"sum over the tensors that {source} describes" if source else ""
    yield "id", model.id, "", source
    if model.aliases:
        yield "aliases", ", ".join(model.aliases), "", source
    for name, unit in (
        ("architecture", ""),
        ("model_type", ""),
        ("hidden_size", ""),
        ("vocab_size", "tokens"),
        ("max_context", "tokens"),
    ):
        yield name, getattr(model, name), unit, source
    yield "tied_embeddings", model.tied_embeddings, "", source
    yield "native_precision", model.native_precision, "", model.sources.get("config.quantization_config", source)
    if model.quantization:
        yield "quantization", model.quantization, "", model.sources.get("config.quantization_config", source)
        yield "weight_block", model.weight_block, "weights", model.sources.get("config.quantization_config", source)
    yield "params_total", model.params_total, "parameters", derived
    yield "params_active", model.params_active, "parameters", derived
    yield "checkpoint_bytes", model.checkpoint_bytes, "bytes", derived
    for index, group in enumerate(model.layers):
        for name, value in _group_figures(group):
            yield f"layers[{index}].{name}", value, "bytes" if name == "state_bytes" else "", source
    for tensor in model.tensors:
        path = f"tensors.{tensor.kind}.{tensor.precision}" + ("" if tensor.quantizable else ".fixed")
        yield f"{path}.params", tensor.params, "parameters", derived
        yield f"{path}.stored_bytes", tensor.stored_bytes, "bytes", derived
    for name, field in sorted(model.hf_config.items()):
        yield f"hf_config.{name}", field, "", source


def _group_figures(group: LayerGroup) -> Iterator[tuple[str, object]]:
    """The figures of a layer group that are not zero."""
    yield "count", group.count
    yield "attention", group.attention.kind
    for name in (
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "v_head_dim",
        "window",
        "kv_lora_rank",
        "rope_head_dim",
        "index_head_dim",
        "state_bytes",
    ):
        if getattr(group.attention, name):
            yield name, getattr(group.attention, name)
    for name in ("intermediate", "num_experts", "experts_per_token", "moe_intermediate", "shared_intermediate"):
        if getattr(group, name):
            yield name, getattr(group, name)
