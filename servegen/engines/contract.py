"""Contracts: which flags an engine's own parser accepts, as dumped from it (``contracts/<engine>-<version>.json``).

In a file, ``{}`` is a flag that takes one word; ``type`` is int, float, size (``8192`` or ``16k``), json or bool;
``action`` switch (no value), bool (``--x`` and ``--no-x``) or append (may repeat); ``canonical`` the flag that an alias
stands for; ``include`` names contracts whose flags are legal too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from servegen.engines.launch import Arg
from servegen.errors import Diagnostic, UserError
from servegen.record import record

CONTRACTS = Path(__file__).parent / "contracts"
#: No flag needs more, and int() itself refuses thousands of digits.
_LONGEST_NUMBER = 100
_WORDS = {"int": "a whole number", "float": "a number", "size": "a number of units, k/M/G allowed", "json": "JSON"}


@record
class Flag:
    """What a parser accepts after one flag. ``nargs`` as argparse has it: None is exactly one word."""

    name: str
    canonical: str
    type: str = "str"
    nargs: int | str | None = None
    action: str = "store"
    choices: tuple[str, ...] = ()
    required: bool = False
    deprecated: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.action in ("switch", "bool") or self.nargs == 0


@record
class Contract:
    """Every flag of one engine version, aliases included, by name."""

    name: str
    version: str
    source: str
    flags: Mapping[str, Flag]

    def nearest(self, flag: str) -> str:
        """The known flag closest to ``flag``, "" if none is close."""
        return next(iter(difflib.get_close_matches(flag, self.flags, n=1, cutoff=0.6)), "")

    def check(self, args: Iterable[Arg]) -> list[Diagnostic]:
        """Findings about a whole command in its order; none when the engine's parser would accept it.

        Codes: flag-unknown, flag-value, flag-choice, flag-repeated, flag-missing are errors, flag-deprecated a warning.
        """
        found: list[Diagnostic] = []
        seen: dict[str, str] = {}
        for arg in args:
            found += self.check_arg(arg)
            flag = self.flags.get(arg.flag)
            if flag is None:
                continue
            if flag.canonical in seen and flag.action != "append":
                other = seen[flag.canonical]
                message = f"{arg.flag} is given twice" if other == arg.flag else f"{arg.flag} repeats {other}"
                found.append(Diagnostic("flag-repeated", message, hint="the last one would win; keep one"))
            seen[flag.canonical] = arg.flag
        for flag in self.flags.values():
            if flag.required and flag.name == flag.canonical and flag.name not in seen:
                found.append(Diagnostic("flag-missing", f"{self.name} requires {flag.name}"))
        return found

    def check_arg(self, arg: Arg) -> list[Diagnostic]:
        """Findings about one flag and its values on their own."""
        flag = self.flags.get(arg.flag)
        if flag is None:
            return [self._unknown(arg.flag)]
        found = _check_count(flag, arg.values)
        for value in arg.values if not found else ():
            if not _has_type(flag.type, value):
                found.append(Diagnostic("flag-value", f"{flag.name} takes {_WORDS[flag.type]}, not {value!r}"))
            elif flag.choices and value not in flag.choices:
                near = difflib.get_close_matches(value, flag.choices, n=1)
                hint = (f"did you mean {near[0]}? " if near else "") + "it takes " + ", ".join(flag.choices)
                found.append(Diagnostic("flag-choice", f"{flag.name} does not take {value!r}", hint=hint))
        if flag.deprecated:
            found.append(Diagnostic("flag-deprecated", f"{flag.name} is deprecated in {self.name}", severity="warning"))
        return found

    def _unknown(self, name: str) -> Diagnostic:
        longer = sorted(f for f in self.flags if f.startswith(name)) if len(name) > 2 else []
        if "=" in name:
            return Diagnostic("flag-unknown", f"{name} joins flag and value", hint="give them as two words")
        if longer:
            hint = "write the full name: " + ", ".join(longer[:4])
            return Diagnostic("flag-unknown", f"{name} is an abbreviation, not a flag of {self.name}", hint=hint)
        near = self.nearest(name)
        hint = f"did you mean {near}?" if near else ""
        return Diagnostic("flag-unknown", f"{name} is not a flag of {self.name}", hint=hint)


def _check_count(flag: Flag, values: tuple[str, ...]) -> list[Diagnostic]:
    """Findings about how many words follow the flag, and about words that a parser would take for a flag."""
    for value in values:
        if value.startswith("-") and not _has_type("float", value):
            return [Diagnostic("flag-value", f"{flag.name}: a parser reads the value {value!r} as a flag")]
    have = len(values)
    if flag.is_switch:
        legal, want = have == 0, "no value"
    elif isinstance(flag.nargs, int):
        legal, want = have == flag.nargs, f"{flag.nargs} value(s)"
    elif flag.nargs == "?":
        legal, want = have <= 1, "at most one value"
    elif flag.nargs == "+":
        legal, want = have >= 1, "at least one value"
    else:
        legal, want = flag.nargs == "*" or have == 1, "one value"
    if legal:
        return []
    return [Diagnostic("flag-value", f"{flag.name} takes {want}, not {' '.join(values) or 'none'}")]


def _has_type(kind: str, value: str) -> bool:
    """Whether argparse's converter of that kind accepts ``value``."""
    if kind == "int":
        return re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*", value) is not None and len(value) <= _LONGEST_NUMBER
    if kind == "size":
        return re.fullmatch(r"[0-9]+(\.[0-9]+)?[kKmMgG]?", value) is not None and len(value) <= _LONGEST_NUMBER
    if kind in ("float", "json"):
        try:
            float(value) if kind == "float" else json.loads(value)
        except (ValueError, RecursionError):
            return False
    return True


@cache
def load_contract(name: str) -> Contract:
    """The contract ``contracts/<name>.json``. UserError that lists the known ones if there is none of that name."""
    known = {path.stem for path in CONTRACTS.glob("*.json")}
    if name not in known:
        listed = ", ".join(sorted(known))
        raise UserError(Diagnostic("contract-unknown", f"there is no contract {name!r}", hint=f"known: {listed}"))
    raw = json.loads((CONTRACTS / f"{name}.json").read_text(encoding="utf-8"))
    flags: dict[str, Flag] = {}
    for other in raw.get("include", ()):
        flags.update(load_contract(other).flags)
    entries: dict[str, dict[str, Any]] = raw["flags"]
    for flag, entry in entries.items():
        canonical = entry.get("canonical", flag)
        flags[flag] = _flag(flag, canonical, entries[canonical])
    return Contract(name, raw["version"], raw["source"], flags)


def contract_name(engine: str, version: str) -> str:
    """``<engine>-<version>`` where that contract exists; UserError that names the versions that have one otherwise."""
    name = f"{engine}-{version}"
    if (CONTRACTS / f"{name}.json").is_file():
        return name
    versions = sorted(p.stem.removeprefix(f"{engine}-") for p in CONTRACTS.glob(f"{engine}-[0-9]*.json"))
    hint = f"spec.deploy.engineVersion: one of {', '.join(versions)}" if versions else ""
    message = f"no contract says which flags {engine} {version} accepts"
    raise UserError(Diagnostic("contract-unknown", message, hint=hint))


def require(contract: Contract, args: tuple[Arg, ...], what: str) -> None:
    """Raises UserError if the engine's parser would refuse ``args``; ``what`` names the process in the message."""
    errors = [d for d in contract.check(args) if d.severity == "error"]
    if errors:
        raise UserError([Diagnostic(d.code, f"{what}: {d.message}", hint=d.hint) for d in errors])


def _flag(name: str, canonical: str, entry: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        canonical=canonical,
        type=entry.get("type", "str"),
        nargs=entry.get("nargs"),
        action=entry.get("action", "store"),
        choices=tuple(entry.get("choices", ())),
        required=entry.get("required", False),
        deprecated=entry.get("deprecated", False),
    )
