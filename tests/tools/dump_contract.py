#!/usr/bin/env python3
"""Write an engine's contract (which flags its own parser accepts) from the installed engine.

Usage: dump_contract.py --sglang|--megatron|--router > servegen/engines/contracts/<engine>-<version>.json

Run it with the Python of an environment that has the engine (see parse_real.py for what each needs). Facts only: no
help text is kept. Defaults are left out: what is not stated is `{}`, a flag that takes one word.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
from typing import Any

import parse_real

SOURCES = {
    "sglang": "PyPI sglang {version}, sglang.srt.server_args.ServerArgs.add_cli_args",
    "megatron": "PyPI megatron-core {version}, megatron.training.arguments.parse_args",
    "router": "PyPI sglang-router {version}, sglang_router.router_args.RouterArgs.add_cli_args",
}
#: How a parser's own types are named in a contract; others ("loads", "LoRAPathAction" ...) take any word.
TYPES = {"int": "int", "float": "float", "human_readable_int": "size", "loads": "json", "bool": "bool"}


def facts(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Flag -> what a contract keeps of it; an alias names its canonical flag."""
    flags: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        if "help" in action.dest or not action.option_strings:
            continue
        entry: dict[str, Any] = {}
        kind = type(action).__name__
        if "BooleanOptional" in kind:
            entry["action"] = "bool"
        elif action.nargs == 0:
            entry["action"] = "switch"
        elif "Append" in kind:
            entry["action"] = "append"
        if "action" not in entry or entry["action"] == "append":
            name = TYPES.get(getattr(action.type, "__name__", ""), "")
            if name:
                entry["type"] = name
            if action.nargs is not None:
                entry["nargs"] = action.nargs
            if action.choices:
                entry["choices"] = sorted(getattr(c, "name", None) or str(c) for c in action.choices)
        if action.required:
            entry["required"] = True
        if "Deprecated" in kind or re.match(r"\W*deprecated", action.help or "", re.IGNORECASE):
            entry["deprecated"] = True
        first = action.option_strings[0]
        for option in action.option_strings:
            flags[option] = entry if option == first else {"canonical": first}
    return flags


def main() -> int:
    engine = sys.argv[1].removeprefix("--")
    parser = parse_real.PARSERS[engine]()
    version = (
        parse_real.megatron_version() if engine == "megatron"
        else importlib.metadata.version({"sglang": "sglang", "router": "sglang-router"}[engine])
    )  # fmt: skip
    flags = facts(parser)
    lines = [f"  {json.dumps(k)}: {json.dumps(flags[k], separators=(', ', ': '))}" for k in sorted(flags)]
    source = SOURCES[engine].format(version=version)
    print(f'{{\n "source": {json.dumps(source)},\n "version": {json.dumps(version)},')
    if engine == "megatron":
        print(' "include": ["megatron-server"],')  # the server script's own flags, kept by hand
    print(' "flags": {')
    print(",\n".join(lines))
    print(" }\n}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
