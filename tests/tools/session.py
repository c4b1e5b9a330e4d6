"""The session in README.md, run again: ``python tests/tools/session.py`` rewrites what each command prints.

The session stands between two marks; a line that starts with ``$ `` is a command, what follows is its output. A test
compares, so that the README shows nothing that the program does not print.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import servegen

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- session -->\n```console\n)(.*?)(```\n<!-- /session -->)", re.DOTALL)
SHELL = 'servegen() { "$SERVEGEN_PYTHON" -m servegen "$@"; }; '


def output(command: str) -> str:
    """What ``command`` prints to stdout and stderr, run by bash in the root of the checkout."""
    home = str(Path(servegen.__path__[0]).parent)
    environment = {**os.environ, "PYTHONPATH": home, "PYTHONSAFEPATH": "1", "SERVEGEN_PYTHON": sys.executable}
    ran = subprocess.run(
        ["bash", "-c", SHELL + command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return "".join(line.rstrip() + "\n" for line in ran.stdout.splitlines())


def refreshed(readme: str) -> str:
    """``readme`` with every command's output as it is now. Raises ValueError if it has no session."""
    found = BLOCK.search(readme)
    if found is None:
        raise ValueError("README.md has no session between its marks")
    commands = [line for line in found[2].splitlines() if line.startswith("$ ")]
    session = "\n".join(f"{command}\n{output(command[2:])}" for command in commands)
    return readme[: found.start()] + found[1] + session + found[3] + readme[found.end() :]


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
