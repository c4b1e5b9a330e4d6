"""``servegen validate``: load and check specs, without solving."""

from __future__ import annotations

from typing import Annotated

import typer

from servegen.cli.common import format_of, put, put_findings, read_specs, tell, worst
from servegen.errors import UserError


def validate(
    paths: Annotated[list[str], typer.Argument(help="Spec files or folders; - reads stdin.")],
    format: Annotated[str, typer.Option("--format", "-o", help="text, json, github or sarif.")] = "text",
) -> int:
    """Load and check specs."""
    format_of(format, ("text", "json", "github", "sarif"))
    from servegen.compile_fleet import compile_either
    from servegen.report.diagnostics import Finding

    findings: list[Finding] = []
    codes: list[int] = []
    bug: Exception | None = None
    for source in read_specs(paths):
        try:
            compile_either(source.need(), until="resolve")
            findings.append(Finding(source.file, source.name, True))
            codes.append(0)
            if format == "text":
                put(f"{source.file}: {source.name}: ok\n")
        except UserError as error:
            findings.append(Finding(source.file, source.name, False, error.diagnostics))
            codes.append(error.exit_code)
            if format == "text":
                tell(error)
        except Exception as error:  # a bug of ours: the other specs go their own way before it is told
            bug = bug or error
    if bug is not None:
        raise bug
    if format != "text":
        put_findings(findings, format)
    return worst(codes)
