"""``servegen plan``: solve, and show what was chosen and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegen.cli.common import Source, format_of, lock_of, put, put_data, read_lock, read_specs, show, tell, worst
from servegen.errors import Diagnostic, InfeasibleError, UserError, Where

if TYPE_CHECKING:
    from servegen.explanation import Against, Explanation
    from servegen.plan import Plan


def plan(
    paths: Annotated[list[str], typer.Argument(help="Spec files or folders; - reads stdin.")],
    format: Annotated[str, typer.Option("--format", "-o", help="text, json, yaml or markdown.")] = "text",
    show_spec: Annotated[
        bool, typer.Option("--show-spec", help="Print the spec with every default; do not solve.")
    ] = False,
    templates: Annotated[Path | None, typer.Option(help="Folder of your own templates, searched first.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Replay the plan; enlarge it until every bound is kept.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Walk the decision: where latency comes from, what binds, what comes next.")
    ] = False,
    against: Annotated[
        str, typer.Option(metavar="LOCK", help="Say what changed since this plan.lock.json, and which input caused it.")
    ] = "",
) -> int:
    """Solve; show the choice, why, the runners-up, the Pareto frontier, the cost."""
    format_of(format, ("text", "json", "yaml", "markdown"))
    for flag, given in (("--explain", explain), ("--against", bool(against)), ("--verify", verify)):
        if show_spec and given:
            raise typer.BadParameter("--show-spec does not solve", param_hint=f"'{flag}'")
    sources = read_specs(paths)
    if show_spec:
        return _show_specs(sources, "json" if format == "json" else "yaml")
    from servegen.compile import compile_spec

    entries: list[Any] = []
    codes: list[int] = []
    for source in sources:
        found: Any
        more = _More()
        try:
            locked = _locked(against, source) if against else None
            try:
                done = compile_spec(source.need(), until="plan", verify=verify)
                found, code = done.plan, 0
                if explain and done.problem is not None and done.plan is not None:
                    more = replace(more, explanation=_explained(done.problem, done.plan))
            except InfeasibleError as error:
                found, code = error, error.exit_code
            if locked is not None:
                more = replace(more, comparison=_compared(source, None if code else found, locked))
            codes.append(code)
        except UserError as error:
            tell(error)
            codes.append(error.exit_code)
            continue
        if format in ("json", "yaml"):
            entries.append(_data(found, more))
        else:
            if any(code in (0, 3) for code in codes[:-1]):
                put("\n")
            _page(found, more, format, templates)
    if format in ("json", "yaml"):
        put_data(entries, len(sources) == 1, format)
    return worst(codes)


@dataclass(frozen=True)
class _More:
    """What was asked for beside the plan."""

    explanation: Explanation | None = None
    comparison: Against | None = None


def _locked(path: str, source: Source) -> Plan:
    """The lock that a spec is held against; of a folder of outputs the spec's own."""
    name = source.need().name
    file = lock_of(path, name)
    locked = read_lock(file)
    if locked.name != name:
        message = f"this is the lock of {locked.name}, and the spec is {name}"
        raise UserError(Diagnostic("other-spec", message, Where(file), "a plan is held against a lock of its own name"))
    return locked


def _explained(problem: Any, plan: Plan) -> Explanation:
    from servegen.solve.explained import explained

    return explained(problem, plan)


def _compared(source: Source, plan: Plan | None, locked: Plan) -> Against:
    from servegen.solve.against import against

    return against(source.need(), plan, locked)


def _data(found: Any, more: _More) -> dict[str, Any]:
    from servegen.report.json import infeasible_json, plan_json

    data = infeasible_json(found) if isinstance(found, InfeasibleError) else plan_json(found)
    if more.explanation is not None:
        from servegen.report.explanation import explanation_json

        data["explain"] = explanation_json(more.explanation)
    if more.comparison is not None:
        from servegen.report.explanation import against_json

        data["against"] = against_json(more.comparison)
    return data


def _page(found: Any, more: _More, format: str, templates: Path | None) -> None:
    from servegen.report.text import infeasible_blocks, plan_blocks

    blocks: list[Any] = []
    if more != _More():
        from servegen.report.explanation import against_blocks, explanation_blocks

        blocks += explanation_blocks(more.explanation) if more.explanation is not None else []
        blocks += against_blocks(more.comparison) if more.comparison is not None else []
    if isinstance(found, InfeasibleError):
        show([*infeasible_blocks(found), *blocks])
    elif format == "markdown":
        from servegen.render.environment import Environment
        from servegen.report.markdown import blocks_markdown, plan_markdown

        put(plan_markdown(found, Environment(templates)))
        put(f"\n{blocks_markdown(blocks)}" if blocks else "")
    else:
        show([*plan_blocks(found), *blocks])


def _show_specs(sources: list[Source], format: str) -> int:
    """Print the specs with every default, those of the catalogue included."""
    from servegen.compile import compile_spec
    from servegen.report.json import yaml_text

    shown: list[Any] = []
    codes: list[int] = []
    for source in sources:
        try:
            problem = compile_spec(source.need(), until="resolve").problem
            shown.append(problem.shown if problem is not None else source.need().shown)
            codes.append(0)
        except UserError as error:
            tell(error)
            codes.append(error.exit_code)
    if format == "json":
        put_data(shown, len(sources) == 1, "json")
    else:
        put("---\n".join(yaml_text(spec) for spec in shown))
    return worst(codes)
