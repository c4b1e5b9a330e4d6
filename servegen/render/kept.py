"""Scripts of a user's template, held against the shipped one: each line of code of ours is in them, and still means it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator

from servegen.errors import Diagnostic, Where
from servegen.record import record

_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""")
_COMMENT = re.compile(r"""('[^']*'|"(?:[^"\\]|\\.)*"|\\.)|(\s#.*$)""")
#: First and last lines of blocks, as validate/shell.py allows them.
_OPENS, _ELSE, _ENDS = re.compile(r"(if|for) .*; (then|do)"), re.compile(r"else|elif .*; then"), ("fi", "done")
#: What servegen.validate.scripts holds against the plan, with the key of the spec that says it.
_JUDGED_ELSEWHERE = re.compile(r"export |set -euo pipefail$")
_SETS = re.compile(r"(?:^|export )(\w+)\+?=|^for (\w+) in|^read .*?(\w+) <<<")
_USES = re.compile(r"\$\{(\w+)|\(\((\w+)")
#: Where a command begins within a line, and those of added lines that change what ours say.
_FIRST = r"(?:^|[;&|(!]\s*|\b(?:then|do|else)\s+)"
_ARGUMENTS = re.compile(_FIRST + r"(shift\b|set\s+(?:--|[^-+\s]))")
_STARTS = re.compile(_FIRST + r"(exec)\b")
_LEAVES = re.compile(_FIRST + r"(break|continue)\b")
_FILLS = re.compile(_FIRST + r"(?:read|mapfile|readarray|unset|getopts|printf\s+-v|declare|typeset|local|readonly)\s+(.*)")
_SAYS = re.compile(r"(echo|printf(?!\s+-v)|logger)\s[^;&|]*$")
_OPEN_END = re.compile(r"(&&|\|\|?)$")
_LIKE = 0.5


@record
class _Line:
    """A line of code without its comment, continued ones joined, and the first lines of the blocks around it."""

    text: str
    inside: tuple[str, ...]


def check_kept(text: str, shipped: str, subject: str, template: str, source: str, ours: str) -> list[Diagnostic]:
    """What a script lacks of the ``shipped`` one, and what it adds that changes what our lines say; [] where all is kept.

    ``template`` is the user's file with the text ``source``, ``ours`` the shipped one, ``subject`` the script and its object.
    Code: render-script.
    """
    planned, planned_exec = _split(shipped)
    written, command = _split(text)
    added: list[_Line] = []
    found: list[Diagnostic] = []

    def bad(line: str, message: str) -> None:
        before = _place(source, written[at - 1].text) if at else 0  # where ours ends, if the line is nowhere
        where = Where(template, _place(source, line) or before or 1, 1)
        hint = f"a template may add lines to a script, and keeps those of {ours}"
        found.append(Diagnostic("render-script", f"{subject}: {message}", where, hint))

    at = 0
    for line in planned:
        if _JUDGED_ELSEWHERE.match(line.text) and not line.inside:
            continue
        if line not in written[at:]:
            bad(line.text, f"before the command must stand, in this order and place, the line: {line.text}")
            continue
        hit = written.index(line, at)
        added += written[at:hit]
        at = hit + 1
    added += written[at:]
    for word in [w for w in _words(planned_exec) if w.endswith("[@]}")]:
        if word not in _words(command):
            bad(f'"{word}" \\', f'the command lacks "{word}", the addresses that the lines before it collect')
    ours_set = {name for line in planned for hit in _SETS.finditer(line.text) for name in hit.groups() if name}
    ours_set |= {name for line in planned for hit in _USES.finditer(line.text) for name in hit.groups() if name}
    loops = {line.text for line in planned if line.text.startswith("for ")}
    exports = {line.text for line in planned if _JUDGED_ELSEWHERE.match(line.text)}
    for line in added:
        if not found and line.text not in exports and (why := _changes(line, ours_set | {"IFS"}, loops)):
            bad(line.text, f"{line.text}: {why}")
    return found


def _changes(line: _Line, names: set[str], loops: set[str]) -> str:
    """How an added line changes what the lines of ours do; "" if it does not."""
    bare = _QUOTED.sub("''", line.text)
    if hit := _ARGUMENTS.search(bare):
        return f"{hit[1].split()[0]} changes the arguments that the command hands on"
    if _STARTS.search(bare):
        return "it starts something else in place of the command"
    if _LEAVES.search(bare) and loops & set(line.inside):
        return "it keeps a loop of the shipped script from its work"
    if _OPEN_END.search(bare):
        return "it makes the next line depend on it"
    filled = {word.partition("=")[0] for hit in _FILLS.finditer(bare) for word in hit[1].split()}
    for name in sorted(names):
        assigned = rf"(?<![\w$\{{.-]){name}(\[[^\]]*\])?([-+*/%&|^]|<<|>>)?=(?!=)|^for {name}\b"
        if name in filled or (re.search(assigned, bare) and not _SAYS.match(bare)):
            return f"it sets {name}, which the shipped script reads or sets itself"
        if re.search(rf"\$\{{{name}:?=", line.text):
            return f"it gives {name} a default, which the shipped script does not"
    return ""


def _split(script: str) -> tuple[list[_Line], str]:
    """The lines before the exec command, and that command."""
    lines: list[_Line] = []
    inside: tuple[str, ...] = ()
    for text in _code(script):
        if text.startswith("exec ") and not inside:
            return lines, text
        if text in _ENDS or _ELSE.fullmatch(text):
            lines.append(_Line(text, inside[:-1]))
            inside = inside[:-1] if text in _ENDS else (*inside[:-1], f"{inside[-1]} {text}" if inside else text)
            continue
        lines.append(_Line(text, inside))
        if _OPENS.fullmatch(text):
            inside = (*inside, text)
    return lines, ""


def _code(script: str) -> Iterator[str]:
    whole = ""
    for line in script.splitlines():
        whole += line
        if whole.endswith("\\") and not whole.lstrip().startswith("#"):
            whole = whole[:-1] + " "
            continue
        code = " ".join(_COMMENT.sub(lambda hit: hit[1] or "", f" {whole}").split())
        whole = ""
        if code:
            yield code


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # said where the script is read back
        return []


def _place(source: str, line: str) -> int:
    """The line of a template that is ``line``, or most like it; 0 if none is."""
    lines = [" ".join(text.split()) for text in source.splitlines()]
    near = [line] if line in lines else difflib.get_close_matches(line, lines, 1, _LIKE)
    return lines.index(near[0]) + 1 if near else 0
