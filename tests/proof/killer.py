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
import time
from pathlib import Path

from servegen.cli.app import run


def build(spec: str, out: str) -> None:
    """A child: the whole command, then the end of the process without any clean-up of this one's."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = run(["build", spec, "-o", out])
    os._exit(code)


def killed(specs: list[str], out: Path, rng: random.Random, whole_s: float) -> dict[str, object]:
    """Start a build and kill it: half of the times anywhere, half while it is writing."""
    writing = rng.random() < 0.6
    before = staged(out)
    spec = rng.choice(specs)
    child = os.fork()
    if child == 0:
        build(spec, str(out))
    began = time.perf_counter()
    if writing:
        while not staged(out) - before and time.perf_counter() - began < 2 * whole_s:
            time.sleep(0.0002)
        time.sleep(rng.uniform(0, 0.12 * whole_s))
    else:
        time.sleep(rng.uniform(0, 1.1 * whole_s))
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {"spec": spec, "killed": os.WIFSIGNALED(status), "left": len(staged(out) - before)}


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
    began = time.perf_counter()
    child = os.fork()  # warms the file system, and measures
    if child == 0:
        build(specs[0], out)
    os.waitpid(child, 0)
    whole_s = time.perf_counter() - began
    for _ in range(int(kills)):
        print(json.dumps(killed(specs, Path(out), rng, whole_s)), flush=True)
        sys.stdin.readline()  # whoever listens has looked


if __name__ == "__main__":
    main()
