"""The whole program on one screen: a spec goes down STAGES and ends as files in ``out/<name>/``.

    file --load--> LoadedSpec --resolve--> Problem --plan--> Plan --render--> Bundle --validate--> Bundle --emit--> out/

A stage takes what the one before it made and adds its own; :func:`compile_spec` stops after any of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from servegen.codec import dumps, read_as
from servegen.errors import (
    BundleError,
    Diagnostic,
    EmitError,
    NotBuiltError,
    RenderError,
    StaleError,
    UserError,
    Where,
)
from servegen.plan import Plan, loads
from servegen.record import record

if TYPE_CHECKING:
    from servegen.bundle import Bundle
    from servegen.emit import Change
    from servegen.solve.problem import Problem
    from servegen.spec.fleet import LoadedFleet
    from servegen.spec.load import LoadedSpec

T = TypeVar("T")


class Locked(Protocol):
    """A plan, or that of a fleet."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, str]: ...


@record
class Result:
    """How far one spec has come. ``templates``, ``locked``, ``out`` and ``verify`` are what the user asked for.

    ``warnings`` are what the user is told and may leave as it is.
    """

    loaded: LoadedSpec
    templates: Path | None = None
    locked: Plan | None = None
    out: Path | None = None
    verify: bool = False
    problem: Problem | None = None
    plan: Plan | None = None
    bundle: Bundle | None = None
    changes: tuple[Change, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def load(path: Path) -> tuple[list[LoadedSpec | LoadedFleet], list[UserError]]:
    """The specs and fleets of one file, a document each, and what is wrong with the others; from here on each goes its own way.

    A fleet goes down the stages of :mod:`servegen.compile_fleet`.
    """
    from servegen.spec.fleet import load_either

    return load_either([path])


def resolve(result: Result) -> Result:
    """Names to facts: model, accelerators, engine constants, the hash of every input; and whether patches can be read."""
    from servegen.solve.resolve import resolve

    problem = resolve(result.loaded)
    overrides = result.loaded.spec.spec.deploy.overrides
    if overrides is not None and overrides.patches:
        from servegen.render.bundle import check_patches

        check_patches(problem.deploy)
    return replace(result, problem=problem)


def plan(result: Result) -> Result:
    """Search for the best configuration, or take the locked one if its inputs are the present ones.

    The plan goes through its own file format, so that what is rendered today and what ``--locked`` renders next year
    start from the same digits. With ``verify`` it is replayed, and enlarged until the replay keeps every bound; a locked
    plan is as it was verified, or was not.
    Raises InfeasibleError; StaleError if the lock does not belong to these inputs.
    """
    problem = made(result.problem, "resolve")
    if result.locked is not None:
        engines = result.loaded.spec.spec.constraints.engines
        other = result.locked.choice.engine not in engines or result.locked.name != result.loaded.name
        refuse_stale(result.loaded.file, result.locked, problem.inputs, "another name or engine" if other else "")
        return replace(result, plan=result.locked)
    from servegen.solve.search import solve

    found = solve(problem)
    if result.verify:
        from servegen.solve.verify import verified

        found = verified(problem, found)
    return replace(result, plan=loads(dumps(found)))


def render(result: Result) -> Result:
    """The plan to files: what the engine's templates give, the page for reviewers and the lock."""
    from servegen.engines.registry import overridden
    from servegen.render.bundle import render
    from servegen.render.environment import Environment
    from servegen.report.markdown import TEMPLATE, plan_markdown

    chosen = made(result.plan, "plan")
    bundle = render(chosen, result.templates)
    replaced = overridden(chosen) if bundle.files else ()
    templating = Environment(result.templates)
    page = plan_markdown(chosen, templating, bundle.files, replaced)
    files = {**bundle.files, "PLAN.md": page, "plan.lock.json": dumps(chosen)}
    templates = {**bundle.templates, "PLAN.md": templating.origin(TEMPLATE)}
    return replace(result, bundle=replace(bundle, files=files, templates=templates))


def validate(result: Result) -> Result:
    """Prove the bundle: schemas, references between objects, flags against the engine's contract, shell syntax."""
    from servegen.validate.check import validate

    warned = validate(made(result.plan, "plan"), made(result.bundle, "render"))
    return replace(result, warnings=(*result.warnings, *(located(result.loaded, d) for d in warned)))


def emit(result: Result) -> Result:
    """The bundle into ``out/<name>/``, all of it or nothing."""
    from servegen.emit import write

    changes = write(made(result.out, "out"), made(result.bundle, "validate"))
    return replace(result, changes=tuple(changes))


#: ``load`` takes a file and yields specs; every other stage takes and gives one Result.
STAGES: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("load", load),
    ("resolve", resolve),
    ("plan", plan),
    ("render", render),
    ("validate", validate),
    ("emit", emit),
)


def compile_spec(
    loaded: LoadedSpec,
    until: str = "validate",
    templates: Path | None = None,
    locked: Plan | None = None,
    out: Path | None = None,
    verify: bool = False,
) -> Result:
    """Take one loaded spec down the stages up to and including ``until``; ``emit`` needs ``out``.

    Raises whatever a stage raises: UserError, InfeasibleError, StaleError. ValueError for a stage that there is not.
    """
    names = [name for name, _ in STAGES]
    if until not in names:
        raise ValueError(f"there is no stage {until!r}; the stages are {', '.join(names)}")
    result = Result(loaded, templates, locked, out, verify)
    for _, stage in STAGES[1 : names.index(until) + 1]:
        result = run(stage, result)
    return result


def run(stage: Callable[[Result], Result], result: Result) -> Result:
    """One stage; what it finds without knowing the spec's lines is told with them."""
    loaded = result.loaded
    try:
        return stage(result)
    except (RenderError, BundleError, NotBuiltError) as error:
        raise type(error)(located(loaded, d) for d in error.diagnostics) from error
    except UserError as error:
        if type(error) is not UserError:
            raise
        raise UserError(located(loaded, d) for d in error.diagnostics) from error


def located(loaded: LoadedSpec, found: Diagnostic) -> Diagnostic:
    """``found`` with the spec's line: as its place if it has none, else behind the spec key that its hint begins with.

    Engines, templates and checks know which key governs what they find; where it stands, only the spec knows.
    """
    found = found.at(_of_user(loaded, found.where))
    known = _KEY.match(found.hint)
    key = _KEY.match(found.message) or known or _KEY.search(found.hint)
    place = loaded.where.at(_spec_key(key[0]) if key else "spec")
    if not found.where.file:
        return found.at(place)
    if known is None:
        return found
    place = loaded.where.at(_spec_key(known[0]))
    return replace(found, hint=f"{known[0]} ({place}){found.hint[known.end() :]}")


def _of_user(loaded: LoadedSpec, where: Where) -> Where:
    """The user's own file where ``where`` is that of its copy in the bundle."""
    folder, _, name = where.file.rpartition("/")
    overrides = loaded.spec.spec.deploy.overrides
    for patch in (overrides.patches or ()) if overrides is not None and folder == "kubernetes/patches" else ():
        if PurePosixPath(patch).name == name:
            return replace(where, file=os.path.normpath(os.path.join(os.path.dirname(loaded.file), patch)))
    return where


_KEY = re.compile(r"(spec\.)?(metadata\.name|(model|traffic|hardware|constraints|deploy)\.\w[\w.\[\]-]*\w\]?)")


def _spec_key(written: str) -> str:
    """``spec.hardware.pool.0.memory`` of ``hardware.pool[].memory``."""
    key = written.removeprefix("spec.").replace("[]", ".0")
    return key if key.startswith("metadata.") else f"spec.{key}"


def read_locked(out: Path, name: str) -> Plan:
    """The plan in ``out/<name>/plan.lock.json``. Raises EmitError if there is none or it is no plan of this version."""
    from servegen.emit import PLAN_LOCK
    from servegen.plan import read

    return read_lock(out, name, PLAN_LOCK, read)


def read_lock(out: Path, name: str, file: str, read: Callable[[str], T]) -> T:
    """A lock in ``out/<name>/``. Raises EmitError if it is not there or ``read`` cannot read it."""
    from servegen.emit import read_plan_lock

    text = read_plan_lock(out, name, file)
    try:
        return read_as(read, text)
    except ValueError as error:
        where = Where(str(out / name / file))
        message = f"this is no plan that servegen can read: {error}"
        raise EmitError(Diagnostic("bad-lock", message, where, "build once without --locked")) from error


def was_verified(out: Path, name: str) -> bool:
    """Whether the tree in ``out/<name>/`` was built with ``verify``, so that what is compared with it must be, too.

    False where there is no lock that can be read: whatever is compared with that differs.
    """
    from servegen.errors import EmitError

    try:
        return read_locked(out, name).verification is not None
    except EmitError:
        return False


def refuse_stale(file: str, locked: Locked, inputs: Mapping[str, str], other: str = "") -> None:
    """Raise StaleError unless the lock was made from these very inputs; ``other`` is what else it names than the spec does."""
    differing = sorted(name for name in {*locked.inputs, *inputs} if locked.inputs.get(name) != inputs.get(name))
    if other:
        differing.append(f"the spec ({other})")
    if differing:
        message = f"{locked.name}: the locked plan was made from other inputs: {', '.join(differing)}"
        hint = "build without --locked to solve again"
        raise StaleError(Diagnostic("stale-lock", message, Where(file), hint))


def made(value: T | None, stage: str) -> T:
    if value is None:
        raise ValueError(f"this stage needs what {stage!r} makes")
    return value
