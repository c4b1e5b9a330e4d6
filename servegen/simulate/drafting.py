"""Rounds of speculative decoding in a replay: what a round costs beside the target's step, and how many an answer takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from servegen.simulate.steps import StepModel


@dataclass(frozen=True, slots=True)
class Drafting:
    """One row of :class:`servegen.roofline.speculation.Rounds` as plain numbers. ``tokens`` is the mean yield of a round,
    ``draft`` has the matrices of one pass of the draft.
    """

    drafted: int
    acceptance: float
    tokens: float
    launch_s: float
    sequence_s: float
    wire_s: float
    chunk_launch_s: float
    chunk_wire_s: float
    draft: StepModel

    def round_s(self, sequences: float, busiest: float) -> float:
        """Seconds of drafting in a round of ``sequences``, ``busiest`` of them in one attention group."""
        wide, gemm_s = self.drafted + 1, self.draft.gemm_s
        passes = (self.drafted - 1) * gemm_s(sequences, busiest) + gemm_s(wide * sequences, wide * busiest)
        return self.launch_s + self.sequence_s * busiest + self.wire_s * sequences + passes

    def chunk_s(self, tokens: float, busiest: float) -> float:
        """Seconds that the draft's prefill adds to a step with so many prompt tokens, without attention."""
        return self.chunk_launch_s + self.draft.gemm_s(tokens, busiest) + self.chunk_wire_s * tokens


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
