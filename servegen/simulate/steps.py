"""The step model of one replica as plain floats: the scalars of one row of :class:`servegen.roofline.step.StepTerms`.

A replay asks for millions of steps, one at a time; numpy scalars would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servegen.roofline.step import StepTerms


@dataclass(frozen=True, slots=True)
class Window:
    """Layers that see the last ``tokens`` tokens: seconds per cached token and per causal pair, bytes per token."""

    tokens: int
    read_s: float
    pair_s: float
    token_bytes: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step, and bytes of KV on one device. ``read_s``, ``pair_s`` and ``token_bytes`` are those of the layers
    that see the whole context, ``windows`` those of the others, one entry per distinct width, ascending.

    ``sequence_bytes`` is what a sequence takes whatever its length: recurrent state, and what rounding up to pages costs
    at most.
    """

    fixed_s: float  # launch and collective latency of any step
    prompt_s: float  # what a step with a prompt takes at the least
    sequence_s: float  # host and sampling cost of one sequence or of one prompt that ends
    decode_s: float  # what one decoding sequence adds besides its KV: the former, its state, its token on the wire
    wire_s: float
    weight_s: float
    expert_s: float
    expert_idle: float
    flop_s: float
    read_s: float
    pair_s: float
    token_bytes: float
    sequence_bytes: float
    windows: tuple[Window, ...] = ()

    @classmethod
    def of(
        cls, terms: StepTerms, row: int, kv_bytes: Sequence[float], state_bytes: float = 0.0, page_tokens: int = 1
    ) -> StepModel:
        """Row ``row`` of ``terms``; ``kv_bytes`` are the bytes of one token per group of layers, on one device."""
        by_width: dict[int, list[float]] = {0: [0.0, 0.0, 0.0]}
        for group, width in enumerate(terms.window):
            entry = by_width.setdefault(int(width), [0.0, 0.0, 0.0])
            entry[0] += float(terms.token_read_s[row, group])
            entry[1] += float(terms.pair_s[row, group])
            entry[2] += float(kv_bytes[group])
        read, pair, token = by_width.pop(0)
        windows = tuple(Window(w, *by_width[w]) for w in sorted(by_width))
        # A sequence of n tokens never takes the pages of more than n + page - 1.
        slack = (page_tokens - 1) * (token + sum(w.token_bytes for w in windows))
        sequence, wire = float(terms.sequence_s[row]), float(terms.token_wire_s[row])
        return cls(
            fixed_s=float(terms.launch_s[row] + terms.latency_s[row]),
            prompt_s=float(terms.prompt_s[row]),
            sequence_s=sequence,
            decode_s=sequence + float(terms.state_s[row]) + wire,
            wire_s=wire,
            weight_s=float(terms.weight_s[row]),
            expert_s=float(terms.expert_s[row]),
            expert_idle=float(terms.expert_idle[row]),
            flop_s=float(terms.token_flop_s[row]),
            read_s=read,
            pair_s=pair,
            token_bytes=token,
            sequence_bytes=state_bytes + slack,
            windows=windows,
        )

    def gemm_s(self, tokens: int) -> float:
        """max(streaming, multiplying) of ``tokens`` tokens."""
        stream = self.weight_s
        if self.expert_s:
            stream += self.expert_s * (1.0 - self.expert_idle**tokens)
        multiply = self.flop_s * tokens
        return stream if stream > multiply else multiply

    def batch_s(self, sequences: int) -> float:
        """Seconds of a decode step without the reading of KV."""
        return self.fixed_s + self.decode_s * sequences + self.gemm_s(sequences)

    def attention_s(self, past: int, tokens: int) -> float:
        """Seconds of causal attention of ``tokens`` prompt tokens behind ``past`` others."""
        total = past + tokens
        seconds = self.pair_s * (total * total - past * past)
        for w in self.windows:
            seconds += w.pair_s * (_area(total, w.tokens) - _area(past, w.tokens))
        return seconds

    def held_bytes(self, context: int) -> float:
        """Bytes on one device of a sequence of ``context`` tokens."""
        held = self.sequence_bytes + self.token_bytes * context
        for w in self.windows:
            held += w.token_bytes * (context if context < w.tokens else w.tokens)
        return held


def _area(tokens: int, window: int) -> int:
    return tokens * tokens if tokens <= window else window * (2 * tokens - window)
