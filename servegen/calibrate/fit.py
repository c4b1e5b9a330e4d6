"""Constants that agree with measured rows: robust least squares on logarithms, held by priors.

Residuals are pseudo-Huber in log(predicted / measured), so that a factor of two counts the same up and down and a wild row
counts little. Priors are lognormal. Priors of one *pool* share a centre that is fitted with them: what is known of three
engines says where a fourth one lies, and that is what an engine without rows gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servegen.calibrate.constants import INVERSE, Response, matches, names_of, respond, short, u_of, value_of
from servegen.calibrate.predict import setting
from servegen.calibrate.rows import Metric, Row
from servegen.catalog.calibration import physical_range
from servegen.errors import Diagnostic, NotBuiltError, SpecError
from servegen.record import record

Array = NDArray[np.float64]

#: How a metric counts: where its residual turns from square to linear, and its weight. First tokens scatter three times as
#: much as gaps between tokens. Throughput of a closed loop follows from the other two and is not counted again.
LOSS: Mapping[Metric, tuple[float, float]] = {
    "tpot_s": (0.15, 1.0), "ttft_s": (0.3, 0.5), "step_s": (0.15, 1.0), "prefill_s": (0.3, 0.5), "batch_s": (0.15, 1.0),
    "output_tokens_per_s": (0.15, 1.0),
}  # fmt: skip
#: Scatter of a row in log terms at which its residual counts 1.
SCATTER = 0.1
#: Width of a prior around the catalogue's value where nobody states one: shares of a peak, and latencies.
SHARE_SIGMA, LATENCY_SIGMA = 0.25, 0.8
#: No time falls below this share of what it was at the start of a round: the lines are only good nearby.
LEAST = 0.01


@record
class Prior:
    """A constant is near ``value``, times the centre of its ``pool`` if it has one, within ``sigma`` in log terms."""

    value: float
    sigma: float
    pool: str = ""


@record
class Fit:
    """Fitted constants. ``errors`` are relative standard deviations, ``told`` the share of each prior's variance that the rows
    removed, ``alike`` the correlation of each pair that the rows tell apart badly, ``rows`` how many rows each rests on.
    ``responses`` were taken ``at`` these values.
    """

    values: Mapping[str, float]
    start: Mapping[str, float]
    at: Mapping[str, float]
    errors: Mapping[str, float]
    told: Mapping[str, float]
    alike: Mapping[tuple[str, str], float]
    rows: Mapping[str, int]
    pools: Mapping[str, float]
    responses: tuple[Response, ...]
    priors: Mapping[str, Prior] = field(default_factory=dict)


def names_in(rows: Sequence[Row]) -> dict[str, int]:
    """Every constant that the rows depend on, and by how many rows each is reached."""
    found: dict[str, int] = {}
    for row in rows:
        for name in names_of(setting(row)):
            found[name] = found.get(name, 0) + 1
    return found


def default_names(rows: Sequence[Row]) -> list[str]:
    """What is fitted where nobody chooses: the latencies of every engine, the shares of every (device, precision)."""
    wanted = {"step_s", "layer_s", "sequence_s", "request_s", "ew", "ec"}
    return [name for name in names_in(rows) if short(name) in wanted]


def start_values(rows: Sequence[Row], chosen: Sequence[str]) -> dict[str, float]:
    """The catalogue's values of the chosen constants. SpecError for one that no row depends on."""
    found: dict[str, float] = {}
    for row in rows:
        s = setting(row)
        for name in names_of(s):
            for pattern in chosen:
                if matches(pattern, name):
                    found.setdefault(pattern, value_of(name, s))
    missing = [name for name in chosen if name not in found]
    if missing:
        known = ", ".join(names_in(rows))
        raise SpecError(Diagnostic("no-such-constant", f"no row depends on {', '.join(missing)}", hint=f"they depend on {known}"))
    return found


def default_priors(values: Mapping[str, float]) -> dict[str, Prior]:
    """Each constant near its present value."""
    latencies = {"step_s", "layer_s", "prompt_layer_s", "sequence_s", "request_s"}
    return {n: Prior(v, LATENCY_SIGMA if short(n) in latencies else SHARE_SIGMA) for n, v in values.items()}


def fit(
    rows: Sequence[Row],
    chosen: Sequence[str],
    priors: Mapping[str, Prior] | None = None,
    pools: Mapping[str, Prior] | None = None,
    rounds: int = 2,
    start: Mapping[str, float] | None = None,
    each: Callable[[Sequence[Row], Sequence[str], Mapping[str, float]], Sequence[Response]] | None = None,
) -> Fit:
    """Fit the ``chosen`` constants to ``rows``: so many rounds of replaying every row and solving on its slopes.

    ``each`` replays the rows (in parallel, say); the default does so one after the other. NotBuiltError without scipy.
    """
    values = {**start_values(rows, chosen), **(start or {})}
    held = dict(priors or default_priors(values))
    begun = dict(values)
    run = each or _one_by_one
    for _ in range(rounds):
        responses = tuple(run(rows, chosen, values))
        at = dict(values)
        found = solve(responses, at, held, pools or {})
        values = dict(found.values)
    counts = {n: sum(n in r.slopes for r in responses) for n in chosen}
    return Fit(values, begun, at, found.errors, found.told, found.alike, counts, found.pools, responses, held)


def _one_by_one(rows: Sequence[Row], chosen: Sequence[str], values: Mapping[str, float]) -> list[Response]:
    return [respond(row, chosen, values) for row in rows]


@record
class Solution:
    """What one round of :func:`fit` found; fields as there."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    told: Mapping[str, float]
    alike: Mapping[tuple[str, str], float]
    pools: Mapping[str, float]


@record
class _System:
    """The rows as columns: predictions, slopes in u, measurements, weights, turning points of the loss."""

    at: Array
    slopes: Array
    measured: Array
    weight: Array
    turn: Array


def solve(
    responses: Sequence[Response], values: Mapping[str, float], priors: Mapping[str, Prior], pools: Mapping[str, Prior]
) -> Solution:
    """The constants that agree best with responses taken at ``values``; every one of ``values`` is fitted."""
    least_squares = _scipy()
    names, shared = list(values), list(pools)
    system = _system(responses, names)
    u0 = np.array([u_of(n, values[n]) for n in names])
    inverse = np.array([short(n) in INVERSE for n in names])
    centre = np.log([priors[n].value for n in names])
    sigma = np.array([priors[n].sigma for n in names])
    pool_of = np.array([shared.index(priors[n].pool) if priors[n].pool else -1 for n in names], dtype=np.int64)
    pool_centre = np.log([pools[p].value for p in shared]) if shared else np.zeros(0)
    pool_sigma = np.array([pools[p].sigma for p in shared])

    def residuals(z: Array) -> Array:
        x, h = z[: len(names)], z[len(names) :]
        c = np.exp(x)
        u = np.where(inverse, 1.0 / c, c)
        predicted = np.maximum(system.at + system.slopes @ (u - u0), LEAST * system.at)
        e = np.log(predicted / system.measured)
        near = centre + (np.where(pool_of >= 0, h[pool_of], 0.0) if shared else 0.0)
        return np.concatenate(
            [system.weight * _huber(e, system.turn) / SCATTER, (x - near) / sigma, (h - pool_centre) / pool_sigma]
        )

    limits = np.log([physical_range(n) or (math.nan, math.nan) for n in names])
    begin = np.clip(np.log([values[n] for n in names]), limits[:, 0] + 1e-6, limits[:, 1] - 1e-6)
    far = np.full(len(shared), 9.0)
    found = least_squares(
        residuals,
        np.concatenate([begin, pool_centre]),
        bounds=(np.concatenate([limits[:, 0], pool_centre - far]), np.concatenate([limits[:, 1], pool_centre + far])),
        xtol=1e-10,
        ftol=1e-10,
    )
    spread = np.linalg.pinv(found.jac.T @ found.jac)
    deviation = np.sqrt(np.maximum(np.diag(spread), 1e-30))
    n = len(names)
    total = np.where(pool_of >= 0, np.hypot(sigma, pool_sigma[pool_of]), sigma) if shared else sigma
    alike = {(names[i], names[j]): float(spread[i, j] / (deviation[i] * deviation[j])) for i in range(n) for j in range(i + 1, n)}
    return Solution(
        dict(zip(names, (float(v) for v in np.exp(found.x[:n])), strict=True)),
        dict(zip(names, (float(v) for v in deviation[:n]), strict=True)),
        {name: float(1.0 - min(deviation[i] / total[i], 1.0) ** 2) for i, name in enumerate(names)},
        {pair: r for pair, r in alike.items() if abs(r) > ALIKE},
        dict(zip(shared, (float(v) for v in np.exp(found.x[n:])), strict=True)),
    )


#: Correlation above which two constants cannot be told apart.
ALIKE = 0.9


def _huber(e: Array, turn: Array) -> Array:
    """Signed root of twice the pseudo-Huber loss: square within ``turn``, linear beyond."""
    return np.asarray(np.sign(e) * np.sqrt(2.0 * turn**2 * (np.sqrt(1.0 + (e / turn) ** 2) - 1.0)))


def _system(responses: Sequence[Response], names: Sequence[str]) -> _System:
    index = {name: i for i, name in enumerate(names)}
    rows: list[tuple[float, Array, float, float, float]] = []
    for r in responses:
        for metric, measured in r.row.measured.items():
            if metric not in r.at or (metric == "output_tokens_per_s" and r.row.kind == "closed" and "tpot_s" in r.row.measured):
                continue
            if not math.isfinite(r.at[metric]) or r.at[metric] <= 0:
                continue
            slope = np.zeros(len(names))
            for name, found in r.slopes.items():
                slope[index[name]] = found.get(metric, 0.0)
            turn, weight = LOSS[metric]
            rows.append((r.at[metric], slope, measured, weight * math.sqrt(r.row.weight.get(metric, 1.0)), turn))
    if not rows:
        raise SpecError(Diagnostic("nothing-to-fit", "none of the rows can be predicted", hint="--score says why"))
    return _System(*(np.array(column) for column in zip(*rows, strict=True)))


def _scipy() -> Any:
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        message = "fitting takes scipy, which is not installed"
        raise NotBuiltError(Diagnostic("no-scipy", message, hint="pip install 'servegen-compiler[fit]'")) from error
    return least_squares
