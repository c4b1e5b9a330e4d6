"""The real command as a process: what it imports, how it ends, what reaches which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import servegen

PACKAGE = Path(servegen.__file__).resolve().parents[1]
SPEC = """\
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {name: chat}
spec:
  preset: chat
  model: {name: Llama-3.1-8B}
  traffic: {rate: 5/s, isl: 1024, osl: 128}
  hardware: {pool: [{accelerator: h100-sxm-80gb, nodes: 1, perNode: 8}]}
"""


def servegen_process(*arguments: str, cwd: Path | None = None, code: str = "", **env: str) -> Any:
    command = [sys.executable, *(["-c", code] if code else ["-m", "servegen"]), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), **env}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; from servegen.cli import main; sys.argv = ['servegen', '--help']; main();"
        "heavy = {'numpy', 'pydantic', 'jinja2', 'rich', 'ruamel', 'jsonschema'} & set(sys.modules);"
        "print(sorted(heavy), time.process_time(), file=sys.stderr)"
    )
    times = []
    for _ in range(3):
        done = servegen_process(code=code)
        assert done.returncode == 0 and done.stdout.startswith("Usage: servegen")
        heavy, _, seconds = done.stderr.strip().rpartition(" ")
        assert heavy == "[]"
        times.append(float(seconds))
    assert min(times) < 0.25


def test_module_and_version() -> None:
    done = servegen_process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"servegen {servegen.__version__}\n", "")


def test_no_arguments_show_the_help() -> None:
    done = servegen_process()
    assert "Commands:" in done.stdout + done.stderr


def test_usage_errors_go_to_stderr() -> None:
    done = servegen_process("plan")
    assert done.returncode == 1 and done.stdout == "" and "Usage:" in done.stderr


def test_a_spec_becomes_files_that_any_environment_agrees_on(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(SPEC)
    done = servegen_process("build", "chat.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("chat: created ") and done.stderr == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chat.yaml", "out"]
    again = servegen_process(
        "build", "chat.yaml", "--check", cwd=tmp_path, PYTHONHASHSEED="7", LC_ALL="C", TZ="Asia/Tokyo", COLUMNS="20"
    )
    assert (again.returncode, again.stdout) == (0, "chat: up to date\n"), again.stderr
    locked = servegen_process("build", "chat.yaml", "--check", "--locked", cwd=tmp_path)
    assert locked.returncode == 0, locked.stdout


def test_the_same_plan_from_stdin(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "servegen", "plan", "-", "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        command, input=SPEC, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "chat"


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m servegen catalog list prices | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_only_on_a_terminal_and_only_if_wanted(no_color: str, coloured: bool) -> None:
    code = (
        "from servegen.cli.common import show; from servegen.report.blocks import table;"
        "show([table(('met', 'n'), [('NO', '1')])])"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = no_color
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout == (
        b"met  n\n---  -\nNO   1\n"
    )
    master, slave = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=slave, env=environment)
    os.close(slave)
    output = b""
    while chunk := _read(master):
        output += chunk
    os.close(master)
    assert process.wait() == 0
    assert b"NO" in output
    assert (b"\x1b[1;31m" in output) is coloured


def _read(handle: int) -> bytes:
    """What a terminal shows; nothing once its program has ended."""
    try:
        return os.read(handle, 65536)
    except OSError:
        return b""


BROKEN = (
    ("plan s.yaml >/dev/full", 1, "servegen: cannot write standard output: No space left on device\n"),
    ("plan s.yaml -o json >/dev/full", 1, "servegen: cannot write standard output: No space left on device\n"),
    ("--help >/dev/full", 1, "servegen: cannot write standard output: No space left on device\n"),
    ("plan s.yaml >&-", 1, "servegen: cannot write standard output: Bad file descriptor\n"),
    ("--version >&-", 1, "servegen: cannot write standard output: Bad file descriptor\n"),
    ("plan - <&-", 1, "<stdin>: error[unreadable]: cannot read standard input: Bad file descriptor\n"),
    ("estimate --from - <&-", 1, "-: error[io]: cannot read: Bad file descriptor\n"),
    ("plan none.yaml 2>&-", 1, ""),
    ("plan none.yaml 2>/dev/full", 1, ""),
    ("validate s.yaml 2>&-", 0, ""),
    ("plan - <&- >&- 2>&-", 1, ""),
)


@pytest.mark.parametrize(("line", "code", "err"), BROKEN, ids=[b[0] for b in BROKEN])
def test_streams_that_are_broken(line: str, code: int, err: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPEC)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = ["bash", "-c", f"exec {sys.executable} -m servegen {line}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, err), done
    assert "plan" not in line or not done.stdout
