"""Fixtures of the language: every file in ``valid/`` loads, every case in ``invalid/`` gives exactly what it states.

A case is a paragraph of ``invalid/*.txt``: a comment that names it, ``-`` lines of ``valid/full.yaml`` that are taken
out, each followed by the ``+`` lines that stand in its place at its indentation, and for each diagnostic, in order,
``! line:column code | a part of the message | a part of the hint``.
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from servegen.errors import UserError
from servegen.spec.load import load, loads
from servegen.spec.schema import json_schema
from servegen.spec.tree import compose, plain

SPECS = Path(__file__).parent.parent / "fixtures" / "specs"
FULL = (SPECS / "valid" / "full.yaml").read_text(encoding="utf-8")
VALID = sorted((SPECS / "valid").glob("*.yaml"))
CASES = [
    pytest.param(case.splitlines(), id=f"{file.stem}: {case.splitlines()[0].removeprefix('# ')}")
    for file in sorted((SPECS / "invalid").glob("*.txt"))
    for case in file.read_text(encoding="utf-8").strip("\n").split("\n\n")
]


def edited(case: list[str]) -> str:
    """``valid/full.yaml`` with the edits of a case."""
    lines = FULL.splitlines()
    at, indent = -1, ""
    for line in case:
        sign, text = line[:2], line[2:]
        if sign == "- ":
            places = [i for i, known in enumerate(lines) if known.strip(" -") == text]
            assert places, f"{text!r} is no line of full.yaml"
            at = places[0]
            indent = lines[at][: len(lines[at]) - len(text)]
            del lines[at]
        elif sign == "+ ":
            lines.insert(at, indent + text)
            at += 1
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_valid_specs_load(file: Path) -> None:
    assert load(file)


@pytest.mark.parametrize("file", VALID, ids=lambda file: file.stem)
def test_the_schema_takes_valid_specs(file: Path) -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for document in compose(file.read_text(encoding="utf-8"), file.name):
        errors = [error.message for error in validator.iter_errors(plain(document.root, file.name)[0])]
        assert errors == []


@pytest.mark.parametrize("case", CASES)
def test_invalid_specs_say_what_is_wrong(case: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        loads(edited(case), "spec.yaml")
    expected = [line[2:].split(" | ") for line in case if line.startswith("! ")]
    found = [(f"{d.where.line}:{d.where.column} {d.code}", d.message, d.hint) for d in caught.value.diagnostics]
    assert [place for place, _, _ in found] == [place for place, *_ in expected], str(caught.value)
    for (_, message, hint), (_, *parts) in zip(found, expected, strict=True):
        assert parts, "a case states a part of the message"
        assert parts[0] in message
        assert parts[1:] == [] or parts[1] in hint
    assert all(d.where.file == "spec.yaml" for d in caught.value.diagnostics)


def test_there_are_enough_cases() -> None:
    assert len(CASES) > 100
