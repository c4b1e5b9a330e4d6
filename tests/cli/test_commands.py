"""Whole commands in one process, with the search replaced by plans made by hand where a test needs none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

import servegen.solve.resolve
import servegen.solve.search
from servegen.cli.app import COMMANDS, application, run
from servegen.errors import CatalogError, Diagnostic, Fix, InfeasibleError
from servegen.plan import Plan
from tests.unit.plans import make_plan

SPEC = """\
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: {name}}}
spec:
  model: {{name: meta-llama/Llama-3.1-70B-Instruct}}
  traffic: {{rate: {rate}/s, isl: 1024, osl: 128}}
  hardware: {{pool: [{{accelerator: h100-sxm-80gb, nodes: 4, perNode: 8}}]}}
"""

Outcome = Callable[[str], Plan]


def feasible(name: str) -> Plan:
    return make_plan(name=name)


def infeasible(name: str) -> Plan:
    fix = Fix("slo.ttft.p95", "100ms", "180ms", 0.8, "raise slo.ttft.p95 from 100ms to 180ms")
    raise InfeasibleError(name, "ttft.p95", "no candidate answers in 100ms", "173ms", (fix,), {"ttft.p95": 9}, 9)


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; the plan of a spec depends on its name: ``chat*`` is feasible, ``never*`` is not."""
    monkeypatch.chdir(tmp_path)

    def resolve(loaded: Any) -> Any:
        if loaded.name.startswith("unknown"):
            where = loaded.where.at("spec.model.name")
            raise CatalogError(Diagnostic("model-unknown", "there is no such model", where))
        return SimpleNamespace(name=loaded.name, inputs={"spec": loaded.sha256, "facts": "f"}, shown=loaded.shown)

    def solve(problem: Any) -> Plan:
        if problem.name.startswith("bug"):
            raise KeyError("lost")
        plan = (infeasible if problem.name.startswith("never") else feasible)(problem.name)
        return make_plan(name=plan.name, inputs=problem.inputs)

    monkeypatch.setattr(servegen.solve.resolve, "resolve", resolve)
    monkeypatch.setattr(servegen.solve.search, "solve", solve)
    return tmp_path


def write(folder: Path, name: str, rate: int = 10, file: str = "") -> str:
    path = folder / (file or f"{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SPEC.format(name=name, rate=rate))
    return str(path.relative_to(folder))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- usage and failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_registered_alone_says_what_it_says_among_all(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    alone = capsys.readouterr().out
    typer.main.get_command(application()).main([command, "--help"], prog_name="servegen", standalone_mode=False)
    assert capsys.readouterr().out == alone
    assert alone.startswith(f"Usage: servegen {command} ")


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["plan"], ["plan", "--nonsense"], ["plan", "x", "-o", "xml"], ["catalog", "list", "toys"],
     ["estimate", "--tp", "x"], ["estimate"], ["build", "x", "--stop-after", "lunch"],
     ["build", "x", "--stop-after", "plan", "--check"]],
)  # fmt: skip
def test_usage_errors_exit_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and "Error" in err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "--help"], ["catalog", "-h"]])
def test_help_exits_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out


def test_a_bug_is_one_message_without_a_traceback(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", write(specs, "bug")]) == 1
    err = capsys.readouterr().err
    assert "bug in servegen" in err and "KeyError" in err and "Traceback" not in err


def test_a_bug_with_one_spec_leaves_the_others_built(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", write(specs, "bug"), write(specs, "chat"), "-o", "out"]) == 1
    assert (specs / "out" / "chat" / "files.lock").exists() and not (specs / "out" / "bug").exists()
    err = capsys.readouterr().err
    assert err.count("bug in servegen") == 1 and "KeyError" in err and "Traceback" not in err


def test_debug_raises_the_bug(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVEGEN_DEBUG", "1")
    with pytest.raises(KeyError):
        run(["plan", write(specs, "bug")])


def test_an_interrupt_exits_130(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(problem: Any) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(servegen.solve.search, "solve", interrupted)
    assert run(["plan", write(specs, "chat")]) == 130


# --- validate ---------------------------------------------------------------------------------------------------------


def test_validate(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(specs, "chat"), write(specs, "unknown")
    assert run(["validate", good]) == 0
    assert capsys.readouterr().out == "chat.yaml: chat: ok\n"
    assert run(["validate", good, bad]) == 1
    out, err = capsys.readouterr()
    assert out == "chat.yaml: chat: ok\n"
    assert err == "unknown.yaml:5:17: error[model-unknown]: there is no such model\n"


def test_validate_for_machines(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = write(specs, "chat"), write(specs, "unknown")
    assert run(["validate", good, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": "chat.yaml", "name": "chat", "valid": True, "diagnostics": [],
    }  # fmt: skip
    assert run(["validate", good, bad, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [entry["valid"] for entry in found] == [True, False]
    assert found[1]["diagnostics"][0]["line"] == 5
    assert run(["validate", bad, "--format", "github"]) == 1
    assert capsys.readouterr().out.startswith("::error file=unknown.yaml,line=5,col=17,")
    assert run(["validate", bad, "--format", "sarif"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"][0]["ruleId"] == "model-unknown"


def test_a_broken_document_does_not_hide_its_neighbour(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SPEC.format(name="chat", rate=1)
    (specs / "two.yaml").write_text(f"{text}---\n{text.replace('model:', 'modle:').replace('chat', 'other')}")
    assert run(["validate", "two.yaml"]) == 1
    out, err = capsys.readouterr()
    assert out == "two.yaml: chat: ok\n" and "two.yaml:13:3: error[unknown-key]" in err


def test_two_specs_of_one_name_are_refused(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(specs, "chat"), write(specs, "chat", file="again.yaml")]
    assert run(["build", *files]) == 1
    assert "again.yaml:3:18: error[duplicate-name]" in capsys.readouterr().err


def test_a_folder_stands_for_the_specs_in_it(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(specs, "chat-b", file="s/b.yaml")
    write(specs, "chat-a", file="s/a.yml")
    (specs / "s/values.yaml").write_text("replicas: 2\n")
    (specs / "s/notes.txt").write_text("apiVersion: servegen/v1alpha1\n")
    assert run(["validate", "s", "s/b.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "s/a.yml: chat-a: ok\ns/b.yaml: chat-b: ok\n"
    assert "s/values.yaml" in err and "notes" not in err


@pytest.mark.parametrize("path", ["none.yaml", "empty"])
def test_paths_without_specs_exit_1(specs: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (specs / "empty").mkdir()
    assert run(["plan", path]) == 1
    assert path in capsys.readouterr().err


# --- plan -------------------------------------------------------------------------------------------------------------


def test_plan_text(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", write(specs, "chat")]) == 0
    assert capsys.readouterr().out.startswith("chat: 2x sglang 0.5.23 of ")


def test_plan_json_is_an_object_for_one_and_an_array_for_several(
    specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, never = write(specs, "chat"), write(specs, "chat-b"), write(specs, "never")
    assert run(["plan", one, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"]["costPerHour"] == 47.2
    assert run(["plan", one, never, other, "--format", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert [(entry["name"], entry["feasible"]) for entry in found] == [
        ("chat", True), ("never", False), ("chat-b", True),
    ]  # fmt: skip
    assert found[1]["fixes"][0]["new"] == "180ms" and found[1]["binding"] == ["ttft.p95"]


def test_infeasible_says_bound_best_and_fix(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", write(specs, "never")]) == 3
    out = capsys.readouterr().out
    assert "binding bound: ttft.p95" in out and "best attainable: 173ms" in out
    assert "raise slo.ttft.p95 from 100ms to 180ms" in out


def test_an_error_outranks_infeasible(specs: Path) -> None:
    assert run(["plan", write(specs, "never"), write(specs, "unknown"), write(specs, "chat")]) == 1


def test_plan_yaml_and_markdown(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    assert run(["plan", file, "-o", "yaml"]) == 0
    assert YAML(typ="safe", pure=True).load(capsys.readouterr().out)["name"] == "chat"
    assert run(["plan", file, "-o", "markdown"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# chat\n") and "How to deploy" not in page


def test_show_spec_has_every_default(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "never")
    assert run(["plan", file, "--show-spec"]) == 0
    shown = YAML(typ="safe", pure=True).load(capsys.readouterr().out)
    assert shown["spec"]["constraints"]["utilization"] == 0.85
    assert run(["plan", file, "--show-spec", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


# --- build ------------------------------------------------------------------------------------------------------------


def test_build_writes_and_says_so(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    assert run(["build", file]) == 0
    files = snapshot(specs / "out")
    assert capsys.readouterr().out == f"chat: created {len(files)} files in out/chat\n"
    assert {"chat/plan.lock.json", "chat/PLAN.md", "chat/files.lock"} <= set(files)
    assert {"chat/kubernetes/kustomization.yaml", "chat/launch/serve.sh"} <= set(files)
    assert run(["build", file, "-o", "out"]) == 0
    assert capsys.readouterr().out == "chat: unchanged\n"
    assert snapshot(specs / "out") == files


def test_build_names_what_it_changed(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    run(["build", file])
    (specs / "out/chat/PLAN.md").write_text("edited")
    (specs / "out/chat/launch/serve.sh").unlink()
    (specs / "out/chat/mine.txt").write_text("mine")
    capsys.readouterr()
    assert run(["build", file]) == 0
    assert capsys.readouterr().out == "chat: created launch/serve.sh; updated PLAN.md\n"
    assert (specs / "out/chat/mine.txt").read_text() == "mine"


def test_check_writes_nothing_and_names_what_is_stale(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    assert run(["build", file, "--check"]) == 2
    assert not (specs / "out").exists()
    run(["build", file])
    assert run(["build", file, "--check"]) == 0
    (specs / "out/chat/PLAN.md").write_text("edited")
    before = snapshot(specs)
    capsys.readouterr()
    assert run(["build", file, "--check"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("out/chat/PLAN.md: error[stale]: ") and out.count("error[stale]") == 1
    assert snapshot(specs) == before


def test_diff_shows_and_writes_nothing(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    run(["build", file])
    write(specs, "chat", rate=11)
    before = snapshot(specs)
    capsys.readouterr()
    assert run(["build", file, "--diff"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("--- a/chat/") and "+++ b/chat/plan.lock.json" in out
    assert "out/chat/plan.lock.json: error[stale]" in err
    assert snapshot(specs) == before


def test_locked_renders_without_solving(
    specs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(specs, "chat")
    assert run(["build", file, "--locked"]) == 1
    assert "there is no locked plan" in capsys.readouterr().err
    run(["build", file])
    before = snapshot(specs / "out")
    monkeypatch.setattr(servegen.solve.search, "solve", lambda problem: pytest.fail("it was solved again"))
    assert run(["build", file, "--locked", "--check"]) == 0
    (specs / "out/chat/PLAN.md").unlink()
    assert run(["build", file, "--locked"]) == 0
    assert snapshot(specs / "out") == before
    write(specs, "chat", rate=11)
    capsys.readouterr()
    assert run(["build", file, "--locked"]) == 2
    assert "made from other inputs: spec" in capsys.readouterr().err
    assert snapshot(specs / "out") == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": 1}', "null"])
def test_a_broken_lock_is_an_error(specs: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(specs, "chat")
    run(["build", file])
    (specs / "out/chat/plan.lock.json").write_text(text)
    assert run(["build", file, "--locked"]) == 1
    assert "error[bad-lock]" in capsys.readouterr().err


def test_several_specs_write_what_succeeds(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = write(specs, "never")
    (specs / "out/never").mkdir(parents=True)
    (specs / "out/never/PLAN.md").write_text("what was")
    assert run(["build", write(specs, "chat"), never, write(specs, "chat-b")]) == 3
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == ["chat", "chat-b"]
    assert "never: infeasible" in err
    assert snapshot(specs / "out/never") == {"PLAN.md": b"what was"}


def test_a_file_in_the_way_exits_1_and_stays(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (specs / "out/chat").mkdir(parents=True)
    (specs / "out/chat/PLAN.md").write_text("my notes")
    assert run(["build", write(specs, "chat")]) == 1
    assert "out/chat/PLAN.md: error[foreign-file]" in capsys.readouterr().err
    assert snapshot(specs / "out") == {"chat/PLAN.md": b"my notes"}


def test_build_formats_its_diagnostics(specs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", write(specs, "chat"), write(specs, "never"), "--format", "json"]) == 3
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [entry["valid"] for entry in found] == [True, False]
    assert found[1]["diagnostics"][0]["code"] == "infeasible"
    assert found[1]["diagnostics"][0]["hint"] == "raise slo.ttft.p95 from 100ms to 180ms"
    assert err.startswith("chat: created")


@pytest.mark.parametrize("stage", ["load", "resolve", "plan", "render", "validate"])
def test_stop_after_prints_and_writes_nothing(specs: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", write(specs, "chat"), "--stop-after", stage]) == 0
    out = capsys.readouterr().out
    starts = {"load": "apiVersion:", "resolve": "f  facts", "plan": "{", "render": "==> chat/", "validate": "==> chat/"}
    assert out.startswith(starts[stage])
    assert not (specs / "out").exists()


def test_an_engine_without_templates_yields_the_lock_and_the_page(
    specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servegen.solve.search, "solve", lambda p: make_plan(name="chat", choice_engine="vllm"))
    assert run(["build", write(specs, "chat")]) == 0
    assert set(snapshot(specs / "out/chat")) == {"PLAN.md", "plan.lock.json", "files.lock"}
    assert "no launch template for vllm" in (specs / "out/chat/PLAN.md").read_text()


# --- init, schema, catalog --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["chat"], [], ["my.yaml", "--model", "Qwen/Qwen3-8B", "--accelerator", "l4"]])
def test_init_writes_a_spec_that_loads(specs: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "--yes", *arguments]) == 0
    file = capsys.readouterr().out.strip()
    assert Path(file).read_text().startswith("# yaml-language-server: $schema=servegen.schema.json\n")
    assert json.loads(Path("servegen.schema.json").read_text())["$schema"].startswith("https://json-schema.org/")
    assert run(["validate", file]) == 0
    before = snapshot(specs)
    assert run(["init", "--yes", *arguments]) == 1
    assert "error[exists]" in capsys.readouterr().err
    assert snapshot(specs) == before


@pytest.mark.parametrize("preset", ["chat", "api", "batch", "long-context", "edge"])
def test_every_preset_gives_a_spec_that_loads(preset: str) -> None:
    from servegen.cli.init import DEFAULTS, spec_text
    from servegen.spec.load import loads

    assert loads(spec_text(Path("x.yaml"), {**DEFAULTS, "preset": preset}), "x.yaml")[0].name == "x"


@pytest.mark.parametrize("name", ["Not A Label", "a" * 41, "sub/dir/../-x"])
def test_init_refuses_a_name_that_no_spec_can_have(specs: Path, name: str) -> None:
    assert run(["init", "--yes", name]) == 1
    assert snapshot(specs) == {}


def test_init_quotes_what_yaml_would_read_otherwise() -> None:
    from servegen.cli.init import DEFAULTS, spec_text

    answers = {**DEFAULTS, "model": "a: b # | c", "nodes": "many"}
    found = YAML(typ="safe", pure=True).load(spec_text(Path("null.yaml"), answers))
    assert found["metadata"]["name"] == "null"
    assert found["spec"]["model"]["name"] == "a: b # | c"
    assert found["spec"]["hardware"]["pool"][0] == {"accelerator": "h100-sxm-80gb", "nodes": "many", "perNode": 8}


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


def test_catalog_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "list", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"models", "accelerators", "engines", "prices"}
    assert {"id": "h100-sxm-80gb"} in found["accelerators"]
    assert all(row["source"] and row["usdPerHour"] > 0 for row in found["prices"])
    assert run(["catalog", "list", "engines"]) == 0
    assert "- sglang\n" in capsys.readouterr().out
    assert run(["catalog", "list", "prices", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["kind"] == "prices" and float(rows[0]["usdPerHour"]) > 0


@pytest.mark.parametrize(
    ("name", "kind", "figure"),
    [("H100", "accelerator", "hbm_bytes"), ("sglang", "engine", "token_budget"),
     ("meta-llama/Llama-3.1-8B-Instruct", "model", "hidden_size")],
)  # fmt: skip
def test_catalog_show_has_a_source_for_every_figure(
    name: str, kind: str, figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["catalog", "show", name, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == kind
    assert figure in {row["figure"] for row in found["figures"]}
    assert all(row["source"] for row in found["figures"])
    assert run(["catalog", "show", name]) == 0
    assert figure in capsys.readouterr().out


def test_catalog_show_helps_with_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "show", "h100-sxm-80bg"]) == 1
    assert "h100-sxm-80gb" in capsys.readouterr().err
