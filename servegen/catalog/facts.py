"""The types that facts have once loaded: frozen, SI units, a source beside every figure.

``sources`` maps the dotted path of a figure inside its YAML file to the source that states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from servegen.record import record

Precision = Literal["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"]
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4")

#: Bytes that one weight takes, scales included. bf16/fp8/int8 by definition (their scales are below 0.1 %);
#: int4: 4 bits + an fp16 scale per group of 128 (AWQ/GPTQ default); nvfp4: 4 bits + an fp8 scale per 16
#: (NVIDIA NVFP4 format); mxfp4: 4 bits + an e8m0 scale per 32 (OCP MX specification 1.0).
BYTES_PER_WEIGHT: Mapping[str, float] = {
    "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.515625, "nvfp4": 0.5625, "mxfp4": 0.53125, "fp32": 4.0,
}  # fmt: skip
#: Bytes of one KV-cache element.
BYTES_PER_KV: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0}

AttentionKind = Literal["full", "sliding", "chunked", "mla", "linear", "mamba", "none"]


@record
class Attention:
    """The token mixer of one group of layers.

    ``full``/``sliding``/``chunked`` use heads; ``mla`` uses ``kv_lora_rank`` and ``rope_head_dim`` (F6b) and is
    replicated, not sharded, under TP, with ``index_head_dim`` where the indexer of sparse attention caches keys too;
    ``linear``/``mamba`` hold ``state_bytes`` per sequence instead of per token.
    """

    kind: AttentionKind
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    index_head_dim: int = 0
    state_bytes: int = 0


@record
class LayerGroup:
    """``count`` layers of one shape. ``num_experts`` 0 means a dense MLP of width ``intermediate``."""

    count: int
    attention: Attention
    intermediate: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0


@record
class TensorClass:
    """Weights of one role in the model.

    ``kind``: embedding | lm_head | attention | mlp | expert | shared_expert | router | norm | vision | mtp | mixer.
    ``params`` is the total count, ``active`` the count that one token uses (equal unless ``kind`` is expert),
    ``precision`` how the checkpoint stores them, ``stored_bytes`` their exact size in the checkpoint (scales included),
    ``quantizable`` whether an engine quantizes them when it quantizes the model.
    """

    kind: str
    params: int
    active: int
    precision: str
    stored_bytes: int
    quantizable: bool


@record
class ModelFacts:
    """A model as the physics needs it. ``hf_config`` keeps the fields that launch commands need (rope base, norm eps ...)."""

    id: str
    aliases: tuple[str, ...]
    architecture: str
    model_type: str
    hidden_size: int
    vocab_size: int
    max_context: int
    tied_embeddings: bool
    layers: tuple[LayerGroup, ...]
    tensors: tuple[TensorClass, ...]
    native_precision: Precision
    quantization: str = (
        ""  # the checkpoint's own method ("fp8", "modelopt", "compressed-tensors", "awq", "gptq", "mxfp4"), "" if none
    )
    weight_block: int = 0  # side of the quantization block along the sharded dimension; TP must not cut it; 0 = none
    hf_config: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return sum(g.count for g in self.layers)

    @property
    def params_total(self) -> int:
        return sum(t.params for t in self.tensors)

    @property
    def params_active(self) -> int:
        return sum(t.active for t in self.tensors)

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the checkpoint's own files."""
        return sum(t.stored_bytes for t in self.tensors)

    def weight_bytes(self, precision: str) -> float:
        """Bytes that the weights take on the devices in total when served at ``precision``.

        The checkpoint's own precision gives its exact bytes; any other replaces the quantizable classes only.
        """
        return float(sum(self.tensor_bytes(t, precision) for t in self.tensors))

    def tensor_bytes(self, tensor: TensorClass, precision: str) -> float:
        """Bytes of one tensor class when the model is served at ``precision``."""
        if precision == self.native_precision or not tensor.quantizable:
            return float(tensor.stored_bytes)
        return tensor.params * BYTES_PER_WEIGHT[precision]


@record
class GemmEfficiency:
    """Achieved share of the specified bandwidth (``ew``, weight streaming) and peak (``ec``, large GEMM) for one dtype."""

    ew: float
    ec: float
    fit_error: float
    rows: int
    origin: str  # fitted | scaled | default | measured (kernels alone, by a probe) : which rule gave it
    source: str


@record
class Constant:
    """A fitted constant with its error: ``fit_error`` is relative (0.1 = ten percent), nan when none was reported."""

    value: float
    fit_error: float
    rows: int
    source: str
    date: str = ""
    origin: str = "fitted"  # fitted | default | measured (kernels alone, by a probe)


@record
class AcceleratorFacts:
    """One device. Bytes, bytes/s, FLOP/s, watts."""

    id: str
    name: str
    vendor: str
    aliases: tuple[str, ...]
    hbm_bytes: float  # as the vendor names it
    usable_bytes: float  # what the device reports to the engine
    hbm_bytes_per_s: float
    peak_flops: Mapping[str, float]  # by arithmetic dtype: bf16, fp8, int8, nvfp4, mxfp4 (absent = not supported)
    achievable_flops: Mapping[str, float]  # measured matmul maximum by dtype, where published
    link: str
    link_bytes_per_s: float  # one way, aggregate per device
    link_pair_bytes_per_s: float  # one way, between one pair
    scaleup_domain: int
    legal_tp: tuple[int, ...]  # empty = any divisor of the node
    tdp_w: float
    host_devices: int  # devices in the usual host
    host_cpus: int
    host_memory_bytes: float
    host_fabric_bytes_per_s: float  # between hosts, one way, for each device; 0 = unknown
    resource: str  # Kubernetes extended resource
    node_selector: Mapping[str, str]
    compute_capability: float  # CUDA SM version as a number (9.0), 0 elsewhere
    gemm: Mapping[str, GemmEfficiency]  # by weight precision, every precision that peak_flops can serve
    allreduce_alpha_s: Mapping[int, float]  # by TP
    allreduce_bytes_per_s: Mapping[int, float]  # by TP
    price_per_h: float  # default: median on-demand row; nan when no price is known
    price_rows: tuple[Mapping[str, object], ...]
    sources: Mapping[str, str]
    kv_efficiency: Constant | None = None  # of its own kernels, in place of the engine's; None: the engine's
    attention_efficiency: Constant | None = None  # likewise


Scheduler = Literal["prefill-first", "mixed", "static"]


@record
class MemoryRule:
    """What an engine leaves free on a device of ``usable`` bytes:

    ``reserve = context + usable_share*usable + per_chunk_token*chunk + per_device*(tp*pp)
    + per_graph_sequence*max_running_requests + per_padded_sequence*max_running_requests*dp`` where dp > 1 (sequences of one
    attention group), at least ``floor`` on devices above ``floor_above`` bytes;
    ``setup`` (one device, several) is gone before the fraction applies; ``handoff`` comes on top on prefill and
    decode servers. ``weights_overhead`` multiplies the weights (loader slack).
    """

    context_bytes: float
    usable_share: float
    setup_bytes: float
    setup_parallel_bytes: float
    handoff_bytes: float
    per_chunk_token_bytes: float
    least_chunk_tokens: float  # a smaller chunk is reserved for like this one
    per_device_bytes: float
    per_graph_sequence_bytes: float
    per_padded_sequence_bytes: float
    floor_bytes: float
    floor_above_bytes: float
    weights_overhead: float
    kv_reserve_osl: float  # share of the output that admission reserves for a request
    source: str


@record
class EngineFacts:
    """An engine's constants: latency in seconds, efficiencies as shares of the specified peak."""

    id: str
    aliases: tuple[str, ...]
    versions: tuple[str, ...]  # newest first; what there is a contract or a fit for
    schedulers: tuple[Scheduler, ...]
    step_s: Constant  # T0
    layer_s: Constant  # t_l
    prompt_layer_s: Constant  # t_p: host time to launch a layer of a step that carries a prompt
    sequence_s: Constant  # aB
    request_s: Constant  # t_req
    kv_efficiency: Constant  # eta_kv
    attention_efficiency: Constant  # eta_a
    allreduce_latency_factor: Constant  # a_ar
    allreduce_bandwidth_factor: Constant  # w_ar
    token_budget: int  # default of the largest prefill step
    memory: MemoryRule
    weights: tuple[str, ...]  # precisions of checkpoints that it loads
    quantize_on_load: tuple[str, ...]  # precisions it makes from a bf16 checkpoint while loading
    kv_cache: tuple[str, ...]
    vendors: tuple[str, ...]  # accelerator vendors it runs on; cpu: processors without an accelerator
    prefix_cache: bool  # whether its server, as it is launched, finds heads of prompts that it computed before
    disaggregation: bool
    equal_tp: tuple[AttentionKind, ...]  # kinds of attention whose state it hands over between servers of one TP only
    multi_node: bool
    parallel: tuple[str, ...]  # besides TP: pp, ep, dp (attention data parallelism)
    metrics: bool  # whether its server exposes Prometheus metrics
    own_checkpoints: bool  # whether it loads only checkpoints converted to its own format
    renders: bool  # whether this version has a launch template for it
    predicts_only: bool  # tensorrt-llm, llama-cpp, vllm-2023: never in a spec's constraints.engines
    kernels: Mapping[str, GemmEfficiency]  # by "accelerator.precision", where its own kernels are not those of the accelerator's
    drafts: Mapping[str, float]  # by method of speculative decoding: bytes per device that it reserves at the least for the draft
    drafting_schedulers: tuple[Scheduler, ...]  # the schedulers that draft
    drafting_groups: tuple[str, ...]  # the methods that draft in attention groups
    kv_share: Mapping[str, float]  # by "accelerator.precision": reading of such a cache over kv_efficiency; 1 else
    band: Mapping[str, Constant]  # half-width in which 90 % of unseen rows lie, as a factor less one: ttft, itl, throughput
    images: Mapping[str, str]  # default image by version
    sources: Mapping[str, str]
