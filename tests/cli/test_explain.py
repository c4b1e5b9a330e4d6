"""``plan --explain`` and ``plan --against`` as whole commands, solved for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servegen.cli.app import run
from tests.solver.specs import LENGTHS, spec_text

SLO = "{ttft: {p95: 1s}, itl: {p95: 40ms}}"


def write(folder: Path, rate: str = "6/s", slo: str = SLO, file: str = "asked.yaml") -> str:
    (folder / file).write_text(spec_text(traffic=f"{{rate: {rate}, {LENGTHS}}}", slo=slo))
    return file


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and what ``build`` wrote of it."""
    folder = tmp_path_factory.mktemp("explain")
    write(folder)
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)
        assert run(["build", "asked.yaml", "-o", "out"]) == 0
    return folder


@pytest.fixture
def here(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(built)
    return built


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["plan", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_explain_follows_the_plan(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = told(capsys, "asked.yaml")
    code, out, err = told(capsys, "asked.yaml", "--explain")
    assert code == 0 and err == "" and out.startswith(plain)
    for words in ("TTFT p95: from the ideal roofline", "What binds", "one replica less", "Next-best in each dimension"):
        assert words not in plain and words in out


def test_explain_as_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "asked.yaml", "--explain", "-o", "json")
    found = json.loads(out)
    assert code == 0 and "against" not in found
    shown = found["prediction"]
    for w in found["explain"]["waterfalls"]:
        assert w["total"] == shown[w["metric"]][w["statistic"]]
        assert w["floor"] + sum(e["adds"] for e in w["effects"]) == pytest.approx(w["total"], rel=1e-7)
    assert [b["constraint"] for b in found["explain"]["binding"]] == found["binding"]
    assert "explain" not in json.loads(told(capsys, "asked.yaml", "-o", "json")[1])
    assert "explain:" in told(capsys, "asked.yaml", "--explain", "-o", "yaml")[1]


def test_explain_in_markdown_and_on_the_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "asked.yaml", "--explain", "-o", "markdown")
    assert code == 0 and "\n## What binds\n" in out and "| TP | " in out
    page = (here / "out/asked/PLAN.md").read_text()
    assert "| what adds up | TTFT p95 | ITL p95 |" in page and "## What binds" not in page


def test_explain_says_the_same_twice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "asked.yaml", "--explain") == told(capsys, "asked.yaml", "--explain")


@pytest.mark.parametrize("lock", ["out/asked/plan.lock.json", "out"])
def test_against_its_own_lock(lock: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "asked.yaml", "--against", lock)
    assert code == 0 and err == "" and out.endswith("Against the locked plan\n\nThe plan is the locked one.\n")


def test_against_names_the_cause(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write(here, rate="20/s", file="more.yaml")
    code, out, _ = told(capsys, spec, "--against", "out", "-o", "json")
    found = json.loads(out)["against"]
    assert code == 0 and found["causes"] == ["spec.traffic.rate"] and found["moved"][0] == "choice"
    role = json.loads(out)["choice"]["roles"][0]
    (moved,) = (c for c in found["changes"] if c["what"] == f"choice.{role['name']}.replicas")
    assert int(moved["old"]) < int(moved["new"]) == role["replicas"]
    _, text, _ = told(capsys, spec, "--against", "out")
    assert "The choice changed because of spec.traffic.rate." in text and "6/s     20/s" in text


def test_against_of_a_spec_that_nothing_meets_any_more(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write(here, slo="{ttft: {p95: 1s}, itl: {p95: 1ms}}", file="never.yaml")
    code, out, _ = told(capsys, spec, "--against", "out", "--explain", "-o", "json")
    found = json.loads(out)
    assert code == 3 and not found["feasible"] and "explain" not in found
    assert found["against"]["causes"] == ["spec.slo.itl.p95"]
    code, text, _ = told(capsys, spec, "--against", "out")
    assert code == 3 and "infeasible" in text and "The choice changed because of spec.slo.itl.p95." in text


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "unreadable"), ("{}", "bad-lock"), ("no json", "bad-lock"), ("\xff", "unreadable"), ("other", "other-spec")],
)
def test_a_lock_that_cannot_be_compared_with(
    content: str | None, code: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = here / "some.lock.json"
    lock.unlink(missing_ok=True)
    if content == "other":
        lock.write_text((here / "out/asked/plan.lock.json").read_text().replace('"name": "asked"', '"name": "other"'))
    elif content is not None:
        lock.write_bytes(content.encode("latin-1"))
    status, out, err = told(capsys, "asked.yaml", "--against", "some.lock.json")
    assert status == 1 and out == "" and f"error[{code}]" in err and "some.lock.json" in err


def test_a_lock_without_its_facts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = json.loads((here / "out/asked/plan.lock.json").read_text())
    del lock["facts"]["accelerators"][0]["gemm"]
    lock["inputs"]["facts"] = "0" * 64
    (here / "bare.lock.json").write_text(json.dumps(lock))
    status, out, err = told(capsys, "asked.yaml", "--against", "bare.lock.json")
    assert status == 1 and out == "" and "error[bad-lock]" in err


@pytest.mark.parametrize("flag", [["--explain"], ["--against", "out"], ["--verify"]])
def test_show_spec_solves_nothing_to_explain(flag: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "asked.yaml", "--show-spec", *flag)
    assert status == 1 and out == "" and "--show-spec does not solve" in err
