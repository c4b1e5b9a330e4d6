"""The command line: one file per command, which parses flags, calls, and chooses format and exit code."""

from __future__ import annotations

import sys


def main() -> int:
    """Run ``servegen`` on the arguments of this process; returns the exit code."""
    from servegen.cli.app import run

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # the same bytes in every locale
    return run(sys.argv[1:])
