"""Kills ``servegen build`` at random points: ``killer.py SPEC OUT KILLS SEED``, one JSON line for each kill.

Every build is a process of its own, forked from this one, which has imported the program before: so that a kill hits a
build and not the start of an interpreter. After each kill the folder is listed, and nothing is mended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from servegen.cli.app import run


def build(spec: str, out: str) -> None:
    """A child: the whole command, then the end of the process without any clean-up of this one's."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run(["build", spec, "-o", out])
    os._exit(code)


def killed(spec: str, out: Path, rng: random.Random, whole_s: float) -> dict[str, object]:
    """Start a build and kill it: anywhere, at once when it begins to write, or some time after that."""
    writing, later_s = rng.choice(((False, 1.2 * whole_s), (True, 0.002), (True, 0.02), (True, 0.3 * whole_s)))
    before = staged(out)
    child = os.fork()
    if child == 0:
        build(spec, str(out))
    if writing:
        while not staged(out) - before and not ended(child):
            time.sleep(0.0002)
    time.sleep(rng.uniform(0, later_s))
    early = not ended(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"spec": spec, "killed": early, "left": len(staged(out) - before)}


def ended(child: int) -> bool:
    """Whether the process has come to its own end; it is not reaped."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def staged(out: Path) -> set[tuple[int, int]]:
    """The staging folders there are, so that one that a former kill left is told from a new one."""
    found = set()
    for path in out.glob(".*.new"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.stat().st_ino, path.stat().st_ctime_ns))
    return found


def main() -> None:
    *specs, out, kills, seed = sys.argv[1:]
    rng = random.Random(int(seed))
    whole_s = 0.0
    for _ in range(2):  # the first one imports what a build needs, so that no child has to; the second one measures
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as elsewhere, contextlib.redirect_stdout(io.StringIO()):
            run(["build", specs[0], "-o", elsewhere])
        whole_s = time.perf_counter() - began
    for _ in range(int(kills)):
        current = sys.stdin.readline().strip()  # whoever listens has looked at the tree, and says which it is
        spec = next(path for path in specs if Path(path).stem != current)
        print(json.dumps(killed(spec, Path(out), rng, whole_s)), flush=True)


if __name__ == "__main__":
    main()
