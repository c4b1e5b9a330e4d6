"""Rounds of speculative decoding in a replay: what a round costs beside the target's step, and how many an answer takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from servegen.roofline.speculation import Rounds


@dataclass(frozen=True, slots=True)
class Drafting:
    """One row of :class:`servegen.roofline.speculation.Rounds` as plain numbers. ``tokens`` is the mean yield of a round."""

    drafted: int
    acceptance: float
    tokens: float
    launch_s: float
    weight_s: float
    expert_s: float
    expert_idle: float
    flop_s: float
    chunk_launch_s: float
    chunk_wire_s: float

    @classmethod
    def of(cls, rounds: Rounds | None, row: int) -> Drafting | None:
        """Row ``row`` of ``rounds``, None where it drafts nothing."""
        if rounds is None or not rounds.drafted[row]:
            return None
        return cls(
            drafted=int(rounds.drafted[row]),
            acceptance=float(rounds.acceptance[row]),
            tokens=float(rounds.tokens[row]),
            launch_s=float(rounds.launch_s[row]),
            weight_s=float(rounds.weight_s[row]),
            expert_s=float(rounds.expert_s[row]),
            expert_idle=float(rounds.expert_idle[row]),
            flop_s=float(rounds.flop_s[row]),
            chunk_launch_s=float(rounds.chunk_launch_s[row]),
            chunk_wire_s=float(rounds.chunk_wire_s[row]),
        )

    def round_s(self, sequences: int) -> float:
        """Seconds of drafting in a round, without what each sequence adds by itself."""
        passes = (self.drafted - 1) * self._gemm_s(sequences) + self._gemm_s(sequences * (self.drafted + 1))
        return self.launch_s + passes

    def chunk_s(self, tokens: int) -> float:
        """Seconds that the draft's prefill adds to a step with so many prompt tokens, without attention."""
        return self.chunk_launch_s + self._gemm_s(tokens) + self.chunk_wire_s * tokens

    def _gemm_s(self, tokens: int) -> float:
        stream = self.weight_s + (self.expert_s * (1.0 - self.expert_idle**tokens) if self.expert_s else 0.0)
        return max(stream, self.flop_s * tokens)


class Rounder:
    """Draws how many rounds an answer takes. The same seed and the same order of answers give the same rounds."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64([seed, 1]))

    def rounds(self, drafting: Drafting, tokens: int) -> int:
        """Rounds until ``tokens`` have come, each round yielding 1 + the guesses that are accepted in a row."""
        chance, most = drafting.acceptance, drafting.drafted
        if chance <= 0.0:
            return tokens
        if chance >= 1.0:
            return math.ceil(tokens / (most + 1))
        done = 0
        while True:
            size = int(tokens / drafting.tokens) + 8
            accepted = np.log(1.0 - self._rng.random(size)) / math.log(chance)
            total = np.cumsum(1 + np.minimum(accepted, most).astype(np.int64))
            if total[-1] >= tokens:
                return done + int(np.searchsorted(total, tokens)) + 1
            tokens -= int(total[-1])
            done += size
