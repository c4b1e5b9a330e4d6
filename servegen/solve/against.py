"""Today's plan beside a locked one: what changed, and which input caused it.

Inputs take their old values one at a time, all else as it is today, and the problem is solved again. Where none alone
moves what has changed (each of several would have sufficed), they take their new values one at a time instead, all else
as it was.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from servegen.codec import to_jsonable
from servegen.errors import UserError
from servegen.explanation import Against, Change, InputChange
from servegen.plan import Plan, Role
from servegen.solve.assemble import Risks, assemble
from servegen.solve.explain import Comparison
from servegen.solve.inputs import Input, differing, with_old
from servegen.solve.search import search
from servegen.solve.verify import enlarged
from servegen.solve.words import duration, money
from servegen.spec.load import LoadedSpec

#: Groups of what a plan says, the weightiest first.
GROUPS = ("choice", "cost", "prediction", "deployment")
#: Relative difference below which two figures are the same: a lock holds nine digits.
SAME = 1e-6
NO_PLAN = "infeasible"
_ROLE = {
    "accelerator": "accelerator", "weights": "weights", "kv": "kv", "tp": "tp", "pp": "pp", "dp": "dp", "ep": "ep",
    "replicas": "replicas", "spares": "spares", "max_running_requests": "maxRunningRequests",
    "chunked_prefill_size": "chunkedPrefillSize", "mixed_chunk": "mixedChunk", "mem_fraction_static": "memFractionStatic",
    "context_length": "contextLength", "load": "load", "quantization": "quantization",
}  # fmt: skip


def against(loaded: LoadedSpec, plan: Plan | None, locked: Plan) -> Against:
    """``plan`` (None: nothing meets the spec) of ``loaded`` beside ``locked``, a plan of the same name."""
    inputs = (*differing(loaded, locked), *_replayed(plan, locked))
    moved_now = moved(locked, plan)
    main = moved_now[0] if moved_now else ""
    trial = _Trial(loaded, locked)
    judged = [_backward(trial, i) for i in inputs]
    known = tuple(i for i, j in zip(inputs, judged, strict=True) if j.tried)
    if main and len(known) > 1 and not any(main in j.moves for j in judged):
        judged = [_forward(trial, i, known) if i in known and not j.moves else j for i, j in zip(inputs, judged, strict=True)]
    movers = [j for j in judged if main in j.moves]
    causes = tuple(j.name for j in [m for m in movers if main in m.restores] or movers)
    rest = trial.moved(known, locked) if main else ()
    unknown = tuple(j.name for j in judged if not j.tried)
    if main and not causes:
        causes = unknown if main in rest else tuple(i.name for i in known)
    return Against(loaded.name, moved_now, _changes(locked, plan), tuple(judged), causes, _text(moved_now, causes, rest, unknown))


def _replayed(plan: Plan | None, locked: Plan) -> tuple[Input, ...]:
    """Whether only one of the two was enlarged until a replay kept its bounds."""
    old, new = (p is not None and enlarged(p) for p in (locked, plan))
    if old == new or plan is None:
        return ()
    words = {True: "sized anew after a replay", False: "as solved"}
    return (Input("--verify", words[old], words[new], note="a replay is not repeated here"),)


def _text(moved_now: tuple[str, ...], causes: tuple[str, ...], rest: tuple[str, ...], unknown: tuple[str, ...]) -> str:
    if not moved_now:
        return "The plan is the locked one."
    main = moved_now[0]
    if not causes:
        return f"The {main} changed, and no input that the lock holds explains it."
    cause = f"The {main} changed because of {' and '.join(causes)}."
    if main not in rest or causes == unknown:
        return cause
    others = f": {', '.join(unknown)}" if unknown else ""
    more = f"With every input that the lock holds set back, the {main} is still another one, so something else had a part"
    return f"{cause} {more}{others}."


class _Trial:
    """Plans of today's problem with some inputs set back, each solved once."""

    def __init__(self, loaded: LoadedSpec, locked: Plan) -> None:
        self.loaded, self.locked = loaded, locked
        self.solved: dict[frozenset[str], Plan | None] = {}

    def plan(self, old: Iterable[Input]) -> Plan | None:
        """With the old values of ``old``, None where nothing meets that. Raises UserError where such a spec is refused."""
        old = tuple(old)
        key = frozenset(i.name for i in old)
        if key not in self.solved:
            problem = with_old(self.loaded, self.locked, old)
            seen = search(problem)
            none = Comparison((), (), math.nan)
            self.solved[key] = assemble(problem, seen.best, none, Risks((), (), ()), seen.searched, {}) if seen.best else None
        return self.solved[key]

    def moved(self, old: Iterable[Input], other: Plan) -> tuple[str, ...]:
        """Groups in which that plan differs from ``other``; all where its spec is refused."""
        try:
            return moved(self.plan(old), other)
        except UserError:
            return GROUPS


def _backward(trial: _Trial, item: Input) -> InputChange:
    """What an input moves when it alone takes its old value."""
    if not item.known:
        return InputChange(item.name, item.old, item.new, False, (), (), item.note)
    try:
        back, now = trial.plan([item]), trial.plan(())
    except UserError as error:
        return _refused(item, error)
    moves = moved(back, now)
    differs = moved(back, trial.locked)
    restores = tuple(g for g in moves if g not in differs)
    return InputChange(item.name, item.old, item.new, True, moves, restores, _moves("its old value alone", moves, restores, back))


def _forward(trial: _Trial, item: Input, known: tuple[Input, ...]) -> InputChange:
    """What an input moves when it alone takes its new value, all others being as they were."""
    try:
        then, forward = trial.plan(known), trial.plan(i for i in known if i is not item)
    except UserError as error:
        return _refused(item, error)
    moves = moved(then, forward)
    text = _moves("with all else as it was, its new value alone", moves, (), forward)
    return InputChange(item.name, item.old, item.new, True, moves, (), text)


def _refused(item: Input, error: UserError) -> InputChange:
    reason = error.diagnostics[0].message if error.diagnostics else str(error)
    return InputChange(item.name, item.old, item.new, False, (), (), f"its old value cannot be tried: {reason}")


def _moves(what: str, moves: tuple[str, ...], restores: tuple[str, ...], plan: Plan | None) -> str:
    if not moves:
        return "changes nothing"
    if plan is None:
        return f"{what} leaves nothing that meets the spec"
    if GROUPS[0] not in moves:
        return f"{what} {'brings back' if restores == moves else 'moves'} the {', the '.join(moves)}"
    c = plan.choice
    kinds = " + ".join(dict.fromkeys(r.accelerator for r in c.roles))
    back = ", the locked choice" if GROUPS[0] in restores else ""
    return f"{what} gives {c.ratio} on {c.devices} x {kinds} at {money(c.cost_per_hour)}/h{back}"


def moved(one: Plan | None, other: Plan | None) -> tuple[str, ...]:
    """Groups in which two plans differ."""
    a, b = _figures(one), _figures(other)
    return tuple(g for g in GROUPS if any(not _close(a[g].get(k), b[g].get(k)) for k in {**a[g], **b[g]}))


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=SAME, abs_tol=1e-12)
    return bool(one == other)


def _changes(locked: Plan, plan: Plan | None) -> tuple[Change, ...]:
    old, new = _figures(locked), _figures(plan)
    return tuple(
        Change(f"{group}.{key}", _shown(group, key, old[group].get(key)), _shown(group, key, new[group].get(key)))
        for group in GROUPS
        for key in {**old[group], **new[group]}
        if not _close(old[group].get(key), new[group].get(key))
    )


def _figures(plan: Plan | None) -> dict[str, dict[str, Any]]:
    """What a plan says, by group and dotted name."""
    if plan is None:
        return {g: {} for g in GROUPS} | {"choice": {"plan": NO_PLAN}}
    c, p = plan.choice, plan.prediction
    choice: dict[str, Any] = {"model": plan.model.served_name, "engine": c.engine, "engineVersion": c.engine_version}
    choice |= {"topology": c.topology}
    for i, role in enumerate(c.roles):
        name = role.role if sum(r.role == role.role for r in c.roles) == 1 else f"{role.role}.{i}"
        choice |= {f"{name}.{key}": value for key, value in _role(role).items()}
    figures = {f"{m}.{s}": v for m in ("ttft", "itl", "e2e") for s, v in dataclasses.asdict(getattr(p, m)).items()}
    figures |= {f"bounds.{k}": v for k, v in p.bounds.items() if k not in figures}
    figures |= {"outputTokensPerSecond": p.output_tokens_per_second, "utilization": p.utilization}
    if plan.slo:
        figures |= {"sloAttainment": p.slo_attainment}
    pool = [{k: v for k, v in dataclasses.asdict(entry).items() if not k.startswith("price_")} for entry in plan.pool]
    return {
        "choice": choice,
        "cost": {
            "devices": c.devices,
            "costPerHour": c.cost_per_hour,
            "costPerMillionOutputTokens": c.cost_per_million_output_tokens,
        },
        "prediction": figures,
        "deployment": dict(_flat({"deploy": to_jsonable(plan.deploy), "pool": to_jsonable(pool)}, "")),
    }


def _role(role: Role) -> dict[str, Any]:
    return {name: getattr(role, attribute) for attribute, name in _ROLE.items()}


def _flat(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from _flat(item, f"{path}.{key}" if path else str(key))


def _shown(group: str, key: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float) or isinstance(value, bool):
        return str(value).splitlines()[0][:80] if str(value) else '""'
    if group == "cost":
        return money(value)
    if group == "prediction" and key.partition(".")[0] in ("ttft", "itl", "e2e", "bounds"):
        return duration(value)
    return f"{value:.4g}"
