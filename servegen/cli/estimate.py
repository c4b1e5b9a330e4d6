"""``servegen estimate``: one explicit configuration, or a table of them, without a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from servegen.cli import configs
from servegen.cli.common import format_of, one_of, put, put_data, show

if TYPE_CHECKING:
    from servegen.catalog.calibration import Calibration


def estimate(
    model: Annotated[str, typer.Option(help="Catalogue name, Hugging Face id or a config.json.")] = "",
    accelerator: Annotated[str, typer.Option(help="Catalogue name of the accelerator.")] = "",
    engine: Annotated[str, typer.Option(help="Engine, or engine@version.")] = "sglang",
    tp: Annotated[int, typer.Option(min=1, max=configs.MOST_DEVICES, help="Tensor parallelism.")] = 1,
    pp: Annotated[int, typer.Option(min=1, max=configs.MOST_DEVICES, help="Pipeline parallelism.")] = 1,
    dp: Annotated[int, typer.Option(min=1, max=configs.MOST_DEVICES, help="Attention data parallelism inside tp.")] = 1,
    ep: Annotated[int, typer.Option(min=1, max=configs.MOST_DEVICES, help="Expert parallelism inside tp.")] = 1,
    weights: Annotated[str, typer.Option(help="bf16, fp8, int8, int4, nvfp4 or mxfp4; default: the checkpoint's own.")] = "",
    kv: Annotated[str, typer.Option(help="bf16, fp8 or int8.")] = "bf16",
    batch: Annotated[int, typer.Option(min=1, max=configs.MOST_USERS, help="Requests at a time.")] = 1,
    isl: Annotated[int, typer.Option(min=1, max=configs.MOST_TOKENS, help="Prompt tokens.")] = 1024,
    osl: Annotated[int, typer.Option(min=1, max=configs.MOST_TOKENS, help="Output tokens.")] = 128,
    cached: Annotated[int, typer.Option(min=0, max=configs.MOST_TOKENS, help="Prompt tokens that are in the prefix cache.")] = 0,
    chunk: Annotated[int, typer.Option(min=0, max=configs.MOST_TOKENS, help="Tokens of a chunk; 0: the engine's default.")] = 0,
    mode: Annotated[str, typer.Option(help="static, aggregated or disaggregated.")] = "aggregated",
    physics: Annotated[str, typer.Option(help="ideal or calibrated.")] = "calibrated",
    from_: Annotated[str, typer.Option("--from", help="CSV of configurations, one a row; - reads stdin.")] = "",
    calibration: Annotated[Path | None, typer.Option(help="Use the constants and accelerators of this file.")] = None,
    format: Annotated[str, typer.Option("--format", "-o", help="text, json, yaml; csv and json with --from.")] = "text",
) -> int:
    """Estimate one explicit configuration, or every row of a table."""
    one_of("--physics", physics, configs.PHYSICS)
    if from_:
        stated = (model, accelerator, engine, tp, pp, dp, ep, weights, kv, batch, isl, osl, cached, chunk, mode)
        if stated != ("", "", "sglang", 1, 1, 1, 1, "", "bf16", 1, 1024, 128, 0, 0, "aggregated"):
            raise typer.BadParameter(
                "the table states each configuration; only --physics, --calibration and --format go with it",
                param_hint="'--from'",
            )
        as_table = "csv" if format == "text" else format_of(format, ("csv", "json", "yaml"))
        return _table(from_, as_table, physics, _own(calibration))
    format_of(format, ("text", "json", "yaml"))
    one_of("--mode", mode, configs.MODES)
    for flag, value in (("--model", model), ("--accelerator", accelerator)):
        if not value:
            raise typer.BadParameter("it is needed, unless --from gives a table", param_hint=f"'{flag}'")
    from servegen.solve.estimate import EstimateRequest
    from servegen.solve.estimate import estimate as estimate_one

    request = EstimateRequest(
        model=model, accelerator=accelerator, engine=engine, tp=tp, pp=pp, dp=dp, ep=ep, weights=weights, kv=kv,
        batch=batch, isl=isl, osl=osl, cached=cached, chunk=chunk, mode=cast(Any, mode), physics=cast(Any, physics),
        calibration=_own(calibration),
    )  # fmt: skip
    found = estimate_one(request)
    if format == "text":
        from servegen.report.text import estimate_blocks

        show(estimate_blocks(found))
    else:
        from servegen.report.json import estimate_json

        put_data([estimate_json(found)], True, format)
    return 0


def _own(file: Path | None) -> Calibration:
    """The calibration of a file, or the one that changes nothing."""
    from servegen.catalog.calibration import NONE, load_calibration

    return NONE if file is None else load_calibration(file)


def _table(file: str, format: str, physics: str, calibration: Calibration) -> int:
    """Every row of a table, in order; a row that cannot be estimated says why and stops nothing."""
    rows = configs.read(file)
    results = [configs.estimate_row(row, physics, calibration) for row in rows]
    if format == "csv":
        put(configs.as_csv(results))
    else:
        put_data(results, False, format)
    return 0
