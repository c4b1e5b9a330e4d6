"""One replica as plain arithmetic: the step of a dense model, and what clients see of each discipline, in Python floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from servegen.catalog.facts import BYTES_PER_KV, BYTES_PER_WEIGHT, AcceleratorFacts, EngineFacts, ModelFacts
from servegen.solve.problem import Problem

EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
WIDTHS = tuple(b - a for a, b in itertools.pairwise(EDGES))
EDGE_WEIGHTS = tuple(((WIDTHS[i - 1] if i else 0.0) + (WIDTHS[i] if i < len(WIDTHS) else 0.0)) / 2.0 for i in range(len(EDGES)))


@dataclass
class Traffic:
    """Lengths as plain floats: at the edges, and the mean of each bin between them."""

    new: list[float]
    whole: list[float]
    new_bins: list[float]
    whole_bins: list[float]
    bin_weights: list[float]
    new_mean: float
    outputs: list[float]
    output_mean: float
    output_bins: list[float]
    gaps: float
    held: float
    held_std: float
    arrival_cv2: float
    waits_freely: bool  # whether more can wait than a replica has slots
    longest: list[tuple[float, float]]  # the longest output of a batch, by the log of the batch's size


def traffic(problem: Problem) -> Traffic:
    d, w = problem.demand, problem.workload
    sizes = [2**i for i in range(11)]
    return Traffic(
        [float(v) for v in d.uncached_edges],
        [float(v) for v in d.total_edges],
        [float(v) for v in d.uncached_nodes],
        [float(v) for v in d.total_nodes],
        [float(v) for v in d.node_weights],
        float(d.uncached_mean),
        [float(v) for v in d.osl_edges],
        float(d.osl_mean),
        [float(v) for v in d.osl_nodes],
        float(d.gaps),
        float(d.held_mean),
        float(d.held_std),
        float(d.arrival_cv2),
        bool(w.rate_per_s) or (w.saturate and bool(problem.slo.bounds)),
        [(math.log(b), float(w.osl.mean) if b == 1 else float(w.osl.quantile(b / (b + 1)))) for b in sizes],
    )


@dataclass
class Step:
    """One configuration's step, in seconds."""

    fixed: float  # launches and all-reduce latency
    each: float  # host work per sequence
    stream: float  # weights and vocabulary
    multiply: float  # per token
    wire: float  # per token
    read: float  # per cached token of one sequence
    pair: float  # per unit of total^2 - cached^2

    def gemm(self, tokens: float) -> float:
        return max(self.stream, self.multiply * tokens)

    def decode(self, n: float, context: float) -> float:
        return self.fixed + (self.each + self.read * context + self.wire) * n + self.gemm(n)

    def chunk(self, tokens: float) -> float:
        return self.fixed + self.gemm(tokens) + self.wire * tokens

    def prefill(self, new: float, whole: float, chunk: float) -> float:
        left, time = new, 0.0
        while left > 0:
            now = min(chunk, left)
            time += self.chunk(now)
            left -= now
        return time + self.attention(new, whole) + self.each

    def attention(self, new: float, whole: float) -> float:
        return self.pair * (whole * whole - (whole - new) * (whole - new))


@dataclass
class Round(Step):
    """A step that drafts ``ahead`` tokens and verifies them; ``draft`` is the step of the model that drafts, None for n-grams."""

    ahead: int
    acceptance: float
    draft: Step | None
    launch: float  # the engine's own, within ``fixed`` of both

    def decode(self, n: float, context: float) -> float:
        wide = n * (self.ahead + 1)
        read = max(self.read, 2.0 * self.pair * (self.ahead + 1))
        time = self.fixed + (self.each + read * context) * n + self.wire * wide + self.gemm(wide)
        d = self.draft
        if d is None:
            return time + self.each * n
        passes = (self.ahead - 1) * d.gemm(n) + d.gemm(wide) + self.ahead * (d.fixed - self.launch + d.read * context * n)
        return time + self.launch + passes + 2 * self.ahead * d.wire * n

    def chunk(self, tokens: float) -> float:
        time = self.fixed + self.gemm(tokens) + self.wire * tokens
        return time if self.draft is None else time + self.draft.chunk(tokens)

    def attention(self, new: float, whole: float) -> float:
        own = self.pair * (whole * whole - (whole - new) * (whole - new))
        return own if self.draft is None else own + self.draft.attention(new, whole)

    def yields(self) -> tuple[float, float]:
        """Mean and mean square of the tokens of a round, by the chance of each number."""
        chances = [self.acceptance**k * (1 - self.acceptance) for k in range(self.ahead)] + [self.acceptance**self.ahead]
        return sum(p * (k + 1) for k, p in enumerate(chances)), sum(p * (k + 1) ** 2 for k, p in enumerate(chances))


def drafting(problem: Problem, acc: AcceleratorFacts, engine: EngineFacts, weights: str, kv: str, tp: int, ahead: int) -> Step:
    """The step of a configuration that drafts ``ahead`` tokens."""
    own = step(problem.model, acc, engine, weights, kv, tp)
    asked = problem.speculation
    if asked is None or not ahead:
        return own
    draft = step(asked.draft, acc, engine, asked.draft.native_precision, kv, tp) if asked.draft else None
    plain = [getattr(own, name) for name in ("fixed", "each", "stream", "multiply", "wire", "read", "pair")]
    return Round(*plain, ahead, asked.acceptance, draft, engine.step_s.value)


def _matrix_bytes(model: ModelFacts, precision: str) -> float:
    total = 0.0
    for t in model.tensors:
        if t.kind in ("attention", "mlp"):
            stored = precision == model.native_precision or not t.quantizable
            total += t.stored_bytes if stored else t.params * BYTES_PER_WEIGHT[precision]
    return total


def step(model: ModelFacts, acc: AcceleratorFacts, engine: EngineFacts, weights: str, kv: str, tp: int) -> Step:
    (group,) = model.layers
    att, layers = group.attention, model.num_layers
    gemm = acc.gemm[weights]
    peak = acc.peak_flops[weights if weights != "int4" and weights in acc.peak_flops else "bf16"]
    params = sum(t.active for t in model.tensors if t.kind in ("attention", "mlp"))
    vocabulary = model.vocab_size * model.hidden_size * 2.0
    heads = att.num_kv_heads / min(tp, att.num_kv_heads)
    cached = layers * heads * 2 * att.head_dim * BYTES_PER_KV[kv]
    latency = wire = 0.0
    if tp > 1:
        latency = 2 * layers * engine.allreduce_latency_factor.value * acc.allreduce_alpha_s[tp]
        speed = min(engine.allreduce_bandwidth_factor.value * acc.allreduce_bytes_per_s[tp], acc.link_bytes_per_s)
        wire = 2 * layers * (2 * model.hidden_size * 2.0 * (tp - 1) / tp) / speed
    return Step(
        fixed=engine.step_s.value + layers * engine.layer_s.value + latency,
        each=engine.sequence_s.value,
        stream=_matrix_bytes(model, weights) / (tp * acc.hbm_bytes_per_s * gemm.ew)
        + vocabulary / (tp * acc.hbm_bytes_per_s * 0.75),
        multiply=2.0 * params / (tp * peak * gemm.ec),
        wire=wire,
        read=cached / (acc.hbm_bytes_per_s * engine.kv_efficiency.value * engine.kv_share.get(f"{acc.id}.{kv}", 1.0)),
        pair=layers * att.num_heads * 2 * att.head_dim / (tp * acc.peak_flops["bf16"] * engine.attention_efficiency.value),
    )


@dataclass
class Seen:
    """What clients of one replica see at one level."""

    rate: float
    start: float  # before the wait
    start_mean: float
    busy: float
    wait: float
    service: list[float]
    service_mean: float
    gap: float
    gap_sd: float
    stalled: float
    stalls: list[float]
    stall_weights: list[float]
    gap_mean: float
    burst: tuple[float, float, float] | None = None  # tokens of a round, their variance, what the last one has too many

    def ttft_over(self, t: float) -> float:
        left = t - self.start
        waiting = 0.0
        for s, w in zip(self.service, EDGE_WEIGHTS, strict=True):
            waiting += w * math.exp(-max(left - s, 0.0) / max(self.wait, 1e-12))
        return (1.0 - self.busy) * (1.0 - _below(self.service, WIDTHS, left)) + self.busy * waiting

    def itl_over(self, t: float) -> float:
        plain = _tail((t - self.gap) / max(self.gap_sd, 1e-9))
        longer = 1.0 - _below(self.stalls, self.stall_weights, t - self.gap)
        share = min(1.2 * self.stalled, 1.0)
        over = (1.0 - share) * plain + share * max(longer, plain)
        return over / self.burst[0] if self.burst else over

    def pace_over(self, t: float, load: Traffic) -> float:
        return self.tpot_over(t, load) if self.burst else self.itl_over(t)

    def tpot_over(self, t: float, load: Traffic) -> float:
        gaps = load.gaps
        square = sum(w * ((a + b) / 2) ** 2 for w, a, b in zip(self.stall_weights, self.stalls, self.stalls[1:], strict=False))
        if self.burst:
            tokens, variance, past = self.burst
            each = (self.stalled * square + variance * self.gap_mean**2) / tokens
            total = 0.0
            for weight, output in zip(WIDTHS, load.output_bins, strict=True):
                n = max(output - 1.0, 1.0)
                mean = self.gap_mean * (1 + past / n) / (1 + past / gaps)
                total += weight * _tail((t - mean) / max(math.sqrt(each / n + (self.gap_sd / tokens) ** 2), 1e-9))
            return total
        sd = math.sqrt((self.gap_sd**2 + self.stalled * square) / max(gaps, 1.0))
        return _tail((t - self.gap_mean) / max(sd, 1e-9))

    def e2e_over(self, t: float, outputs: Sequence[float]) -> float:
        return sum(w * self.ttft_over(t - max(o - 1.0, 0.0) * self.gap_mean) for w, o in zip(EDGE_WEIGHTS, outputs, strict=True))

    def ttft_mean(self) -> float:
        return self.start_mean + self.busy * self.wait + self.service_mean

    def over(self, metric: str, t: float, load: Traffic) -> float:
        if metric == "ttft":
            return self.ttft_over(t)
        if metric == "itl":
            return self.itl_over(t)
        return self.tpot_over(t, load) if metric == "tpot" else self.e2e_over(t, load.outputs)

    def mean(self, metric: str, load: Traffic) -> float:
        if metric == "ttft":
            return self.ttft_mean()
        return self.ttft_mean() + load.gaps * self.gap_mean if metric == "e2e" else self.gap_mean


def _below(edges: Sequence[float], weights: Sequence[float], t: float) -> float:
    total = 0.0
    for low, high, w in zip(edges, edges[1:], weights, strict=False):
        share = (t - low) / (high - low) if high > low else float(t >= high)
        total += w * min(max(share, 0.0), 1.0)
    return total


def _tail(z: float) -> float:
    return 1.0 / (1.0 + math.exp(min(max(1.702 * z, -60.0), 60.0)))


@dataclass
class Replica:
    """One server: its step, its chunk, the load, and what an engine adds before a first token."""

    step: Step
    chunk: float
    load: Traffic
    request: float
    handoff: list[float]
    bursts: bool = False  # whether the spec lets tokens come in bursts, here or elsewhere

    def __post_init__(self) -> None:
        t = self.load
        mean, square = self.step.yields() if isinstance(self.step, Round) else (1.0, 1.0)
        past = (square - mean) / (2 * mean)
        tokens = min(max(mean * t.gaps / (t.gaps + past), 1.0), max(t.gaps, 1.0))
        self.tokens = tokens
        self.burst = (tokens, square - mean * mean, past) if self.bursts else None
        alone = [self.step.prefill(n, w, self.chunk) for n, w in zip(t.new_bins, t.whole_bins, strict=True)]
        self.prefill = sum(w * a for w, a in zip(t.bin_weights, alone, strict=True))
        self.cv2 = max(sum(w * a * a for w, a in zip(t.bin_weights, alone, strict=True)) / self.prefill**2 - 1.0, 0.0)
        self.edges: list[float] = []
        for n, w in zip(t.new, t.whole, strict=True):
            self.edges.append(max(self.step.prefill(n, w, self.chunk), self.edges[-1] if self.edges else 0.0))
        bins = zip(t.bin_weights, t.new_bins, t.whole_bins, strict=True)
        self.attention = sum(w * self.step.attention(n, whole) for w, n, whole in bins)

    def gain(self, prompts: float) -> float:
        """How much cheaper a prompt is when so many share a step."""

        def together(k: float) -> float:
            tokens = k * self.load.new_mean
            chunks = max(tokens / self.chunk, 1.0)
            size = tokens / chunks
            return chunks * self.step.chunk(size) + k * (self.step.each + self.attention)

        return min(together(prompts) / (prompts * together(1.0)), 1.0)

    def wait(self, service: float, busy: float, slots: float) -> float:
        spread = (1 + self.cv2) * (self.load.arrival_cv2 + busy**2 * self.cv2) / (1 + busy**2 * self.cv2)
        wait = service * spread / (2.0 * max(1.0 - busy, 1e-9))
        return wait if self.load.waits_freely else min(wait, slots * service)

    def decode(self, n: float) -> float:
        return self.step.decode(max(n, 1.0), self.load.held)  # who waits for a token is in the batch

    def spread(self, n: float) -> float:
        return self.decode(max(n, 1.0) + math.sqrt(n)) - self.decode(n)

    def together(self, rate: float, step_s: float, most: float) -> float:
        arrivals = rate * step_s
        return min(max(arrivals / -math.expm1(-max(arrivals, 1e-12)), 1.0), most)

    def at(self, discipline: str, level: float) -> Seen:
        disciplines = {
            "prefill-first": self._first,
            "mixed": self._mixed,
            "static": self._static,
            "prefill": self._prefill,
            "decode": self._decode,
        }
        return disciplines[discipline](level)

    def _first(self, n: float) -> Seen:
        step_s, gaps = self.decode(n), self.load.gaps / self.tokens
        most = max(self.chunk / self.load.new_mean, 1.0)
        gain = prompts = 1.0
        for _ in range(4):
            rate = n / (gaps * step_s + n * self.prefill * gain)
            prompts = self.together(rate, step_s, most)
            gain = self.gain(prompts)
        rate = n / (gaps * step_s + n * self.prefill * gain)
        each = self.prefill * gain
        busy = rate * each
        others = (prompts / max(1.0 - busy, 1e-9) - 1.0) * each
        return Seen(
            rate=rate,
            start=self.request + step_s,
            start_mean=self.request + step_s / 2 * (1 - busy),
            busy=busy,
            wait=self.wait(each, busy, n),
            service=self.edges,
            service_mean=self.prefill,
            gap=step_s,
            gap_sd=self.spread(n),
            stalled=-math.expm1(-rate * step_s),
            stalls=[e * gain + others for e in self.edges],
            stall_weights=list(WIDTHS),
            gap_mean=step_s / max(1 - busy, 1e-9) / self.tokens,
            burst=self.burst,
        )

    def _mixed(self, asked: float) -> Seen:
        t = self.load

        def longer_step(tokens: float, prompts: float, attention: float) -> float:
            s = self.step
            batch = max(n, 1.0)
            base = s.fixed + (s.each + s.read * t.held) * batch
            return base + s.each * prompts + s.gemm(batch + tokens) + s.wire * (batch + tokens) + attention

        rate, n = 0.0, asked
        for _ in range(4):
            room = max(self.chunk - n, 1.0)
            prompts = self.together(rate, self.decode(n), max(room / t.new_mean, 1.0))
            steps = max(t.new_mean / room, 1.0 / prompts)
            n = min(asked, t.gaps / steps)  # prompts feed no more
            step_s = self.decode(n)
            longer = longer_step(t.new_mean / steps, 1.0 / steps, self.attention / steps)
            rate = 1.0 / (steps * (longer - step_s) + t.gaps * step_s / max(n, 1e-12))
        share = min(steps * n / t.gaps, 1.0)
        busy = min(rate * steps * longer, 1.0)
        counts, times = [], []
        for new, whole in zip(t.new, t.whole, strict=True):
            count = max(new / room, 1.0)
            counts.append(count)
            times.append(longer_step(new / count, 1.0 / count, self.step.attention(new, whole) / count))
        weights = [w * (a + b) for w, a, b in zip(WIDTHS, counts, counts[1:], strict=False)]
        stalls: list[float] = []
        for time in times:
            stalls.append(max(time - step_s, 0.0, stalls[-1] if stalls else 0.0))
        return Seen(
            rate=rate,
            start=self.request + step_s,
            start_mean=self.request + step_s / 2,
            busy=busy,
            wait=self.wait(steps * longer, busy, n),
            service=[c * s for c, s in zip(counts, times, strict=True)],
            service_mean=max(t.new_mean / room, 1.0) * longer,
            gap=step_s,
            gap_sd=self.spread(n),
            stalled=share,
            stalls=stalls,
            stall_weights=[w / sum(weights) for w in weights],
            gap_mean=share * longer + (1 - share) * step_s,
            burst=self.burst,
        )

    def _static(self, level: float) -> Seen:
        """A batch runs until its longest member ends; who comes meanwhile waits for the rest of it."""
        size = max(level, 1.0)
        step_s = self.decode(level)
        tokens = size * self.load.new_mean
        s = self.step
        prefill = s.fixed + s.gemm(tokens) + s.wire * tokens + size * (s.each + self.attention)
        batch = prefill + max(self._longest(size) - 1.0, 0.0) * step_s
        busy = min(level, 1.0)
        none = [0.0] * len(EDGES)
        return Seen(
            rate=level / batch,
            start=self.request,
            start_mean=self.request,
            busy=0.0,
            wait=0.0,
            # The rest of a batch is uniform over its length for those who find one running, nothing for the others.
            service=[prefill + batch * min(max((e - (1.0 - busy)) / max(busy, 1e-12), 0.0), 1.0) for e in EDGES],
            service_mean=prefill + busy * batch / 2.0,
            gap=step_s,
            gap_sd=0.0,
            stalled=0.0,
            stalls=none,
            stall_weights=list(WIDTHS),
            gap_mean=step_s,
        )

    def _longest(self, size: float) -> float:
        """Mean of the longest output of a batch, between the sizes that are tabulated on a line over their logs."""
        at = math.log(size)
        for (a, low), (b, high) in itertools.pairwise(self.load.longest):
            if at <= b:
                return low + (high - low) * (at - a) / (b - a)
        return self.load.longest[-1][1]

    def _prefill(self, busy: float) -> Seen:
        most = max(self.chunk / self.load.new_mean, 1.0)
        gain = 1.0
        for _ in range(4):
            rate = busy / (self.prefill * gain)
            gain = self.gain(min(max(rate * self.prefill, 1.0), most))
        each = self.prefill * gain
        extra = sum(w * (a + b) / 2 for w, a, b in zip(WIDTHS, self.handoff, self.handoff[1:], strict=False))
        none = [0.0] * len(EDGES)
        return Seen(
            rate=busy / each,
            start=self.request,
            start_mean=self.request,
            busy=busy,
            wait=self.wait(each, busy, 64.0),
            service=[a + b for a, b in zip(self.edges, self.handoff, strict=True)],
            service_mean=self.prefill + extra,
            gap=0.0,
            gap_sd=0.0,
            stalled=0.0,
            stalls=none,
            stall_weights=list(WIDTHS),
            gap_mean=0.0,
        )

    def _decode(self, n: float) -> Seen:
        step_s = self.decode(n)
        none = [0.0] * len(EDGES)
        return Seen(
            rate=n * self.tokens / (self.load.gaps * step_s),
            start=0.0,
            start_mean=0.0,
            busy=0.0,
            wait=0.0,
            service=none,
            service_mean=0.0,
            gap=step_s,
            gap_sd=self.spread(n),
            stalled=0.0,
            stalls=none,
            stall_weights=list(WIDTHS),
            gap_mean=step_s / self.tokens,
            burst=self.burst,
        )
