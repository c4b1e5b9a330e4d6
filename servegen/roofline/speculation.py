"""Speculative decoding: drafting g tokens and verifying them together, as one *round* in place of a decode step (F49).

A round of B sequences verifies B*(g+1) tokens in one pass of the target, whose KV each sequence reads once, and runs g passes of
the draft over B sequences; the one that takes in what was verified sees all B*(g+1) tokens. Each drafted token is accepted with
chance a if all before it were, so that a round yields N = 1 .. g+1 tokens with P(N > j) = a^j.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.roofline.attention import visible_tokens

if TYPE_CHECKING:
    from servegen.roofline.step import StepTerms

Array = NDArray[np.float64]


def yield_moments(drafted: Array, acceptance: Array) -> tuple[Array, Array]:
    """Mean and mean square of the tokens of one round, shape (rows,): (1-a^(g+1))/(1-a), which is g+1 at a = 1."""
    j = np.arange(float(drafted.max(initial=0.0)) + 1.0)
    beyond = np.where(j <= drafted[:, None], acceptance[:, None] ** j, 0.0)
    return beyond.sum(axis=1), beyond @ (2.0 * j + 1.0)


@record
class DraftMemory:
    """What a draft takes of one device, shape (rows,).

    ``weight_bytes`` beside the engine's fraction, ``kv_share`` the part of a token's KV that is the draft's, ``queries`` the
    tokens of a sequence that one step computes logits for.
    """

    weight_bytes: Array
    kv_share: Array
    queries: Array


@record
class Rounds:
    """What a round adds to a decode step, shape (rows,); ``drafted`` 0 is a plain step, to which nothing is added.

    Groups of layers, (rows, groups), are the target's and then the draft's; ``window`` is (groups,). ``token_read_s`` is the
    reading of one cached token by a whole round, ``pair_s`` the causal attention of prefill as in the step's own terms.
    ``launch_s``, ``sequence_s`` and ``wire_s`` are the drafting of a round besides matrices and KV: fixed, per sequence of a
    group, per sequence; ``chunk_launch_s`` and ``chunk_wire_s`` those of the draft's own prefill. ``draft`` has the matrices of
    one pass of the draft, nothing in rows that do not draft.
    """

    drafted: Array
    acceptance: Array
    tokens: Array
    tokens_square: Array
    launch_s: Array
    sequence_s: Array
    wire_s: Array
    state_s: Array
    chunk_launch_s: Array
    chunk_wire_s: Array
    token_read_s: Array
    pair_s: Array
    window: Array
    draft: StepTerms

    def kv_s(self, context: Array | float) -> Array:
        """Seconds that the reading of one sequence's KV adds to a round."""
        return np.asarray(np.sum(self.token_read_s * visible_tokens(context, self.window), axis=-1) + self.state_s)

    @cached_property
    def verified(self) -> Array:
        """Tokens of one sequence that a round verifies."""
        return 1.0 + self.drafted

    @cached_property
    def passes(self) -> Array:
        """Passes of a round that draft one token of each sequence."""
        return np.maximum(self.drafted - 1.0, 0.0)

    def draft_s(self, sequences: Array, busiest: Array | None = None) -> Array:
        """Seconds that a round spends on drafting, without the reading of KV; ``busiest`` sequences are in one group, None where
        there are no groups."""
        wide, alone = self.verified, self.draft.gemm_s(sequences, busiest)
        all_of_them = self.draft.gemm_s(wide * sequences, None if busiest is None else wide * busiest)
        passes = self.passes * alone + all_of_them
        return self.launch_s + self.sequence_s * (sequences if busiest is None else busiest) + self.wire_s * sequences + passes

    def chunk_s(self, tokens: Array, busiest: Array | None = None) -> Array:
        """Seconds that the draft's prefill adds to a prefill step, without attention; shape of ``tokens``."""
        fixed, wire = self.chunk_launch_s, self.chunk_wire_s
        if tokens.ndim > 1:
            fixed, wire = fixed[:, None], wire[:, None]
        return fixed + self.draft.gemm_s(tokens, busiest) + wire * tokens
