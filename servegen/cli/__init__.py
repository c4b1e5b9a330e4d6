"""The command line: one file per command, which parses flags, calls, and chooses format and exit code."""

from __future__ import annotations

import gc
import os
import sys

#: Objects between two collections. Imports and columns make many objects and hardly any cycle, and the process is short.
COLLECT_AFTER = 100_000


def main() -> int:
    """Run ``servegen`` on the arguments of this process; returns the exit code."""
    gc.set_threshold(COLLECT_AFTER)
    # Plugins of other packages would slow the start and could change what a spec means.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    from servegen.cli.app import run
    from servegen.cli.streams import prepare

    prepare()
    return run(sys.argv[1:])
