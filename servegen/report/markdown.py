"""PLAN.md: one page on which a reviewer sees what was chosen, why, and how sure that is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from servegen.plan import Plan
from servegen.report import view
from servegen.report.blocks import Block, Items, Table, Text, Title
from servegen.report.figures import count, one_line

TEMPLATE = "report/PLAN.md.j2"


class TemplateEnvironment(Protocol):
    """What :mod:`servegen.render.environment` provides."""

    @property
    def jinja(self) -> Any: ...

    def render(self, name: str, context: Mapping[str, Any]) -> str: ...


def plan_markdown(
    plan: Plan, env: TemplateEnvironment, files: Collection[str] | None = None, replaced: Sequence[str] = ()
) -> str:
    """The page. ``files`` are the paths that were rendered beside it; None where nothing was (``plan -o markdown``).

    ``replaced`` are the planned flags that the overrides changed, which only the engine knows.
    """
    rendered = None if files is None else sorted(files)
    groups = [(f"launch/{r.role}.sh", n) for r in plan.choice.roles if (n := plan.nodes(r)) > 1]
    groups = [(path, nodes) for path, nodes in groups if path in (rendered or ())]
    scripts = [path for path in rendered or () if path.startswith("launch/") and path not in dict(groups)]
    context = {
        "plan": plan,
        "headline": view.headline(plan),
        "roles": view.roles(plan),
        "why": view.lines(plan.why),
        "binding": view.lines(plan.binding),
        "cost": view.cost(plan),
        "prices": view.prices(plan),
        "bounds": view.bounds(plan) if plan.slo else None,
        "latencies": view.latencies(plan),
        "load": view.load(plan),
        "memory": view.memory(plan),
        "steps": view.steps(plan),
        "waterfalls": view.waterfalls(plan) if plan.waterfalls else None,
        "bands": [(metric, view.band(value)) for metric, value in plan.prediction.band.items()],
        "extrapolated": view.lines(plan.prediction.extrapolated),
        "flips": view.lines(flip.text for flip in plan.flips),
        "cases": view.cases(plan),
        "missing": view.missing(plan),
        "alternatives": view.alternatives(plan),
        "pareto": view.pareto(plan),
        "searched": count(plan.searched),
        "rejected": view.rejected(plan.rejected),
        "overrides": view.overrides(plan, replaced),
        "replays": view.replays(plan),
        "notes": view.lines(plan.notes),
        "kustomize": "kubernetes/kustomization.yaml" in (rendered or ()),
        "scripts": scripts,
        "groups": groups,
        "nothing_rendered": rendered is not None and not rendered,
        "hash": plan.content_hash,
    }
    filters(env)
    return env.render(TEMPLATE, context)


def filters(env: TemplateEnvironment) -> None:
    """Teach the environment what the pages' templates call: ``md``, ``code`` and ``grid``."""
    env.jinja.add_filters(md=escape, code=code, grid=grid)


def escape(text: object, start: bool = True) -> str:
    """Foreign text as plain words of Markdown: no markup, no HTML, no cell or line ends.

    ``start`` tells whether it may come first on a line, where a dash or number would open a list.
    """
    words = one_line(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    words = re.sub(r"([\\`*|~\[\]])", r"\\\1", words)
    words = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", words)  # inside a word an underscore is one
    words = re.sub(r"\$(?!\d)", r"\\$", words)  # GitHub reads $...$ as a formula, except before a digit
    if not start:
        return words
    return re.sub(r"^([-+#=])|^(\d+)(?=[.)](?:\s|$))", lambda m: f"\\{m[1]}" if m[1] else f"{m[2]}\\", words)


def code(text: object) -> str:
    """The text as a code span, which shows it letter for letter."""
    words = one_line(str(text)).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", words)), default=0) + 1)
    pad = " " if words.startswith("`") or words.endswith("`") or not words else ""
    return f"{fence}{pad}{words}{pad}{fence}"


def grid(block: Table) -> str:
    """A table in GitHub's Markdown, figures to the right."""
    rule = ["---:" if i in block.right else "---" for i in range(len(block.headers))]
    rows = [[escape(cell, start=False) for cell in row] for row in (block.headers, *block.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])


def blocks_markdown(blocks: Sequence[Block]) -> str:
    """A report's blocks as sections of a page."""
    parts = []
    for block in blocks:
        match block:
            case Title(words):
                parts.append(f"## {escape(words)}")
            case Text(words):
                parts.append(escape(words))
            case Items(texts):
                parts.append("\n".join(f"- {escape(words)}" for words in texts))
            case Table():
                parts.append(grid(block))
    return "\n\n".join(parts) + "\n"
