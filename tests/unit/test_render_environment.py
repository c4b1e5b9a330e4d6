"""Filters, template lookup and template errors."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from servegen.errors import RenderError
from servegen.manifest import documents
from servegen.render.environment import Environment, shell_word, templates_root, yaml_value

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
HOSTILE = [
    "yes",
    "NO",
    "null",
    "~",
    "1e3",
    "0x10",
    "0o7",
    "1_000",
    "12:30:00",
    ".inf",
    "2024-01-01",
    "- a",
    "a: b",
    "a #b",
    "#",
    "&a",
    "*a",
    "!!python/object/apply:os.system ['x']",
    "{{ 7 }}",
    "{% raw %}",
    "`id`",
    "$(id)",
    '"',
    "'",
    "\\",
    "\n",
    "\r\n",
    "\t",
    "\x07",
    "\x7f",
    "\x85",
    "\u2028",
    "\u2029",
    "\ufeff",
    "\ufffe",
    "\U0001f600",
    "\xe9",
    " ",
    "",
    "|",
    ">",
    "%",
    "@",
    "---",
    "...",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def both_versions(text: str) -> tuple[object, object]:
    """``text`` as YAML 1.2 (ruamel) and as YAML 1.1 (the family that Kubernetes' own reader belongs to)."""
    return documents(text)[0]["k"], pyyaml.safe_load(text)["k"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_string_stays_that_string_in_every_yaml(text: str) -> None:
    assert both_versions(f"k: {yaml_value(text)}\n") == (text, text)


@given(VALUES)
def test_any_value_comes_back_from_every_yaml_and_from_json(value: object) -> None:
    text = yaml_value(value)
    assert "\n" not in text
    assert both_versions(f"k: {text}\n") == (value, value)
    assert json.loads(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_a_number_in_every_yaml(value: float) -> None:
    assert both_versions(f"k: {yaml_value(value)}\n") == (value, value)


@pytest.mark.parametrize("value", ["a\0", "\ud800", float("nan"), float("inf"), {1: "a"}, {"k" * 1001: 1}, object()])
def test_what_no_reader_gives_back_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        yaml_value(value)


@given(TEXT)
def test_a_shell_word_is_one_word(text: str) -> None:
    assert shlex.split(shell_word(text)) == [text]


def test_a_shell_word_holds_no_nul() -> None:
    with pytest.raises(ValueError, match="NUL"):
        shell_word("a\0b")


def test_the_shipped_templates_are_found() -> None:
    assert (templates_root() / "kubernetes" / "deployment.yaml.j2").is_file()


def users(tmp_path: Path, text: str) -> Environment:
    (tmp_path / "kubernetes").mkdir(exist_ok=True)
    (tmp_path / "kubernetes" / "role.yaml.j2").write_text(text, encoding="utf-8")
    return Environment(tmp_path)


def test_a_users_folder_comes_first(tmp_path: Path) -> None:
    environment = users(tmp_path, "{{ a | yaml }}\n")
    assert environment.render("kubernetes/role.yaml.j2", {"a": "no"}) == '"no"\n'
    assert environment.is_users("kubernetes/role.yaml.j2")
    assert environment.has("kubernetes/service.yaml.j2")
    assert not environment.is_users("kubernetes/service.yaml.j2")
    (tmp_path / "kubernetes" / "_object.j2").write_text("", encoding="utf-8")
    assert environment.is_users("kubernetes/service.yaml.j2")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\n{{ nothing }}\n", 2, "'nothing' is undefined"),
        ("a\n\n{{ a.b.c }}\n", 3, "has no attribute 'b'"),
        ("a\n{% if %}\n", 2, "Expected an expression"),
        ("{{ 1 / 0 }}\n", 1, "division by zero"),
        ("\n{{ a | yaml | nofilter }}", 2, "No filter named 'nofilter'"),
        ("\n{{ bad | yaml }}", 2, "NUL"),
        ("\n{% include 'absent.j2' %}", 2, "no template 'absent.j2'"),
        ("\n{{ a.__class__.__mro__ }}", 2, "unsafe"),
        ("\n{{ items.append(1) }}", 2, "unsafe"),
    ],
)
def test_a_broken_template_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(RenderError, match=message) as caught:
        users(tmp_path, text).render("kubernetes/role.yaml.j2", {"a": "x", "bad": "\0", "items": [1]})
    where = caught.value.diagnostics[0].where
    assert (where.file, where.line) == (str(tmp_path / "kubernetes" / "role.yaml.j2"), line), "the user's own file"


def test_a_template_cannot_leave_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    (tmp_path / "t").mkdir()
    with pytest.raises(RenderError, match="no template"):
        users(tmp_path / "t", "{% include '../secret' %}").render("kubernetes/role.yaml.j2", {})


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="no folder"):
        Environment(tmp_path / "absent")
