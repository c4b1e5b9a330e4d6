"""Request traces, read as they are published."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import math
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from servegen import inputs
from servegen.errors import Diagnostic, UserError, Where
from servegen.record import record

# Tokens in one entry of hash_ids, as the Mooncake traces (kvcache-ai/Mooncake, FAST25-release) cut them.
HASH_BLOCK_TOKENS = 512

_MOST_TOKENS = 10**9
#: From the first to the last request: minutes are counted one by one, and a wrong unit or clock shows here.
_MOST_YEARS = 10
_MOST_SPAN_S = _MOST_YEARS * 366 * 86400.0

_FORMATS_HINT = (
    "known are CSV with TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or arrival_s,input_tokens,output_tokens, and "
    "JSON lines with timestamp,input_length,output_length (Mooncake, ms) or arrival_s,input_tokens,output_tokens"
)


@dataclass(frozen=True, eq=False)
class TraceRequests:
    """The requests of a trace in order of arrival; n is their number, at least 1.

    ``arrival_s`` float64 (n,), ascending, 0 at the first; ``input_tokens`` and ``output_tokens`` int64 (n,), at least
    1; ``hashes`` the prefix block ids of each request (`HASH_BLOCK_TOKENS` tokens a block), None where the trace has
    none.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    hashes: tuple[tuple[int, ...], ...] | None

    def __len__(self) -> int:
        return len(self.arrival_s)


@record
class _Format:
    """Names of the three columns, and how a cell of the first becomes seconds."""

    arrival: str
    tokens_in: str
    tokens_out: str
    seconds: Callable[[Any], float]

    @property
    def names(self) -> tuple[str, str, str]:
        return self.arrival, self.tokens_in, self.tokens_out


class _BadCell(Exception):
    """Explains why a cell cannot be read."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def trace_requests(path: str | os.PathLike[str]) -> TraceRequests:
    """Every request of a trace file, sorted by arrival (those that arrive together keep the order of the file).

    Reads CSV or JSON lines, gzipped where the name ends in ``.gz``; the format is told by the header or the keys, other
    columns are ignored, blank lines carry no request. UserError naming file and line for a line that cannot be read
    (none is skipped), for an unknown format, an empty trace, or a file that cannot be opened.
    """
    file = os.fspath(path)
    lines = _lines(file)
    head, first = 0, ""
    for first in lines:
        head += 1
        if first.strip():
            break
    numbered = itertools.chain(itertools.repeat("\n", head - 1), [first], lines)
    if _is_json(first):
        rows, formats = _json_rows(file, numbered), _JSON_FORMATS
    else:
        rows, formats = _csv_rows(file, numbered), _CSV_FORMATS

    arrival_s, tokens_in, tokens_out = array("d"), array("q"), array("q")
    hashes: list[tuple[int, ...]] = []
    chosen: _Format | None = None
    hashed = False
    earliest, latest = math.inf, -math.inf
    for line, row in rows:
        if chosen is None:
            chosen = next((f for f in formats if all(name in row for name in f.names)), None)
            if chosen is None:
                names = ", ".join(row)
                raise _error("trace-format", f"no known trace has the columns {names}", file, head, _FORMATS_HINT)
            hashed = "hash_ids" in row
        try:
            at_s = chosen.seconds(_cell(row, chosen.arrival))
            earliest, latest = min(earliest, at_s), max(latest, at_s)
            if latest - earliest > _MOST_SPAN_S:
                message = f"{chosen.arrival} lies more than {_MOST_YEARS} years from that of another line"
                raise _BadCell(message, "arrival_s is in seconds, Mooncake's timestamp in milliseconds")
            arrival_s.append(at_s)
            tokens_in.append(_tokens(row, chosen.tokens_in))
            tokens_out.append(_tokens(row, chosen.tokens_out))
            if ("hash_ids" in row) is not hashed:
                raise _BadCell("hash_ids must stand on every line or on none")
            if hashed:
                hashes.append(_blocks(row["hash_ids"], tokens_in[-1]))
        except _BadCell as bad:
            raise _error("trace-line", bad.message, file, line, bad.hint) from None
    if not arrival_s:
        raise _error("trace-empty", "the trace holds no request", file, hint=_FORMATS_HINT)

    arrivals = np.array(arrival_s, dtype=np.float64)
    order = np.argsort(arrivals, kind="stable")
    arrivals = arrivals[order]
    return TraceRequests(
        arrival_s=arrivals - arrivals[0],
        input_tokens=np.array(tokens_in, dtype=np.int64)[order],
        output_tokens=np.array(tokens_out, dtype=np.int64)[order],
        hashes=tuple(hashes[i] for i in order) if hashed else None,
    )


def _error(code: str, message: str, file: str, line: int = 0, hint: str = "") -> UserError:
    return UserError(Diagnostic(code, message, Where(file, line, 1 if line else 0), hint))


def _lines(file: str) -> Iterator[str]:
    """The lines of a file, one at a time: a trace of a million requests need not stand in memory as text.

    Only line ends cut; splitlines() would also cut at characters that may stand inside a JSON string.
    """
    try:
        if file.endswith(".gz"):
            with _opened(file) as raw:  # its checksum stands at the end, and damage must not pass for a bad line
                size = 0
                while piece := raw.read(1 << 20):
                    size += len(piece)
                    if size > inputs.MOST_TRACE_BYTES:
                        raise inputs.too_large(file, inputs.MOST_TRACE_BYTES)
        elif os.path.getsize(file) > inputs.MOST_TRACE_BYTES:
            raise inputs.too_large(file, inputs.MOST_TRACE_BYTES)
        with _opened(file) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline=None) as text:
            yield from text
    except UnicodeDecodeError as error:
        hint = "" if file.endswith(".gz") else "a gzipped trace must be named .gz"
        raise _error("trace-file", "the trace is not UTF-8 text", file, _bad_line(file), hint) from error
    # zlib.error and EOFError (a file cut short) are no OSError, unlike gzip.BadGzipFile.
    except (OSError, EOFError, zlib.error) as error:
        damaged = not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile)  # what it holds, not how it lies there
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _error("trace-file", f"the trace cannot be read: {reason}", file, int(damaged)) from error


def _opened(file: str) -> BinaryIO:
    raw = inputs.opened(file)
    if not file.endswith(".gz"):
        return raw
    raw.close()
    return cast(BinaryIO, gzip.open(file))


def _bad_line(file: str) -> int:
    """Which line of a file holds the first byte that is not UTF-8."""
    with _opened(file) as raw:
        for number, line in enumerate(raw, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 0


def _csv_rows(file: str, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, {lower-case column name: cell}) of every row below the header."""
    reader = csv.reader(lines, strict=True)
    names: list[str] = []
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if not names:
                names = [name.strip().lower() for name in row]
                if again := inputs.twice(names):
                    raise _error("trace-format", f"the column {again} stands twice", file, reader.line_num, "one of each name")
            elif len(row) != len(names):
                message = f"{len(row)} cells where the header has {len(names)}"
                raise _error("trace-line", message, file, reader.line_num)
            else:
                yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise _error("trace-line", f"not CSV: {error}", file, reader.line_num) from error


def _json_rows(file: str, lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, object) of every line that is not blank."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=inputs.once)
        # ValueError is also what an integer of thousands of digits raises, RecursionError what thousands of brackets do.
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise _error("trace-line", f"not JSON: {reason}", file, number) from error
        if not isinstance(row, dict):
            raise _error("trace-line", f"line {number} is no JSON object", file, number, _FORMATS_HINT)
        yield number, row


def _is_json(line: str) -> bool:
    """Whether a line begins a JSON value, be it one that no trace has: the header of a CSV never does."""
    if line.lstrip()[:1] in ("{", "["):
        return True
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _cell(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise _BadCell(f"{name} is missing")
    return row[name]


def _tokens(row: Mapping[str, Any], name: str) -> int:
    cell = _cell(row, name)
    tokens = _number(cell, name)
    if not tokens.is_integer():
        raise _BadCell(f"{name} must be a whole number, not {cell!r}")
    if tokens < 1:
        raise _BadCell(f"{name} must be at least 1, not {cell!r}", "leave failed requests out of the trace")
    if tokens > _MOST_TOKENS:
        raise _BadCell(f"{name} is out of range: {cell!r}")
    return int(tokens)


def _number(cell: Any, name: str) -> float:
    try:
        # float() would take True and the text "nan".
        number = math.nan if isinstance(cell, bool) else inputs.figure(cell) if isinstance(cell, str) else float(cell)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _BadCell(f"{name} must be a number, not {cell!r}")
    return number


def _blocks(cell: Any, tokens: int) -> tuple[int, ...]:
    # bool is an int to Python.
    if not isinstance(cell, list) or not all(type(block) is int for block in cell):
        raise _BadCell("hash_ids must be a list of whole numbers")
    if len(cell) > math.ceil(tokens / HASH_BLOCK_TOKENS):
        raise _BadCell(f"{len(cell)} hash_ids for {tokens} tokens: a block holds {HASH_BLOCK_TOKENS}")
    return tuple(cell)


def _date(cell: Any) -> float:
    """Seconds since 1970 of an ISO date and time; without a zone it counts as UTC, and only differences are used."""
    text = str(cell).strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _BadCell(f"timestamp must be an ISO date and time, not {cell!r}") from None
    epoch = _EPOCH if moment.tzinfo is None else _EPOCH_UTC
    return (moment - epoch).total_seconds()


_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

_PLAIN = _Format("arrival_s", "input_tokens", "output_tokens", lambda cell: _number(cell, "arrival_s"))
_AZURE = _Format("timestamp", "contexttokens", "generatedtokens", _date)
_MOONCAKE = _Format("timestamp", "input_length", "output_length", lambda cell: _number(cell, "timestamp") / 1000)
_CSV_FORMATS = (_AZURE, _PLAIN)
_JSON_FORMATS = (_MOONCAKE, _PLAIN)
