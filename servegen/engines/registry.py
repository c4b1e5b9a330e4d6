"""The engines that have a renderer, and what a caller may ask of any of them."""

from __future__ import annotations

import importlib
from dataclasses import replace

from servegen.engines import sglang_router
from servegen.engines.launch import Arg, Engine, Launch
from servegen.errors import Diagnostic, NotBuiltError
from servegen.plan import Plan

_MODULES = {"sglang": "servegen.engines.sglang", "megatron": "servegen.engines.megatron"}


def get_engine(engine_id: str) -> Engine:
    """The engine of that id. NotBuiltError that names those there are when this version cannot render it."""
    if engine_id not in _MODULES:
        message = f"this version renders no launch commands for {engine_id}"
        hint = f"constraints.engines: [{', '.join(_MODULES)}]"
        raise NotBuiltError(Diagnostic("engine-not-built", message, hint=hint))
    engine: Engine = importlib.import_module(_MODULES[engine_id]).ENGINE
    return engine


def script_template(launch: Launch) -> str:
    """The template, relative to the templates' root, that writes the launch script of that process."""
    engine = launch.contract.split("-", 1)[0]
    if launch.role is not None:
        return f"{engine}/launch.sh.j2"
    return f"{engine}/balancer.sh.j2" if sglang_router.joins_groups(launch) else f"{engine}/router.sh.j2"


def overridden(plan: Plan) -> tuple[str, ...]:
    """What ``deploy.overrides`` changed in the servers' commands, one line each, for PLAN.md; () without overrides.

    A line that replaces a planned value says so: the plan's figures were computed with the planned one.
    """
    if not plan.deploy.args and not plan.deploy.env:
        return ()
    engine = get_engine(plan.choice.engine)
    planned = engine.launches(replace(plan, deploy=replace(plan.deploy, args={}, env={})))
    lines: dict[str, list[str]] = {}
    for before, after in zip(planned, engine.launches(plan), strict=True):
        for line in _changes(before, after):
            lines.setdefault(line, []).append(after.name)
    servers = {launch.name for launch in planned if launch.role is not None}
    return tuple(line if set(names) == servers else f"{', '.join(names)}: {line}" for line, names in lines.items())


def _changes(before: Launch, after: Launch) -> list[str]:
    """Lines about the flags and variables that differ, planned flags first."""
    old, new = {a.flag: a for a in before.args}, {a.flag: a for a in after.args}
    lines: list[str] = []
    if before.role is None:  # a router follows its servers; their own lines tell it
        return lines
    for flag in [*old, *(f for f in new if f not in old)]:
        if old.get(flag) == new.get(flag):
            continue
        if flag not in old:
            lines.append(f"{_shown(new[flag])} (added)")
        elif flag not in new:
            lines.append(f"{flag} (removed; planned: {_shown(old[flag])})")
        else:
            was = " ".join(old[flag].values)
            lines.append(f"{_shown(new[flag])} (planned: {was}; the predictions hold for the planned value)")
    for name in sorted(after.env):
        if before.env.get(name) != after.env[name]:
            was = f" (planned: {before.env[name]})" if name in before.env else " (added)"
            lines.append(f"{name}={after.env[name]}{was}")
    return lines


def _shown(arg: Arg) -> str:
    return " ".join(arg.words())
