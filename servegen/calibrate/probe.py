"""What a probe measures on a device: copies, matrix products and attention at a model's shapes, all-reduces.

Each case knows how many bytes and how many FLOP the formulas of the step count for it (F8, F8b, F9, F24), so that a measured
time is a rate, and a fit of rates (:mod:`servegen.calibrate.probe_fit`) is one of the constants of those formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, ModelFacts
from servegen.errors import CatalogError, Diagnostic
from servegen.record import record
from servegen.roofline.attention import flops_per_pair, kv_bytes_per_token
from servegen.roofline.collectives import allreduce_wire_bytes

Kind = Literal["copy", "gemm", "prefill", "decode", "allreduce"]

#: Sizes of copies: far beyond what caches hold.
COPY_BYTES = (1 << 28, 1 << 29)
#: Tokens of a step: from reading weights to multiplying.
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
#: Prompts of causal attention, tokens.
PROMPTS = (256, 512, 1024, 2048, 4096)
#: Sequences of a decode step and the tokens that each has cached.
DECODES = ((16, 1024), (64, 1024), (16, 4096), (64, 4096))
#: Messages of an all-reduce: 8 KiB is one token of a 70B model, 32 MiB a prefill step of one.
MESSAGE_BYTES = (1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25)
#: A case is left out where a single run of it takes more than this part of its share of the budget: warming up takes one or two
#: runs more, and no case may take twice its share.
LONGEST_RUN = 0.25


@record
class DeviceInfo:
    """What a device says of itself and its host. ``tool`` measures on it. Bytes; ``compute_capability`` 0 outside CUDA."""

    name: str
    vendor: str  # nvidia | amd | cpu
    count: int
    memory_bytes: float
    compute_capability: float
    host_cpus: int
    host_memory_bytes: float
    tool: str


class Device(Protocol):
    """What runs a case and times it: seconds of one run, the median of several after a warm-up, operands not in a cache.

    None where the device cannot do it (no such arithmetic, not enough memory). ``limit_s`` bounds the time of all runs.
    """

    @property
    def info(self) -> DeviceInfo: ...

    def dtypes(self) -> Sequence[str]:
        """Precisions of weights that it multiplies natively, bf16 among them."""

    def copy_s(self, size_bytes: int, limit_s: float) -> float | None:
        """One copy inside the device's memory."""

    def gemm_s(self, dtype: str, m: int, n: int, k: int, limit_s: float) -> float | None:
        """Activations (m, k) times weights (n, k) transposed."""

    def prefill_s(self, heads: int, head_dim: int, tokens: int, limit_s: float) -> float | None:
        """Causal attention of one layer over one prompt."""

    def decode_s(self, batch: int, heads: int, kv_heads: int, head_dim: int, context: int, limit_s: float) -> float | None:
        """Attention of one layer and one new token per sequence over a cache of ``context`` tokens each."""

    def allreduce_s(self, devices: int, sizes_bytes: Sequence[int], limit_s: float) -> Sequence[float]:
        """All-reduces over so many devices, one after the other; empty where they cannot."""


@record
class Shapes:
    """One transformer layer: its weight matrices (n, k) and its heads."""

    model: str
    matrices: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int


@record
class Case:
    """One thing to measure: ``size`` is (bytes), (m, n, k), (tokens), (batch, context) or (devices, bytes) by ``kind``.

    ``moved_bytes`` and ``flops`` are what the formulas count.
    """

    kind: Kind
    dtype: str
    size: tuple[int, ...]
    moved_bytes: float
    flops: float = 0.0


@record
class Measured:
    """A case and the seconds of one run."""

    case: Case
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.case.moved_bytes / self.seconds

    @property
    def flops_per_s(self) -> float:
        return self.case.flops / self.seconds


def shapes_of(model: ModelFacts) -> Shapes:
    """The shapes of the kind of layer that a model has most of. CatalogError where it has none with plain heads."""
    plain = [g for g in model.layers if g.attention.kind in ("full", "sliding", "chunked")]
    if not plain:
        hint = "choose one with full attention, for example Qwen/Qwen3-0.6B"
        raise CatalogError(Diagnostic("no-shapes", f"no layer of {model.id} has plain attention heads to probe", hint=hint))
    group = max(plain, key=lambda g: g.count)
    att, hidden = group.attention, model.hidden_size
    width = group.moe_intermediate if group.num_experts else group.intermediate
    kind = "expert" if group.num_experts else "mlp"
    alike = [g for g in model.layers if (g.num_experts, g.moe_intermediate, g.intermediate) ==
             (group.num_experts, group.moe_intermediate, group.intermediate)]  # fmt: skip
    one = hidden * width * sum(g.count * max(g.num_experts, 1) for g in alike)
    inputs = max(round(sum(t.params for t in model.tensors if t.kind == kind) / one) - 1, 1)  # 2: gated
    return Shapes(
        model.id,
        (
            ((att.num_heads + 2 * att.num_kv_heads) * att.head_dim, hidden),
            (hidden, att.num_heads * att.head_dim),
            (inputs * width, hidden),
            (hidden, width),
        ),
        att.num_heads,
        att.num_kv_heads,
        att.head_dim,
    )


def cases(info: DeviceInfo, dtypes: Sequence[str], shapes: Shapes) -> list[Case]:
    """Everything there is to measure, in order; of one kind and shape the small ones first."""
    found = [Case("copy", "", (size,), 2.0 * size) for size in COPY_BYTES]
    for dtype in dtypes:
        for n, k in shapes.matrices:
            weights = n * k * BYTES_PER_WEIGHT[dtype]
            found += [Case("gemm", dtype, (m, n, k), weights, 2.0 * m * n * k) for m in TOKENS]
    pair = flops_per_pair(1, shapes.heads, shapes.head_dim, shapes.head_dim)
    found += [Case("prefill", "bf16", (s,), 0.0, pair * s * s) for s in PROMPTS]
    token = kv_bytes_per_token(1, shapes.kv_heads, shapes.head_dim, shapes.head_dim, BYTES_PER_KV["bf16"])
    found += [Case("decode", "bf16", (b, c), token * b * c) for b, c in DECODES]
    for devices in worlds(info.count):
        found += [Case("allreduce", "bf16", (devices, v), allreduce_wire_bytes(v, devices)) for v in MESSAGE_BYTES]
    return found


def worlds(count: int) -> list[int]:
    """How many of ``count`` devices reduce together: powers of two, and all of them."""
    powers = [2**i for i in range(1, max(count, 1).bit_length()) if 2**i <= count]
    return sorted({*powers, *([count] if count > 1 else [])})


def probe(
    device: Device, shapes: Shapes, budget_s: float, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Measured, ...]:
    """Measure every case, each within its share of ``budget_s``. ``progress`` is told how many of how many are done.

    A case is left out where the device cannot do it, or where the smaller ones, two at least, say that one run would take too
    long.
    """
    todo = cases(device.info, device.dtypes(), shapes)
    limit = budget_s / len(todo)
    found: list[Measured] = []
    smaller: dict[tuple[object, ...], list[Measured]] = {}
    for number, case in enumerate(todo):
        chain = smaller.setdefault((case.kind, case.dtype, *case.size[1:]), [])
        fast = len(chain) < 2 or not case.flops or case.flops / chain[-1].flops_per_s <= LONGEST_RUN * limit
        if case.kind != "allreduce" and fast:
            seconds = _one(device, case, shapes, limit)
            if seconds is not None:
                chain.append(Measured(case, seconds))
                found.append(chain[-1])
        progress(number + 1, len(todo))
    for devices in worlds(device.info.count):
        group = [c for c in todo if c.kind == "allreduce" and c.size[0] == devices]
        times = device.allreduce_s(devices, [c.size[1] for c in group], limit * len(group))
        found += [Measured(c, s) for c, s in zip(group, times, strict=False)]
    return tuple(found)


def _one(device: Device, case: Case, shapes: Shapes, limit_s: float) -> float | None:
    if case.kind == "copy":
        return device.copy_s(case.size[0], limit_s)
    if case.kind == "gemm":
        m, n, k = case.size
        return device.gemm_s(case.dtype, m, n, k, limit_s)
    if case.kind == "prefill":
        return device.prefill_s(shapes.heads, shapes.head_dim, case.size[0], limit_s)
    batch, context = case.size
    return device.decode_s(batch, shapes.heads, shapes.kv_heads, shapes.head_dim, context, limit_s)
