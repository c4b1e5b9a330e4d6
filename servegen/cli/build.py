"""``servegen build``: solve, render, validate, write; or say what is stale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servegen.cli.common import (
    Source,
    check_templates,
    diagnostics_of,
    folder,
    format_of,
    one_of,
    processes,
    put,
    put_findings,
    read_specs,
    say,
    say_all,
    solving,
    tell,
    worst,
)
from servegen.errors import Diagnostic, ServegenError, StaleError, UserError, Where

if TYPE_CHECKING:
    from servegen.bundle import Bundle
    from servegen.compile import Result
    from servegen.compile_fleet import FleetResult

SHOWN_FILES = 6


def build(
    paths: Annotated[list[str], typer.Argument(help="Spec files or folders; - reads stdin.")],
    out: Annotated[Path, typer.Option("--out", "-o", parser=folder, metavar="PATH", help="The output folder.")] = Path("out"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; name what is stale and exit 2.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Like --check, and show a unified diff.")] = False,
    locked: Annotated[bool, typer.Option("--locked", help="Render the locked plan without solving.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Replay each plan; enlarge it until it holds. --check and --diff do as was built."),
    ] = False,
    stop_after: Annotated[
        str, typer.Option(help="Print what a stage makes, write nothing: load, resolve, plan, render or validate.")
    ] = "emit",
    templates: Annotated[Path | None, typer.Option(help="Folder of your own templates, searched first.")] = None,
    format: Annotated[str, typer.Option("--format", help="Of the diagnostics: text, json, github or sarif.")] = "text",
) -> int:
    """Solve, render, validate and write out/<name>/."""
    format_of(format, ("text", "json", "github", "sarif"))
    from servegen.compile import STAGES, was_verified
    from servegen.compile_fleet import compile_either
    from servegen.report.diagnostics import Finding
    from servegen.report.diagnostics import text as diagnostics_text

    stages = [name for name, _ in STAGES]
    one_of("--stop-after", stop_after, stages)
    if stop_after != "emit" and (check or diff):
        raise typer.BadParameter("there is nothing to compare before emit", param_hint="'--stop-after'")
    if verify and locked:
        raise typer.BadParameter("a locked plan is rendered as it is; servegen simulate replays it", param_hint="'--verify'")
    until = "validate" if check or diff else stop_after

    try:
        check_templates(templates)
    except UserError as error:
        if format == "text":
            tell(error)
        else:
            put_findings([Finding(str(templates), "", False, error.diagnostics)], format)
        return error.exit_code

    def one(source: Source, warned: list[Diagnostic]) -> None:
        """Take one spec as far as was asked; what the user is warned of goes into ``warned``. Raises ServegenError."""
        loaded = source.need()
        # A tree is compared with one that is made the way it was.
        before = not (verify or locked) and was_verified(out, source.name)
        again = verify or (before and (check or diff))
        with solving(loaded):
            result = compile_either(loaded, until, templates, out if locked else None, out, again, processes())
        warned += result.warnings
        if format == "text":
            say_all(warned)
        if before and until == "emit":
            say(f"note: {source.name}: the plan that stood here was verified by a replay, this one is not (--verify)")
        if check or diff:
            _compare(result, out, diff, line)
        elif until == "emit":
            line(_written(result, out))
        else:
            _print_stage(result, until)

    line = say if format != "text" else lambda text: put(f"{text}\n")
    findings: list[Finding] = []
    codes: list[int] = []
    bug: Exception | None = None
    for source in read_specs(paths):
        warned: list[Diagnostic] = []
        try:
            one(source, warned)
            codes.append(0)
            findings.append(Finding(source.file, source.name, True, tuple(warned)))
        except ServegenError as error:
            codes.append(error.exit_code)
            told = (*diagnostics_of(error, source.file), *warned)
            findings.append(Finding(source.file, source.name, False, told))
            if format == "text" and isinstance(error, StaleError) and check and not diff:
                put(diagnostics_text(error.diagnostics))
            elif format == "text":
                tell(error)
        except Exception as error:  # a bug of ours: the other specs go their own way before it is told
            bug = bug or error
    if bug is not None:
        raise bug
    if format != "text":
        put_findings(findings, format)
    return worst(codes)


_STALE = {
    "missing": "this file is missing",
    "extra": "a former build wrote this file, the present one does not",
    "different": "this file differs from what its inputs give",
}


def _compare(result: Result | FleetResult, out: Path, show_diff: bool, line: Callable[[str], None]) -> None:
    """Name or show what is stale. Raises StaleError, with a diagnostic for each file, if anything is."""
    from servegen import emit

    bundle = _bundle(result)
    changes = emit.check(out, bundle)
    if not changes:
        line(f"{bundle.name}: up to date")
        return
    if show_diff:
        put(emit.diff(out, bundle))
    hint = f"servegen build {result.loaded.file} -o {out}" + (" --verify" if result.verify else "")
    raise StaleError(
        Diagnostic("stale", _STALE[change.kind], Where(str(out / bundle.name / change.path)), hint if last else "")
        for change, last in zip(changes, [False] * (len(changes) - 1) + [True], strict=True)
    )


def _written(result: Result | FleetResult, out: Path) -> str:
    """One line: whether the tree is new, changed or as it was, and which files changed."""
    bundle = _bundle(result)
    place = f"{bundle.name}: "
    if not result.changes:
        return f"{place}unchanged"
    kinds = {kind: [c.path for c in result.changes if c.kind == kind] for kind in ("created", "updated", "removed")}
    if len(kinds["created"]) == len(result.changes) == len(bundle.files) + 1:
        return f"{place}created {len(result.changes)} files in {out / bundle.name}"
    parts = [f"{kind} {_some(paths)}" for kind, paths in kinds.items() if paths]
    return place + "; ".join(parts)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - SHOWN_FILES
    return ", ".join(paths[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")


def _print_stage(result: Result | FleetResult, stage: str) -> None:
    """What the stage made, to stdout."""
    from servegen.codec import dumps
    from servegen.report.json import yaml_text

    if stage == "load":
        put(yaml_text(result.loaded.shown))
    elif stage == "resolve" and result.problem is not None:
        put("".join(f"{digest}  {name}\n" for name, digest in sorted(result.problem.inputs.items())))
    elif stage == "plan" and result.plan is not None:
        put(dumps(result.plan))
    else:
        bundle = _bundle(result)
        put("".join(f"==> {bundle.name}/{path} <==\n{bundle.files[path]}\n" for path in sorted(bundle.files)))


def _bundle(result: Result | FleetResult) -> Bundle:
    if result.bundle is None:
        raise ValueError("nothing was rendered")
    return result.bundle
