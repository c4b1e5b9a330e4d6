"""Regular expressions of other people's: which of them Python may be asked about, and may answer in time.

Python's matcher tries one way after another, Prometheus' does not; ``([a-z]+)+`` on thirty letters takes the one for ever.
"""

from __future__ import annotations

import re
import warnings

_MOST_TEXT = 300
_MOST_PATTERN = 2000
#: Ways to match a short text that may be tried: about a second's.
_MOST_WAYS = 2**20
#: What Prometheus (RE2) and Python read differently, or only one of them.
_DIALECT = re.compile(r"\\[pPQEzZACGR1-9]|\[\[:|\(\?(?!:|i\)|P<)|[*+?}]\+")
#: What looks around, which RE2 cannot; and what it reads where Python does not.
_AROUND = re.compile(r"\?<?[=!]")
_PYTHON = re.compile(r"[\^$][*+?{]|\\[bB][*+?{]|\\x\{|.\(\?i\)", re.DOTALL)
_ATOM = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|.", re.DOTALL)
_TIMES = re.compile(r"\{\d*(,?)\d*\}")
_FEW = ("\\d", "[0-9]")  # digits come in short runs


def meets(pattern: str, text: str) -> bool | None:
    """Whether all of ``text`` meets a regular expression of Prometheus, None where that cannot be told in time or at all.

    One that is broken is met by nothing.
    """
    if _DIALECT.search(pattern) or len(text) > _MOST_TEXT or not tame(pattern):
        return None
    try:
        return re.fullmatch(pattern, text) is not None
    except (re.error, OverflowError, RecursionError):
        return False


def broken(pattern: str) -> bool:
    """Whether a pattern is for certain none that Prometheus reads (RE2); what only Python refuses is not."""
    place = 0
    while place < len(pattern):
        token = (_ATOM.match(pattern, place) or [" "])[0]
        place += len(token)
        if token == "(" and _AROUND.match(pattern, place):
            return True
    if len(pattern) > _MOST_PATTERN or _DIALECT.search(pattern) or _PYTHON.search(pattern):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what some later Python may read otherwise
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return True
    return False


def tame(pattern: str) -> bool:
    """Whether a matcher that tries one way after another has only few to try on a short text."""
    if len(pattern) > _MOST_PATTERN:
        return False
    ways, atom = 1, ""
    groups: list[list[int]] = [[0, 0]]  # of each open group: its alternatives but one, and what in it may be repeated
    closed = [0, 0]
    place = 0
    while place < len(pattern):
        times = _TIMES.match(pattern, place)
        token = times[0] if times else (_ATOM.match(pattern, place) or [""])[0]
        place += len(token)
        if token == "(":
            groups.append([0, 0])
            atom = token
            if pattern.startswith("?", place):  # of the group's kind, not a repetition
                place += 1
        elif token == ")" and len(groups) > 1:
            closed = groups.pop()
            ways *= closed[0] + 1
            groups[-1][1] += sum(closed)
            atom = token
        elif token == "|":
            groups[-1][0] += 1
        elif token == "?":
            ways *= 2
            groups[-1][1] += 1
        elif token in ("*", "+") or (times and atom):
            if atom == ")" and any(closed):
                return False  # a repetition of repetitions, or of alternatives
            groups[-1][1] += 1
            ways *= 4 if atom in _FEW else 32
        else:
            atom = token
    return ways <= _MOST_WAYS
