"""``servegen plan``: solve, and show what was chosen and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servegen.cli.common import (
    Source,
    check_templates,
    format_of,
    lock_of,
    processes,
    put,
    put_data,
    read_lock,
    read_specs,
    show,
    solving,
    tell,
    worst,
)
from servegen.errors import Diagnostic, InfeasibleError, UserError, Where
from servegen.record import record

#: Why a fleet is not walked through.
NO_FLEET = "--explain and --against speak of one spec, and this is a fleet"

if TYPE_CHECKING:
    from servegen.compile import Result
    from servegen.explanation import Against, Explanation
    from servegen.plan import Plan
    from servegen.spec.load import LoadedSpec


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
    try:
        check_templates(templates)
    except UserError as error:
        tell(error)
        return error.exit_code
    sources = read_specs(paths)
    if show_spec:
        return _show_specs(sources, "json" if format == "json" else "yaml")
    from servegen.compile import Result
    from servegen.compile_fleet import compile_either
    from servegen.spec.load import LoadedSpec

    entries: list[Any] = []
    codes: list[int] = []
    bug: Exception | None = None
    for source in sources:
        found: Any
        more = _More()
        try:
            loaded = source.need()
            if (explain or against) and not isinstance(loaded, LoadedSpec):
                raise UserError(Diagnostic("fleet", NO_FLEET, Where(source.file), "plan the member's own spec"))
            locked = _locked(against, loaded.name) if against else None
            try:
                with solving(loaded):
                    done = compile_either(loaded, until="plan", verify=verify, processes=processes())
                found, code = done.plan, 0
                if explain and isinstance(done, Result):
                    more = replace(more, explanation=_explained(done))
            except InfeasibleError as error:
                found, code = error, error.exit_code
            if locked is not None and isinstance(loaded, LoadedSpec):
                more = replace(more, comparison=_compared(loaded, None if code else found, locked))
            codes.append(code)
        except UserError as error:
            tell(error)
            codes.append(error.exit_code)
            continue
        except Exception as error:  # a bug of ours: the other specs go their own way before it is told
            bug = bug or error
            continue
        if format in ("json", "yaml"):
            entries.append(_data(found, more))
        else:
            if any(code in (0, 3) for code in codes[:-1]):
                put("\n")
            _page(found, more, format, templates)
    if format in ("json", "yaml"):
        put_data(entries, len(sources) == 1, format)
    if bug is not None:
        raise bug
    return worst(codes)


@record
class _More:
    """What was asked for beside the plan."""

    explanation: Explanation | None = None
    comparison: Against | None = None


def _locked(path: str, name: str) -> Plan:
    """The lock that a spec is held against; of a folder of outputs the spec's own."""
    file = lock_of(path, name)
    locked = read_lock(file)
    if locked.name != name:
        message = f"this is the lock of {locked.name}, and the spec is {name}"
        raise UserError(Diagnostic("other-spec", message, Where(file), "a plan is held against a lock of its own name"))
    return locked


def _explained(done: Result) -> Explanation:
    from servegen.compile import made
    from servegen.solve.explained import explained

    return explained(made(done.problem, "resolve"), made(done.plan, "plan"))


def _compared(loaded: LoadedSpec, plan: Plan | None, locked: Plan) -> Against:
    from servegen.solve.against import against

    return against(loaded, plan, locked)


def _data(found: Any, more: _More) -> dict[str, Any]:
    from servegen.plan import Plan
    from servegen.report.json import infeasible_json, plan_json

    if not isinstance(found, (Plan, InfeasibleError)):
        from servegen.report.fleet import fleet_json

        return fleet_json(found)
    data = infeasible_json(found) if isinstance(found, InfeasibleError) else plan_json(found)
    if more.explanation is not None:
        from servegen.report.explanation import explanation_json

        data["explain"] = explanation_json(more.explanation)
    if more.comparison is not None:
        from servegen.report.explanation import against_json

        data["against"] = against_json(more.comparison)
    return data


def _page(found: Any, more: _More, format: str, templates: Path | None) -> None:
    from servegen.plan import Plan
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

        env = Environment(templates)
        if isinstance(found, Plan):
            put(plan_markdown(found, env))
        else:
            from servegen.report.fleet import fleet_markdown

            put(fleet_markdown(found, env, [plan_markdown(plan, env) for plan in found.members if plan]))
        put(f"\n{blocks_markdown(blocks)}" if blocks else "")
    elif isinstance(found, Plan):
        show([*plan_blocks(found), *blocks])
    else:
        from servegen.report.fleet import fleet_blocks

        show(fleet_blocks(found))


def _show_specs(sources: list[Source], format: str) -> int:
    """Print the specs with every default, those of the catalogue included."""
    from servegen.compile_fleet import compile_either, shown_of
    from servegen.report.json import yaml_text

    shown: list[Any] = []
    codes: list[int] = []
    for source in sources:
        try:
            shown += shown_of(compile_either(source.need(), until="resolve"))
            codes.append(0)
        except UserError as error:
            tell(error)
            codes.append(error.exit_code)
    if format == "json":
        put_data(shown, len(shown) == 1, "json")
    else:
        put("---\n".join(yaml_text(spec) for spec in shown))
    return worst(codes)
