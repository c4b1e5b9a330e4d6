"""What stands before a launch script's exec command: that it is reached, and that a shell can read it at all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from servegen.errors import Diagnostic

#: The blocks that a script may have, each as its first and last line: what else groups commands cannot be judged line by line.
_BLOCKS = {"fi": re.compile(r"if \S.*; then"), "done": re.compile(r"for \w+ in \S.*; do")}
_ELSE = re.compile(r"else|elif \S.*; then")
#: First words of what ends the script, starts something else, or changes what later lines mean.
_ENDS = ("exit", "return", "exec", "kill", "logout")
_CHANGES = re.compile(r"(alias|unalias|trap|unset|shopt|eval|set \+\S+)(\s|$)")
_COMPOUND = re.compile(
    r"(while|until|case|select|function|coproc|then|do|else|elif|fi|done|esac|if|for|[{}()!])(\s|;|$)|\w[\w-]*\s*\(\s*\)"
)
_HERE = re.compile(r"(?<!<)<<(?!<)")
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""")


def check_reached(text: str) -> list[Diagnostic]:
    """Findings, by line, about a script whose exec command may not be reached, or not be the last. Code: script-flow."""
    found: list[Diagnostic] = []
    blocks: list[str] = []
    started = 0
    for number, line in _commands(text):
        word, inner = re.split(r"[\s;]", line.strip(), maxsplit=1)[0], line.strip()
        why = ""
        if started:
            why = f"it follows the exec command of line {started}, and never runs"
        elif blocks and inner == blocks[-1]:
            blocks.pop()
        elif blocks and _ELSE.fullmatch(inner):
            pass
        elif end := next((end for end, first in _BLOCKS.items() if first.fullmatch(inner)), ""):
            blocks.append(end)
        elif line.startswith("exec "):
            started = number
            why = "it stands in a block, and may not be reached" if blocks else ""
        elif _COMPOUND.match(inner) or _HERE.search(_QUOTED.sub("", inner)):
            why = "before the exec command stand only simple commands, if ...; then and for ... in ...; do, a line each"
        elif word in _ENDS and not (blocks and inner == "exit 1"):
            why = f"{word} keeps the server from being started"
        elif _CHANGES.match(inner):
            why = f"{word} changes what the lines behind it do"
        else:
            why = _unread(inner)
        if why:
            hint = "an initContainer is the place for what must come first"
            found.append(Diagnostic("script-flow", f"line {number}: {why}", hint=hint))
    if blocks:
        found.append(Diagnostic("script-flow", f"a block has no end: {blocks[-1]} is missing"))
    return found


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, numbered by the first; comments and empty ones left out."""
    number, whole = 0, ""
    for i, line in enumerate(text.splitlines(), start=1):
        number = number or i
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            whole += line[:-1] + " "
            continue
        whole += line
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield number, whole
        number, whole = 0, ""


def _unread(command: str) -> str:
    """Why a shell reads on behind this line's end, "" if it does not."""
    try:
        shlex.split(command, comments=True)
    except ValueError as error:
        return f"a shell cannot read it: {error}"
    return ""
