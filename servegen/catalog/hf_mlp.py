"""Feed-forward blocks: dense MLPs and mixtures of experts, and which layers have which."""

from __future__ import annotations

from servegen.catalog.hf_attention import switched
from servegen.catalog.hf_family import Family, Moe
from servegen.catalog.hf_fields import Fields, shown
from servegen.catalog.hf_tensors import Weight, biased, vector
from servegen.record import record


@record
class Mlp:
    """The feed-forward part of a LayerGroup, with its weights."""

    weights: tuple[Weight, ...]
    intermediate: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0


def dense(f: Fields, family: Family, width: int = 0, prefix: str = "", kind: str = "mlp") -> Mlp:
    """A dense MLP of ``width`` (default: intermediate_size), F1: three matrices gated, two ungated."""
    hidden, prefix = f.size("hidden_size"), prefix or family.mlp
    if not width:
        names = family.moe.dense_width if family.moe is not None else ("intermediate_size", "ffn_hidden_size")
        width = f.size(*names, default=4 * hidden if family.four_times else None)
    bias = switched(f, family.mlp_bias)
    *inputs, output = family.mlp_names if family.gated else family.mlp_names[-2:]
    if family.fused and family.gated:
        weights = [*biased(Weight(f"{prefix}.gate_up_proj", kind, 2 * width, hidden), bias)]
    else:
        weights = [w for name in inputs for w in biased(Weight(f"{prefix}.{name}", kind, width, hidden), bias)]
    weights += biased(Weight(f"{prefix}.{output}", kind, hidden, width), bias)
    if family.mlp_scalars:
        weights.append(vector(f"{prefix}.act_fn", kind, family.mlp_scalars))
    return Mlp(tuple(weights), intermediate=width)


def experts(f: Fields, family: Family, moe: Moe) -> Mlp:
    """A mixture of experts, F5: ``experts_per_token`` of ``num_experts`` routed ones, and the shared ones."""
    hidden, prefix = f.size("hidden_size"), moe.prefix or family.mlp
    count, used, width = f.size(*moe.experts), f.size(*moe.per_token), f.size(*moe.width)
    if used > count:
        f.refuse(moe.per_token[0], f"{used} experts per token of {count}")
    latent = f.size("moe_latent_size") if f.has("moe_latent_size") else hidden
    *inputs, output = moe.names
    weights: list[Weight] = [Weight(f"{prefix}.{moe.router}", "router", count, hidden)]
    if switched(f, moe.correction_bias) or moe.router_bias:
        weights.append(vector(f"{prefix}.{moe.router}.bias", "router", count))
    for name in inputs:
        weights.append(Weight(f"{prefix}.experts.0.{name}", "expert", width, latent, count, used))
    weights.append(Weight(f"{prefix}.experts.0.{output}", "expert", latent, width, count, used))
    if moe.expert_bias:
        weights.append(vector(f"{prefix}.experts.0.bias", "expert", len(inputs) * width + latent, count, used))
    if latent != hidden:
        weights += [
            Weight(f"{prefix}.fc1_latent_proj", "shared_expert", latent, hidden),
            Weight(f"{prefix}.fc2_latent_proj", "shared_expert", hidden, latent),
        ]
    shared = shared_width(f, moe, width)
    if shared:
        bias = switched(f, family.mlp_bias)
        for name in inputs:
            weights += biased(Weight(f"{prefix}.{moe.shared}.{name}", "shared_expert", shared, hidden), bias)
        weights += biased(Weight(f"{prefix}.{moe.shared}.{output}", "shared_expert", hidden, shared), bias)
        if moe.shared_gate:
            weights.append(vector(f"{prefix}.shared_expert_gate", "router", hidden))
    if moe.norm:
        weights.append(vector(f"{prefix}.norm", "norm", hidden))
    return Mlp(tuple(weights), 0, count, used, width, shared)


def shared_width(f: Fields, moe: Moe, width: int) -> int:
    """Total width of the shared experts, 0 without."""
    if moe.shared_count:
        return f.integer(moe.shared_count, default=0) * (f.size(*moe.shared_each, default=width) if moe.shared_each else width)
    return f.integer(moe.shared_width, default=0) if moe.shared_width else 0


def gemma4_experts(f: Fields, family: Family) -> Mlp:
    """Gemma 4's block: a dense MLP on every token beside the routed experts, with norms of their own."""
    hidden, count, used = f.size("hidden_size"), f.size("num_experts"), f.size("top_k_experts")
    width, both = f.size("moe_intermediate_size", "expert_intermediate_size"), dense(f, family, kind="shared_expert")
    if used > count:
        f.refuse("top_k_experts", f"{used} experts per token of {count}")
    weights = (
        *both.weights,
        Weight("router.proj", "router", count, hidden),
        vector("router.scales", "router", hidden + count),
        Weight("experts.0.gate_up_proj", "expert", 2 * width, hidden, count, used),
        Weight("experts.0.down_proj", "expert", hidden, width, count, used),
        vector("norms_moe", "norm", 3 * hidden),
    )
    return Mlp(weights, 0, count, used, width, both.intermediate)


def moe_layers(f: Fields, moe: Moe | None, layers: int) -> list[bool]:
    """For each layer whether it holds experts: every rule that the config states must allow it."""
    if moe is None or (moe.optional and not f.has(*moe.experts)):
        return [False] * layers
    if not f.integer(*moe.experts):
        return [False] * layers
    types = f.per_layer("mlp_layer_types", layers, ("dense", "sparse"))
    if types is not None:
        return [t == "sparse" for t in types]
    first = f.integer("first_k_dense_replace", "num_dense_layers", default=0)
    sparse = [index >= first for index in range(layers)]
    if f.has("moe_layer_freq") and isinstance(f.find("moe_layer_freq")[1], list):
        chosen = f.integers("moe_layer_freq") or []
        if len(chosen) != layers:
            f.refuse("moe_layer_freq", f"has {len(chosen)} entries for {layers} layers")
        sparse = [s and c > 0 for s, c in zip(sparse, chosen, strict=True)]
    else:
        every = f.size("moe_layer_freq", default=1)
        sparse = [s and index % every == 0 for index, s in enumerate(sparse)]
    step = f.size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
    sparse = [s and (index + 1) % step == 0 for index, s in enumerate(sparse)]
    only_dense = set(f.integers("mlp_only_layers") or [])
    start = f.integer("moe_layer_start_index", default=0)
    end = f.integer("moe_layer_end_index", default=layers - 1, least=-1)
    end = layers - 1 if end == -1 else end
    sparse = [s and index not in only_dense and start <= index <= end for index, s in enumerate(sparse)]
    listed = f.integers("moe_layers")
    if f.has("moe_layers_enum"):  # Step-3.5: a text of numbers
        listed = _enumerated(f)
    return sparse if listed is None else [index in set(listed) for index in range(layers)]


def _enumerated(f: Fields) -> list[int]:
    text = f.text("moe_layers_enum")
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and len(item) < 6 for item in items):
        f.refuse("moe_layers_enum", f"must be numbers with commas between them, not {shown(text)}")
    return [int(item) for item in items]
