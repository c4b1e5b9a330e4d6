"""Findings for people, programs, GitHub's pull requests and code scanners.

:class:`Finding` pairs a spec with what was said about it; every renderer takes a list of them.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

from servegen.errors import Diagnostic
from servegen.record import record
from servegen.report.figures import visible

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@record
class Finding:
    """``file`` as it was given; ``name`` of the spec, ``""`` where it could not be read; ``ok`` if no error stands."""

    file: str
    name: str
    ok: bool
    diagnostics: tuple[Diagnostic, ...] = ()


def text(diagnostics: Sequence[Diagnostic]) -> str:
    """One finding after the other as a compiler writes them."""
    return "".join("\n".join(visible(line) for line in str(d).split("\n")) + "\n" for d in diagnostics)


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """One object a spec, with its diagnostics."""
    return [
        {"file": f.file, "name": f.name or None, "valid": f.ok, "diagnostics": [one_json(d) for d in f.diagnostics]}
        for f in findings
    ]


def one_json(diagnostic: Diagnostic) -> dict[str, Any]:
    """``line`` and ``column`` count from 1 and are null where unknown."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "file": diagnostic.where.file or None,
        "line": diagnostic.where.line or None,
        "column": diagnostic.where.column or None,
        "hint": diagnostic.hint or None,
    }


def github(findings: Sequence[Finding]) -> str:
    """Workflow commands that GitHub Actions turns into annotations."""
    lines = []
    for diagnostic in _all(findings):
        where = diagnostic.where
        title = f"servegen {diagnostic.code}"
        properties = {"file": where.file, "line": where.line, "col": where.column, "title": title}
        given = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value)
        command = {"error": "error", "warning": "warning", "note": "notice"}[diagnostic.severity]
        message = diagnostic.message + (f"\nhint: {diagnostic.hint}" if diagnostic.hint else "")
        lines.append(f"::{command} {given}::{_data(message)}\n")
    return "".join(lines)


def sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """A SARIF 2.1.0 log (OASIS, 2020) with one run."""
    found = _all(findings)
    rules = sorted({d.code for d in found})
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "servegen", "version": version, "rules": [{"id": rule} for rule in rules]}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(d, rules.index(d.code)) for d in found],
            }
        ],
    }


def _result(diagnostic: Diagnostic, rule: int) -> dict[str, Any]:
    message = diagnostic.message + (f"\nhint: {diagnostic.hint}" if diagnostic.hint else "")
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": diagnostic.severity,
        "message": {"text": message},
    }
    where = diagnostic.where
    if where.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": _uri(where.file)}}
        if where.line:
            place["region"] = {"startLine": where.line} | ({"startColumn": where.column} if where.column else {})
        result["locations"] = [{"physicalLocation": place}]
    return result


def _uri(file: str) -> str:
    path = file.replace("\\", "/")
    quoted = urllib.parse.quote(path)
    return f"file://{quoted}" if path.startswith("/") else quoted


def _all(findings: Sequence[Finding]) -> list[Diagnostic]:
    """Every diagnostic once: the specs of one file share what is wrong with the file."""
    return list(dict.fromkeys(d for f in findings for d in f.diagnostics))


def _data(text: str) -> str:
    return re.sub(r"[%\r\n]", lambda m: f"%{ord(m[0]):02X}", text)


def _property(text: str) -> str:
    return re.sub(r"[%\r\n:,]", lambda m: f"%{ord(m[0]):02X}", text)
