"""One engine step: prefill, decode, or both mixed, as the sum of what bounds it.

The step (F50 generalised) of ``sequences`` decoding sequences and ``tokens`` prefill tokens of ``prompts`` prompts is

    max(launch + latency + sequence*(sequences + prompts) + kv + max(streaming, multiplying) + wire + attention, prompt)

where ``prompt`` is what the host takes to launch a step that carries a prompt, which no CUDA graph holds (0 without one), and
``streaming`` counts the experts that the batch wakes (F43). With the ideal terms (efficiency 1, no latency) it is F10.

A pipeline of ``stages`` works on as many micro-batches at once: a sequence gets a token each time its micro-batch has been
through all of them, so the step is ``stages`` times that of one stage with its share of the sequences. Attention-data
parallelism keeps ``groups`` of devices apart: sequences spread over the groups, a prompt belongs to one of them, and the
busiest group sets the pace of the attention, while the experts take the tokens of all groups together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.attention import causal_pairs, visible_tokens
from servegen.roofline.speculation import Rounds

Array = NDArray[np.float64]
C = TypeVar("C")


@record
class StepTerms:
    """Coefficients of the step, shape (rows,) or, with a group axis, (rows, groups); ``window`` is (groups,).

    ``token_read_s`` is the time to read one cached token (per sequence), ``state_s`` the time for a sequence's fixed state,
    ``pair_s`` the time per unit of :func:`servegen.roofline.attention.causal_pairs`, ``prompt_s`` the least time of a step that
    carries a prompt. All are of the slowest of ``stages`` and of one of ``groups``; ``group_flop_s`` is the time per token of the
    matrices that belong to a group, ``token_flop_s`` of those that all groups share. ``expert_spread`` is what the busiest
    expert-parallel rank wakes beyond its share (F43), 0 without expert parallelism. With ``rounds`` a decode step is a round of
    speculative decoding, and a prompt is prefilled by the draft as well; the rows that draft have one stage.
    """

    launch_s: Array
    prompt_s: Array
    latency_s: Array
    sequence_s: Array
    weight_s: Array
    expert_s: Array
    expert_idle: Array  # 1 - k/E: chance that one token leaves a given expert asleep; 0 for dense models
    token_flop_s: Array
    token_wire_s: Array
    token_read_s: Array
    state_s: Array
    pair_s: Array
    stages: Array
    groups: Array
    group_flop_s: Array
    expert_spread: Array
    window: Array
    rounds: Rounds | None = None

    @cached_property
    def plain(self) -> bool:
        """Whether no row has stages or groups."""
        return bool((self.stages == 1.0).all() and (self.groups == 1.0).all())

    @cached_property
    def dense(self) -> bool:
        """Whether no row has experts to wake."""
        return not self.expert_s.any()

    @cached_property
    def even(self) -> bool:
        """Whether the experts of no row are spread over ranks, of which one may wake more than the others."""
        return not self.expert_spread.any()

    @cached_property
    def fixed_s(self) -> Array:
        """Seconds of a step on the device whatever it carries, besides its weights."""
        return self.launch_s + self.latency_s

    def kv_s(self, context: Array | float) -> Array:
        """Seconds that one sequence of ``context`` tokens adds to a decode step, shape (rows,)."""
        if self.rounds is not None:
            return self.rounds.kv_s(context)
        return np.asarray(np.sum(self.token_read_s * visible_tokens(context, self.window), axis=-1) + self.state_s)

    def attention_s(self, total: Array, cached: Array) -> Array:
        """Seconds of causal attention of whole prompts; ``total``, ``cached`` shape (k,); result (rows, k)."""
        of = self if self.rounds is None else self.rounds
        return np.asarray(of.pair_s @ causal_pairs(total, cached, of.window).T)

    def woken(self, tokens: Array) -> Array:
        """Share of the experts of a rank that ``tokens`` tokens wake, of the busiest rank; shape (rows,) or (rows, k)."""
        idle, spread = (_beside(c, tokens) for c in (self.expert_idle, self.expert_spread))
        share = 1.0 - idle**tokens
        if self.even:
            return np.asarray(share)
        return np.minimum(share + spread * np.sqrt(share * (1.0 - share)), 1.0)

    def gemm_s(self, tokens: Array, busiest: Array | None = None) -> Array:
        """max(streaming, multiplying) of ``tokens`` tokens, ``busiest`` of them in one group; shape (rows,) or (rows, k)."""
        weight, flop = _beside(self.weight_s, tokens), _beside(self.token_flop_s, tokens)
        multiply = flop * tokens
        if busiest is not None:
            multiply = multiply + _beside(self.group_flop_s, tokens) * busiest
        if self.dense:  # the power below is the costliest operation here
            return np.maximum(weight, multiply)
        return np.maximum(weight + _beside(self.expert_s, tokens) * self.woken(tokens), multiply)

    def busiest(self, sequences: Array) -> Array:
        """Sequences of the fullest group when they are spread evenly."""
        return np.maximum(sequences / self.groups, np.minimum(sequences, 1.0))

    def decode_s(self, sequences: Array, kv_s: Array) -> Array:
        """Seconds of a pure decode step of ``sequences`` sequences, each reading its KV in ``kv_s``. Shape (rows,)."""
        if self.plain and self.rounds is None:
            each = self.sequence_s + kv_s + self.token_wire_s
            return self.fixed_s + each * sequences + self.gemm_s(sequences)
        if self.rounds is not None and self.plain:
            wide = self.rounds.verified
            host = self.fixed_s + (self.sequence_s + kv_s) * sequences
            return host + self.token_wire_s * wide * sequences + self.gemm_s(wide * sequences) + self.rounds.draft_s(sequences)
        micro = np.maximum(sequences / self.stages, np.minimum(sequences, 1.0))
        busiest = self.busiest(micro)
        host = self.fixed_s + (self.sequence_s + kv_s) * busiest
        if self.rounds is None:
            return self.stages * (host + self.token_wire_s * micro + self.gemm_s(micro, busiest))
        wide = self.rounds.verified
        verify = host + self.token_wire_s * wide * micro + self.gemm_s(wide * micro, wide * busiest)
        return self.stages * (verify + self.rounds.draft_s(micro, busiest))

    def chunk_s(self, tokens: Array, prompts: Array | None = None) -> Array:
        """Seconds of a stage's prefill-only step of ``tokens`` tokens, without attention and per-prompt cost.

        The tokens belong to ``prompts`` prompts, one if it is left out, of which each has a group to itself where it can.
        """
        time = np.maximum(self.device_s(tokens, prompts), _beside(self.prompt_s, tokens))
        return time if self.rounds is None else time + self.rounds.chunk_s(tokens, self._busiest_of(tokens, prompts))

    def device_s(self, tokens: Array, prompts: Array | None = None) -> Array:
        """As :meth:`chunk_s`, for a device that never waits for its host and drafts nothing."""
        fixed, wire = _beside(self.fixed_s, tokens), _beside(self.token_wire_s, tokens)
        return np.asarray(fixed + self.gemm_s(tokens, self._busiest_of(tokens, prompts)) + wire * tokens)

    def _busiest_of(self, tokens: Array, prompts: Array | None) -> Array | None:
        """Tokens of the group that has the most of them, None where there are no groups."""
        if self.plain:
            return None
        return tokens if prompts is None else tokens / np.minimum(prompts, self.groups)

    def prefill_s(self, uncached: Array, total: Array, chunk: Array) -> Array:
        """Seconds that a stage takes to prefill one prompt alone, in chunks (F8b, F33).

        ``uncached`` and ``total`` (k,), ``chunk`` (rows,); result (rows, k). A chunk is dealt out to the groups evenly.
        """
        size = np.minimum((chunk / self.groups)[:, None], uncached[None, :])
        full = np.floor(uncached[None, :] / size)
        rest = uncached[None, :] - full * size
        time = full * self.chunk_s(size) + np.where(rest > 0, self.chunk_s(rest), 0.0)
        return time + self.attention_s(total, total - uncached) + self.sequence_s[:, None]

    def decode_breakdown_s(self, sequences: Array, kv_s: Array) -> Mapping[str, Array]:
        """The decode step by what it is spent on; the parts sum to :meth:`decode_s`."""
        micro = np.maximum(sequences / self.stages, np.minimum(sequences, 1.0))
        busiest = self.busiest(micro)
        wide = 1.0 if self.rounds is None else self.rounds.verified
        stream, multiply = self._streamed(wide * micro), wide * (self.token_flop_s * micro + self.group_flop_s * busiest)
        parts = {
            "weights": np.where(stream >= multiply, stream, 0.0),
            "compute": np.where(stream >= multiply, 0.0, multiply),
            "kv": kv_s * busiest,
            "attention": np.zeros_like(stream),
            "collectives": self.latency_s + self.token_wire_s * wide * micro,
            "overhead": self.launch_s + self.sequence_s * busiest,
        }
        if self.rounds is not None:
            parts["draft"] = self.rounds.draft_s(micro, busiest)
        return {name: self.stages * part for name, part in parts.items()}

    def _streamed(self, tokens: Array) -> Array:
        return np.asarray(self.weight_s + self.expert_s * self.woken(tokens))

    def prefill_breakdown_s(self, uncached: float, total: float, chunk: Array) -> Mapping[str, Array]:
        """The prefill of one prompt on one stage by what it is spent on; the parts sum to :meth:`prefill_s`."""
        parts = {k: np.zeros_like(self.weight_s) for k in ("weights", "compute", "kv", "attention", "collectives", "overhead")}
        size = np.minimum(chunk / self.groups, uncached)
        full = np.floor(uncached / size)
        for count, now in ((full, size), (np.where(uncached - full * size > 0, 1.0, 0.0), uncached - full * size)):
            stream, multiply = self._streamed(now), (self.token_flop_s + self.group_flop_s) * now
            wire = self.latency_s + self.token_wire_s * now
            device = self.launch_s + wire + np.maximum(stream, multiply)
            parts["weights"] += count * np.where(stream >= multiply, stream, 0.0)
            parts["compute"] += count * np.where(stream >= multiply, 0.0, multiply)
            parts["collectives"] += count * wire
            parts["overhead"] += count * (self.launch_s + np.maximum(self.prompt_s - device, 0.0))
            if self.rounds is not None:
                parts["draft"] = parts.get("draft", 0.0) + count * self.rounds.chunk_s(now, now)
        parts["overhead"] += self.sequence_s
        parts["attention"] += self.attention_s(np.array([total]), np.array([total - uncached]))[:, 0]
        return parts


def _beside(column: Array, tokens: Array) -> Array:
    """A column of rows, shaped to stand beside ``tokens`` of shape (rows,) or (rows, k)."""
    return column[:, None] if tokens.ndim > 1 else column


def stack(rows: Sequence[Mapping[str, Any]], window: Array) -> StepTerms:
    """Columns from one mapping of scalars (or group vectors) per row."""
    names = [f.name for f in dataclasses.fields(StepTerms) if f.name not in ("window", "rounds")]
    columns: dict[str, Any] = {n: np.array([r[n] for r in rows], dtype=np.float64) for n in names}
    return StepTerms(
        **columns,
        window=np.asarray(window, dtype=np.float64),
    )


def join(parts: Sequence[C]) -> C:
    """Rows of several dataclasses of columns under each other; they share their windows."""
    first = parts[0]
    changes = {}
    for f in dataclasses.fields(first):  # type: ignore[arg-type]
        values = [getattr(p, f.name) for p in parts]
        if f.name == "window":
            continue
        if isinstance(values[0], np.ndarray):
            changes[f.name] = np.concatenate(values)
        elif dataclasses.is_dataclass(values[0]) and not isinstance(values[0], type):
            changes[f.name] = join(values)
    return dataclasses.replace(first, **changes)  # type: ignore[type-var]


def take(columns: C, index: NDArray[np.int64]) -> C:
    """The rows of a dataclass of columns; fields that are no arrays, and ``window``, stay as they are. TypeError for a mask."""
    if index.dtype == np.bool_:
        raise TypeError("rows are taken by number")
    kind: Any = type(columns)
    of: dict[str, Any] = {name: getattr(columns, name) for name in _names(kind)}
    for name, value in of.items():
        if isinstance(value, np.ndarray) and name != "window":
            of[name] = value.take(index, axis=0)  # several times as fast as value[index] where rows are wide
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            of[name] = take(value, index)
    return kind(**of)  # type: ignore[no-any-return]


@cache
def _names(columns: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(columns))
