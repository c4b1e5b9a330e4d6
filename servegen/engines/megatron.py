"""Megatron-LM's static text generation server: dense Llama-like models, one server per replica.

Megatron reads its own checkpoints, not Hugging Face's, and is told the architecture flag by flag.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from servegen.engines.contract import contract_name, load_contract, require
from servegen.engines.launch import Arg, Launch, Probes
from servegen.engines.overrides import environment, merge, value_of
from servegen.engines.startup import require_one_node
from servegen.errors import Diagnostic, UserError
from servegen.plan import Plan, Role

#: A Megatron-LM checkout; NVIDIA's NeMo images have it here. Launch scripts take $MEGATRON_DIR instead if it is set.
MEGATRON_DIR = "/opt/megatron-lm"
SERVER = "tools/run_text_generation_server.py"
#: Where a converted checkpoint is looked for when the spec names a Hugging Face id: <root>/<organisation>--<model>.
CHECKPOINT_ROOT = "/models/megatron"
PORT = 5000
#: The server has /api and /completions, both of which generate; nothing that a probe may call. "" = probe the port.
PROBES = Probes(liveness="", readiness="", timeout_s=1)

#: Megatron's attention needs the order of kernel launches when TP overlaps communication; its validation insists on it.
ENV = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

#: Architectures whose layers Megatron's GPT model has, with the flags by which each differs from Llama.
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "LlamaForCausalLM": (),
    "MistralForCausalLM": (),
    "Qwen2ForCausalLM": ("--add-qkv-bias",),
    "Qwen3ForCausalLM": ("--qk-layernorm",),
}
#: --use-rope-scaling takes the factor; these are fixed in rotary_pos_embedding.py.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
VOCAB_MULTIPLE = 128  # the padding that Megatron's converters use by default


class Megatron:
    """See :class:`servegen.engines.launch.Engine`."""

    id = "megatron"

    def launches(self, plan: Plan) -> tuple[Launch, ...]:
        """One launch, ``serve``. UserError names what of the model or the plan Megatron cannot serve."""
        if plan.choice.topology != "aggregated":
            hint = "constraints.topology: aggregated"
            raise UserError(Diagnostic("engine-topology", "Megatron cannot split prefill and decode", hint=hint))
        role = plan.role("serve")
        require_one_node(plan, role)
        contract = load_contract(contract_name(self.id, plan.choice.engine_version))
        args = merge((*_serving(plan, role), *_architecture(plan, role), *_numbers(role)), plan.deploy.args, contract)
        require(contract, args, "megatron serve")
        return (
            Launch(
                name="serve",
                role="serve",
                program=("torchrun", "--nproc-per-node", str(role.devices), f"{MEGATRON_DIR}/{SERVER}"),
                args=args,
                env=environment(ENV, plan.deploy.env),
                port=int(value_of(args, "--port", str(PORT))),
                probes=PROBES,
                contract=contract.name,
            ),
        )


ENGINE = Megatron()


def checkpoint_dir(load: str) -> str:
    """The folder of the converted checkpoint: ``load`` if it is a path, else the agreed one for that model id."""
    if load.startswith(("/", "./", "../")):
        return load
    return f"{CHECKPOINT_ROOT}/{load.replace('/', '--')}"


def _serving(plan: Plan, role: Role) -> list[Arg]:
    """What to load and how to serve it. The server binds 0.0.0.0 by itself and has no flag for it."""
    args = [
        _arg("--load", checkpoint_dir(role.load)),
        _arg("--ckpt-format", "torch_dist"),
        _arg("--tokenizer-type", "HuggingFaceTokenizer"),
        _arg("--tokenizer-model", plan.model.served_name),
    ]
    if plan.model.trust_remote_code:
        args.append(Arg("--trust-remote-code"))
    args += [
        _arg("--port", PORT),
        _arg("--inference-max-requests", role.max_running_requests),
        _arg("--inference-max-seq-length", role.context_length),
        _arg("--micro-batch-size", 1),
        _arg("--tensor-model-parallel-size", role.tp),
    ]
    return [*args, _arg("--pipeline-model-parallel-size", role.pp)] if role.pp > 1 else args


def _numbers(role: Role) -> list[Arg]:
    """Number formats. bf16 always: Megatron's FP8 computes from bf16 parameters."""
    if role.kv != "bf16":
        hint = "constraints.kvCache: [bf16]"
        raise UserError(Diagnostic("engine-kv", f"Megatron's static server has no {role.kv} KV cache", hint=hint))
    if role.weights == "bf16" and not role.quantization:
        return [Arg("--bf16")]
    if role.weights == "fp8" and role.quantization == "fp8":
        return [Arg("--bf16"), _arg("--transformer-impl", "transformer_engine"), _arg("--fp8-format", "e4m3")]
    what = role.weights if not role.quantization else f"{role.weights} ({role.quantization})"
    hint = "constraints.weights: [bf16]"
    raise UserError(Diagnostic("engine-weights", f"Megatron cannot load {what} weights", hint=hint))


def _architecture(plan: Plan, role: Role) -> list[Arg]:
    """The model, flag by flag, from the fields of its Hugging Face config."""
    config = plan.model.hf_config
    extra = ARCHITECTURES.get(plan.model.architecture)
    if extra is None:
        listed = ", ".join(ARCHITECTURES)
        raise _unsupported(f"the architecture {plan.model.architecture}", f"it serves {listed}")
    _refuse(config)
    heads, hidden = _integer(config, "num_attention_heads"), _integer(config, "hidden_size")
    groups = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    if groups % role.tp:
        hint = "constraints.tp: divisors of the KV heads"
        raise _unsupported(f"tensor parallelism {role.tp} over {groups} KV heads", hint)
    longest = int(config.get("max_position_embeddings") or plan.model.max_context)
    args = [
        _arg("--num-layers", _integer(config, "num_hidden_layers")),
        _arg("--hidden-size", hidden),
        _arg("--ffn-hidden-size", _integer(config, "intermediate_size")),
        _arg("--num-attention-heads", heads),
    ]
    if head_dim * heads != hidden:
        args.append(_arg("--kv-channels", head_dim))
    if groups != heads:
        args += [Arg("--group-query-attention"), _arg("--num-query-groups", groups)]
    args += [
        _arg("--seq-length", role.context_length),
        _arg("--max-position-embeddings", max(longest, role.context_length)),
        *_rope(config),
        _arg("--normalization", "RMSNorm"),
        _arg("--norm-epsilon", f"{float(config.get('rms_norm_eps', 1e-5)):g}"),
        Arg("--swiglu"),
        Arg("--disable-bias-linear"),
        *(Arg(flag) for flag in extra),
    ]
    if not config.get("tie_word_embeddings", False):
        args.append(Arg("--untie-embeddings-and-output-weights"))
    # Megatron pads to a multiple of this x TP: so chosen, the padded size does not depend on TP, and one checkpoint
    # serves every TP.
    divisor = VOCAB_MULTIPLE // role.tp if VOCAB_MULTIPLE % role.tp == 0 else VOCAB_MULTIPLE
    return [*args, _arg("--make-vocab-size-divisible-by", divisor)]


def _refuse(config: Mapping[str, Any]) -> None:
    """Raises UserError for what the flags above cannot say."""
    if config.get("hidden_act", "silu") != "silu":
        raise _unsupported(f"the activation {config['hidden_act']}", "it must be silu")
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if config.get(key):
            raise _unsupported("mixtures of experts", "only dense models are built")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise _unsupported("sliding-window attention", "only full attention is built")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise _unsupported(key, "only models without biases on these layers are built")


def _rope(config: Mapping[str, Any]) -> list[Arg]:
    """Rotary embedding; transformers 5 keeps base and scaling together in ``rope_parameters``."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if base != int(base):
        raise _unsupported(f"a RoPE base of {base}", "--rotary-base takes a whole number")
    args = [_arg("--position-embedding-type", "rope"), _arg("--rotary-base", int(base))]
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return args
    if kind != "llama3":
        raise _unsupported(f"RoPE scaling {kind!r}", "it has llama3 scaling only")
    for key, fixed in LLAMA3_ROPE.items():
        if not math.isclose(float(scaling.get(key, fixed)), fixed):
            raise _unsupported(f"RoPE {key} {scaling[key]}", f"Megatron fixes it at {fixed:g}")
    return [*args, Arg("--use-rope-scaling"), _arg("--rope-scaling-factor", f"{float(scaling['factor']):g}")]


def _integer(config: Mapping[str, Any], key: str) -> int:
    if not config.get(key):
        raise _unsupported(f"a model without {key}", f"its config.json must state {key}")
    return int(config[key])


def _unsupported(what: str, hint: str) -> UserError:
    return UserError(Diagnostic("engine-model", f"Megatron launch commands do not cover {what}", hint=hint))


def _arg(flag: str, value: str | int) -> Arg:
    return Arg(flag, (str(value),))
