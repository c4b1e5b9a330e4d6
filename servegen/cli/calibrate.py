"""``servegen calibrate``: fits constants to benchmark results, or judges predictions by them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegen.cli.common import format_of, one_of, put, put_data, say, show

if TYPE_CHECKING:
    from servegen.calibrate.run import Calibrated, Scored

GROUPS = ("all", "engine", "accelerator", "model", "weights", "concurrency", "group")


def calibrate(
    results: Annotated[
        list[Path] | None, typer.Argument(metavar="[RESULTS]", help="Files of benchmark results.", show_default=False)
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Measure the devices of this machine instead; needs torch.")] = False,
    budget: Annotated[
        int, typer.Option(min=0, max=3600, help="With --probe: seconds of measuring; 0: 50.", show_default=False)
    ] = 0,
    score: Annotated[bool, typer.Option("--score", help="Only judge predictions; fit nothing.")] = False,
    by: Annotated[str, typer.Option(help=f"Group errors by one of {', '.join(GROUPS)}.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the calibration file here.")] = None,
    constant: Annotated[list[str] | None, typer.Option(help="Fit this constant; may be repeated.", show_default=False)] = None,
    calibration: Annotated[Path | None, typer.Option(help="Judge, or start from, the constants of this file.")] = None,
    engine: Annotated[str, typer.Option(help="Engine, where the results do not say.")] = "",
    model: Annotated[str, typer.Option(help="Model, where the results do not say; the one whose shapes are probed.")] = "",
    accelerator: Annotated[str, typer.Option(help="Accelerator, where the results do not say.")] = "",
    tp: Annotated[int, typer.Option(min=0, help="Tensor parallelism, where the results do not say.")] = 0,
    weights: Annotated[str, typer.Option(help="Precision of weights, where the results do not say.")] = "",
    kv: Annotated[str, typer.Option(help="Precision of the KV cache, where the results do not say.")] = "",
    concurrency: Annotated[int, typer.Option(min=0, help="Users at a time, where the results do not say.")] = 0,
    isl: Annotated[int, typer.Option(min=0, help="Prompt tokens, where the results do not say.")] = 0,
    osl: Annotated[int, typer.Option(min=0, help="Output tokens, where the results do not say.")] = 0,
    format: Annotated[str, typer.Option("--format", "-o", help="text, json or yaml; csv with --score.")] = "text",
) -> int:
    """Fit engine and accelerator constants to benchmark results, or judge predictions by them; or measure an accelerator."""
    if probe:
        given = {
            "RESULTS": results, "--score": score, "--by": by, "--constant": constant, "--calibration": calibration,
            "--engine": engine, "--accelerator": accelerator, "--tp": tp, "--weights": weights, "--kv": kv,
            "--concurrency": concurrency, "--isl": isl, "--osl": osl,
        }  # fmt: skip
        idle = [name for name, value in given.items() if value]
        if idle:
            raise typer.BadParameter(f"a probe measures for itself and has no use for {', '.join(idle)}", param_hint="'--probe'")
        from servegen.cli.probe import probe as probe_device

        return probe_device(model, budget, out, format_of(format, ("text", "json", "yaml")))
    if not results:
        raise typer.BadParameter("files of benchmark results are needed, or --probe", param_hint="'RESULTS'")
    if budget:
        raise typer.BadParameter("only a probe takes its time", param_hint="'--budget'")
    format_of(format, ("text", "json", "yaml", "csv") if score else ("text", "json", "yaml"))
    if by:
        one_of("--by", by, GROUPS)
    if score and out is not None:
        raise typer.BadParameter("--score fits nothing, so there is nothing to write", param_hint="'--out'")
    from servegen.calibrate.readers import read
    from servegen.calibrate.run import calibrate as calibrate_rows
    from servegen.calibrate.run import judge
    from servegen.catalog.calibration import NONE, load_calibration

    said: dict[str, Any] = {
        "engine": engine, "model": model, "accelerator": accelerator, "tp": tp, "weights": weights, "kv": kv,
        "concurrency": concurrency, "isl": isl, "osl": osl,
    }  # fmt: skip
    rows = [row for path in results for row in read(path, said)]
    start = load_calibration(calibration) if calibration is not None else NONE
    if score:
        scored = judge(rows, start)
        _tell_left(scored.unpredicted)
        _show_scores(scored, by, format)
        return 0 if scored.pairs else 1
    found = calibrate_rows(rows, tuple(constant or ()), start=start, progress=say)
    _tell_left(found.unpredicted)
    text = _write(found, out)
    if format == "text":
        from servegen.report.calibration import fit_blocks

        show(fit_blocks(_constants(found), _errors(found), [f"{d.code}: {d.message}; {d.hint}" for d in found.findings]))
        if out is None:
            say("nothing was written: --out FILE writes the calibration file")
    else:
        put_data([_as_data(found, text)], True, format)
    return 0


def _tell_left(left: Sequence[tuple[str, str]]) -> None:
    """Which rows were not used, by reason."""
    reasons: dict[str, list[str]] = {}
    for id, why in left:
        reasons.setdefault(why, []).append(id)
    for why, ids in reasons.items():
        say(f"note: {len(ids)} of the rows left out ({ids[0]}{' ...' if len(ids) > 1 else ''}): {why}")


def _write(found: Calibrated, out: Path | None) -> str:
    from servegen.calibrate import file
    from servegen.calibrate.run import engine_ids
    from servegen.cli.probe import write

    rows = [row for row, _ in found.after]
    text = file.text(found.fit, rows, file.bands(found.left_out), engine_ids(rows))
    if out is not None:
        write(out, text)
    return text


def _constants(found: Calibrated) -> list[tuple[str, float, float, float, int]]:
    fit = found.fit
    return [(n, fit.start[n], fit.values[n], fit.errors[n], fit.rows[n]) for n in sorted(fit.values)]


def _errors(found: Calibrated) -> list[tuple[str, str, int, float, float]]:
    """Stage, metric, rows, mean and median absolute error."""
    from servegen.calibrate.score import score as score_pairs

    stages = (("before", found.before), ("after", found.after), ("left out", found.left_out))
    return [(name, s.metric, s.rows, s.mean, s.median) for name, pairs in stages for s in score_pairs(pairs)]


def _as_data(found: Calibrated, text: str) -> dict[str, Any]:
    return {
        "constants": [{"name": n, "before": a, "after": b, "fitError": e, "rows": r} for n, a, b, e, r in _constants(found)],
        "errors": [{"stage": s, "metric": m, "rows": n, "mean": a, "median": b} for s, m, n, a, b in _errors(found)],
        "folds": list(found.folds),
        "warnings": [{"code": d.code, "message": d.message, "hint": d.hint} for d in found.findings],
        "calibration": text,
    }


def _show_scores(scored: Scored, by: str, format: str) -> None:
    from servegen.calibrate.score import Score
    from servegen.calibrate.score import score as score_pairs

    tables: dict[str, list[Score]] = {name: score_pairs(scored.pairs, name) for name in ([by] if by else GROUPS)}
    rows = [
        {
            "by": name,
            "group": s.group,
            "metric": s.metric,
            "rows": s.rows,
            "mean": s.mean,
            "median": s.median,
            "p90": s.p90,
            "bias": s.bias,
        }
        for name, table in tables.items()
        for s in table
    ]
    if format == "csv":
        stream = io.StringIO()
        writer = csv.DictWriter(stream, list(rows[0]) if rows else ["by"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
        put(stream.getvalue())
    elif format == "text":
        from servegen.report.calibration import score_blocks

        show(score_blocks(rows))
    else:
        put_data([rows], True, format)
