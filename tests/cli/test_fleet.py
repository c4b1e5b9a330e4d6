"""A fleet through whole commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import servegen
from servegen.cli.app import run
from tests.cli.test_commands import snapshot

pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: {name}}}
spec:
  model: {{name: meta-llama/Llama-3.1-8B-Instruct}}
  slo: {{ttft: {{p95: 1s}}, itl: {{p95: 50ms}}}}
  traffic: {{rate: {rate}/s, isl: 1024, osl: 128}}
  hardware: {{pool: [{{accelerator: l4-24gb, nodes: 1, perNode: 1}}]}}
  deploy: {{namespace: {namespace}}}
"""
FLEET = """\
apiVersion: servegen/v1alpha1
kind: Fleet
metadata: {name: all}
spec:
  hardware: {pool: [{accelerator: h100-sxm-80gb, nodes: 1, perNode: 2}]}
  members: [{spec: chat.yaml, priority: 10}, {spec: docs.yaml}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet of two models on two accelerators, which carry both."""
    monkeypatch.chdir(tmp_path)
    write("chat", 10)
    write("docs", 5)
    Path("fleet.yaml").write_text(FLEET)
    return tmp_path


def write(name: str, rate: int, namespace: str = "llm") -> None:
    Path(f"{name}.yaml").write_text(SPEC.format(name=name, rate=rate, namespace=namespace))


def crowd(objective: str) -> None:
    """More than the two accelerators carry."""
    write("chat", 20)
    write("docs", 500)
    Path("fleet.yaml").write_text(f"{FLEET}  objective: {objective}\n")


def test_validate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "fleet.yaml"]) == 0
    assert capsys.readouterr().out == "fleet.yaml: all: ok\n"
    Path("fleet.yaml").write_text(FLEET.replace("h100-sxm-80gb", "h1000"))
    assert run(["validate", "fleet.yaml"]) == 1
    assert "fleet.yaml:5:35: error" in capsys.readouterr().err


def test_plan_json_has_the_members_keys_and_the_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "fleet.yaml", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["plan", "chat.yaml", "-o", "json"]) in (0, 3)
    assert (found["kind"], found["name"], found["feasible"], found["objective"]) == ("Fleet", "all", True, "cost")
    chat, docs = found["members"]
    assert {"name", "feasible", "choice", "prediction", "binding", "why", "alternatives", "pareto", "searched"} <= set(chat)
    assert chat["fleet"]["priority"] == 10
    assert (docs["fleet"]["share"], docs["fleet"]["asked"], docs["fleet"]["carried"]) == (1.0, 5.0, 5.0)
    assert chat["fleet"]["uses"] == [{"pool": 0, "accelerator": "h100-sxm-80gb", "devices": 1, "servers": 1}]
    (entry,) = found["pool"]
    assert (entry["used"], entry["leftOver"], entry["leftOverNodes"]) == (2, 0, 0)
    assert found["costPerHour"] == pytest.approx(sum(m["choice"]["costPerHour"] for m in found["members"]))
    assert found["unmet"] == {}


def test_plan_of_a_spec_and_a_fleet_is_an_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("chat.yaml").write_text(Path("chat.yaml").read_text().replace("l4-24gb", "h100-sxm-80gb"))
    assert run(["plan", "chat.yaml", "fleet.yaml", "-o", "json"]) == 0
    assert [x["name"] for x in json.loads(capsys.readouterr().out)] == ["chat", "all"]


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_plan_for_people(folder: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "fleet.yaml", "-o", format]) == 0
    out = capsys.readouterr().out
    assert "2 models on 2 of 2 accelerators" in out
    assert "chat" in out and "docs" in out and "Runners-up" in out


def test_a_pool_that_is_too_small_says_who_does_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crowd("cost")
    assert run(["plan", "fleet.yaml", "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["feasible"], found["binding"]) == ("all", False, ["pool"])
    assert "docs does not fit" in found["why"][0]
    assert found["fixes"][0]["key"] == "hardware.pool.0.nodes"
    assert run(["build", "fleet.yaml"]) == 3
    assert not Path("out").exists()
    Path("fleet.yaml").write_text(FLEET.replace("nodes: 1", f"nodes: {found['fixes'][0]['new']}"))
    assert run(["plan", "fleet.yaml"]) == 0


def test_unmet_demand_is_told_by_member(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crowd("unmet")
    assert run(["plan", "fleet.yaml", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["unmet"]) == {"docs"}
    chat, docs = (m["fleet"] for m in found["members"])
    assert chat["share"] == 1.0
    assert found["unmet"]["docs"] == pytest.approx(1.0 - docs["share"])
    assert docs["carried"] == pytest.approx(docs["share"] * 500.0)


def test_who_is_given_nothing_has_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("chat", 30)
    Path("fleet.yaml").write_text(FLEET.replace("perNode: 2", "perNode: 1") + "  objective: unmet\n")
    assert run(["build", "fleet.yaml"]) == 0
    given = {p.name for p in Path("out/all").iterdir() if p.is_dir()}
    assert given == {"chat"}
    assert run(["build", "fleet.yaml", "--locked", "--check"]) == 0
    capsys.readouterr()
    assert run(["plan", "fleet.yaml", "-o", "json"]) == 0
    docs = json.loads(capsys.readouterr().out)["members"][1]
    assert (docs["feasible"], docs["fleet"]["share"]) == (False, 0.0)


def test_build_check_diff_locked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "fleet.yaml"]) == 0
    assert "all: created" in capsys.readouterr().out
    files = snapshot(folder / "out")
    assert {"all/FLEET.md", "all/fleet.lock.json", "all/files.lock"} <= set(files)
    for name in ("chat", "docs"):
        assert {f"all/{name}/PLAN.md", f"all/{name}/plan.lock.json", f"all/{name}/launch/serve.sh"} <= set(files)
        assert (folder / f"out/all/{name}/launch/serve.sh").stat().st_mode & 0o100
    for flags in ([], ["--check"], ["--diff"], ["--locked"], ["--locked", "--check"]):
        assert run(["build", "fleet.yaml", *flags]) == 0
    write("docs", 6)
    capsys.readouterr()
    assert run(["build", "fleet.yaml", "--locked"]) == 2
    assert "docs.spec" in capsys.readouterr().err
    assert run(["build", "fleet.yaml", "--check"]) == 2
    assert run(["build", "fleet.yaml", "--diff"]) == 2
    assert "all/docs/plan.lock.json" in capsys.readouterr().out
    assert snapshot(folder / "out") == files


def test_a_members_folder_is_what_its_own_build_gives(folder: Path) -> None:
    pool = "[{accelerator: h100-sxm-80gb, nodes: 1, perNode: 2}]"
    alone = Path("chat.yaml").read_text().replace("[{accelerator: l4-24gb, nodes: 1, perNode: 1}]", pool)
    Path("chat.yaml").write_text(alone)
    Path("one.yaml").write_text(FLEET.replace(", {spec: docs.yaml}", "").replace("name: all", "name: one"))
    assert run(["build", "chat.yaml", "one.yaml"]) == 0
    own, given = snapshot(folder / "out/chat"), snapshot(folder / "out/one/chat")
    assert set(own) - set(given) == {"files.lock"}
    for path in set(given) - {"PLAN.md", "plan.lock.json"}:
        lines = [[x for x in text[path].decode().splitlines() if "plan" not in x] for text in (own, given)]
        assert lines[0] == lines[1], path  # but for the plan's hash in their annotations


def test_the_fleets_lock_holds_every_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "fleet.yaml"]) == 0
    lock = json.loads(Path("out/all/fleet.lock.json").read_text())
    assert set(lock["inputs"]) == {"fleet", "chat.spec", "chat.facts", "docs.spec", "docs.facts"}
    member = json.loads(Path("out/all/chat/plan.lock.json").read_text())
    assert "fleet" in member["inputs"]
    Path("out/all/fleet.lock.json").write_text(json.dumps({**lock, "members": lock["members"][:1]}))
    assert run(["build", "fleet.yaml", "--locked"]) == 2
    assert "other members" in capsys.readouterr().err
    Path("out/all/fleet.lock.json").write_text("{}")
    assert run(["build", "fleet.yaml", "--locked"]) == 1


@pytest.mark.parametrize("stage", ["load", "resolve", "plan", "render", "validate"])
def test_stop_after_prints_and_writes_nothing(folder: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "fleet.yaml", "--stop-after", stage]) == 0
    assert capsys.readouterr().out
    assert not Path("out").exists()


def test_show_spec_prints_the_fleet_and_its_members(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "fleet.yaml", "--show-spec", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [s["kind"] for s in shown] == ["Fleet", "ServingSpec", "ServingSpec"]
    assert all(s["spec"]["hardware"]["pool"][0]["accelerator"] == "h100-sxm-80gb" for s in shown)


def test_simulate_takes_a_members_lock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", "fleet.yaml"]) == 0
    assert run(["simulate", "out/all/chat/plan.lock.json", "--requests", "200"]) in (0, 3)
    assert run(["simulate", "fleet.yaml"]) == 1
    assert "out/all/MEMBER/plan.lock.json" in capsys.readouterr().err


def test_a_spec_of_the_fleets_name_collides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("all", 1)
    assert run(["build", "all.yaml", "fleet.yaml"]) == 1
    assert "error[duplicate-name]" in capsys.readouterr().err


def test_members_may_not_share_an_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = "constraints: {topology: disaggregated}\n  deploy:"
    Path("chat.yaml").write_text(Path("chat.yaml").read_text().replace("deploy:", split))
    pool = "nodes: 2, perNode: 2, fabric: {bandwidth: 400Gbps, rdma: true}"
    text = FLEET.replace("nodes: 1, perNode: 2", pool).replace("docs.yaml", "chat-decode.yaml")
    Path("fleet.yaml").write_text(text)
    write("chat-decode", 5)
    assert run(["build", "fleet.yaml"]) == 1
    assert "chat-decode.yaml:3:18: error[shared-object]: chat-decode and chat both have the Service" in capsys.readouterr().err
    write("chat-decode", 5, namespace="other")
    assert run(["build", "fleet.yaml"]) == 0


def test_the_example_loads() -> None:
    assert run(["validate", str(ROOT / "specs" / "fleets" / "production.yaml")]) == 0


def test_without_scipy_a_fleet_is_valid_but_not_solved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert run(["validate", "fleet.yaml"]) == 0
    assert run(["plan", "fleet.yaml"]) == 1
    assert "fleet.yaml:2:7: error[no-scipy]" in capsys.readouterr().err


def test_a_plain_plan_does_not_load_scipy(folder: Path) -> None:
    program = (
        "import sys\nfrom servegen.cli.app import run\ncode = run(['plan', 'own.yaml', '-o', 'json'])\n"
        "sys.exit(9 if 'scipy' in sys.modules else code)"
    )
    Path("own.yaml").write_text(SPEC.format(name="own", rate=1, namespace="llm").replace("l4-24gb", "h100-sxm-80gb"))
    home = str(Path(servegen.__path__[0]).parent)
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": home}, stdout=subprocess.DEVNULL, check=False
    )
    assert ran.returncode == 0
