"""Weights of a model by name, and their sums by class."""

from __future__ import annotations

from dataclasses import dataclass

from servegen.catalog.facts import LayerGroup, TensorClass
from servegen.catalog.hf_quant import Quantization
from servegen.record import record

#: Roles whose linear layers an engine converts when it quantizes a bf16 checkpoint while loading.
QUANTIZABLE_KINDS = frozenset({"attention", "mixer", "mlp", "expert", "shared_expert"})


@dataclass(frozen=True, slots=True)
class Weight:
    """``copies`` equal tensors of shape (rows outputs, cols inputs), of which one token uses ``used``.

    ``name`` is the module's name inside its layer, as the checkpoint has it (``self_attn.q_proj``); ``linear`` whether
    it is a linear layer that a quantizer converts (not a norm, bias, convolution or table).
    """

    name: str
    kind: str
    rows: int
    cols: int
    copies: int = 1
    used: int = 1
    linear: bool = True


def vector(name: str, kind: str, size: int, copies: int = 1, used: int = 1) -> Weight:
    """A tensor that stays in 16 bits: a norm, a bias, a table."""
    return Weight(name, kind, size, 1, copies, used, linear=False)


def biased(weight: Weight, bias: bool) -> tuple[Weight, ...]:
    """The weight, with its bias beside it if it has one."""
    if not bias:
        return (weight,)
    return (weight, vector(f"{weight.name}.bias", weight.kind, weight.rows, weight.copies, weight.used))


@record
class Layer:
    """One decoder layer: its shape (a LayerGroup of count 1) and its weights."""

    shape: LayerGroup
    weights: tuple[Weight, ...]


class Tally:
    """Adds weights up to TensorClasses, one for each (kind, precision, quantizable)."""

    def __init__(self, quantization: Quantization) -> None:
        self.quantization = quantization
        self.sums: dict[tuple[str, str, bool], list[int]] = {}

    def add(self, prefix: str, weight: Weight, times: int = 1) -> None:
        params = weight.rows * weight.cols
        scheme = self.quantization.scheme(prefix + weight.name, weight.kind) if weight.linear else None
        precision, stored = (
            ("bf16", 2 * params)
            if scheme is None
            else (scheme.precision, scheme.stored_bytes(weight.rows, weight.cols))
        )
        quantizable = weight.linear and weight.kind in QUANTIZABLE_KINDS
        total = self.sums.setdefault((weight.kind, precision, quantizable), [0, 0, 0])
        total[0] += params * weight.copies * times
        total[1] += params * weight.used * times
        total[2] += stored * weight.copies * times

    def add_layers(self, layers: list[Layer], first: int = 0) -> None:
        """Add decoder layers ``layers.<first>`` and on; equal ones are added once when no rule names a layer."""
        if self.quantization.by_layer:
            for index, layer in enumerate(layers, first):
                for weight in layer.weights:
                    self.add(f"layers.{index}.", weight)
            return
        times: dict[int, int] = {}
        for layer in layers:
            times[id(layer)] = times.get(id(layer), 0) + 1
        for layer in {id(layer): layer for layer in layers}.values():
            for weight in layer.weights:
                self.add("layers.0.", weight, times[id(layer)])

    def classes(self) -> tuple[TensorClass, ...]:
        """The sums in the order in which the kinds first appeared."""
        return tuple(
            TensorClass(kind, total[0], total[1], precision, total[2], quantizable)
            for (kind, precision, quantizable), total in self.sums.items()
        )

    @property
    def params(self) -> int:
        return sum(total[0] for total in self.sums.values())

    @property
    def stored_bytes(self) -> int:
        return sum(total[2] for total in self.sums.values())


def grouped(layers: list[Layer]) -> tuple[LayerGroup, ...]:
    """Layers of equal shape as one group each, in the order of first appearance."""
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer.shape] = counts.get(layer.shape, 0) + 1
    return tuple(
        LayerGroup(
            count,
            s.attention,
            s.intermediate,
            s.num_experts,
            s.experts_per_token,
            s.moe_intermediate,
            s.shared_intermediate,
        )
        for s, count in counts.items()
    )
