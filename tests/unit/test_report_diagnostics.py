"""Findings in the formats of a terminal, of GitHub and of code scanners."""

from __future__ import annotations

from servegen.errors import Diagnostic, Where
from servegen.report.diagnostics import Finding, as_json, github, sarif, text

BAD = Diagnostic("unknown-key", "there is no key 'ttff'", Where("specs/a b.yaml", 7, 5), "did you mean ttft?")
NOTE = Diagnostic("aside", "100% sure:\nreally", Where("/abs/c,d:e.yaml"), severity="note")
PLACELESS = Diagnostic("plain", "something \x1b[31mred")
FINDINGS = [Finding("specs/a b.yaml", "", False, (BAD, PLACELESS)), Finding("/abs/c,d:e.yaml", "chat", True, (NOTE,))]


def test_text_reads_like_a_compiler() -> None:
    assert text([BAD]) == "specs/a b.yaml:7:5: error[unknown-key]: there is no key 'ttff'\n  hint: did you mean ttft?\n"
    assert "\x1b" not in text([PLACELESS])


def test_json() -> None:
    found = as_json(FINDINGS)
    assert found[0] == {
        "file": "specs/a b.yaml",
        "name": None,
        "valid": False,
        "diagnostics": [
            {
                "code": "unknown-key", "severity": "error", "message": "there is no key 'ttff'",
                "file": "specs/a b.yaml", "line": 7, "column": 5, "hint": "did you mean ttft?",
            },
            {
                "code": "plain", "severity": "error", "message": "something \x1b[31mred", "file": None, "line": None,
                "column": None, "hint": None,
            },
        ],
    }  # fmt: skip
    assert found[1]["name"] == "chat" and found[1]["valid"] is True


def test_github_escapes_what_ends_a_command() -> None:
    lines = github(FINDINGS).splitlines()
    assert lines[0] == (
        "::error file=specs/a b.yaml,line=7,col=5,title=servegen unknown-key"
        "::there is no key 'ttff'%0Ahint: did you mean ttft?"
    )
    assert lines[2] == "::notice file=/abs/c%2Cd%3Ae.yaml,title=servegen aside::100%25 sure:%0Areally"


def test_sarif_has_what_the_standard_requires() -> None:
    log = sarif(FINDINGS, "0.1.0")
    assert log["version"] == "2.1.0"
    run = log["runs"][0]
    driver = run["tool"]["driver"]
    assert driver["name"] == "servegen" and driver["version"] == "0.1.0"
    assert [r["id"] for r in driver["rules"]] == ["aside", "plain", "unknown-key"]
    first, second, third = run["results"]
    assert first["ruleId"] == driver["rules"][first["ruleIndex"]]["id"] == "unknown-key"
    assert first["level"] == "error" and third["level"] == "note"
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "specs/a%20b.yaml"}, "region": {"startLine": 7, "startColumn": 5}}
    assert "locations" not in second
    assert third["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": "file:///abs/c%2Cd%3Ae.yaml"}}


def test_what_two_specs_of_a_file_share_is_said_once() -> None:
    twice = [Finding("a", "", False, (BAD,)), Finding("a", "", False, (BAD,))]
    assert github(twice).count("::error") == 1
    assert len(sarif(twice, "1")["runs"][0]["results"]) == 1
