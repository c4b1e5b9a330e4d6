"""What the proofs share: a command line run inside this process, a real one beside it, and folders as values."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import typer

import servegen
from servegen.cli.app import run

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
PACKAGE = Path(servegen.__path__[0]).resolve().parent
#: No single spec takes longer than this, seconds: what takes more counts as a hang.
PATIENCE_S = 20


#: Typer builds its commands anew on every call, which would take most of the time of thousands of them.
BUILT = functools.cache(typer.main.get_command)


class Hung(BaseException):
    """A command did not end; no handler of the program's own may swallow it."""


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path, patience_s: float = PATIENCE_S) -> Ran:
    """``servegen`` in this process. Whatever it does not turn into a message of its own is raised, warnings included."""

    def hung(number: int, frame: Any) -> None:
        raise Hung(f"servegen {' '.join(map(str, arguments))} runs for more than {patience_s} s")

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, hung)
    debug = os.environ.get("SERVEGEN_DEBUG")
    os.environ["SERVEGEN_DEBUG"] = "1"
    signal.setitimer(signal.ITIMER_REAL, patience_s)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("typer.main.get_command", BUILT):
            code = run([str(a) for a in arguments])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if debug is None:
            del os.environ["SERVEGEN_DEBUG"]
        else:
            os.environ["SERVEGEN_DEBUG"] = debug
    return Ran(code, out.getvalue(), err.getvalue())


def process(*arguments: str | Path, cwd: Path | None = None, prefix: Sequence[str] = (), **environment: str) -> Ran:
    """The real command as a process of its own."""
    ran = subprocess.run(
        [*prefix, sys.executable, "-m", "servegen", *map(str, arguments)],
        cwd=cwd,
        env=clean_environment(**environment),
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment with the package on the path; an empty string takes a variable out."""
    merged = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONSAFEPATH": "1", **changes}
    return {name: value for name, value in merged.items() if value}


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Every file of ``folder`` by its path: its bytes, and whether it can be run; links count as what they say."""
    found: dict[str, tuple[bytes, bool]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = (os.readlink(path).encode(), False)
        elif path.is_file():
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


def spec(name: str = "chat", **changes: Any) -> dict[str, Any]:
    """A feasible spec; ``traffic__rate="3/s"`` sets a key below ``spec``, None takes it out."""
    document: dict[str, Any] = {
        "apiVersion": "servegen/v1alpha1",
        "kind": "ServingSpec",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "slo": {"ttft": "2s", "itl": "50ms"},
            "traffic": {"rate": "5/s", "isl": 1024, "osl": 128},
            "hardware": {"pool": [{"accelerator": "h100-sxm-80gb", "nodes": 2, "perNode": 8}]},
        },
    }
    for key, value in changes.items():
        *path, last = key.split("__")
        node: Any = document["spec"]
        for step in path:
            node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return document


def write_spec(path: Path, document: Any) -> Path:
    """The document as a file (JSON, which is YAML)."""
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Be in ``folder`` for a while."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
