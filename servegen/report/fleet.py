"""Fleets as blocks, JSON and a page: what each member was given, what of the pool is used, what is left, who is short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servegen.codec import to_jsonable
from servegen.fleet import Fleet, FleetPlan, Member
from servegen.plan import Plan
from servegen.report import view
from servegen.report.blocks import Block, Items, Table, Title
from servegen.report.figures import NONE, count, money, number, one_line, percent
from servegen.report.json import plan_json
from servegen.report.markdown import TemplateEnvironment, filters
from servegen.report.text import plan_blocks

TEMPLATE = "report/FLEET.md.j2"
_UNITS = {"rate": "requests/s", "concurrency": "in flight", "users": "users"}


def headline(fleet: FleetPlan) -> str:
    """One sentence: how many models on how much of the pool, and what it costs."""
    all_of_it = sum(p.nodes * p.per_node for p in fleet.pool)
    short = f", {len(fleet.unmet)} of them not wholly" if fleet.unmet else ""
    return one_line(
        f"{len(fleet.members)} models{short} on {count(fleet.devices)} of {count(all_of_it)} accelerators, "
        f"{money(fleet.cost_per_hour)}/h"
    )


def members(fleet: Fleet) -> Table:
    """Shape (members, 8): what each one was given, in the order of the fleet."""
    rows = [
        (
            one_line(m.name), str(m.priority), _what(plan), count(m.devices), f"{money(m.cost_per_hour)}/h",
            f"{number(m.asked)} {_UNITS[m.load_kind]}", percent(m.share), one_line(m.note) or NONE,
        )
        for m, plan in zip(fleet.plan.members, fleet.members, strict=True)
    ]  # fmt: skip
    headers = ("member", "priority", "given", "accelerators", "cost", "asks for", "carried", "note")
    return Table(headers, tuple(rows), frozenset({1, 3, 4, 5, 6}))


def _what(plan: Plan | None) -> str:
    """``3 x TP4 h100-sxm-80gb``, the roles of a split joined."""
    if plan is None:
        return "nothing"
    return " + ".join(
        f"{r.total_replicas}{'' if r.role == 'serve' else f' {r.role}'} x {view.parallelism(r).upper()} {r.accelerator}"
        for r in plan.choice.roles
    )


def pool(fleet: FleetPlan) -> Table:
    """Shape (entries of the pool, 6): what is used and what is left over."""
    rows = [
        (
            one_line(p.accelerator), f"{count(p.nodes)} x {count(p.per_node)}", f"{money(p.price_per_hour)}/h", count(p.used),
            count(p.free), count(p.free_nodes),
        )
        for p in fleet.pool
    ]  # fmt: skip
    headers = ("pool", "nodes", "price each", "used", "left over", "whole nodes left over")
    return Table(headers, tuple(rows), frozenset({1, 2, 3, 4, 5}))


def fleet_blocks(fleet: Fleet) -> list[Block]:
    """The summary, then each member's own report."""
    blocks: list[Block] = [Title(f"{one_line(fleet.plan.name)}: {headline(fleet.plan)}"), members(fleet), pool(fleet.plan)]
    blocks += [Title("Why"), Items(view.lines(fleet.plan.why))]
    for plan in fleet.members:
        blocks += plan_blocks(plan) if plan is not None else []
    return blocks


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """The fleet as ``servegen plan --format json`` prints it: each member's own keys, what the fleet says of it, the summary."""
    plan = fleet.plan
    found: dict[str, Any] = to_jsonable({
        "name": plan.name,
        "kind": "Fleet",
        "feasible": True,
        "objective": plan.objective,
        "members": [
            {**_plan(m, own), "fleet": _member(plan, m)} for m, own in zip(plan.members, fleet.members, strict=True)
        ],
        "pool": [
            {
                "accelerator": p.accelerator,
                "nodes": p.nodes,
                "perNode": p.per_node,
                "pricePerHour": p.price_per_hour,
                "used": p.used,
                "leftOver": p.free,
                "leftOverNodes": p.free_nodes,
            }
            for p in plan.pool
        ],
        "devices": plan.devices,
        "costPerHour": plan.cost_per_hour,
        "watts": plan.watts,
        "unmet": {m.name: 1.0 - m.share for m in plan.unmet},
        "why": plan.why,
        "searched": plan.searched,
    })  # fmt: skip
    return found


def _plan(member: Member, plan: Plan | None) -> dict[str, Any]:
    if plan is not None:
        return plan_json(plan)
    return {"name": member.name, "feasible": False, "binding": ["pool"], "why": [member.note]}


def _member(fleet: FleetPlan, m: Member) -> dict[str, Any]:
    return {
        "spec": m.spec,
        "priority": m.priority,
        "loadKind": m.load_kind,
        "asked": m.asked,
        "carried": m.carried,
        "share": m.share,
        "devices": m.devices,
        "costPerHour": m.cost_per_hour,
        "uses": [
            {"pool": u.pool, "accelerator": fleet.pool[u.pool].accelerator, "devices": u.devices, "servers": u.servers}
            for u in m.uses
        ],
        "note": m.note,
    }


def fleet_markdown(fleet: Fleet, env: TemplateEnvironment, pages: Sequence[str] | None = None) -> str:
    """The page of a fleet; ``pages`` are its members' own, which follow it where no folder holds them."""
    filters(env)
    own = env.render(
        TEMPLATE,
        {
            "fleet": fleet.plan,
            "headline": headline(fleet.plan),
            "members": members(fleet),
            "pool": pool(fleet.plan),
            "why": view.lines(fleet.plan.why),
            "given": [m.name for m in fleet.plan.members if m.devices] if pages is None else [],
        },
    )
    return "\n".join([own, *(pages or ())])
