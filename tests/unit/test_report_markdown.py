"""PLAN.md: whole pages through the real template, and the escaping of foreign text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from servegen.render.environment import Environment
from servegen.report.blocks import table
from servegen.report.markdown import code, escape, grid, plan_markdown
from tests.unit.plans import make_plan
from tests.unit.test_report_text import full_plan

FILES = ("kubernetes/kustomization.yaml", "kubernetes/serve.yaml", "launch/prefill.sh", "launch/decode.sh")


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("max_running_requests", "max_running_requests"),
        ("_x_", "\\_x\\_"),
        ("a|b", "a\\|b"),
        ("`x`", "\\`x\\`"),
        ("<script>&amp;", "&lt;script&gt;&amp;amp;"),
        ("[a](javascript:x)", "\\[a\\](javascript:x)"),
        ("# no heading", "\\# no heading"),
        ("1. no list", "1\\. no list"),
        ("1.5 s stays", "1.5 s stays"),
        ("two\nlines", "two lines"),
        ("$5/h or $x$", "$5/h or \\$x\\$"),
        ("a\\b", "a\\\\b"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a|b", "`a\\|b`")])
def test_code(text: str, span: str) -> None:
    assert code(text) == span


def test_grid_aligns_figures_to_the_right() -> None:
    assert grid(table(("a", "n"), [("x|y", "1")])) == "| a | n |\n| --- | ---: |\n| x\\|y | 1 |"


def test_the_page_of_a_split_plan() -> None:
    page = plan_markdown(full_plan(), Environment(), FILES)
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == [
        "Why",
        "What it costs",
        "What to expect",
        "Memory",
        "Where the time goes",
        "How sure this is",
        "What would change the decision",
        "Runners-up",
        "Pareto frontier",
        "What was searched",
        "Overrides",
        "Notes",
        "How to deploy",
    ]
    assert "kubectl apply -k kubernetes" in page
    assert "launch/decode.sh\nlaunch/prefill.sh\n" in page
    assert "| TTFT p95 | at most 500ms | 400ms | 340ms to 500ms | yes |" in page
    assert "costs $23.60/h more" in page
    assert full_plan().content_hash in page
    assert "\n\n\n" not in page
    assert page.endswith("\n") and not page.endswith("\n\n")


def test_every_table_of_the_page_is_whole() -> None:
    page = plan_markdown(full_plan(), Environment(), FILES)
    blocks = [block.split("\n") for block in page.split("\n\n") if block.startswith("|")]
    assert len(blocks) >= 9
    for lines in blocks:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line}
        assert len(cells) == 1, lines


def test_an_engine_without_templates_is_said_plainly() -> None:
    page = plan_markdown(make_plan(choice_engine="vllm"), Environment(), ())
    assert "no launch template for vllm" in page
    assert "kubectl" not in page


def test_without_a_bundle_nothing_is_said_about_deploying() -> None:
    page = plan_markdown(make_plan(), Environment())
    assert "How to deploy" not in page


def test_foreign_text_cannot_mark_up_the_page() -> None:
    nasty = "</td><script>alert(1)</script> | `x` ![](http://x) \n# heading"
    plan = make_plan(why=(nasty,), notes=(nasty,), deploy_env={"A": nasty}, rejected={nasty: 1})
    plan = replace(plan, model=replace(plan.model, id=nasty))
    page = plan_markdown(plan, Environment(), FILES)
    outside = "".join(re.split(r"(?<!\\)(`+).*?(?<!`)\1(?!`)", page))
    assert "<script" not in outside
    assert "](http" not in outside.replace("\\](http", "")
    assert "\n# heading" not in page


def test_the_same_plan_gives_the_same_page() -> None:
    assert plan_markdown(full_plan(), Environment(), FILES) == plan_markdown(full_plan(), Environment(), set(FILES))
