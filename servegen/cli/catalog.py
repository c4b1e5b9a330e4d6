"""``servegen catalog``: what the predictions stand on, a source beside every figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from servegen.cli.common import format_of, one_of, put, put_data, show
from servegen.errors import CatalogError, Diagnostic
from servegen.record import record

app = typer.Typer(
    help="List models, accelerators, engines and prices, or show one with its sources.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

KINDS = ("models", "accelerators", "engines", "prices")


@record
class Shelf:
    """One kind of thing in the catalogue: its ids, the facts of one, and its figures as (path, value, unit, source)."""

    ids: Callable[[], Iterable[str]]
    facts: Callable[[str], Any]
    explain: Callable[[Any], Iterable[tuple[str, object, str, str]]]


def _shelves() -> dict[str, Shelf]:
    from servegen.catalog import models
    from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
    from servegen.catalog.engines import list_engines, resolve_engine
    from servegen.catalog.loader import explain

    return {
        "model": Shelf(models.list_models, models.resolve_model, models.explain),
        "accelerator": Shelf(list_accelerators, resolve_accelerator, explain),
        "engine": Shelf(list_engines, resolve_engine, explain),
    }


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help="models, accelerators, engines or prices; all if left out.")] = "",
    format: Annotated[str, typer.Option("--format", "-o", help="text, json, yaml or csv.")] = "text",
) -> int:
    """List what the catalogue knows."""
    format_of(format, ("text", "json", "yaml", "csv"))
    if kind:
        one_of("KIND", kind, KINDS)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, shelf in _shelves().items():
        if kind in ("", f"{name}s"):
            found[f"{name}s"] = [{"id": item} for item in shelf.ids()]
    if kind in ("", "prices"):
        found["prices"] = _prices()
    if format in ("json", "yaml"):
        put_data([found[kind] if kind else found], True, format)
    elif format == "csv":
        columns = ("kind", "id", "usdPerHour", "provider", "offer", "date", "source")
        put(_csv(columns, [{"kind": name, **row} for name, rows in found.items() for row in rows]))
    else:
        _show_lists(found)
    return 0


def _prices() -> list[dict[str, Any]]:
    from servegen.catalog.accelerators import list_accelerators
    from servegen.catalog.prices import price_rows

    return [
        {
            "id": accelerator,
            "usdPerHour": row["usd_per_h"],
            "provider": row["provider"],
            "offer": row["kind"],
            "date": str(row.get("date", "")),
            "source": row["source"],
        }
        for accelerator in list_accelerators()
        for row in price_rows(accelerator)
    ]


def _show_lists(found: dict[str, list[dict[str, Any]]]) -> None:
    from servegen.report.blocks import Block, Items, Table, Title
    from servegen.report.figures import money

    blocks: list[Block] = []
    for name, rows in found.items():
        blocks.append(Title(f"{name} ({len(rows)})"))
        if name == "prices":
            words = [tuple(str(r[key]) for key in ("provider", "offer", "date", "source")) for r in rows]
            prices = [(str(r["id"]), f"{money(float(r['usdPerHour']))}/h") for r in rows]
            cells = [price + said for price, said in zip(prices, words, strict=True)]
            headers = ("accelerator", "price each", "provider", "offer", "date", "source")
            blocks.append(Table(headers, tuple(cells), frozenset({1})))
        else:
            blocks.append(Items(tuple(row["id"] for row in rows)))
    show(blocks)


@app.command("show")
def show_(
    name: Annotated[str, typer.Argument(help="Id or alias of a model, an accelerator or an engine.")],
    format: Annotated[str, typer.Option("--format", "-o", help="text, json, yaml or csv.")] = "text",
) -> int:
    """Show every figure of one model, accelerator or engine with its source."""
    format_of(format, ("text", "json", "yaml", "csv"))
    kind, facts, found = _find(name)
    figures = [
        {"figure": path, "value": _plain(value), "unit": unit, "source": source}
        for path, value, unit, source in found
        if path not in ("id", "aliases")
    ]
    if format in ("json", "yaml"):
        put_data([{"kind": kind, "id": facts.id, "aliases": list(facts.aliases), "figures": figures}], True, format)
    elif format == "csv":
        put(_csv(("figure", "value", "unit", "source"), figures))
    else:
        from servegen.report.blocks import Table, Text, Title

        rows = tuple((f["figure"], _written(f["value"]), f["unit"], f["source"]) for f in figures)
        aliases = f"also called {', '.join(facts.aliases)}" if facts.aliases else "it has no other name"
        grid = Table(("figure", "value", "unit", "source"), rows)
        show([Title(f"{kind} {facts.id}"), Text(aliases), grid])
    return 0


def _find(name: str) -> tuple[str, Any, Iterable[tuple[str, object, str, str]]]:
    """Kind, facts and figures of what ``name`` means. Raises CatalogError with the nearest names of each kind."""
    errors: list[CatalogError] = []
    for kind, shelf in _shelves().items():
        try:
            facts = shelf.facts(name)
            return kind, facts, shelf.explain(facts)
        except CatalogError as error:
            errors.append(error)
    found = [diagnostic for error in errors for diagnostic in error.diagnostics]
    telling = [d for d in found if not d.code.endswith("-unknown")]
    if telling:
        raise CatalogError(telling)
    near = "; ".join(d.hint for d in found if d.hint.startswith(("nearest", "did you mean")))
    message = f"there is no model, accelerator or engine {name!r} in the catalogue"
    raise CatalogError(Diagnostic("unknown-name", message, hint=near or "servegen catalog list shows all"))


def _plain(value: Any) -> Any:
    """A figure as JSON can hold it: nan stands for a figure that nobody states."""
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _written(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _csv(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
