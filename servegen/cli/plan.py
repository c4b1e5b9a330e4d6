"""``servegen plan``: solve, and show what was chosen and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from servegen.cli.common import Source, format_of, put, put_data, read_specs, show, tell, worst
from servegen.errors import InfeasibleError, UserError


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
) -> int:
    """Solve; show the choice, why, the runners-up, the Pareto frontier, the cost."""
    format_of(format, ("text", "json", "yaml", "markdown"))
    sources = read_specs(paths)
    if show_spec:
        return _show_specs(sources, "json" if format == "json" else "yaml")
    from servegen.compile_fleet import compile_either

    entries: list[Any] = []
    codes: list[int] = []
    for source in sources:
        found: Any
        try:
            found = compile_either(source.need(), until="plan", verify=verify).plan
            codes.append(0)
        except InfeasibleError as error:
            found = error
            codes.append(error.exit_code)
        except UserError as error:
            tell(error)
            codes.append(error.exit_code)
            continue
        if format in ("json", "yaml"):
            entries.append(_data(found))
        else:
            if any(code in (0, 3) for code in codes[:-1]):
                put("\n")
            _page(found, format, templates)
    if format in ("json", "yaml"):
        put_data(entries, len(sources) == 1, format)
    return worst(codes)


def _data(found: Any) -> dict[str, Any]:
    from servegen.fleet import Fleet
    from servegen.report.json import infeasible_json, plan_json

    if isinstance(found, InfeasibleError):
        return infeasible_json(found)
    if isinstance(found, Fleet):
        from servegen.report.fleet import fleet_json

        return fleet_json(found)
    return plan_json(found)


def _page(found: Any, format: str, templates: Path | None) -> None:
    from servegen.fleet import Fleet
    from servegen.report.text import infeasible_blocks, plan_blocks

    if isinstance(found, InfeasibleError):
        show(infeasible_blocks(found))
    elif format == "markdown":
        from servegen.render.environment import Environment
        from servegen.report.markdown import plan_markdown

        env = Environment(templates)
        if isinstance(found, Fleet):
            from servegen.report.fleet import fleet_markdown

            put(fleet_markdown(found, env, [plan_markdown(plan, env) for plan in found.members if plan]))
        else:
            put(plan_markdown(found, env))
    elif isinstance(found, Fleet):
        from servegen.report.fleet import fleet_blocks

        show(fleet_blocks(found))
    else:
        show(plan_blocks(found))


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
