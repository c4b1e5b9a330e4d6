"""Fleets as documents: what loads, and what is wrong where."""

from __future__ import annotations

from pathlib import Path

import pytest

from servegen.errors import SpecError, UserError
from servegen.spec.fleet import LoadedFleet, load_either, loads_either
from servegen.spec.load import LoadedSpec, load
from servegen.spec.schema import MOST_MEMBERS

SPEC = """\
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: {name}}}
spec:
  model: {{name: meta-llama/Llama-3.1-8B-Instruct}}
  traffic: {{{traffic}isl: 1024, osl: 128}}
  hardware: {{pool: [{{accelerator: l4-24gb, nodes: 1, perNode: 1}}]}}
  objective: {objective}
"""
FLEET = """\
apiVersion: servegen/v1alpha1
kind: Fleet
metadata: {name: all}
spec:
  hardware:
    pool:
      - {accelerator: h100-sxm-80gb, nodes: 2, perNode: 8}
  members:
    - {spec: specs/a.yaml, priority: 10}
    - {spec: specs/b.yaml}
"""


def write(folder: Path, name: str, text: str = "", traffic: str = "rate: 1/s, ", objective: str = "cost") -> None:
    file = folder / "specs" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text or SPEC.format(name=name, traffic=traffic, objective=objective))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a")
    write(tmp_path, "b")
    return tmp_path


def fleet(text: str = FLEET) -> LoadedFleet:
    Path("fleet.yaml").write_text(text)
    loaded, errors = load_either(["fleet.yaml"])
    if errors:
        raise SpecError([d for e in errors for d in e.diagnostics])
    (found,) = loaded
    assert isinstance(found, LoadedFleet)
    return found


def refused(text: str = FLEET) -> list[str]:
    with pytest.raises(UserError) as told:
        fleet(text)
    return [f"{d.where} {d.code}: {d.message}" for d in told.value.diagnostics]


def test_members_stand_on_the_fleets_pool(folder: Path) -> None:
    found = fleet()
    assert [m.name for m in found.members] == ["a", "b"]
    assert [m.priority for m in found.fleet.spec.members] == [10, 0]
    for member in found.members:
        assert [entry.accelerator for entry in member.spec.spec.hardware.pool] == ["h100-sxm-80gb"]
        assert member.shown["spec"]["hardware"] == found.shown["spec"]["hardware"]
        assert str(member.where.at("spec.hardware.pool.0.accelerator")) == "fleet.yaml:7:23"
        assert str(member.where.at("spec.model.name")) == f"specs/{member.name}.yaml:5:17"


def test_a_file_may_hold_specs_and_fleets(folder: Path) -> None:
    text = f"{SPEC.format(name='other', traffic='', objective='throughput')}---\n{FLEET}"
    loaded, errors = loads_either(text, "<stdin>")
    assert not errors
    assert [type(x) for x in loaded] == [LoadedSpec, LoadedFleet]


def test_where_one_spec_is_asked_for_a_fleet_is_refused(folder: Path) -> None:
    fleet()
    with pytest.raises(SpecError) as told:
        load("fleet.yaml")
    assert str(told.value.diagnostics[0].where) == "fleet.yaml:2:7"
    assert "where one spec is asked for" in told.value.diagnostics[0].message


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("specs/b.yaml", "specs/c.yaml", "fleet.yaml:10:14 file-missing: there is no file specs/c.yaml"),
        ("specs/b.yaml", "specs/a.yaml", "fleet.yaml:10:14 duplicate-name: another member is called a, too"),
        ("specs/b.yaml", "/etc/b.yaml", "fleet.yaml:10:14 bad-path: spec.members.1.spec: '/etc/b.yaml' is no relative path"),
        ("priority: 10", "priorty: 10", "fleet.yaml:9:28 unknown-key: spec.members.0: there is no key priorty"),
        ("priority: 10", "priority: -1", "fleet.yaml:9:38 out-of-range: spec.members.0.priority"),
        ("  members:", "  objective: speed\n  members:", "fleet.yaml:8:14 bad-value: spec.objective: 'speed' is not legal here"),
        ("nodes: 2, ", "", "fleet.yaml:7:9 missing-key"),
    ],
)
def test_what_is_wrong_with_a_fleet_is_told_at_its_line(folder: Path, old: str, new: str, found: str) -> None:
    (told,) = refused(FLEET.replace(old, new))
    assert told.startswith(found)


def test_what_is_wrong_with_a_member_is_told_at_the_members_line(folder: Path) -> None:
    write(folder, "b", SPEC.format(name="b", traffic="rate: 1, ", objective="cost"))
    assert refused()[0].startswith("specs/b.yaml:6:19 wrong-unit")


def test_everything_that_is_wrong_is_told_at_once(folder: Path) -> None:
    write(folder, "a", traffic="")
    write(folder, "b", objective="latency")
    first, second = refused()
    assert first.startswith("specs/a.yaml:6:12 no-load")
    assert second.startswith("specs/b.yaml:8:14 conflict: the spec's objective is latency")


def test_an_energy_fleet_wants_energy_members(folder: Path) -> None:
    text = f"{FLEET}  objective: energy\n"
    assert len(refused(text)) == 2
    write(folder, "a", objective="energy")
    write(folder, "b", objective="energy")
    assert fleet(text).fleet.spec.objective == "energy"


def test_a_member_is_one_spec(folder: Path) -> None:
    two = "---\n".join(SPEC.format(name=n, traffic="rate: 1/s, ", objective="cost") for n in "xy")
    write(folder, "b", two)
    assert refused()[0].startswith("fleet.yaml:10:14 one-spec: specs/b.yaml holds 2 specs")
    write(folder, "b", FLEET)
    assert refused()[0].startswith("specs/b.yaml:2:7 fleet")


def test_a_fleet_has_a_limit(folder: Path) -> None:
    many = "".join(f"    - {{spec: specs/x{i}.yaml}}\n" for i in range(MOST_MEMBERS))
    assert refused(FLEET + many)[0].startswith("fleet.yaml:8:3 out-of-range")


def test_members_may_lie_above_and_use_files_of_their_own(folder: Path) -> None:
    (folder / "fleets").mkdir()
    (folder / "specs" / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,10,5\n2,12,5\n")
    write(folder, "b", SPEC.format(name="b", traffic="trace: trace.csv, ", objective="cost").replace(", isl: 1024, osl: 128", ""))
    Path("fleets/fleet.yaml").write_text(FLEET.replace("specs/", "../specs/"))
    (found,), errors = load_either(["fleets/fleet.yaml"])
    assert not errors
    assert isinstance(found, LoadedFleet)
    assert [m.file for m in found.members] == ["specs/a.yaml", "specs/b.yaml"]
    assert found.members[1].path("trace.csv").is_file()
