"""Tokens that come together: one gap of a round of speculative decoding, then as many gaps of nothing as it accepted guesses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servegen.record import record
from servegen.service.demand import Demand
from servegen.service.server import Server

Array = NDArray[np.float64]


@record
class Burst:
    """Tokens of an answer per round, shape (rows,): their mean over a mean answer, the variance of one round's, and the mean
    number that the last round yields beyond the end of the answer.
    """

    tokens: Array
    variance: Array
    past: Array


def burst(s: Server, d: Demand) -> Burst | None:
    """What a round yields of a mean answer; None without speculative decoding.

    The last round of an answer yields more than is left of it, on average E[N(N-1)]/(2 E[N]) tokens (renewal theory), so that
    ``d.gaps`` tokens take more than their share of rounds; never fewer than one round, nor more than one a token.
    """
    rounds = s.terms.rounds
    if rounds is None:
        return None
    mean, square = rounds.tokens, rounds.tokens_square
    past = (square - mean) / (2.0 * mean)
    return Burst(np.clip(mean * d.gaps / (d.gaps + past), 1.0, max(d.gaps, 1.0)), square - mean * mean, past)


def rounds_of(b: Burst | None, d: Demand) -> Array | float:
    """Decode steps of a mean answer."""
    return d.gaps if b is None else d.gaps / b.tokens


def per_token(b: Burst | None, step_s: Array) -> Array:
    """Mean gap when a step takes ``step_s``."""
    return step_s if b is None else step_s / b.tokens
