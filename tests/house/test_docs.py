"""The pages for users say what the code says: every key, every preset, every refusal, every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from servegen.report.json import json_text
from servegen.spec.load import loads
from servegen.spec.not_yet import NOT_YET
from servegen.spec.presets import PRESETS
from servegen.spec.schema import Fleet, ServingSpec, json_schema
from tests.tools.session import README, refreshed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SPEC = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
REFUSED = re.compile(r"\*refused\.?\*", re.IGNORECASE)
LINKS = re.compile(r"\]\(([^)#\s]*)(#[^)\s]+)?\)")


def keys(schema: Any) -> Iterator[str]:
    """Every property name of a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys(value)


LANGUAGE = {*keys(ServingSpec.model_json_schema()), *keys(Fleet.model_json_schema())}


@pytest.mark.parametrize("key", sorted(LANGUAGE))
def test_the_spec_page_has_every_key(key: str) -> None:
    written = {part for code in re.findall(r"`([^`\n]+)`", SPEC) for part in re.split(r"[^A-Za-z0-9]+", code)}
    assert key in written


def test_the_spec_page_has_no_key_that_is_none() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \| [^|]+ \| [^|]+ \| ", SPEC, re.MULTILINE)
    named = {part for row in rows for code in re.findall(r"`([^`]+)`", row) for part in code.split(".")}
    assert len(named) > 60
    assert named <= LANGUAGE, named - LANGUAGE


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_spec_page_has_every_preset(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", SPEC, re.MULTILINE)
    filled = dict(text.split(": ", 1) for text in re.findall(r"`([^`]+)`", row))
    assert filled == {k: f"[{', '.join(v)}]" if isinstance(v, list) else str(v) for k, v in PRESETS[name].items()}


@pytest.mark.parametrize("unbuilt", NOT_YET, ids=lambda u: u.key)
def test_the_spec_page_marks_what_is_refused(unbuilt: Any) -> None:
    key = unbuilt.key.removesuffix(".*").rpartition(".")[2]
    (row,) = [r for r in SPEC.splitlines() if r.startswith("|") and f"`{key}`" in r.split("|")[1]]
    assert REFUSED.search(row)


def test_no_more_is_marked_refused_than_is_refused() -> None:
    marked = [r for r in SPEC.splitlines() if r.startswith("|") and REFUSED.search(r)]
    refused = {u.key.removesuffix(".*").rpartition(".")[2] for u in NOT_YET}
    for row in marked:
        assert refused & set(re.findall(r"`([^`]+)`", row.split("|")[1])), row


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINKS.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in heads}, anchor


def commands() -> dict[str, set[str]]:
    """The long flags of every command, those of a group's commands together."""
    import typer

    from servegen.cli.app import application

    def flags(command: Any) -> set[str]:
        own = {o for p in command.params for o in getattr(p, "opts", []) if o.startswith("--")}
        return own.union(*(flags(c) for c in getattr(command, "commands", {}).values())) - {"--help"}

    return {name: flags(command) for name, command in typer.main.get_command(application()).commands.items()}  # type: ignore[attr-defined]


def test_the_cli_page_has_every_command_with_its_flags_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    chapters = re.split(r"^## `servegen (\w+)", page, flags=re.MULTILINE)
    written = {
        name: {
            f for row in re.findall(r"^\| (`--[^|]+) \|", text, re.MULTILINE) for f in re.findall(r"`(--[\w-]+)", row)
        }
        for name, text in zip(chapters[1::2], chapters[2::2], strict=True)
    }
    assert written == commands()


def test_the_session_of_the_readme_is_what_the_commands_print() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == refreshed(text), "python tests/tools/session.py prints it anew"


def test_every_formula_and_page_that_the_code_cites_is_there() -> None:
    code = {p: p.read_text(encoding="utf-8") for p in sorted((ROOT / "servegen").rglob("*.py"))}
    defined = set(
        re.findall(r"^- \*\*(F\d+[a-z]?)\*\*", (ROOT / "docs" / "physics.md").read_text(encoding="utf-8"), re.M)
    )
    cited = {number for text in code.values() for number in re.findall(r"\bF\d+[a-d]?\b", text)}
    assert cited <= defined, cited - defined
    pages = {page for text in code.values() for page in re.findall(r"docs/\w+\.md", text)}
    assert all((ROOT / page).exists() for page in pages), pages


def examples() -> list[tuple[str, str]]:
    fence = re.compile(r"```yaml\n(apiVersion: servegen/.*?)```", re.DOTALL)
    return [(p.name, text) for p in PAGES for text in fence.findall(p.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "text"), examples(), ids=[page for page, _ in examples()])
def test_a_spec_on_a_page_loads(page: str, text: str) -> None:
    (loaded,) = loads(text, page)
    assert loaded.spec.metadata.name


def test_the_schema_beside_the_specs_is_current() -> None:
    assert (ROOT / "specs" / "servegen.schema.json").read_text(encoding="utf-8") == json_text(json_schema())


def test_the_readme_has_the_errors_of_the_accuracy_page() -> None:
    accuracy = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    cells = next(line for line in accuracy.splitlines() if line.startswith("| all | 498 |")).split("|")
    left_out = {name: cells[i].strip().split(" / ") for name, i in (("TPOT", 4), ("TTFT", 6), ("throughput", 8))}
    readme = README.read_text(encoding="utf-8")
    for name, (mean, median) in left_out.items():
        assert f"| {name} | {mean} % | {median} % |" in readme
