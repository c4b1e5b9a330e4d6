"""A folder of templates of one's own: nothing in it is passed over in silence, and what is wrong is said of the file itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof.harness import ROOT, Ran, command, spec, write_spec

SHIPPED = ROOT / "templates"
SERVICE = (SHIPPED / "kubernetes" / "service.yaml.j2").read_text(encoding="utf-8")


def build(tmp_path: Path, *more: str | Path) -> Ran:
    file = write_spec(tmp_path / "s.yaml", spec())
    return command("build", file, "-o", tmp_path / "out", "--templates", tmp_path / "own", *more, patience_s=10)


def put(name: str, text: str = SERVICE) -> Callable[[Path], object]:
    def change(own: Path) -> None:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text, encoding="utf-8")

    return change


def made(name: str, how: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(own: Path) -> None:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        how(own / name)

    return change


NAME = "kubernetes/service.yaml.j2"
PASSED_OVER = (
    (made(NAME, lambda p: p.symlink_to("nowhere")), NAME, "is a link that leads nowhere"),
    (made(NAME, lambda p: p.symlink_to(p)), NAME, "is a link that leads nowhere"),
    (made("kubernetes", lambda p: p.symlink_to("nowhere")), "kubernetes", "is a link that leads nowhere"),
    (made(NAME, os.mkfifo), NAME, "is no regular file"),
    (made(NAME, lambda p: p.mkdir()), NAME, "is a folder, and by its name a template"),
    (made(NAME, lambda p: p.symlink_to("/dev/zero")), NAME, "is no regular file"),
    (made(NAME, lambda p: p.write_bytes(b"\xff")), NAME, "is no UTF-8 text, from byte 0 on"),
    (made(NAME, lambda p: p.write_bytes(b" " * (2**20 + 1))), NAME, "it is larger than 1 MiB"),
    (put("kubernetes/servise.yaml.j2"), "kubernetes/servise.yaml.j2", "did you mean kubernetes/service.yaml.j2?"),
    (put("kubernets/service.yaml.j2"), "kubernets/service.yaml.j2", "did you mean kubernetes/service.yaml.j2?"),
    (put("service.yaml.j2"), "service.yaml.j2", "did you mean kubernetes/service.yaml.j2?"),
    (put("kubernetes/_pods.j2"), "kubernetes/_pods.j2", "did you mean kubernetes/_pod.j2?"),
    (put("kubernetes/service.yaml"), "kubernetes/service.yaml", "overrides nothing without the ending .j2"),
    (put("report/PLAN.md"), "report/PLAN.md", "overrides nothing without the ending .j2"),
    (put("kubernetes/configmap.yaml.j2"), "kubernetes/configmap.yaml.j2", "overrides no template"),
)


@pytest.mark.parametrize(("change", "name", "says"), PASSED_OVER, ids=[f"{n} {s[:24]}" for _, n, s in PASSED_OVER])
@pytest.mark.parametrize("verb", ["build", "plan"])
def test_what_would_be_passed_over_is_an_error(
    change: Callable[[Path], object], name: str, says: str, verb: str, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    change(own)
    file = write_spec(tmp_path / "s.yaml", spec())
    out = ["-o", tmp_path / "out"] if verb == "build" else []
    ran = command(verb, file, *out, "--templates", own, patience_s=10)
    assert ran.code == 1 and ran.out == "" and not (tmp_path / "out").exists()
    place = re.escape(str(own / name))
    assert re.search(rf"{place}: error\[render-templates\]: {re.escape(name)} .*{re.escape(says)}", ran.err), ran


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", [NAME, "kubernetes"])
def test_without_permission_it_is_told(name: str, tmp_path: Path) -> None:
    put(NAME)(tmp_path / "own")
    (tmp_path / "own" / name).chmod(0)
    ran = build(tmp_path)
    (tmp_path / "own" / name).chmod(0o700)
    assert ran.code == 1 and "cannot be read: Permission denied" in ran.err and name in ran.err


@pytest.mark.parametrize("format", ["text", "json", "markdown"])
def test_plan_names_a_folder_that_is_not_there(format: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("nope", "file"):
        ran = command("plan", write_spec(tmp_path / "s.yaml", spec()), "-o", format, "--templates", tmp_path / place)
        assert ran.code == 1 and ran.out == "" and "--templates" in ran.err and place in ran.err, ran


def test_what_belongs_beside_templates_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    put("README.md", "mine")(own)
    put(".git/x.j2", "{{")(own)
    put("kubernetes/names.j2", "{% macro port() %}http{% endmacro %}")(own)
    text = "{% import 'kubernetes/names.j2' as names %}# {{ names.port() }}\n" + SERVICE
    put(NAME, text)(own)
    (own / "kubernetes" / "again").symlink_to(own)
    ran = build(tmp_path)
    assert ran.code == 0 and (tmp_path / "out/chat/kubernetes/service-serve.yaml").read_text().startswith("# http\n"), ran


FAULTS = (
    (NAME, lambda text: "\n{{ 1 / 0 }}\n" + text, 2, "division by zero"),
    (NAME, lambda text: text + "{% if %}\n", SERVICE.count("\n") + 1, "Expected an expression"),
    (NAME, lambda text: text.replace("spec:", "spec: &a"), 0, "render-differs"),
    (NAME, lambda text: text + "  x: y\n", 0, "there is no such field in ServiceSpec"),
    ("kubernetes/_pod.j2", lambda text: "nothing", 1, "does not export the requested name 'template'"),
    (NAME, lambda text: "just text", 0, "holds plain text, or a single value, one object was meant"),
    (NAME, lambda text: "- a", 0, "holds a list, one object was meant"),
    (NAME, lambda text: "# a", 0, "holds nothing, one object was meant"),
    (NAME, lambda text: text + "---\n" + text, 0, "holds 2 documents, one object was meant"),
    ("kubernetes/_object.j2", lambda text: text.replace("{%- macro", "{%- macro", 1) + "{{ absent.x }}", 0, "absent"),
    ("report/PLAN.md.j2", lambda text: text + "\n{{ absent }}\n", -1, "'absent' is undefined"),
    ("sglang/launch.sh.j2", lambda text: "{{ launch.nothing }}\n" + text, 1, "nothing"),
)


@pytest.mark.parametrize(("name", "change", "line", "says"), FAULTS, ids=[f"{n}: {s}" for n, _, _, s in FAULTS])
def test_a_fault_names_the_file_in_the_users_folder(
    name: str, change: Callable[[str], str], line: int, says: str, tmp_path: Path
) -> None:
    text = change((SHIPPED / name).read_text(encoding="utf-8"))
    if says == "render-differs":
        text = text.replace("&a", "").replace('type: "ClusterIP"', 'type: "NodePort"')
    put(name, text)(tmp_path / "own")
    ran = build(tmp_path)
    line = text.rstrip("\n").count("\n") + 1 if line < 0 else line
    place = re.escape(str(tmp_path / "own" / name)) + (f":{line}:1: error" if line else "")
    assert ran.code == 1 and says in ran.err and re.search(place, ran.err), ran
    shutil.rmtree(tmp_path / "own")
    (tmp_path / "own").mkdir()
    assert build(tmp_path).code == 0
