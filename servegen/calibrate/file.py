"""The calibration file: what `deploy.calibration` of a spec names, and what stands in Git beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from servegen.calibrate.fit import Fit
from servegen.calibrate.rows import Row
from servegen.calibrate.score import Pair, half_width
from servegen.catalog.calibration import API_VERSION, BAND_METRICS, KIND

#: Metrics of rows by the names that bands have.
BAND_OF = {"ttft": "ttft_s", "itl": "tpot_s", "throughput": "output_tokens_per_s"}
#: Fewer unseen rows than this say nothing about the ends of a band.
ROWS_OF_A_BAND = 20


def bands(left_out: Sequence[Pair]) -> dict[str, dict[str, tuple[float, int]]]:
    """By engine and metric, the half-width that holds 90 % of rows that the fit had not seen, and how many there were."""
    out: dict[str, dict[str, tuple[float, int]]] = {}
    for engine in sorted({r.engine for r, _ in left_out}):
        some = [pair for pair in left_out if pair[0].engine == engine]
        for metric in BAND_METRICS:
            name = BAND_OF[metric]
            count = sum(name in r.measured for r, _ in some)
            width = half_width(some, name)  # type: ignore[arg-type]
            if count >= ROWS_OF_A_BAND and math.isfinite(width):
                out.setdefault(engine, {})[metric] = (width, count)
    return out


def text(fit: Fit, rows: Sequence[Row], widths: Mapping[str, Mapping[str, tuple[float, int]]], engines: Mapping[str, str]) -> str:
    """The file's text. ``engines`` maps an engine as rows write it to its id; the same arguments give the same bytes."""
    date = max((r.date for r in rows), default="")
    source = ", ".join(sorted({r.source for r in rows}))
    lines = [*head(len(rows), source), "constants:"]
    for name in sorted(fit.values):
        lines.append(f"  {quoted(name)}: {node(fit.values[name], fit.errors[name], fit.rows[name], source, date)}")
    lines.append("bands:" if widths else "bands: {}")
    for engine, by_metric in sorted(widths.items()):
        lines.append(f"  {engines.get(engine, engine)}:")
        for metric, (width, count) in by_metric.items():
            lines.append(
                f"    {metric}: {node(width, math.nan, count, 'conformal 90 % quantile of rows left out of the fit', date)}"
            )
    return "\n".join(lines) + "\n"


def head(rows: int, source: str) -> list[str]:
    """The first lines of every calibration file."""
    return [
        "# Constants in place of the catalogue's, by `servegen calibrate`. A spec names this file in deploy.calibration.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        f"metadata: {{rows: {rows}, source: {quoted(source)}}}",
    ]


def node(value: float, error: float, rows: int, source: str, date: str = "", origin: str = "fitted") -> str:
    """A constant as a flow mapping, four significant digits."""
    parts = [f"value: {value:.4g}"]
    if math.isfinite(error):
        parts.append(f"fit_error: {error:.3g}")
    parts += [f"rows: {rows}", f"origin: {origin}"]
    if date:
        parts.append(f"date: {quoted(date)}")
    parts.append(f"source: {quoted(source)}")
    return "{" + ", ".join(parts) + "}"


def quoted(value: str) -> str:
    """Text as YAML takes it, whatever is in it."""
    return json.dumps(value, ensure_ascii=False)
