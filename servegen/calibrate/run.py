"""A whole calibration: fit, leave each group out in turn, replay what was left out, and say how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from servegen.calibrate import fit as fitting
from servegen.calibrate.constants import Response, calibration_of
from servegen.calibrate.fit import Fit, Prior
from servegen.calibrate.identify import folds, warnings
from servegen.calibrate.predict import predict, setting
from servegen.calibrate.rows import Row, usable
from servegen.calibrate.score import Pair
from servegen.catalog.calibration import NONE, Calibration
from servegen.errors import Diagnostic, ServegenError, UserError
from servegen.record import record

Progress = Callable[[str], None]


@record
class Scored:
    """Rows with their predictions; ``unpredicted`` are rows by id with the reason why there is none."""

    pairs: tuple[Pair, ...]
    unpredicted: tuple[tuple[str, str], ...]


@record
class Calibrated:
    """A fit with its predictions: ``before`` by the catalogue, ``after`` by the fit, ``left_out`` by fits that had not seen the
    row's group (by the name of each fold); and the findings about what the rows can tell.
    """

    fit: Fit
    before: tuple[Pair, ...]
    after: tuple[Pair, ...]
    left_out: tuple[Pair, ...]
    folds: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    unpredicted: tuple[tuple[str, str], ...]


def judge(rows: Sequence[Row], calibration: Calibration = NONE) -> Scored:
    """Predictions of every row that can be predicted."""
    pairs: list[Pair] = []
    refused: list[tuple[str, str]] = []
    for row in rows:
        if row.skip or not usable([row]):
            refused.append((row.id, row.skip or "it holds no figure"))
            continue
        try:
            beyond = impossible(row)
            if beyond:
                refused.append((row.id, beyond))
                continue
            pairs.append((row, predict(row, calibration)))
        except ServegenError as error:
            refused.append((row.id, _first(error)))
    return Scored(tuple(pairs), tuple(refused))


def impossible(row: Row) -> str:
    """Why a figure cannot be right: it beats the ideal roofline, at the specified bandwidth and peak and without latency.

    Only rows of single steps and batches are asked, where the ideal is exact; a replay has no ideal of its own.
    """
    if row.kind not in ("decode", "prefill", "batch"):
        return ""
    ideal = predict(row, physics="ideal")
    for metric, value in row.measured.items():
        if metric in ideal and (value > ideal[metric] if metric == "output_tokens_per_s" else value < ideal[metric]):
            return "it beats the specified bandwidth or peak of its device"
    return ""


def _first(error: ServegenError) -> str:
    return error.diagnostics[0].message if isinstance(error, UserError) else str(error)


def calibrate(
    rows: Sequence[Row],
    chosen: Sequence[str] = (),
    priors: Mapping[str, Prior] | None = None,
    pools: Mapping[str, Prior] | None = None,
    rounds: int = 2,
    start: Calibration = NONE,
    progress: Progress = lambda _: None,
) -> Calibrated:
    """Fit ``chosen`` constants (default: `fit.default_names`) to what can be predicted of ``rows``."""
    progress("predicting with the catalogue's constants")
    scored = judge(rows, start)
    own = [row for row, _ in scored.pairs if start.has(row.accelerator)]
    judged = "an accelerator of the calibration's own is judged, not fitted"
    unpredicted = (*scored.unpredicted, *((row.id, judged) for row in own))
    known = [row for row, _ in scored.pairs if row not in own]
    names = list(chosen) or fitting.default_names(known)
    begin = {name: c.value for name, c in start.constants.items() if name in names}
    progress(f"fitting {len(names)} constants to {len(known)} rows")
    fit = fitting.fit(known, names, priors, pools, rounds, begin)
    after = tuple((row, predict(row, calibration_of(fit.values))) for row in known)
    left, held = [], folds(known)
    for name, out in held:
        progress(f"leaving out {name}")
        ids = {id(row) for row in out}
        some = [r for r in fit.responses if id(r.row) not in ids]
        values = leave_out(fit, some, pools or {})
        left += [(row, predict(row, calibration_of(values))) for row in out]
    return Calibrated(fit, scored.pairs, after, tuple(left), tuple(n for n, _ in held), tuple(warnings(fit)), unpredicted)


def leave_out(fit: Fit, responses: Sequence[Response], pools: Mapping[str, Prior]) -> dict[str, float]:
    """Constants by some of a fit's responses only. What they do not reach falls back to its prior."""
    at = {n: fit.at[n] for n in fit.values}
    return dict(fitting.solve(responses, at, fit.priors, pools).values)


def engine_ids(rows: Sequence[Row]) -> dict[str, str]:
    """Catalogue ids of the engines as the rows write them."""
    return {row.engine: setting(row).engine.id for row in rows}
