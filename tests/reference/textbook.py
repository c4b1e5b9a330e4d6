"""The textbook's world in the product's types: hardware as two rates and a capacity, a model as one matrix and a cache.

Nothing comes from the catalogue but the fields that no vector states. A chip is ``flops``, ``hbm_bytes_per_s``,
``hbm_bytes``; links cost nothing unless a vector gives them. The cache is split evenly over all devices, as the
textbook assumes also where there are more devices than KV heads (a server would then keep copies).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from servegen.catalog import calibration
from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.facts import (
    AcceleratorFacts,
    Attention,
    Constant,
    EngineFacts,
    GemmEfficiency,
    LayerGroup,
    ModelFacts,
    TensorClass,
)
from servegen.lower import Config, Lowered, Physics, lower
from servegen.roofline import memory as mem
from servegen.roofline.step import StepTerms
from servegen.solve import estimate as product
from servegen.solve.estimate import Estimate, EstimateRequest

Array = NDArray[np.float64]

#: Most devices of a configuration, and KV heads of every model, so that each device holds an equal share of the cache.
DEVICES = 1024


def column(value: float) -> Array:
    """One row."""
    return np.array([float(value)])


def chip(
    flops: float,
    hbm_bytes_per_s: float,
    hbm_bytes: float = 1e30,
    link_bytes_per_s: float = math.inf,
    stream: float = 1.0,
    peak: float = 1.0,
    alpha_s: float = 0.0,
) -> AcceleratorFacts:
    """A device of these rates; ``stream`` and ``peak`` are the shares of them that matrices reach when calibrated."""
    base = resolve_accelerator("h100-sxm-80gb")
    return dataclasses.replace(
        base,
        id="textbook",
        hbm_bytes=hbm_bytes,
        usable_bytes=hbm_bytes,
        hbm_bytes_per_s=hbm_bytes_per_s,
        peak_flops={"bf16": flops},
        gemm={"bf16": GemmEfficiency(stream, peak, 0.0, 0, "default", "the vector")},
        link_bytes_per_s=link_bytes_per_s,
        scaleup_domain=DEVICES,
        legal_tp=(),
        allreduce_alpha_s=dict.fromkeys(range(2, DEVICES + 1), alpha_s),
        allreduce_bytes_per_s=dict.fromkeys(range(2, DEVICES + 1), link_bytes_per_s),
    )


def model(
    params: float,
    weight_bytes: float,
    kv_token_bytes: float = 0.0,
    active: float = 0.0,
    hidden: float = 1.0,
    layers: int = 1,
    width: float = 0.0,
    experts: tuple[int, int] = (0, 0),
) -> ModelFacts:
    """A model of ``params`` weights of ``weight_bytes`` each that adds ``kv_token_bytes`` per token in int8.

    ``width`` is that of all query heads of a layer (N*H), ``experts`` (E, k): then all weights are experts, ``active`` used.
    """
    head = kv_token_bytes / (2.0 * layers * DEVICES)
    mixer = Attention("full", width / head, DEVICES, head, head) if head else Attention("none")
    group = LayerGroup(layers, mixer, num_experts=experts[0], experts_per_token=experts[1])
    kind = "expert" if experts[0] else "mlp"
    stored = TensorClass(kind, params, active or params, "bf16", params * weight_bytes, False)
    return ModelFacts(
        id="textbook",
        aliases=(),
        architecture="",
        model_type="",
        hidden_size=hidden,
        vocab_size=0,
        max_context=1 << 20,
        tied_embeddings=False,
        layers=(group,),
        tensors=(stored,),
        native_precision="bf16",
    )


def engine(kv: float = 1.0, attention: float = 1.0, layer_s: float = 0.0) -> EngineFacts:
    """An engine without latencies but ``layer_s`` that reaches these shares in the cache and in attention."""
    base = resolve_engine("sglang")

    def constant(value: float) -> Constant:
        return Constant(value, 0.0, 0, "the vector")

    return dataclasses.replace(
        base,
        step_s=constant(0.0),
        layer_s=constant(layer_s),
        prompt_layer_s=constant(0.0),
        sequence_s=constant(0.0),
        request_s=constant(0.0),
        kv_efficiency=constant(kv),
        attention_efficiency=constant(attention),
        allreduce_latency_factor=constant(1.0),
        allreduce_bandwidth_factor=constant(1.0),
        kv_cache=("int8",),
    )


@dataclass(frozen=True)
class Case:
    """One configuration; ``physics`` calibrated only where a vector states shares or latencies."""

    model: ModelFacts
    chip: AcceleratorFacts
    devices: int = 1
    engine: EngineFacts = dataclasses.field(default_factory=engine)
    physics: Physics = "ideal"

    @property
    def lowered(self) -> Lowered:
        return lower(self.model, self.engine, [Config(self.chip, "bf16", "int8", self.devices)], self.physics)

    @property
    def terms(self) -> StepTerms:
        return self.lowered.terms

    def decode_s(self, batch: float, context: float) -> float:
        """Seconds of a decode step."""
        terms = self.terms
        return float(terms.decode_s(column(batch), terms.kv_s(context))[0])

    def prefill_s(self, tokens: float, chunk: float = math.inf) -> float:
        """Seconds of a prompt of ``tokens``, in chunks."""
        prompt = column(tokens)
        return float(self.terms.prefill_s(prompt, prompt, column(min(chunk, tokens)))[0, 0])

    def sequences(self, context: float, fraction: float = 1.0, extra_bytes: float = 0.0) -> float:
        """Sequences of ``context`` tokens that fit beside the weights, real."""
        memory = self.lowered.memory
        pool = mem.pool_bytes(memory.usable_bytes, column(fraction), memory.weight_bytes)
        each = memory.sequence_bytes(context) + extra_bytes / self.devices
        return float(mem.largest_batch(pool, each, column(0.0), 0.0)[0])


def estimated(case: Case, batch: int, prompt: int, answer: int = 1) -> Estimate:
    """What `servegen estimate` says of a static batch of this configuration."""
    request = EstimateRequest(
        model=case.model.id,
        accelerator=case.chip.id,
        engine=case.engine.id,
        tp=case.devices,
        kv="int8",
        batch=batch,
        isl=prompt,
        osl=answer,
        chunk=prompt,
        mode="static",
        physics=case.physics,
    )
    facts = {"resolve_model": case.model, "resolve_engine": case.engine}
    with (
        mock.patch.multiple(product, **{name: lambda _, found=found: found for name, found in facts.items()}),
        mock.patch.object(calibration, "resolve_accelerator", lambda _: case.chip),
    ):
        return product.estimate(request)


def fewest_devices(case: Case, batch: float, context: float, powers_of_two: bool = False) -> int:
    """Fewest devices that hold the weights and ``batch`` sequences: the first count that fits, as the search tries them."""
    counts = [2**i for i in range(11)] if powers_of_two else range(1, DEVICES + 1)
    for devices in counts:
        here = dataclasses.replace(case, devices=devices)
        memory = here.lowered.memory
        free = float(mem.pool_bytes(memory.usable_bytes, column(1.0), memory.weight_bytes)[0])
        if free >= 0.0 and (not batch or here.sequences(context) >= batch):
            return devices
    raise ValueError("fits no count of devices")
