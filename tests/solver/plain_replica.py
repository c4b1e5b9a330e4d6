"""One replica as plain arithmetic: the step of a dense model, and what clients see of each discipline, in Python floats."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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
    new_cv2: float
    new_third: float
    outputs: list[float]
    output_mean: float
    output_bins: list[float]
    gaps: float
    held: float
    held_std: float
    arrival_cv2: float
    queue_cv2: float
    overlap: float
    own: float
    open_loop: bool
    age_sd: float  # of what a running request has put out
    longest: list[tuple[float, float, float]]  # of a batch: the log of its size, the mean and the variation of the longest output


def traffic(problem: Problem) -> Traffic:
    d = problem.demand
    some = [float(v) for v in problem.workload.osl.quantile((np.arange(200) + 0.5) / 200)]
    moments = [statistics.fmean(v**k for v in some) for k in (1, 2, 3)]
    return Traffic(
        [float(v) for v in d.uncached_edges],
        [float(v) for v in d.total_edges],
        [float(v) for v in d.uncached_nodes],
        [float(v) for v in d.total_nodes],
        [float(v) for v in d.node_weights],
        float(d.uncached_mean),
        float(d.uncached_cv2),
        float(d.uncached_third),
        [float(v) for v in d.osl_edges],
        float(d.osl_mean),
        [float(v) for v in d.osl_nodes],
        float(d.gaps),
        float(d.held_mean),
        float(d.held_std),
        float(d.arrival_cv2),
        float(d.queue_cv2),
        float(d.overlap),
        float(d.own),
        bool(d.open_loop),
        math.sqrt(max(moments[2] / (3 * moments[0]) - (moments[1] / (2 * moments[0])) ** 2, 0.0)),
        [_longest(problem, 2**i) for i in range(11)],
    )


def _longest(problem: Problem, size: int) -> tuple[float, float, float]:
    """Of a batch: the log of its size, the mean of its longest output, and that one's squared coefficient of variation."""
    osl = problem.workload.osl
    each = [float(osl.quantile(((i + 0.5) / 200) ** (1 / size))) for i in range(200)]
    mean = float(osl.mean) if size == 1 else statistics.fmean(each)
    return math.log(size), mean, max(statistics.fmean(v * v for v in each) / mean**2 - 1, 0.0)


# ---- a gamma renewal stream, times in mean gaps -------------------------------------------------------------------------


def _lower(shape: float, x: float) -> float:
    """Regularised lower incomplete gamma function by its series."""
    if x <= 0.0:
        return 0.0
    term = total = 1.0 / shape
    for j in range(1, 400):
        term *= x / (shape + j)
        total += term
    return min(total * math.exp(shape * math.log(x) - x - math.lgamma(shape)), 1.0)


def none_after(x: float, cv2: float) -> float:
    return math.exp(-x) if cv2 == 1.0 else 1.0 - _lower(1 / cv2, min(x / cv2, 100.0))


def some_in(x: float, cv2: float) -> float:
    if cv2 == 1.0:
        return -math.expm1(-x)
    return min(x * none_after(x, cv2) + _lower(1 / cv2 + 1, min(x / cv2, 100.0)), 1.0)


def company(x: float, cv2: float) -> float:
    excess = (cv2 - 1) / 2
    if excess <= 0.0:
        return excess * min(x, 1.0)
    none = max(none_after(x, cv2), 1e-12)
    return min(max((1 - none) / none - x, 0.0), excess)


def waiting(busy: float, cv2: float, service_cv2: float) -> float:
    """Chance of a wait."""
    if cv2 == 1.0:
        return busy
    b = min(max(busy, 1e-9), 1 - 1e-12)
    if cv2 < 1.0:
        h = (1 + cv2 + b * service_cv2) / (1 + b * (service_cv2 - 1) + b * b * (4 * cv2 + service_cv2))
        return max(b - (1 - cv2) * b * (1 - b) * min(h, 1 / (1 - b)), 0.0)
    low, high = 1e-15, 1.0 - b  # of the chance not to wait, which bisection finds as well as any other way
    for _ in range(200):
        middle = (low + high) / 2
        above = cv2 * math.log1p(-middle) + math.log1p(middle * cv2 / b) > 0
        low, high = (middle, high) if above else (low, middle)
    return 1 - low


def two_tails(t: float, cv2: float) -> float:
    often = 0.5 + 0.5 * math.sqrt((cv2 - 1) / (cv2 + 1))
    return often * math.exp(-2 * often * t) + (1 - often) * math.exp(-2 * (1 - often) * t)


@dataclass
class Step:
    """One configuration's step, in seconds."""

    fixed: float  # launches and all-reduce latency
    least: float  # of a step with a prompt: the host's time to launch it
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

    def prefill(self, new: float, whole: float, chunk: float) -> float:
        left, time = new, 0.0
        while left > 0:
            now = min(chunk, left)
            time += self.chunk(now)
            left -= now
        return time + self.attention(new, whole) + self.each

    def chunk(self, tokens: float) -> float:
        return max(self.device(tokens), self.least)

    def device(self, tokens: float) -> float:
        return self.fixed + self.gemm(tokens) + self.wire * tokens

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
        time = super().chunk(tokens)
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
        least=layers * engine.prompt_layer_s.value,
        each=engine.sequence_s.value,
        stream=_matrix_bytes(model, weights) / (tp * acc.hbm_bytes_per_s * gemm.ew)
        + vocabulary / (tp * acc.hbm_bytes_per_s * 0.75),
        multiply=2.0 * params / (tp * peak * gemm.ec),
        wire=wire,
        read=cached / (acc.hbm_bytes_per_s * engine.kv_efficiency.value * engine.kv_share.get(f"{acc.id}.{kv}", 1.0)),
        pair=layers * att.num_heads * 2 * att.head_dim / (tp * acc.peak_flops["bf16"] * engine.attention_efficiency.value),
    )


@dataclass
class Stall:
    """One bin of the stalls: a prompt's own between two times, and what others add."""

    low: float
    high: float
    weight: float
    joined: float = 0.0
    least: float = 0.0
    more: float = 1e-9
    cv2: float = 1.0


@dataclass
class Seen:
    """What clients of one replica see at one level."""

    rate: float
    start: float  # before the wait
    start_mean: float
    delayed: float
    wait: float
    wait_cv2: float
    service: list[float]
    service_mean: float
    gap: float
    gap_sd: float
    stalled: float
    stalls: list[Stall]
    longest: float
    gap_mean: float
    burst: tuple[float, float, float] | None = None  # tokens of a round, their variance, what the last one has too many

    def ttft_over(self, t: float) -> float:
        left = t - self.start
        waiting = 0.0
        for s, w in zip(self.service, EDGE_WEIGHTS, strict=True):
            waiting += w * two_tails(max(left - s, 0.0) / max(self.wait, 1e-12), self.wait_cv2)
        return (1.0 - self.delayed) * (1.0 - _below(self.service, WIDTHS, left)) + self.delayed * waiting

    def itl_over(self, t: float, guard: float = 1.0) -> float:
        late = t - self.gap
        plain = _tail(late / max(self.gap_sd, 1e-9))
        longer = 0.0
        for s in self.stalls:
            share = min(max((late - s.low) / (s.high - s.low), 0.0), 1.0) if s.high > s.low else float(late >= s.high)
            slack = max(late - (s.low + s.high) / 2 - s.least, 0.0) / max(s.more, 1e-12)
            longer += s.weight * ((1 - s.joined) * (1 - share) + s.joined * two_tails(slack, s.cv2))
        longer *= float(late < self.longest)
        share = min(guard * self.stalled, 1.0)
        over = (1.0 - share) * plain + share * max(longer, plain)
        return over / self.burst[0] if self.burst else over

    def pace_over(self, t: float, load: Traffic) -> float:
        return self.tpot_over(t, load) if self.burst else self.itl_over(t)

    def tpot_over(self, t: float, load: Traffic) -> float:
        gaps = load.gaps
        square = 0.0
        for s in self.stalls:
            mine = (s.low + s.high) / 2
            others = 2 * mine * (s.least + s.more) + s.least**2 + 2 * s.least * s.more + (1 + s.cv2) * s.more**2
            square += s.weight * (mine**2 + s.joined * others)
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
        return self.start_mean + self.delayed * self.wait + self.service_mean

    def over(self, metric: str, t: float, load: Traffic, guard: float = 1.0) -> float:
        if metric == "ttft":
            return self.ttft_over(t)
        if metric == "itl":
            return self.itl_over(t, guard)
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
        self.third = sum(w * a**3 for w, a in zip(t.bin_weights, alone, strict=True)) / self.prefill**3
        left = sum(w * ((-n / self.chunk) % 1.0) for w, n in zip(t.bin_weights, t.new_bins, strict=True))
        self.edges: list[float] = []
        for n, w in zip(t.new, t.whole, strict=True):
            self.edges.append(max(self.step.prefill(n, w, self.chunk), self.edges[-1] if self.edges else 0.0))
        bins = zip(t.bin_weights, t.new_bins, t.whole_bins, strict=True)
        self.attention = sum(w * self.step.attention(n, whole) for w, n, whole in bins)
        self.left = left * (self.step.chunk(self.chunk) + self.chunk / t.new_mean * (self.step.each + self.attention))

    def gain(self, prompts: float) -> float:
        """How much cheaper a prompt is when so many share a step."""

        def together(k: float) -> float:
            tokens = k * self.load.new_mean
            chunks = max(tokens / self.chunk, 1.0)
            size = tokens / chunks
            return chunks * self.step.chunk(size) + k * (self.step.each + self.attention)

        return min(together(prompts) / (prompts * together(1.0)), 1.0)

    def wait(self, service: float, busy: float, delayed: float, cv2: float, slots: float) -> float:
        c = self.load.queue_cv2
        if c < 1.0:
            free, both = max(1 - busy, 1e-9), max(c + cv2, 1e-9)
            even = math.exp(-2 * free * (1 - c) ** 2 / (3 * max(busy, 1e-9) * both))
            mean = busy * service * both * even / (2 * free * max(delayed, 1e-12))
        else:
            mean = service * (c + cv2) / (c + 1) / max(1 - delayed, 1e-9)
        return mean if self.load.open_loop else min(mean, slots * service)

    @staticmethod
    def wait_cv2(busy: float, cv2: float, third: float) -> float:
        return max(2 * busy - 1 + 4 / 3 * third * (1 - busy) / (1 + cv2) ** 2, 1.0)

    def first(self, busy: float, service: float, step_s: float, slots: float) -> tuple[float, float, float, float, float]:
        """Start, mean start, chance, mean and variation of the wait."""
        delayed = waiting(busy, self.load.queue_cv2, self.cv2)
        wait = self.wait(service, busy, delayed, self.cv2, slots)
        behind = self.behind(busy, delayed * wait + step_s / 2, self.left)
        start, mean = self.request + step_s * (1 + behind / 2), self.request + step_s / 2 * (1 + behind)
        return start, mean, delayed, wait * (1 + behind), self.wait_cv2(busy, self.cv2, self.third)

    @staticmethod
    def behind(busy: float, wait: float, left: float) -> float:
        return min(busy / (1 + busy), busy * left / max(wait, 1e-12))

    def decode(self, n: float) -> float:
        return self.step.decode(n, self.load.held)

    def beside(self, n: float) -> float:
        """Sequences beyond ``n`` that a gap sees."""
        if not self.load.own:
            return max(1.0 - n, 0.0)  # who waits for a token is in the step
        return max(self.load.own + 2 * self.load.overlap * company(n, self.load.arrival_cv2), 1.0 - n, 0.0)

    def found(self, n: float, steps: float) -> float:
        """Sequences that a prompt finds."""
        c = self.load.arrival_cv2
        return n + max(company(n, c) - company(n / steps, c), 0.0)

    def number_sd(self, n: float, beside: float, step_s: float) -> float:
        return math.sqrt(n * step_s / self.decode(1.0) * (beside if self.load.own else 1.0))

    def spread(self, seen: float, number: float) -> float:
        context = self.step.read * self.load.held * math.sqrt(seen) * self.load.held_std / self.load.held
        return math.hypot(self.decode(seen + number) - self.decode(seen), context)

    def together(self, arrived: float) -> float:
        return max(arrived / max(some_in(arrived, self.load.arrival_cv2), 1e-12), 1.0)

    def joining(self, low: float, high: float, weight: float, number: float, joined: float, free: float, each: float) -> Stall:
        """A bin of stalls, with ``number`` others of ``each`` seconds, who come with chance ``joined``."""
        mean = number * each / free / max(joined, 1e-12)
        varied = (self.load.arrival_cv2 + self.cv2) / free
        deviation = mean * math.sqrt(max(joined * (1 + varied / max(number, 1e-12)) - 1, 0.0))
        least = min(max(mean - deviation, each * (1 - math.sqrt(self.cv2))), mean)
        rest = max(mean - least, 1e-9)
        return Stall(low, high, weight, joined, least, rest, min(max((deviation / rest) ** 2, 1.0), 1e6))

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
        t, most = self.load, max(self.chunk / self.load.new_mean, 1.0)
        steps = t.gaps / self.tokens
        beside, found = self.beside(n), self.found(n, steps)
        gain, busy = 1.0, 0.0
        for _ in range(4):
            x = min(busy / max(1 - busy, 1e-9), 1.0)
            seen = n + beside + (t.overlap * x * (2 + (1 + self.cv2) * x) if t.own else 0.0)
            step_s = self.decode(seen)
            rate = n / (steps * step_s + found * self.prefill * gain)
            gain = self.gain(min(self.together(rate * step_s), most))
            busy = min(rate * self.prefill * gain, 1 - 1e-9)
        each = self.prefill * gain
        rate = n / (steps * step_s + found * each)
        busy = min(rate * each, 1.0)
        start, start_mean, delayed, wait, wait_cv2 = self.first(busy, each, step_s, n)
        free = max(1 - busy, 1e-9)
        during, arrived = (rate, rate * step_s) if t.own else (0.0, rate * step_s / free)
        quiet = during * each + arrived / 2
        hazard = -math.log(max(none_after(quiet, t.arrival_cv2), 1e-12)) / max(quiet, 1e-12)
        stalls = []
        for a, b, w in zip(self.edges, self.edges[1:], WIDTHS, strict=False):
            middle = during * (a + b) / 2 * gain
            joined = -math.expm1(-hazard * (middle + arrived / 2))
            number = self.together(arrived) - 1 + middle
            stalls.append(self.joining(a * gain, b * gain, w, number, joined, free if t.own else 1.0, each))
        return Seen(
            rate=rate,
            start=start,
            start_mean=start_mean,
            delayed=delayed,
            wait=wait,
            wait_cv2=wait_cv2,
            service=self.edges,
            service_mean=self.prefill,
            gap=step_s,
            gap_sd=self.spread(seen, self.number_sd(n, seen - n, step_s)),
            stalled=min(some_in(arrived, t.arrival_cv2) * found / n, 1.0),
            stalls=stalls,
            longest=math.inf,
            gap_mean=(step_s + found * each / steps) / self.tokens,
            burst=self.burst,
        )

    def _mixed(self, asked: float) -> Seen:
        t, s = self.load, self.step

        def step_of(decoding: float, tokens: float, prompts: float, attention: float) -> float:
            base = s.fixed + (s.each + s.read * t.held) * decoding + s.each * prompts
            return base + s.gemm(decoding + tokens) + s.wire * (decoding + tokens) + attention

        def longer_step(tokens: float, prompts: float, attention: float) -> float:
            return max(step_of(seen, tokens, prompts, attention), s.least)

        def first_step(tokens: float, prompts: float, attention: float) -> float:
            return max(step_of(found, tokens, prompts, attention), s.least)

        beside, extra = self.beside(asked), self.found(asked, t.gaps) - asked
        rate = busy = share = longer = 0.0
        n = asked
        for _ in range(4):
            seen = max(n + beside, 1.0)
            step_s = self.decode(seen)
            room = max(self.chunk - seen, 1.0)
            window = step_s + share * max(longer - step_s, 0.0)
            whole = t.new_mean / room
            arrived = self.together(rate * window)
            prompts = min(arrived, max(1 / whole, 1.0))
            split = [max(v / room + 0.5, 1.0) for v in t.new_bins]
            lone = sum(v * w for v, w in zip(split, t.bin_weights, strict=True))
            each = max((1 - busy) * lone + busy * max(whole, 1.0), whole)
            steps = max(each / prompts, whole)
            n = min(asked, t.gaps / steps)  # prompts feed no more
            found = n + extra
            parts = [(v / k, w) for v, k, w in zip(t.new_bins, split, t.bin_weights, strict=True)]
            mean = sum(v * w for v, w in parts)
            more = max(t.new_mean / steps - mean, 0.0)
            matrices = max(sum(w * s.gemm(seen + more + v) for v, w in parts) - s.gemm(seen + more + mean), 0.0)
            per_new = (s.each + self.attention) / t.new_mean  # a prompt's other costs, by token
            times = [(step_of(seen, more + v, 0.0, per_new * (more + v)), w) for v, w in parts]
            device = step_of(seen, more + mean, 0.0, per_new * (more + mean)) + matrices
            idle = sum(w * max(s.least - v, 0.0) for v, w in times) - max(s.least - device, 0.0)
            uneven = matrices + max(idle, 0.0)
            longer = longer_step(t.new_mean / steps, 1 / steps, self.attention / steps) + uneven
            rate = n / (steps * (longer - step_s) * found + t.gaps * step_s)
            share = min(steps * found / t.gaps, 1.0)
            least = max(whole, 1 / prompts)
            work = least * longer_step(t.new_mean / least, 1 / least, self.attention / least)
            busy = min(rate * work, 1.0)
        full = longer_step(room, max(1 / whole, 1.0), self.attention / whole)
        packed = min(whole, 1.0)
        cv2, third = packed * t.new_cv2 + (1 - packed) * self.cv2, packed * t.new_third + (1 - packed) * self.third
        number = self.number_sd(n, beside, step_s)
        mean_wait = 0.0
        for side in (-1.0, 1.0):
            left = max(room - side * number, 1.0)
            slow = work * (room / left) + t.new_mean / left * (s.each + s.read * t.held + s.wire) * side * number
            at = min(max(rate * slow, 1e-9), 1 - 1e-6)
            delayed = waiting(at, t.queue_cv2, cv2)
            wait = self.wait(slow, at, delayed, cv2, n)
            mean_wait += delayed * wait / 2
        delayed = min(mean_wait / max(wait, 1e-12), delayed)
        behind = self.behind(busy, delayed * wait + step_s / 2, (full - step_s) * max(1 - whole, 0.5))
        spread = self.spread(seen, number)
        counts = [max(v / room + 0.5, 1.0) for v in t.new]
        firsts = [
            c * first_step(v / c, 1 / c, s.attention(v, w) / c) for v, w, c in zip(t.new, t.whole, counts, strict=True)
        ]
        per = lone
        return Seen(
            rate=rate,
            start=self.request + step_s * (1 + behind / 2),
            start_mean=self.request + step_s / 2 * (1 + behind),
            delayed=delayed,
            wait=wait * (1 + behind),
            wait_cv2=self.wait_cv2(busy, cv2, third),
            service=list(itertools.accumulate(firsts, max)),
            service_mean=per * first_step(t.new_mean / per, 1 / per, self.attention / per),
            gap=step_s,
            gap_sd=spread,
            stalled=share,
            stalls=self._mixed_stalls(room, lone, busy, full - step_s, spread, rate * window, arrived, longer_step, step_s),
            longest=max(full - step_s, 0.0) + math.sqrt(3) * spread,
            gap_mean=share * longer + (1 - share) * step_s,
            burst=self.burst,
        )

    def _mixed_stalls(
        self,
        room: float,
        lone: float,
        busy: float,
        full: float,
        spread: float,
        window: float,
        arrived: float,
        longer_step: Callable[[float, float, float], float],
        step_s: float,
    ) -> list[Stall]:
        t, wide = self.load, math.sqrt(3) * spread
        top = min(room, t.new[-2])
        tokens = [top * min(i / 8, 1.0) ** 2 for i in range(10)]
        times = [longer_step(v, v / t.new_mean, self.attention * v / t.new_mean) - step_s for v in tokens]
        times[8] = min(times[8], full - wide)
        times[9] = max(full, 0.0) + wide
        times = list(itertools.accumulate((max(v, 0.0) for v in times), max))
        longer_than = 1 - _rank(t.new, room)
        weights = [
            (1 - busy) * (_rank(t.new, b) - _rank(t.new, a) + longer_than * (b - a) / room) for a, b in itertools.pairwise(tokens)
        ]
        weights[-1] = max(lone - 1 + busy * min(t.new_mean / room - lone + 1, 1.0), 0.0)
        total = max(sum(weights), 1e-300)
        joined = 1 - none_after(window / 2, t.arrival_cv2)
        each = self.step.each + (self.step.multiply + self.step.wire) * t.new_mean + self.attention
        return [
            self.joining(a, b, w / total, arrived - 1, joined, 1.0, each)
            for a, b, w in zip(times, times[1:], weights, strict=False)
        ]

    def _static(self, level: float) -> Seen:
        """A batch runs until its longest member ends; who comes meanwhile waits for the rest of it."""
        t, s = self.load, self.step
        size, busy = max(level, 1.0), min(level, 1.0)

        def filled(n: float) -> float:
            return s.chunk(n * t.new_mean) + n * (s.each + self.attention)

        def whole(n: float) -> float:
            return filled(n) + max(self._longest(n)[0] - 1.0, 0.0) * self.decode(n)

        batch = whole(size)
        slope = min(max(math.log(whole(1.25 * size) / batch) / math.log(1.25), 0.0), 0.95)
        outputs = self._longest(size)[1]
        arrived = (1 + max(2 * company(size, t.arrival_cv2), -0.9)) / size
        size_cv2 = (arrived + outputs) / (1 - slope**2)
        cv2 = outputs + slope**2 * size_cv2
        seen = size * (1 + size_cv2)
        step_s = self.decode(seen)
        context = s.read * t.held * seen * t.age_sd / t.held
        prefill = filled(size * (1 + busy * cv2))
        return Seen(
            rate=level / batch,
            start=self.request,
            start_mean=self.request,
            delayed=0.0,
            wait=0.0,
            wait_cv2=1.0,
            service=[prefill + batch * v for v in _rest(cv2, busy)],
            service_mean=prefill + busy * batch * (1 + cv2) / 2,
            gap=step_s,
            gap_sd=math.hypot(self.decode(seen * (1 + math.sqrt(size_cv2))) - step_s, context),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=step_s,
        )

    def _longest(self, size: float) -> tuple[float, float]:
        """Mean and variation of the longest output of a batch, on a line over the logs of the sizes that are tabulated."""
        at = math.log(size)
        for (a, *low), (b, *high) in itertools.pairwise(self.load.longest):
            if at <= b:
                x, y = (v + (w - v) * (at - a) / (b - a) for v, w in zip(low, high, strict=True))
                return x, y
        return self.load.longest[-1][1:]

    def _prefill(self, busy: float) -> Seen:
        most = max(self.chunk / self.load.new_mean, 1.0)
        gain = 1.0
        for _ in range(4):
            rate = busy / (self.prefill * gain)
            gain = self.gain(min(max(rate * self.prefill, 1.0), most))
        each = self.prefill * gain
        extra = sum(w * (a + b) / 2 for w, a, b in zip(WIDTHS, self.handoff, self.handoff[1:], strict=False))
        start, start_mean, delayed, wait, wait_cv2 = self.first(busy, each, 0.0, 64.0)
        return Seen(
            rate=busy / each,
            start=start,
            start_mean=start_mean,
            delayed=delayed,
            wait=wait,
            wait_cv2=wait_cv2,
            service=[a + b for a, b in zip(self.edges, self.handoff, strict=True)],
            service_mean=self.prefill + extra,
            gap=0.0,
            gap_sd=0.0,
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=0.0,
        )

    def _decode(self, n: float) -> Seen:
        beside = self.beside(n)
        step_s = self.decode(n + beside)
        return Seen(
            rate=n * self.tokens / (self.load.gaps * step_s),
            start=0.0,
            start_mean=0.0,
            delayed=0.0,
            wait=0.0,
            wait_cv2=1.0,
            service=[0.0] * len(EDGES),
            service_mean=0.0,
            gap=step_s,
            gap_sd=self.spread(n + beside, self.number_sd(n, beside, step_s)),
            stalled=0.0,
            stalls=[],
            longest=0.0,
            gap_mean=step_s / self.tokens,
            burst=self.burst,
        )


def _rank(lengths: Sequence[float], value: float) -> float:
    """Chance of a length up to ``value``, linear between the edges."""
    if value >= lengths[-1]:
        return 1.0
    if value < lengths[0]:
        return 0.0
    i = max(k for k, v in enumerate(lengths) if v <= value)
    return EDGES[i] + (EDGES[i + 1] - EDGES[i]) * (value - lengths[i]) / (lengths[i + 1] - lengths[i])


#: Standard normal quantiles at the edges; the ends are cut.
NORMAL = (-3.3, -0.6745, 0.0, 0.6745, 1.2816, 1.6449, 2.0537, 2.3263, 2.5758, 3.3)


def _rest(cv2: float, busy: float) -> list[float]:
    """What is left of a batch of mean 1 at each edge: of a lognormal one, met with chance ``busy`` and by its length."""
    sigma = math.sqrt(math.log1p(cv2))
    at = [0.0] + [math.exp(sigma * z - sigma**2 / 2) for z in NORMAL]
    bins = [((a + b) / 2, w) for a, b, w in zip(at[1:], at[2:], WIDTHS, strict=False)]
    over = [sum(w * max(b - v, 0.0) for b, w in bins) / sum(w * b for b, w in bins) for v in at]
    out: list[float] = []
    for edge in EDGES:
        chance = min((1 - edge + 1e-12) / max(busy, 1e-12), 1.0)
        i = min(max(sum(v > chance for v in over), 1), len(at) - 1)
        share = min(max((over[i - 1] - chance) / max(over[i - 1] - over[i], 1e-12), 0.0), 1.0)
        out.append(max(at[i - 1] + share * (at[i] - at[i - 1]), out[-1] if out else 0.0))
    return out
