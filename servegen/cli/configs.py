"""The table of ``servegen estimate --from``: configurations in, one row of figures each out."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from servegen import inputs
from servegen.errors import Diagnostic, InfeasibleError, ServegenError, SpecError, UserError, Where

if TYPE_CHECKING:
    from servegen.catalog.calibration import Calibration

NEEDED = ("engine", "model", "accelerator", "isl", "osl", "concurrency")
MODES = ("aggregated", "disaggregated", "static")
PHYSICS = ("calibrated", "ideal")
#: Columns of words and of whole numbers; an empty cell leaves the default of EstimateRequest.
WORDS = ("engine", "model", "accelerator", "weights", "kv", "mode")
COUNTS = (
    "tp", "pp", "dp", "ep", "isl", "osl", "concurrency", "cached", "chunk",
    "prefill_tp", "prefill_workers", "decode_tp", "decode_workers",
)  # fmt: skip
#: Where a column is not called as the field that it fills.
FIELDS = {"concurrency": "batch"}
TOKENS = ("isl", "osl", "cached", "chunk")
#: The largest counts: more than anything has, and few enough for what is made for each user and device.
MOST_TOKENS, MOST_USERS, MOST_DEVICES = 10**9, 10**6, 10**4
OUTPUT = ("id", "ttft_ms", "tpot_ms", "output_tokens_per_s", "fits", "error")


def read(file: str) -> list[dict[str, str]]:
    """The rows of a CSV file (``-``: stdin). Raises SpecError if it is none, or lacks a column that every row needs."""
    try:
        data = inputs.bounded(sys.stdin.buffer, "<stdin>") if file == "-" else inputs.read(file)
    except OSError as error:
        raise SpecError(Diagnostic("io", f"cannot read: {error.strerror or error}", Where(file))) from error
    columns: list[str] = []
    rows: list[dict[str, str]] = []
    line = 1
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        for cells in reader:
            line = reader.line_num
            if not columns:
                columns = [c.strip() for c in cells]
                if again := inputs.twice(columns):
                    raise _bad(file, line, f"the column {again} stands twice", "one of each name")
            elif len(cells) > len(columns):
                message = f"{len(cells)} cells where the header has {len(columns)}"
                raise _bad(file, line, message, "quote a cell that holds a comma")
            elif cells:
                rows.append(dict.fromkeys(columns, "") | {k: v.strip() for k, v in zip(columns, cells, strict=False)})
    except UnicodeDecodeError as error:
        where = Where(file, *inputs.place(data, error.start))
        raise SpecError(Diagnostic("bad-table", f"this is no CSV in UTF-8: {error.reason}", where)) from error
    except csv.Error as error:
        raise _bad(file, reader.line_num or line, f"this is no CSV: {error}") from error
    missing = [column for column in ("id", *NEEDED) if column not in columns]
    if missing:
        hint = f"columns: id, {', '.join([*WORDS, *COUNTS])}"
        raise SpecError(Diagnostic("bad-table", f"columns are missing: {', '.join(missing)}", Where(file, 1, 1), hint))
    return rows


def _bad(file: str, line: int, message: str, hint: str = "") -> SpecError:
    return SpecError(Diagnostic("bad-table", message, Where(file, line, 1), hint))


def estimate_row(row: Mapping[str, str], physics: str, calibration: Calibration) -> dict[str, Any]:
    """The figures of one row, with ``error`` set instead where there are none. Never raises."""
    empty: dict[str, Any] = dict.fromkeys(OUTPUT)
    try:
        return empty | {"id": row["id"]} | _figures(_request(row, physics, calibration))
    except UserError as error:
        said = "; ".join(d.message + (f" ({d.hint})" if d.hint else "") for d in error.diagnostics)
    except InfeasibleError as error:
        said = error.message
    except (ServegenError, ValueError) as error:
        said = str(error)
    except Exception as error:
        # One row must not lose the others: what would be a bug elsewhere is this row's error.
        said = f"bug in servegen: {type(error).__name__}: {error}"
    return empty | {"id": row["id"], "error": " ".join(said.split()) or "failed"}


def as_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """Figures with six significant digits; nothing where there is none."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(OUTPUT)
    for result in results:
        writer.writerow([_written(result[column]) for column in OUTPUT])
    return stream.getvalue()


def _request(row: Mapping[str, str], physics: str, calibration: Calibration) -> Any:
    from servegen.solve.estimate import EstimateRequest

    for column in NEEDED:
        if not row.get(column):
            raise ValueError(f"{column} is empty")
    given: dict[str, Any] = {column: row[column] for column in WORDS if row.get(column)}
    given |= {FIELDS.get(column, column): _count(column, row[column]) for column in COUNTS if row.get(column)}
    if given.get("mode", MODES[0]) not in MODES:
        raise ValueError(f"mode: {given['mode']!r} is not one of {', '.join(MODES)}")
    return EstimateRequest(**given, physics=physics, calibration=calibration)  # type: ignore[arg-type]  # checked by the command


def _figures(request: Any) -> dict[str, Any]:
    from servegen.solve.estimate import estimate

    found = estimate(request)
    serving = found.serving
    return {
        "ttft_ms": _shown(serving.ttft_s, 1e3),
        "tpot_ms": _shown(serving.tpot_s, 1e3),
        "output_tokens_per_s": _shown(serving.output_tokens_per_s, 1.0),
        "fits": bool(found.memory.fits),
    }


def _count(column: str, text: str) -> int:
    try:
        value = inputs.figure(text)
    except ValueError:
        raise ValueError(f"{column}: {text!r} is no number") from None
    if not value.is_integer() or value < 0:
        raise ValueError(f"{column}: {text!r} is no whole number")
    most = MOST_TOKENS if column in TOKENS else MOST_USERS if column == "concurrency" else MOST_DEVICES
    if value > most:
        raise ValueError(f"{column}: {text!r} is more than {most:,}")
    return int(value)


def _shown(value: float | None, scale: float) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value) * scale


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
