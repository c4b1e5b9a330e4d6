"""The closed-loop benchmark by which serving figures are published: users who each send anew as soon as they are answered.

``users`` requests are sent at once, each answer calls for the next after 2 ms, ten times as many are sent in all. Load
generators differ in two points. Lengths are drawn uniformly from a share of the nominal length to all of it, or are fixed,
which keeps the requests in step with each other. And the first wave counts, or does not.
"""

from __future__ import annotations

import numpy as np

from servegen.record import record
from servegen.simulate.deployment import Deployment, replay
from servegen.simulate.requests import Closed, Ints

#: What the client takes between an answer and its next request.
PAUSE_S = 0.002
#: Requests per user.
ROUNDS = 10


@record
class Benchmark:
    """``shortest`` 0.8 draws lengths from 0.8 of nominal to nominal, 1 fixes them. ``cached`` tokens of a prompt are shared."""

    users: int
    isl: int
    osl: int
    shortest: float = 1.0
    first_wave: bool = True
    cached: int = 0
    seed: int = 0


#: Nominal lengths (prompt, output) of InferenceX, whose lengths are drawn from 0.8 of them on.
DRAWN_PAIRS = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})
DRAWN_SHORTEST = 0.8
#: Nominal lengths of load generators whose requests are all alike; and those among them that warm up first.
FIXED_ISL = frozenset({1024, 2048, 4096})
FIXED_OSL = frozenset({128, 256, 512})
WARM_ISL = frozenset({1000, 2000, 4000, 8000})
WARM_OSL = frozenset({100, 500, 1000, 2000})


def as_published(users: int, isl: int, osl: int, cached: int = 0) -> Benchmark:
    """The benchmark that these lengths are published for, by the nominal lengths of the known load generators.

    Any other lengths are means, and are drawn evenly as far around them as InferenceX draws: traffic of all equal requests,
    which march in step, is a thing of load generators.
    """
    if (isl, osl) in DRAWN_PAIRS:
        return Benchmark(users, isl, osl, DRAWN_SHORTEST, cached=cached)
    if isl in FIXED_ISL and osl in FIXED_OSL:
        return Benchmark(users, isl, osl, cached=cached)
    if isl in WARM_ISL and osl in WARM_OSL:
        return Benchmark(users, isl, osl, first_wave=False, cached=cached)
    longest = 2.0 / (1.0 + DRAWN_SHORTEST)
    return Benchmark(users, round(isl * longest), round(osl * longest), DRAWN_SHORTEST, cached=cached)


@record
class Figures:
    """Means over the requests that count; seconds, tokens/s."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float


def run(deployment: Deployment, bench: Benchmark) -> Figures:
    """Run the benchmark. All figures are nan where a request fits no replica."""
    n = ROUNDS * bench.users
    rng = np.random.Generator(np.random.PCG64(bench.seed))
    isl, osl = _lengths(bench.isl, bench.shortest, n, rng), _lengths(bench.osl, bench.shortest, n, rng)
    cached = np.minimum(np.int64(bench.cached), isl - 1) if bench.cached else None
    result = replay(deployment, Closed(bench.users, isl, osl, PAUSE_S, cached), watch=False)
    if result.refused:
        return Figures(*[float("nan")] * 3)
    counted = slice(0 if bench.first_wave else bench.users, None)
    tpot = result.tpot_s[counted]
    tpot = tpot[~np.isnan(tpot)]
    return Figures(float(result.ttft_s[counted].mean()), float(tpot.mean()) if len(tpot) else 0.0, result.output_tokens_per_s)


def _lengths(nominal: int, shortest: float, n: int, rng: np.random.Generator) -> Ints:
    if shortest == 1.0:
        return np.full(n, nominal, dtype=np.int64)
    return rng.integers(max(round(shortest * nominal), 1), nominal, n, endpoint=True)
