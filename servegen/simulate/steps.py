"""The step model of one replica as plain floats: the scalars of one row of :class:`servegen.roofline.step.StepTerms`.

A replay asks for millions of steps, one at a time; numpy scalars would cost more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servegen.roofline.step import StepTerms
from servegen.simulate.drafting import Drafting


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
    at most. With ``stages`` or ``groups`` the seconds are those of one of them (:mod:`servegen.roofline.step`), with ``drafting``
    a decode step is a round that verifies several tokens of each sequence.
    """

    fixed_s: float  # launch and collective latency of any step
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
    stages: int = 1
    groups: int = 1
    group_flop_s: float = 0.0
    expert_spread: float = 0.0
    drafting: Drafting | None = None

    @classmethod
    def of(
        cls, terms: StepTerms, row: int, kv_bytes: Sequence[float], state_bytes: float = 0.0, page_tokens: int = 1
    ) -> StepModel:
        """Row ``row`` of ``terms``; ``kv_bytes`` are the bytes of one token per group of layers, on one device."""
        seen = terms if terms.rounds is None else terms.rounds
        by_width: dict[int, list[float]] = {0: [0.0, 0.0, 0.0]}
        for group, width in enumerate(seen.window):
            entry = by_width.setdefault(int(width), [0.0, 0.0, 0.0])
            entry[0] += float(seen.token_read_s[row, group])
            entry[1] += float(seen.pair_s[row, group])
            entry[2] += float(kv_bytes[group])
        read, pair, token = by_width.pop(0)
        windows = tuple(Window(w, *by_width[w]) for w in sorted(by_width))
        # A sequence of n tokens never takes the pages of more than n + page - 1.
        slack = (page_tokens - 1) * (token + sum(w.token_bytes for w in windows))
        sequence, wire = float(terms.sequence_s[row]), float(terms.token_wire_s[row])
        decode = sequence + float(seen.state_s[row]) + wire
        return cls(
            fixed_s=float(terms.launch_s[row] + terms.latency_s[row]),
            sequence_s=sequence,
            decode_s=decode,
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
            stages=int(terms.stages[row]),
            groups=int(terms.groups[row]),
            group_flop_s=float(terms.group_flop_s[row]),
            expert_spread=float(terms.expert_spread[row]),
            drafting=_drafting(terms, row),
        )

    @property
    def pace(self) -> float:
        """Tokens by which a sequence grows in a decode step; a whole number without drafting."""
        return 1 if self.drafting is None else self.drafting.tokens

    def gemm_s(self, tokens: float, busiest: float = 0.0) -> float:
        """max(streaming, multiplying) of ``tokens`` tokens, ``busiest`` of them in one attention group."""
        stream = self.weight_s
        if self.expert_s:
            woken = 1.0 - self.expert_idle**tokens
            if self.expert_spread:
                woken = min(woken + self.expert_spread * math.sqrt(woken * (1.0 - woken)), 1.0)
            stream += self.expert_s * woken
        multiply = self.flop_s * tokens + self.group_flop_s * busiest
        return stream if stream > multiply else multiply

    def batch_s(self, sequences: int) -> float:
        """Seconds of a decode step without the reading of KV: every stage in turn, the busiest group of each."""
        drafting = self.drafting
        if self.stages == 1 and self.groups == 1 and drafting is None:
            return self.fixed_s + self.decode_s * sequences + self.gemm_s(sequences)
        micro = max(sequences / self.stages, min(sequences, 1))
        busiest = max(micro / self.groups, min(micro, 1.0))
        host = (self.decode_s - self.wire_s) * busiest + self.wire_s * micro
        if drafting is not None:  # on one stage
            wide = drafting.drafted + 1
            verify = self.gemm_s(wide * micro, wide * busiest) + self.wire_s * drafting.drafted * micro
            return self.fixed_s + host + verify + drafting.round_s(micro, busiest)
        return self.stages * (self.fixed_s + host + self.gemm_s(micro, busiest))

    def read_share(self, sequences: int) -> float:
        """What a step waits for of the time to read the KV of all sequences one after the other."""
        if self.stages == 1 and self.groups == 1:
            return 1.0
        micro = max(sequences / self.stages, 1.0)
        return self.stages * max(micro / self.groups, 1.0) / sequences

    def mixed_s(self, sequences: int, tokens: int, ending: int, attention_s: float, prompts: int) -> float:
        """Seconds of a decode step without the reading of KV, in which one stage takes ``tokens`` prompt tokens along."""
        micro = max(sequences / self.stages, 1.0)
        busiest = max(micro / self.groups, 1.0)
        busy = min(prompts, self.groups)
        longer = self.gemm_s(micro + tokens, busiest + tokens / busy) - self.gemm_s(micro, busiest)
        return self.batch_s(sequences) + longer + self.wire_s * tokens + (self.sequence_s * ending + attention_s) / busy

    def prompts_s(self, tokens: int, ending: int, attention_s: float, prompts: int) -> float:
        """Seconds of a stage's prefill-only step of ``prompts`` prompts, ``ending`` of which end."""
        drafted = self.drafting.chunk_s(tokens, tokens / min(prompts, self.groups)) if self.drafting is not None else 0.0
        if self.groups == 1:
            return self.fixed_s + self.sequence_s * ending + self.wire_s * tokens + self.gemm_s(tokens) + attention_s + drafted
        busy = min(prompts, self.groups)
        each = (self.sequence_s * ending + attention_s) / busy
        return self.fixed_s + self.wire_s * tokens + self.gemm_s(tokens, tokens / busy) + each + drafted

    def attention_s(self, past: int, tokens: int) -> float:
        """Seconds of causal attention of ``tokens`` prompt tokens behind ``past`` others."""
        total = past + tokens
        seconds = self.pair_s * (total * total - past * past)
        for w in self.windows:
            seconds += w.pair_s * (_area(total, w.tokens) - _area(past, w.tokens))
        return seconds

    def later_stages_s(self, tokens: int) -> float:
        """Seconds from the end of a prompt's last ``tokens`` tokens on the first stage to their end on the last one."""
        return (self.stages - 1) * self.prompts_s(tokens, 1, self.attention_s(0, tokens), 1)

    def held_bytes(self, context: int) -> float:
        """Bytes on one device of a sequence of ``context`` tokens."""
        held = self.sequence_bytes + self.token_bytes * context
        for w in self.windows:
            held += w.token_bytes * (context if context < w.tokens else w.tokens)
        return held


def _drafting(terms: StepTerms, row: int) -> Drafting | None:
    """The rounds of a row, None where it drafts nothing."""
    rounds = terms.rounds
    if rounds is None or not rounds.drafted[row]:
        return None
    draft = StepModel.of(rounds.draft, row, [0.0] * len(rounds.draft.window))
    return Drafting(
        drafted=int(rounds.drafted[row]),
        acceptance=float(rounds.acceptance[row]),
        tokens=float(rounds.tokens[row]),
        launch_s=float(rounds.launch_s[row]),
        sequence_s=float(rounds.sequence_s[row]),
        wire_s=float(rounds.wire_s[row]),
        chunk_launch_s=float(rounds.chunk_launch_s[row]),
        chunk_wire_s=float(rounds.chunk_wire_s[row]),
        draft=draft,
    )


def _area(tokens: int, window: int) -> int:
    return tokens * tokens if tokens <= window else window * (2 * tokens - window)
