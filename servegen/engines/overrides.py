"""``deploy.overrides``: the user's last word on an engine's flags and variables, held to what can be legal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from servegen.engines.contract import Contract, Flag
from servegen.engines.launch import Arg
from servegen.errors import Diagnostic, UserError


def merge(args: tuple[Arg, ...], overrides: Mapping[str, Any], contract: Contract) -> tuple[Arg, ...]:
    """``args`` with the overrides applied: a value replaces or adds, ``true`` adds a switch, ``false`` removes a flag.

    Keys are flags without their dashes, aliases allowed; ``false`` for a flag that has a ``--no-`` twin gives the twin.
    Planned flags keep their place and new ones follow by name, so that the order of the spec does not matter.
    Raises UserError naming ``deploy.overrides.args.<key>`` when the contract forbids one, or two mean the same flag.
    """
    merged = {contract.flags[a.flag].canonical: a for a in args}
    keys: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for key in sorted(overrides):
        flag = contract.flags.get("--" + key.removeprefix("--"))
        if flag is None:
            problems += [_about(key, d) for d in contract.check_arg(Arg("--" + key.removeprefix("--")))]
            continue
        if flag.canonical in keys:
            message = f"means the same flag as {keys[flag.canonical]}"
            problems.append(_about(key, Diagnostic("flag-repeated", message, hint="keep one of them")))
            continue
        keys[flag.canonical] = key
        arg = _argument(flag, overrides[key])
        if arg is None:
            merged.pop(flag.canonical, None)
            if flag.required:
                problems.append(_about(key, Diagnostic("flag-missing", f"{flag.canonical} cannot be removed")))
            continue
        errors = [d for d in contract.check_arg(arg) if d.severity == "error"]
        problems += [_about(key, d) for d in errors]
        merged[flag.canonical] = arg
    if problems:
        raise UserError(problems)
    return tuple(merged.values())


def _argument(flag: Flag, value: Any) -> Arg | None:
    """The argument that an override asks for, by its canonical name; None = remove the flag."""
    if value is False:
        return Arg("--no-" + flag.canonical[2:]) if flag.action == "bool" else None
    if value is True:
        return Arg(flag.canonical)
    if flag.type == "json" and isinstance(value, (list, dict)):
        return Arg(flag.canonical, (json.dumps(value, sort_keys=True),))
    if isinstance(value, (list, tuple)):
        return Arg(flag.canonical, tuple(str(v) for v in value))
    return Arg(flag.canonical, (str(value),))


def _about(key: str, finding: Diagnostic) -> Diagnostic:
    return Diagnostic(finding.code, f"deploy.overrides.args.{key}: {finding.message}", hint=finding.hint)


def environment(planned: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """``planned`` with the overrides over it. UserError naming ``deploy.overrides.env.<name>`` if a shell cannot."""
    for name in overrides:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
            message = f"deploy.overrides.env.{name}: not a name that a shell can export"
            raise UserError(Diagnostic("env-name", message, hint="letters, digits and _, no digit first"))
    return {**planned, **overrides}


def value_of(args: tuple[Arg, ...], flag: str, default: str = "") -> str:
    """The first word after ``flag``, ``default`` if the command does not have it."""
    return next((a.values[0] for a in args if a.flag == flag and a.values), default)
