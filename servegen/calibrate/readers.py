"""Files of results become rows: the format is told by what a file holds, not by its name.

What a benchmark does not write down (the accelerator, TP, how weights and KV are stored) is given with the file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servegen import inputs
from servegen.calibrate import exports, published
from servegen.calibrate.rows import Row
from servegen.errors import Diagnostic, SpecError, Where

#: Of a prompt or an answer; of the users, or of all requests, of one benchmark; of one server.
MOST_TOKENS, MOST_REQUESTS, MOST_DEVICES = 10**9, 10**7, 10**5


def read(path: Path, given: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows of a file. ``given`` fills the fields that the file leaves open, and never overrules it.

    SpecError where the file cannot be read, is none of the known formats, or leaves a field open that is not given.
    """
    try:
        data = inputs.read(path)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(Diagnostic("io", f"cannot read: {error.strerror or error}", Where(str(path)))) from error
    except UnicodeDecodeError as error:
        where = Where(str(path), *inputs.place(data, error.start))
        raise SpecError(Diagnostic("bad-results", "this is no text in UTF-8", where)) from error
    return parse(text, str(path), given)


def parse(text: str, file: str, given: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows of a file's text; ``file`` is its name in messages and in the source of each row."""
    found = _json(text, file) if text.lstrip()[:1] in ("{", "[") else _csv(text, file)
    known = {k: v for k, v in (given or {}).items() if v not in ("", 0, None)}
    rows = []
    for row in found:
        fill = {k: v for k, v in known.items() if getattr(row, k) in ("", 0, 0.0) or (k == "tp" and row.tp == 1)}
        rows.append(_sane(_complete(replace(row, **fill), file), file).with_throughput())
    return rows


def _sane(row: Row, file: str) -> Row:
    """The row, if a replay of it ends: no count below zero, none beyond what any benchmark has."""
    limits = {"isl": MOST_TOKENS, "osl": MOST_TOKENS, "concurrency": MOST_REQUESTS, "requests": MOST_REQUESTS}
    limits |= {"tp": MOST_DEVICES, "pp": MOST_DEVICES, "shortest": 1}
    for name, most in limits.items():
        value = getattr(row, name)
        if not 0 <= value <= most:  # false of nan, too
            raise _fail(file, f"{row.id or 'a result'}: {name} = {value:g} is not between 0 and {most:,}", "correct the figure")
    if row.tp < 1 or row.pp < 1:
        raise _fail(file, f"{row.id or 'a result'}: tp = {row.tp} and pp = {row.pp} must be 1 or more", "correct the figure")
    return row


def _complete(row: Row, file: str) -> Row:
    """The row, if it names all that a prediction takes."""
    missing = [name for name in ("engine", "model", "accelerator") if not getattr(row, name)]
    if row.kind == "closed":
        missing += [name for name in ("concurrency", "isl", "osl") if not getattr(row, name)]
    if missing and not row.skip:
        hint = f"say it with {' '.join(f'--{name}' for name in missing)}"
        message = f"{row.id or 'a result'} does not say its {', '.join(missing)}"
        raise SpecError(Diagnostic("incomplete-results", message, Where(file), hint))
    return row


def _fail(file: str, why: str, hint: str = "", line: int = 0) -> SpecError:
    known = "known: SGLang bench_serving JSONL, vllm bench serve JSON, aiperf or genai-perf CSV and JSON, guidellm JSON, tables"
    return SpecError(Diagnostic("bad-results", why, Where(file, line, 1 if line else 0), hint or known))


def _json(text: str, file: str) -> list[Row]:
    documents = _documents(text, file)
    rows: list[Row] = []
    for number, (line, document) in enumerate(documents, 1):
        for matches, convert in exports.FORMATS:
            if matches(document):
                try:
                    rows += convert(document, f"{Path(file).name}#{number}", Path(file).name)
                except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                    raise _fail(file, f"a figure is missing or has another type here: {error}", line=line) from error
                break
        else:
            raise _fail(file, "this JSON is the result of no benchmark that servegen knows", line=line)
    return rows


def _documents(text: str, file: str) -> Sequence[tuple[int, dict[str, Any]]]:
    """One JSON document, an array of them, or one per line; with the line each begins at."""
    try:
        value = json.loads(text, object_pairs_hook=inputs.once)
        values = [(1, v) for v in (value if isinstance(value, list) else [value])]
    except RecursionError as error:
        raise _fail(file, "this JSON is nested too deeply") from error
    except ValueError as whole:  # also what a number of thousands of digits raises
        values, known = [], "" if isinstance(whole, json.JSONDecodeError) else str(whole)
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    values.append((number, json.loads(line, object_pairs_hook=inputs.once)))
                except RecursionError as error:
                    raise _fail(file, "this JSON is nested too deeply", line=number) from error
                except ValueError as error:
                    reason = (known or error.msg) if isinstance(error, json.JSONDecodeError) else str(error)
                    raise _fail(file, f"this is no JSON: {reason}", line=number) from error
    if not all(isinstance(v, dict) for _, v in values):
        raise _fail(file, "this JSON holds no results")
    return values


def _converted(
    lines: Sequence[published.Line], places: Sequence[int], convert: Callable[[Sequence[published.Line]], list[Row]], file: str
) -> list[Row]:
    """The rows of a table; an error names the first line that none can be made of."""
    try:
        return convert(lines)
    except (ArithmeticError, LookupError, ValueError) as whole:
        for place, line in zip(places, lines, strict=True):
            try:
                convert([line])
            except (ArithmeticError, LookupError, ValueError) as error:
                raise _fail(file, f"a figure is missing or cannot be: {error}", line=place) from error
        raise _fail(file, str(whole)) from whole


def _csv(text: str, file: str) -> list[Row]:
    try:
        if exports.is_metric_table(text):
            return exports.metric_table(text, f"{Path(file).name}#1", Path(file).name)
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, restval="")
        columns = set(reader.fieldnames or ())
        if again := inputs.twice(reader.fieldnames or ()):
            raise _fail(file, f"the column {again} stands twice", "one of each name", 1)
        lines, places = [], []
        for line in reader:
            if None in line:
                message = "more cells than the header has"
                raise _fail(file, message, "quote a cell that holds a comma", reader.line_num)
            lines.append({k: (v or "").strip() for k, v in line.items() if k})
            places.append(reader.line_num)
    except (csv.Error, ArithmeticError, ValueError) as error:
        raise _fail(file, f"this is neither JSON nor CSV: {error}", line=1) from error
    for telling, needed, convert in published.SCHEMAS:
        if telling <= columns:
            if not needed <= columns:
                missing = ", ".join(sorted(needed - columns))
                raise _fail(file, f"columns are missing: {missing}", f"it needs {', '.join(sorted(needed))}", 1)
            return _converted(lines, places, convert, file)
    raise _fail(file, f"no table that servegen knows has these columns: {', '.join(sorted(columns))[:200]}")
