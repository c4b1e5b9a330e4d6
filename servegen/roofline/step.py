"""One engine step: prefill, decode, or both mixed, as the sum of what bounds it.

The step (F50 generalised) of ``sequences`` decoding sequences and ``tokens`` prefill tokens of ``prompts`` prompts is

    max(launch + latency + sequence*(sequences + prompts) + kv + max(streaming, multiplying) + wire + attention, prompt)

where ``prompt`` is what the host takes to launch a step that carries a prompt, which no CUDA graph holds (0 without one), and
``streaming`` counts the experts that the batch wakes (F43). With the ideal terms (efficiency 1, no latency) it is F10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from servegen.roofline.attention import causal_pairs, visible_tokens

Array = NDArray[np.float64]
C = TypeVar("C")


@dataclass(frozen=True)
class StepTerms:
    """Coefficients of the step, shape (rows,) or, with a group axis, (rows, groups); ``window`` is (groups,).

    ``token_read_s`` is the time to read one cached token (per sequence), ``state_s`` the time for a sequence's fixed state,
    ``pair_s`` the time per unit of :func:`servegen.roofline.attention.causal_pairs`, ``prompt_s`` the least time of a step that
    carries a prompt.
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
    window: Array

    def kv_s(self, context: Array | float) -> Array:
        """Seconds that one sequence of ``context`` tokens adds to a decode step, shape (rows,)."""
        return np.asarray(np.sum(self.token_read_s * visible_tokens(context, self.window), axis=-1) + self.state_s)

    def attention_s(self, total: Array, cached: Array) -> Array:
        """Seconds of causal attention of whole prompts; ``total``, ``cached`` shape (k,); result (rows, k)."""
        return np.asarray(self.pair_s @ causal_pairs(total, cached, self.window).T)

    def gemm_s(self, tokens: Array) -> Array:
        """max(streaming, multiplying) of ``tokens`` tokens, shape (rows,) or (rows, k)."""
        weight, expert, idle, flop = self.weight_s, self.expert_s, self.expert_idle, self.token_flop_s
        if tokens.ndim > 1:
            weight, expert, idle, flop = weight[:, None], expert[:, None], idle[:, None], flop[:, None]
        if not expert.any():  # a dense model has no experts to wake; the power below is the costliest operation here
            return np.maximum(weight, flop * tokens)
        return np.maximum(weight + expert * (1.0 - idle**tokens), flop * tokens)

    def decode_s(self, sequences: Array, kv_s: Array) -> Array:
        """Seconds of a pure decode step of ``sequences`` sequences, each reading its KV in ``kv_s``. Shape (rows,)."""
        return self.launch_s + self.latency_s + (self.sequence_s + kv_s + self.token_wire_s) * sequences + self.gemm_s(sequences)

    def chunk_s(self, tokens: Array) -> Array:
        """Seconds of a prefill-only step of ``tokens`` tokens, without attention and per-prompt cost."""
        return np.maximum(self.device_s(tokens), self.prompt_s[:, None] if tokens.ndim > 1 else self.prompt_s)

    def device_s(self, tokens: Array) -> Array:
        """As :meth:`chunk_s`, for a device that never waits for its host."""
        fixed, wire = self.launch_s + self.latency_s, self.token_wire_s
        if tokens.ndim > 1:
            fixed, wire = fixed[:, None], wire[:, None]
        return fixed + self.gemm_s(tokens) + wire * tokens

    def prefill_s(self, uncached: Array, total: Array, chunk: Array) -> Array:
        """Seconds to prefill one prompt alone, in chunks (F8b, F33).

        ``uncached`` and ``total`` (k,), ``chunk`` (rows,); result (rows, k).
        """
        size = np.minimum(chunk[:, None], uncached[None, :])
        full = np.floor(uncached[None, :] / size)
        rest = uncached[None, :] - full * size
        time = full * self.chunk_s(size) + np.where(rest > 0, self.chunk_s(rest), 0.0)
        return time + self.attention_s(total, total - uncached) + self.sequence_s[:, None]

    def decode_breakdown_s(self, sequences: Array, kv_s: Array) -> Mapping[str, Array]:
        """The decode step by what it is spent on; the parts sum to :meth:`decode_s`."""
        stream = self.weight_s + self.expert_s * (1.0 - self.expert_idle**sequences)
        multiply = self.token_flop_s * sequences
        return {
            "weights": np.where(stream >= multiply, stream, 0.0),
            "compute": np.where(stream >= multiply, 0.0, multiply),
            "kv": kv_s * sequences,
            "attention": np.zeros_like(stream),
            "collectives": self.latency_s + self.token_wire_s * sequences,
            "overhead": self.launch_s + self.sequence_s * sequences,
        }

    def prefill_breakdown_s(self, uncached: float, total: float, chunk: Array) -> Mapping[str, Array]:
        """The prefill of one prompt by what it is spent on; the parts sum to :meth:`prefill_s`."""
        chunks = [float(min(c, uncached)) for c in chunk]
        parts = {k: np.zeros_like(self.weight_s) for k in ("weights", "compute", "kv", "attention", "collectives", "overhead")}
        for row, size in enumerate(chunks):
            left = uncached
            while left > 0:
                now = min(size, left)
                left -= now
                stream = self.weight_s[row] + self.expert_s[row] * (1.0 - self.expert_idle[row] ** now)
                multiply = self.token_flop_s[row] * now
                parts["weights" if stream >= multiply else "compute"][row] += max(stream, multiply)
                wire = self.latency_s[row] + self.token_wire_s[row] * now
                device = self.launch_s[row] + wire + max(stream, multiply)
                parts["collectives"][row] += wire
                parts["overhead"][row] += self.launch_s[row] + max(self.prompt_s[row] - device, 0.0)
        parts["overhead"] += self.sequence_s
        parts["attention"] += self.attention_s(np.array([total]), np.array([total - uncached]))[:, 0]
        return parts


def stack(rows: Sequence[Mapping[str, Any]], window: Array) -> StepTerms:
    """Columns from one mapping of scalars (or group vectors) per row."""
    names = [f.name for f in dataclasses.fields(StepTerms) if f.name != "window"]
    return StepTerms(
        **{n: np.array([r[n] for r in rows], dtype=np.float64) for n in names},
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


def take(columns: C, index: Any) -> C:
    """The rows of a dataclass of columns; fields that are no arrays, and ``window``, stay as they are."""
    changes = {}
    for f in dataclasses.fields(columns):  # type: ignore[arg-type]
        value = getattr(columns, f.name)
        if f.name == "window":
            continue
        if isinstance(value, np.ndarray):
            changes[f.name] = value[index]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes[f.name] = take(value, index)
    return dataclasses.replace(columns, **changes)  # type: ignore[type-var]
