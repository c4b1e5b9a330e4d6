"""How each vector is computed: one function per method, from the vector's inputs to its figure in SI units.

This file has steps, capacity and communication; ``serving`` has what a server does under load. ``METHODS`` maps the name
that the fixture states to the function. Inputs have the names of the textbook; :class:`Inputs` fills in the figures of
the hardware and the models that the fixture carries.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from servegen.catalog.hf import model_from_config
from servegen.roofline import attention, collectives, compute, memory
from tests.reference import formulas, textbook
from tests.reference.textbook import Case, column

METHODS: dict[str, Callable[[Inputs], float]] = {}
#: Any cache: a layer without one would have no attention.
SOME_CACHE = 1e6
SOME_CONTEXT = 1024


def method(function: Callable[[Inputs], float]) -> Callable[[Inputs], float]:
    """Enter a function under its name."""
    METHODS[function.__name__] = function
    return function


class Inputs:
    """A vector's inputs by name; what it does not state comes from its hardware, its model, else from ``usual``."""

    def __init__(self, given: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.given, self.meta = given, meta
        hardware = meta["hardware"].get(given.get("hw"), {})
        model = meta["models"].get(given.get("model"), {})
        self.known = {**model, **hardware, **given}

    def but(self, **changes: Any) -> Inputs:
        """The same inputs with some replaced or added."""
        return Inputs({**self.given, **changes}, self.meta)

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def __call__(self, name: str, usual: Any = None) -> Any:
        return self.known[name] if usual is None else self.known.get(name, usual)

    @property
    def token_bytes(self) -> float:
        """Cache of one token; a vector that states a sequence's bytes gets a context of :data:`SOME_CONTEXT`."""
        if "kv_seq" in self:
            return float(self("kv_seq")) / SOME_CONTEXT
        if "kv_bytes" not in self:
            return 0.0
        return attention.kv_bytes_per_token(self("L"), self("K"), self("H"), self("H"), self("kv_bytes"))

    @property
    def context(self) -> float:
        return float(SOME_CONTEXT) if "kv_seq" in self else float(self("S", 1.0))

    def case(self, **changes: Any) -> Case:
        """The configuration that the vector describes; weights are given in bytes, or as parameters times their width."""
        weights = float(self("weights") if "weights" in self else self("P") * self("w_bytes", 1.0))
        params = float(self("P", weights / 2.0))
        experts = (self("E", 0), self("k", 0))
        shape = textbook.model(params, weights / params, self.token_bytes, params * self("k", 1) / self("E", 1), experts=experts)
        rates = (self("C", 1e30), self("W", 1e30), self("HBM", 1e30))
        chip = textbook.chip(*rates, stream=self("mbu", 1.0), peak=self("mfu", 1.0))
        how = textbook.engine(kv=self("mbu", 1.0), attention=self("mfu", 1.0))
        shares = "mfu" in self or "mbu" in self
        case = Case(shape, chip, self("n", 1), how, "calibrated" if shares else "ideal")
        return dataclasses.replace(case, **changes)


# -- A: parameters -----------------------------------------------------------------------------------------------------


@method
def params(i: Inputs) -> float:
    """Parameters of a config by kind, all of them or one token's."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": i("D"),
        "intermediate_size": i("F"),
        "num_hidden_layers": i("L"),
        "num_attention_heads": i("N"),
        "num_key_value_heads": i("K"),
        "head_dim": i("H"),
        "vocab_size": i("V"),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": i("tied", False),
        "rms_norm_eps": 1e-5,
    }
    if "E" in i:
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": i("E")}
        config |= {"num_experts_per_tok": i("k", 2)}
    facts = model_from_config(config, "vector")
    kinds = {"mlp": ("mlp",), "attn": ("attention",), "vocabulary": ("embedding", "lm_head")}
    wanted = kinds.get(i("part", "all"))
    some = [t for t in facts.tensors if wanted is None or t.kind in wanted]
    return float(sum(t.active if i("active", False) else t.params for t in some))


# -- B: the cache ------------------------------------------------------------------------------------------------------


@method
def cache(i: Inputs) -> float:
    """Bytes of ``B`` sequences of ``S`` tokens as the memory columns count them."""
    return i("B", 1) * float(i.case().lowered.memory.sequence_bytes(i.context)[0]) * i("n", 1)


@method
def cache_mla(i: Inputs) -> float:
    return attention.mla_bytes_per_token(i("L"), i("kv_lora_rank"), i("qk_rope"), i("kv_bytes"))


@method
def cache_windows(i: Inputs) -> float:
    """Layers that see everything and layers that see a window."""
    groups = [(i("L_global"), 0.0), (i("L_local"), i("window"))]
    seen = attention.visible_tokens(i("S"), np.array([w for _, w in groups]))
    each = [attention.kv_bytes_per_token(n, i("K"), i("H"), i("H"), i("kv_bytes")) for n, _ in groups]
    return float(seen @ np.array(each))


@method
def cache_shrink(i: Inputs) -> float:
    """What sharing KV heads saves."""
    return attention.kv_bytes_per_token(1, i("N"), 1, 1, 1) / attention.kv_bytes_per_token(1, i("K"), 1, 1, 1)


@method
def devices_fractional(i: Inputs) -> float:
    """Weights and cache over the capacity of one device."""
    placed = i.case().lowered.memory
    return float((placed.weight_bytes + i("B") * placed.sequence_bytes(i.context))[0]) / i("HBM")


# -- C: intensity ------------------------------------------------------------------------------------------------------


@method
def critical_batch(i: Inputs) -> float:
    """Tokens at which multiplying takes as long as streaming the weights."""
    flops = i("alpha") if "alpha" in i else i("C") / i("W")
    shape = textbook.model(1e9, i("w_bytes"), active=1e9 * i("k", 1) / i("E", 1), experts=(i("E", 0), i("k", 0)))
    terms = Case(shape, textbook.chip(flops, 1.0)).terms
    return float(((terms.weight_s + terms.expert_s) / terms.token_flop_s)[0])


@method
def attention_intensity(i: Inputs) -> float:
    return formulas.attention_intensity(i("T", 1.0), i("S"), i("G", 1.0))


@method
def values_intensity(i: Inputs) -> float:
    return formulas.values_intensity(i("H"))


@method
def softmax_intensity(i: Inputs) -> float:
    return formulas.softmax_intensity(i("softmax_flops_per_elem"), i("bytes_per_elem"))


@method
def step_intensity_limit(i: Inputs) -> float:
    return formulas.step_intensity_limit(i("P"), i("kv_seq"))


@method
def matmul_intensity(i: Inputs) -> float:
    return formulas.matmul_intensity(i("B"), i("D"), i("F"), i("w_bytes"), i("act_bytes"))


# -- D: steps and prompts ----------------------------------------------------------------------------------------------


@method
def decode_step(i: Inputs) -> float:
    return i.case().decode_s(i("B", 1), i.context)


@method
def decode_attention(i: Inputs) -> float:
    return i("B") * float(i.case().terms.kv_s(i.context)[0])


@method
def decode_matrices(i: Inputs) -> float:
    return float(i.case().terms.gemm_s(column(i("B")))[0])


@method
def decode_multiplying(i: Inputs) -> float:
    return i("B") * float(i.case().terms.token_flop_s[0])


@method
def decode_streaming(i: Inputs) -> float:
    return float(i.case().terms.weight_s[0])


@method
def decode_rate(i: Inputs) -> float:
    """Tokens/s of ``replicas``, or of one device of them."""
    each = i("B", 1) / decode_step(i)
    return each / i("n") if i("per_device", False) else each * i("replicas", 1)


@method
def decode_ceiling(i: Inputs) -> float:
    """Tokens/s when only multiplying counts."""
    return 1.0 / float(i.case().terms.token_flop_s[0])


@method
def decode_with_allreduce(i: Inputs) -> float:
    return decode_step(i) + allreduces_wide_ring(i)


@method
def prefill(i: Inputs) -> float:
    """A prompt without its attention."""
    return float(i.case().terms.chunk_s(column(i("S")))[0])


@method
def prefill_with_attention(i: Inputs) -> float:
    """A prompt with causal attention."""
    shape = textbook.model(i("P"), 1e-9, SOME_CACHE, layers=i("L"), width=i("N") * i("H"))
    return i.case(model=shape).prefill_s(i("S"))


@method
def flops_per_token(i: Inputs) -> float:
    return compute.flop_s_per_token(i("P"), 1, 1.0, 1.0)


@method
def full_memory(i: Inputs) -> float:
    """The longest step that memory allows: reading all of it."""
    return compute.stream_s(i("HBM"), 1, i("W"), 1.0)


@method
def calibrated_step(i: Inputs) -> float:
    """A decode step with fixed times per matrix, per attention and per all-reduce."""
    per_layer = 4 * i("gemm_s") + i("attention_s")
    shape = textbook.model(i("P"), i("w_bytes"), i.token_bytes, hidden=i("D"), layers=i("L"))
    chip = textbook.chip(i("C"), i("W"), link_bytes_per_s=i("bw_eff"), stream=i("ew"), alpha_s=i("alpha_s"))
    how = textbook.engine(kv=i("ekv"), layer_s=per_layer)
    return Case(shape, chip, i("n"), how, "calibrated").decode_s(i("B"), i("S"))


# -- E: capacity -------------------------------------------------------------------------------------------------------


@method
def sequences(i: Inputs) -> float:
    real = i.case().sequences(i.context, i("mem_fraction", 1.0), i("act_seq", 0.0))
    return float(math.floor(real + 1e-9)) if i("whole", True) else real


@method
def occupied(i: Inputs) -> float:
    """Bytes of weights and cache."""
    placed = i.case().lowered.memory
    return float((placed.weight_bytes + i("B") * placed.sequence_bytes(i.context))[0])


@method
def devices(i: Inputs) -> float:
    return float(textbook.fewest_devices(i.case(), i("B", 0), i.context, i("powers_of_two", False)))


@method
def weights_per_device(i: Inputs) -> float:
    return float(i.case().lowered.memory.weight_bytes[0])


@method
def left_per_device(i: Inputs) -> float:
    placed = i.case().lowered.memory
    return float(memory.pool_bytes(placed.usable_bytes, column(1.0), placed.weight_bytes)[0])


@method
def activations(i: Inputs) -> float:
    return float(memory.activation_bytes(column(i("B")), i("D"), i("F"), column(i("tp", 1)), i("act_bytes"))[0])


# -- G: sharding and collectives ---------------------------------------------------------------------------------------


@method
def ways_compute_bound(i: Inputs) -> float:
    ridge = i("alpha") if "alpha" in i else formulas.ridge(i("C"), i("link"))
    return formulas.compute_bound_ways(i("F"), ridge, i("axes", 1))


@method
def ways_memory_bound(i: Inputs) -> float:
    beta = i("beta") if "beta" in i else i("W") / i("link")
    return formulas.memory_bound_ways(i("F"), i("B"), beta)


@method
def ridge(i: Inputs) -> float:
    return formulas.ridge(i("C"), i("link"))


@method
def ring_gather(i: Inputs) -> float:
    return formulas.ring_gather_s(i("B") * i("D") * i("act_bytes"), i("link"))


@method
def matrix_streaming(i: Inputs) -> float:
    return compute.stream_s(i("D") * i("F") * i("w_bytes"), i("Y"), i("W"), 1.0)


@method
def matrix_multiplying(i: Inputs) -> float:
    return i("B") * compute.flop_s_per_token(i("D") * i("F"), i("Y", 1), i("C"), 1.0)


@method
def matrix_moving(i: Inputs) -> float:
    return formulas.matmul_bytes(i("B"), i("D"), i("F"), i("w_bytes"), i("act_bytes")) / i("W")


@method
def allreduces(i: Inputs) -> float:
    """``n_ar`` all-reduces of a decode step: latency and wire as the step's own columns have them."""
    shape = textbook.model(1.0, 0.0, hidden=i("D") * i("act_bytes") / 2.0, layers=1)
    chip = textbook.chip(1e30, 1e30, link_bytes_per_s=i("link"), alpha_s=i("alpha_s", 0.0))
    terms = Case(shape, chip, i("n"), textbook.engine(), "calibrated").terms
    one = float((terms.latency_s + i("B") * terms.token_wire_s)[0]) / 2.0  # a layer has two
    return one * i("n_ar", 1)


@method
def allreduces_wide_ring(i: Inputs) -> float:
    """``n_ar`` all-reduces in the limit of many devices, where (n-1)/n is 1."""
    message = i("V_bytes") if "V_bytes" in i else i("B") * i("D") * i("act_bytes")
    return i("n_ar", 1) * collectives.allreduce_wire_bytes(message, 1e9) / i("link")


@method
def switch_gather(i: Inputs) -> float:
    return formulas.switch_gather_s(i("bytes"), i("n"), i("link"))


@method
def switch_exchange(i: Inputs) -> float:
    return formulas.switch_exchange_s(i("bytes"), i("n"), i("link"))


@method
def reduced_in_network(i: Inputs) -> float:
    return formulas.reduced_in_network_s(i("bytes"), i("link"))


@method
def collective_rate(i: Inputs) -> float:
    return formulas.collective_bytes_per_s(i("degree"), i("link"))


@method
def latency_bound_bytes(i: Inputs) -> float:
    return formulas.latency_bound_bytes(i("n_shards"), i("link"), i("t_hop"))


@method
def two_dimensional_from(i: Inputs) -> float:
    return formulas.two_dimensional_from(i("F_over_D"))
