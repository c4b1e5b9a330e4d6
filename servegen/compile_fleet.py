"""The pipeline of a fleet: its members go down the stages of :mod:`servegen.compile` together, solved as one, emitted as one.

    file --load--> LoadedFleet --resolve--> FleetProblem --plan--> Fleet --render--> Bundle --validate--> Bundle --emit--> out/

The bundle holds ``FLEET.md``, ``fleet.lock.json`` and a folder for each member that was given something, with what its own build
would hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegen import compile as single
from servegen.bundle import Bundle
from servegen.codec import dumps, parsed
from servegen.errors import BundleError, Diagnostic, EmitError, NotBuiltError, SpecError, UserError, Where
from servegen.plan import Plan
from servegen.record import record

if TYPE_CHECKING:
    from servegen.emit import Change
    from servegen.fleet import Fleet, FleetPlan
    from servegen.solve.fleet import FleetProblem
    from servegen.spec.fleet import LoadedFleet
    from servegen.spec.load import LoadedSpec

FLEET_LOCK = "fleet.lock.json"


@record
class FleetResult:
    """How far a fleet has come, as :class:`servegen.compile.Result`; ``parts`` are the members' own bundles.

    ``processes`` search at most side by side: it is a matter of time alone.
    """

    loaded: LoadedFleet
    templates: Path | None = None
    locked: Fleet | None = None
    out: Path | None = None
    verify: bool = False
    processes: int = 1
    problem: FleetProblem | None = None
    plan: Fleet | None = None
    parts: tuple[single.Result, ...] = ()
    bundle: Bundle | None = None
    changes: tuple[Change, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def resolve(result: FleetResult) -> FleetResult:
    """Names to facts for every member, and the hash of every input, each member's and the fleet's. Raises with all errors."""
    from servegen.solve.fleet import Entrant, FleetProblem

    loaded = result.loaded
    problems, errors = [], list[UserError]()
    for member in loaded.members:
        try:
            problems.append(single.compile_spec(member, until="resolve").problem)
        except UserError as error:
            errors.append(error)
    if errors:
        found = list(dict.fromkeys(d for error in errors for d in error.diagnostics))
        raise errors[0] if len(errors) == 1 else SpecError(found)
    known = [p for p in problems if p is not None]
    inputs = {f"{p.name}.{key}": digest for p in known for key, digest in p.inputs.items()}
    inputs["fleet"] = _digest(loaded.shown)
    # A member's plan depends on what every other member asks for.
    whole = _digest(inputs)
    entrants = tuple(
        Entrant(m.spec, m.priority, replace(p, inputs={**p.inputs, "fleet": whole}, groups=len(known) == 1))
        for m, p in zip(loaded.fleet.spec.members, known, strict=True)
    )
    return replace(
        result, problem=FleetProblem(loaded.name, loaded.fleet.spec.objective, entrants, loaded.shown, inputs)
    )


def plan(result: FleetResult) -> FleetResult:
    """One solution for all members, or the locked one if its inputs are the present ones; see :func:`servegen.compile.plan`."""
    problem = single.made(result.problem, "resolve")
    if result.locked is not None:
        # Members are matched by place; a lock that somebody edited may have others than its inputs say.
        others = [m.name for m in result.locked.plan.members] != [m.name for m in result.loaded.members]
        single.refuse_stale(result.loaded.file, result.locked.plan, problem.inputs, "other members" if others else "")
        return replace(result, plan=result.locked)
    from servegen.fleet import Fleet, loads
    from servegen.solve.fleet import solve_fleet
    from servegen.solve.team import Team

    with Team(result.processes) as team:
        found = solve_fleet(problem, team)
        if result.verify:
            from servegen.solve.verify_fleet import verified_fleet

            found = verified_fleet(problem, found, team=team)
    members = tuple(p and parsed(Plan, dumps(p)) for p in found.members)
    return replace(result, plan=Fleet(loads(dumps(found.plan)), members))


def render(result: FleetResult) -> FleetResult:
    """Every member's files, and the fleet's page and lock."""
    from servegen.render.environment import Environment
    from servegen.report.fleet import TEMPLATE, fleet_markdown

    fleet = single.made(result.plan, "plan")
    parts = tuple(
        single.run(single.render, single.Result(spec, result.templates, plan=own)) for spec, own in _planned(result)
    )
    files = {
        "FLEET.md": fleet_markdown(fleet, Environment(result.templates)),
        FLEET_LOCK: dumps(fleet.plan),
    }
    return replace(result, parts=parts, bundle=_joined(fleet.plan, parts, files, {"FLEET.md": TEMPLATE}))


def validate(result: FleetResult) -> FleetResult:
    """Prove every member's bundle, and that no two members have an object in common."""
    parts = tuple(single.run(single.validate, part) for part in result.parts)
    _refuse_shared_objects(result.loaded, parts)
    return replace(result, parts=parts, warnings=tuple(d for part in parts for d in part.warnings))


def emit(result: FleetResult) -> FleetResult:
    """The bundle into ``out/<fleet>/``, all members or nothing."""
    from servegen.emit import write

    changes = write(single.made(result.out, "out"), single.made(result.bundle, "validate"))
    return replace(result, changes=tuple(changes))


STAGES: tuple[tuple[str, Callable[[FleetResult], FleetResult]], ...] = (
    ("resolve", resolve),
    ("plan", plan),
    ("render", render),
    ("validate", validate),
    ("emit", emit),
)


def compile_either(
    loaded: LoadedSpec | LoadedFleet,
    until: str = "validate",
    templates: Path | None = None,
    locks: Path | None = None,
    out: Path | None = None,
    verify: bool = False,
    processes: int = 1,
) -> single.Result | FleetResult:
    """Take a spec or a fleet down its stages up to and including ``until``; ``locks`` is the folder of locked plans to render.

    The members of a large fleet are searched by as many ``processes``.

    Raises whatever a stage raises: UserError, InfeasibleError, StaleError. ValueError for a stage that there is not.
    """
    try:
        return _compiled(loaded, until, templates, locks, out, verify, processes)
    # Anybody may have edited a lock, and not all that it says is judged before it is rendered.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if locks is None:
            raise
        message = f"the locked plan cannot be rendered: {type(error).__name__}: {error}"
        raise EmitError(
            Diagnostic("bad-lock", message, Where(str(locks / loaded.name)), "build once without --locked")
        ) from error


def _compiled(
    loaded: LoadedSpec | LoadedFleet,
    until: str,
    templates: Path | None,
    locks: Path | None,
    out: Path | None,
    verify: bool,
    processes: int,
) -> single.Result | FleetResult:
    from servegen.spec.fleet import LoadedFleet

    if not isinstance(loaded, LoadedFleet):
        lock = single.read_locked(locks, loaded.name) if locks else None
        return single.compile_spec(loaded, until, templates, lock, out, verify)
    names = [name for name, _ in single.STAGES]
    if until not in names:
        raise ValueError(f"there is no stage {until!r}; the stages are {', '.join(names)}")
    locked = read_locked(locks, loaded.name) if locks else None
    result = FleetResult(loaded, templates, locked, out, verify, processes)
    for _, stage in STAGES[: names.index(until)]:
        try:
            result = stage(result)
        except NotBuiltError as error:  # what is not this fleet's fault has no line of its own
            raise NotBuiltError(d if d.where.file else d.at(loaded.where.at("kind")) for d in error.diagnostics) from error
    return result


def shown_of(result: single.Result | FleetResult) -> list[Mapping[str, Any]]:
    """The resolved document with every default; a fleet is followed by its members."""
    if isinstance(result, FleetResult):
        problem = single.made(result.problem, "resolve")
        return [problem.shown, *(entrant.problem.shown for entrant in problem.entrants)]
    return [single.made(result.problem, "resolve").shown]


def read_locked(out: Path, name: str) -> Fleet:
    """The fleet in ``out/<name>/``. Raises EmitError where a lock is not there or is none of this version."""
    from servegen.fleet import Fleet, read

    fleet = single.read_lock(out, name, FLEET_LOCK, read)
    return Fleet(fleet, tuple(single.read_locked(out / name, m.name) if m.devices else None for m in fleet.members))


def _planned(result: FleetResult) -> list[tuple[LoadedSpec, Plan]]:
    """The members that were given something."""
    plans = single.made(result.plan, "plan").members
    return [(spec, own) for spec, own in zip(result.loaded.members, plans, strict=True) if own is not None]


def _joined(plan: FleetPlan, parts: Sequence[single.Result], files: dict[str, str], templates: dict[str, str]) -> Bundle:
    """The members' bundles as folders of one."""
    executable: set[str] = set()
    for part in parts:
        own = single.made(part.bundle, "render")
        files |= {f"{own.name}/{path}": text for path, text in own.files.items()}
        templates |= {f"{own.name}/{path}": template for path, template in own.templates.items()}
        executable |= {f"{own.name}/{path}" for path in own.executable}
    return Bundle(plan.name, dict(sorted(files.items())), frozenset(executable), dict(sorted(templates.items())))


def _refuse_shared_objects(loaded: LoadedFleet, parts: Sequence[single.Result]) -> None:
    """Raise BundleError if two members would write one object of the cluster."""
    from servegen.manifest import documents

    first: dict[tuple[str, ...], str] = {}
    found = []
    for part in parts:
        own = single.made(part.bundle, "render")
        for path, text in own.files.items():
            if not path.startswith("kubernetes/") or "/patches/" in path or path.endswith("kustomization.yaml"):
                continue
            for body in documents(text):
                meta = body["metadata"]
                key = (str(body["kind"]), str(meta.get("namespace", "")), str(meta["name"]))
                other = first.setdefault(key, own.name)
                if other != own.name:
                    message = f"{own.name} and {other} both have the {key[0]} {key[2]} in the namespace {key[1]}"
                    hint = "rename one, or give it another deploy.namespace"
                    found.append(Diagnostic("shared-object", message, part.loaded.where.at("metadata.name"), hint))
    if found:
        raise BundleError(found)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
