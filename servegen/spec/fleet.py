"""Fleets: a document that puts several specs on one pool, with its members read and their pools replaced by the fleet's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from servegen.errors import Diagnostic, NotBuiltError, SpecError, UserError
from servegen.record import record
from servegen.spec.explain import sort_key
from servegen.spec.load import FLEET, LoadedSpec, below, gather, gather_text, read_spec, validated
from servegen.spec.schema import Fleet
from servegen.spec.tree import Document, WhereMap

HARDWARE = "spec.hardware"


@record
class LoadedFleet:
    """A fleet and where it came from, as :class:`LoadedSpec`; ``members`` in the order of the document."""

    fleet: Fleet
    file: str
    sha256: str
    where: WhereMap
    shown: dict[str, Any]
    members: tuple[LoadedSpec, ...]

    @property
    def name(self) -> str:
        return self.fleet.metadata.name


def load_either(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[LoadedSpec | LoadedFleet], list[UserError]]:
    """The specs and fleets of ``paths``, and an error for each document (or file) that could not be loaded."""
    return gather(paths, _read)


def loads_either(text: str | bytes, filename: str) -> tuple[list[LoadedSpec | LoadedFleet], list[UserError]]:
    """As :func:`load_either`, of the content of a file that is called ``filename``; SpecError if it is no YAML."""
    return gather_text(text, filename, _read)


def _read(document: Document, raw: dict[str, Any], where: WhereMap, file: str, digest: str) -> LoadedSpec | LoadedFleet:
    if raw.get("kind") != FLEET:
        return read_spec(document, raw, where, file, digest)
    found = list(document.diagnostics)
    fleet = validated(Fleet, raw, where, found)
    if fleet is None or found:
        raise SpecError(sorted(found, key=sort_key))
    shown = fleet.model_dump(by_alias=True, mode="json")
    loaded = LoadedFleet(fleet, file, digest, where, shown, ())
    return dataclasses.replace(loaded, members=_members(loaded))


def _members(loaded: LoadedFleet) -> tuple[LoadedSpec, ...]:
    """Every member on the fleet's pool. Raises with what is wrong with all of them."""
    members: list[LoadedSpec] = []
    errors: list[UserError] = []
    for index, member in enumerate(loaded.fleet.spec.members):
        try:
            members.append(_on_pool(loaded, _member(loaded, member.spec, f"spec.members.{index}.spec")))
        except UserError as error:
            errors.append(error)
            continue
        try:
            _check(loaded, members, index)
        except SpecError as error:
            errors.append(error)
    if errors:
        found = list(dict.fromkeys(d for error in errors for d in error.diagnostics))
        raise NotBuiltError(found) if all(isinstance(e, NotBuiltError) for e in errors) else SpecError(found)
    return tuple(members)


def _member(loaded: LoadedFleet, relative: str, key: str) -> LoadedSpec:
    """The one spec of a member's file."""
    where = loaded.where.at(key)
    path = below(loaded.file, relative, where)
    shown = os.path.normpath(Path(loaded.file).parent / relative)
    file = shown if os.path.realpath(shown) == os.path.realpath(path) else str(path)
    specs, errors = gather([file], read_spec)
    if errors:
        found = [d for error in errors for d in error.diagnostics]
        raise NotBuiltError(found) if all(isinstance(e, NotBuiltError) for e in errors) else SpecError(found)
    if len(specs) != 1:
        message = f"{relative} holds {len(specs)} specs, and a member is one"
        raise SpecError(Diagnostic("one-spec", message, where, "give each spec a file of its own"))
    return specs[0]


def _on_pool(loaded: LoadedFleet, member: LoadedSpec) -> LoadedSpec:
    """The member with the fleet's pool in place of its own, also where errors are placed."""
    body = member.spec.spec.model_copy(update={"hardware": loaded.fleet.spec.hardware})
    shown = {**member.shown, "spec": {**member.shown["spec"], "hardware": loaded.shown["spec"]["hardware"]}}
    own = {path: place for path, place in member.where.places.items() if not _is_hardware(path)}
    pool = {path: place for path, place in loaded.where.places.items() if _is_hardware(path)}
    return dataclasses.replace(
        member,
        spec=member.spec.model_copy(update={"spec": body}),
        shown=shown,
        where=WhereMap(member.where.file, {**own, **pool}),
    )


def _is_hardware(path: str) -> bool:
    return path == HARDWARE or path.startswith(f"{HARDWARE}.")


def _check(loaded: LoadedFleet, members: list[LoadedSpec], index: int) -> None:
    """What the last of ``members`` cannot be in this fleet."""
    member, objective = members[-1], loaded.fleet.spec.objective
    body, wanted = member.spec.spec, "energy" if objective == "energy" else "cost"
    found = []
    if any(other.name == member.name for other in members[:-1]):
        message = f"another member is called {member.name}, too"
        hint = "names are those of folders and objects: give each spec its own metadata.name"
        found.append(Diagnostic("duplicate-name", message, loaded.where.at(f"spec.members.{index}.spec"), hint))
    traffic = body.traffic
    if traffic.rate is None and traffic.concurrency is None and traffic.users is None and traffic.trace is None:
        message = "the traffic states no load, which would take the whole pool of the fleet"
        hint = "state traffic.rate, concurrency, users or trace"
        found.append(Diagnostic("no-load", message, member.where.at("spec.traffic"), hint))
    if body.objective != wanted:
        message = f"the spec's objective is {body.objective}, and a fleet whose objective is {objective} adds up {wanted}"
        hint = f"write objective: {wanted}"
        if body.objective == "energy" or (wanted == "energy" and body.objective == "cost"):
            hint += f", or the objective {'energy' if body.objective == 'energy' else 'cost'} for the whole fleet"
        found.append(Diagnostic("conflict", message, member.where.at("spec.objective"), hint))
    if found:
        raise SpecError(found)
