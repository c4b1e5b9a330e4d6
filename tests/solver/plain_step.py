"""The step of one replica as plain arithmetic, for models of one kind of layer with full attention, dense or with experts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, EngineFacts, ModelFacts
from servegen.roofline.collectives import CROSSING
from servegen.solve.problem import Kind, Problem
from tests.solver.plain_cut import Cut, nodes_under

#: What each group of attention has of its own, and what all of them share.
OWN = ("attention", "mixer")
SHARED = ("mlp", "shared_expert", "router")


@dataclass
class Step:
    """One configuration's step, in seconds, on the fullest of its stages."""

    fixed: float  # launches and latency of collectives
    each: float  # host work per sequence
    stream: float  # weights and vocabulary, experts left out
    multiply: float  # per token, what all groups share
    wire: float  # per token
    read: float  # per cached token of one sequence
    pair: float  # per unit of total^2 - cached^2
    own: float = 0.0  # per token of one group, where there are several
    experts: float = 0.0  # all experts
    asleep: float = 0.0  # chance that a token leaves an expert alone
    uneven: float = 0.0  # how far the busiest rank of experts is above its share, in standard deviations
    stages: int = 1
    groups: int = 1
    least: float = 0.0  # of a step with a prompt: the host's time to launch it

    def gemm(self, tokens: float, busiest: float = 0.0) -> float:
        """``tokens`` in all, ``busiest`` of them in one group."""
        awake = 1.0 - self.asleep**tokens
        awake = min(awake + self.uneven * math.sqrt(awake * (1.0 - awake)), 1.0)
        return max(self.stream + self.experts * awake, self.multiply * tokens + self.own * busiest)

    def fullest(self, n: float) -> tuple[float, float]:
        """Of ``n`` sequences those on one stage, and of these those in one group: a sequence is never cut."""
        least = min(n, 1.0)
        stage = max(n / self.stages, least)
        return stage, max(stage / self.groups, min(stage, 1.0))

    def decode(self, n: float, context: float) -> float:
        stage, busiest = self.fullest(n)
        one = self.fixed + (self.each + self.read * context) * busiest + self.wire * stage + self.gemm(stage, busiest)
        return self.stages * one

    def chunk(self, tokens: float, prompts: float = 1.0) -> float:
        """``tokens`` of so many prompts, each of which is one group's."""
        return max(self.device(tokens, prompts), self.least)

    def device(self, tokens: float, prompts: float = 1.0) -> float:
        """As ``chunk``, where the host is never waited for."""
        return self.fixed + self.gemm(tokens, tokens / min(prompts, self.groups)) + self.wire * tokens

    def prefill(self, new: float, whole: float, chunk: float) -> float:
        left, time, most = new, 0.0, min(chunk / self.groups, new)
        while left > 0:
            now = min(most, left)
            time += self.chunk(now)
            left -= now
        return time + self.attention(new, whole) + self.each

    def after(self, new: float, whole: float, chunk: float) -> float:
        """What the last chunk takes on the stages that follow the first."""
        last = min(chunk / self.groups, new)
        return (self.stages - 1) * (self.chunk(last) + self.attention(new, whole) * last / new)

    def attention(self, new: float, whole: float) -> float:
        return self.pair * (whole * whole - (whole - new) * (whole - new))


@dataclass
class Round(Step):
    """A step that drafts ``ahead`` tokens and verifies them; ``draft`` is the step of the model that drafts, None for n-grams."""

    ahead: int = 1
    acceptance: float = 0.0
    draft: Step | None = None
    launch: float = 0.0  # the engine's own, within ``fixed`` of both

    def decode(self, n: float, context: float) -> float:
        wide = self.ahead + 1
        _, busiest = self.fullest(n)
        read = max(self.read, 2.0 * self.pair * wide)
        time = self.fixed + (self.each + read * context) * busiest + self.wire * wide * n + self.gemm(wide * n, wide * busiest)
        d = self.draft
        if d is None:
            return time + self.each * busiest
        # Each group drafts for its own sequences.
        passes = (self.ahead - 1) * d.gemm(busiest) + d.gemm(wide * busiest)
        passes += self.ahead * (d.fixed - self.launch + (d.read * context + 2 * d.wire) * busiest)
        return time + self.launch + passes

    def chunk(self, tokens: float, prompts: float = 1.0) -> float:
        time, d = super().chunk(tokens, prompts), self.draft
        if d is None:
            return time
        return time + d.fixed + d.gemm(tokens / min(prompts, self.groups)) + d.wire * tokens

    def attention(self, new: float, whole: float) -> float:
        own = super().attention(new, whole)
        return own if self.draft is None else own + self.draft.attention(new, whole)

    def yields(self) -> tuple[float, float]:
        """Mean and mean square of the tokens of a round, by the chance of each number."""
        chances = [self.acceptance**k * (1 - self.acceptance) for k in range(self.ahead)] + [self.acceptance**self.ahead]
        return sum(p * (k + 1) for k, p in enumerate(chances)), sum(p * (k + 1) ** 2 for k, p in enumerate(chances))


def stepping(problem: Problem, kind: Kind, engine: EngineFacts, weights: str, kv: str, cut: Cut) -> Step:
    """The step of a configuration, a round where it drafts."""
    own = step(problem.model, kind, engine, weights, kv, cut)
    asked = problem.speculation
    if asked is None or not cut.ahead:
        return own
    draft = None
    if asked.draft is not None:
        draft = step(asked.draft, kind, engine, asked.draft.native_precision, kv, Cut(cut.group))
    return Round(**vars(own), ahead=cut.ahead, acceptance=asked.acceptance, draft=draft, launch=engine.step_s.value)


def _bytes(model: ModelFacts, precision: str, kinds: tuple[str, ...]) -> float:
    total = 0.0
    for t in model.tensors:
        if t.kind in kinds:
            stored = precision == model.native_precision or not t.quantizable
            total += t.stored_bytes if stored else t.params * BYTES_PER_WEIGHT[precision]
    return total


def _used(model: ModelFacts, kinds: tuple[str, ...]) -> float:
    """Parameters that a token multiplies with."""
    return float(sum(t.active for t in model.tensors if t.kind in kinds))


def step(model: ModelFacts, kind: Kind, engine: EngineFacts, weights: str, kv: str, cut: Cut) -> Step:
    (group,) = model.layers
    acc, att, tp = kind.facts, group.attention, cut.tp
    layers = math.ceil(group.count / cut.pp)  # of the fullest stage
    share = layers / group.count
    gemm = engine.kernels.get(f"{acc.id}.{weights}") or acc.gemm[weights]
    peak = acc.peak_flops[weights if weights != "int4" and weights in acc.peak_flops else "bf16"]
    reading = acc.kv_efficiency or engine.kv_efficiency
    attending = acc.attention_efficiency or engine.attention_efficiency
    heads = att.num_kv_heads / min(cut.group, att.num_kv_heads)
    cached = layers * heads * 2 * att.head_dim * BYTES_PER_KV[kv]
    streaming = tp * acc.hbm_bytes_per_s * gemm.ew
    latency, wire = _talk(model, kind, engine, cut, layers)
    popular = 1.2 if cut.ep > 1 else 1.0
    every = _used(model, SHARED) + popular * _used(model, ("expert",))
    mine = _used(model, OWN)
    return Step(
        fixed=engine.step_s.value + layers * engine.layer_s.value + latency,
        each=engine.sequence_s.value,
        stream=share * (_bytes(model, weights, SHARED) + cut.dp * _bytes(model, weights, OWN)) / streaming
        + model.vocab_size * model.hidden_size * 2.0 / (tp * acc.hbm_bytes_per_s * 0.75),
        multiply=share * 2.0 * (every + (mine if cut.dp == 1 else 0.0)) / (tp * peak * gemm.ec),
        wire=wire,
        read=cached / (acc.hbm_bytes_per_s * reading.value * engine.kv_share.get(f"{acc.id}.{kv}", 1.0)),
        pair=layers * att.num_heads * 2 * att.head_dim / (cut.group * acc.peak_flops["bf16"] * attending.value),
        own=share * 2.0 * mine / (cut.group * peak * gemm.ec) if cut.dp > 1 else 0.0,
        experts=share * _bytes(model, weights, ("expert",)) / streaming,
        asleep=1.0 - group.experts_per_token / group.num_experts if group.num_experts else 0.0,
        uneven=math.sqrt(2.0 * math.log(cut.ep) * cut.ep / group.num_experts) if cut.ep > 1 else 0.0,
        stages=cut.pp,
        groups=cut.dp,
        least=layers * engine.prompt_layer_s.value,
    )


def _talk(model: ModelFacts, kind: Kind, engine: EngineFacts, cut: Cut, layers: int) -> tuple[float, float]:
    """Latency of a step's collectives, and seconds on the wire per token: after attention, after the MLP, to the next stage."""
    hidden = model.hidden_size * 2.0
    latency = wire = 0.0
    for devices in (cut.group, cut.tp):
        if devices > 1:
            each, speed = _reduce(kind, engine, devices, gathers=devices == cut.tp and cut.dp > 1)
            latency += layers * each
            wire += layers * 2.0 * hidden * (devices - 1) / devices / speed
    if cut.pp > 1:
        across = nodes_under(kind, cut.devices) > 1
        latency += CROSSING.node_s if across else CROSSING.pair_s
        wire += hidden / cut.tp / (kind.plan.fabric_bytes_per_s if across else kind.facts.link_bytes_per_s)
    return latency, wire


def _reduce(kind: Kind, engine: EngineFacts, devices: int, gathers: bool) -> tuple[float, float]:
    """Latency and bytes/s of one all-reduce; beyond a node, or where it gathers, it is the communication library's."""
    acc, nodes = kind.facts, nodes_under(kind, devices)
    inside = devices // nodes
    library = CROSSING.node_s * math.log2(nodes)
    if inside > 1:
        library += CROSSING.pair_s + CROSSING.doubling_s * (math.log2(inside) - 1.0)
    speed = acc.link_bytes_per_s
    if inside > 1:
        speed = min(speed, engine.allreduce_bandwidth_factor.value * acc.allreduce_bytes_per_s[inside])
    if nodes > 1:
        return library, min(speed, inside * CROSSING.nic_share * kind.plan.fabric_bytes_per_s)
    own = engine.allreduce_latency_factor.value * acc.allreduce_alpha_s[devices]
    return (max(own, library) if gathers else own), speed
