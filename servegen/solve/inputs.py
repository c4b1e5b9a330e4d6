"""What went into a locked plan and is different today: each input that differs, and how to give it its old value back."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from servegen import __version__
from servegen.catalog.calibration import ENGINE_RANGES, Calibration
from servegen.catalog.facts import AcceleratorFacts, Constant, GemmEfficiency
from servegen.codec import to_jsonable
from servegen.errors import Diagnostic, UserError
from servegen.plan import Plan
from servegen.record import record
from servegen.solve.problem import Kind, Problem
from servegen.solve.resolve import resolve
from servegen.spec.load import LoadedSpec, restated

Path = tuple[str | int, ...]
ABSENT = "not stated"
#: Tables of an accelerator that a lock holds by key, and its plain figures.
TABLES = ("peak_flops", "allreduce_alpha_s", "allreduce_bytes_per_s")
FIGURES = ("hbm_bytes_per_s", "usable_bytes")
#: Characters of a value that a report shows.
SHOWN = 80


@record
class Input:
    """One input that differs.

    ``path`` (of a spec key) or ``patch`` gives it its old value; neither where only a digest of it is known.
    """

    name: str
    old: str
    new: str
    path: Path = ()
    patch: Callable[[Problem], Problem] | None = None
    note: str = ""

    @property
    def known(self) -> bool:
        return bool(self.path) or self.patch is not None


def with_old(loaded: LoadedSpec, locked: Plan, inputs: Iterable[Input]) -> Problem:
    """Today's problem with the old values of ``inputs``. Raises UserError where the language or the catalogue refuses that."""
    inputs = tuple(inputs)
    document = copy.deepcopy(loaded.shown)
    for item in inputs:
        if item.path:
            _put(document, item.path, _get(locked.spec, item.path))
    problem = resolve(restated(loaded, document) if any(i.path for i in inputs) else loaded)
    for item in inputs:
        problem = item.patch(problem) if item.patch else problem
    return problem


def differing(loaded: LoadedSpec, locked: Plan) -> tuple[Input, ...]:
    """Every input that differs: keys of the spec, then facts and files, then the programs that took part.

    Raises UserError for a lock that was written by hand.
    """
    keys = _keys(loaded, locked)
    try:
        before = with_old(loaded, locked, keys)
    except UserError:
        return keys  # what the old spec names is gone: the keys that name it say so
    try:
        return (*keys, *_facts(before, locked), *_files(before, locked), *_programs(before, locked))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        message = f"the lock of {locked.name} does not hold the facts and inputs that servegen writes"
        raise UserError(Diagnostic("bad-lock", message, hint="servegen build writes plan.lock.json")) from error


def _keys(loaded: LoadedSpec, locked: Plan) -> tuple[Input, ...]:
    """Keys of the spec that differ, each such that it can take its old value alone; where it cannot, the section around it."""
    paths = list(_paths(locked.spec, loaded.shown, ()))
    checked = 0
    while checked < len(paths):
        path = paths[checked]
        try:
            with_old(loaded, locked, [_key(loaded, locked, path)])
            checked += 1
        except UserError:
            wider = path[:-1]
            if len(path) < 2:
                return tuple(_key(loaded, locked, p) for p in paths)  # the old spec is refused as a whole
            paths = [p for p in paths[:checked] if p[: len(wider)] != wider] + [wider] + [
                p for p in paths[checked + 1 :] if p[: len(wider)] != wider
            ]
            checked = paths.index(wider)
    found = (_key(loaded, locked, p) for p in paths)
    return tuple(i for i in found if not _same(loaded, locked, i))


def _same(loaded: LoadedSpec, locked: Plan, item: Input) -> bool:
    """Whether the old value means what the new one does (a key that has got a default since)."""
    document = copy.deepcopy(loaded.shown)
    _put(document, item.path, _get(locked.spec, item.path))
    try:
        return restated(loaded, document).shown == loaded.shown
    except UserError:
        return False


def _key(loaded: LoadedSpec, locked: Plan, path: Path) -> Input:
    old, new = _get(locked.spec, path), _get(loaded.shown, path)
    if isinstance(old, Mapping) and isinstance(new, Mapping):  # a section: only what differs in it
        same = {k for k in old if k in new and _plain(old[k]) == _plain(new[k])}
        old, new = ({k: v for k, v in one.items() if k not in same} for one in (old, new))
    return Input(".".join(str(p) for p in path), _text(old), _text(new), path)


_NOTHING = object()


def _paths(old: Any, new: Any, path: Path) -> Iterator[Path]:
    """Where two documents differ: leaves of mappings, and items of lists of mappings that are equally long."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _paths(old.get(key, _NOTHING), new.get(key, _NOTHING), (*path, key))
        return
    lists = isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new)
    if lists and all(isinstance(item, Mapping) for item in (*old, *new)):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _paths(one, other, (*path, i))
    elif _plain(old) != _plain(new):
        yield path


def _plain(value: Any) -> Any:
    return value if value is _NOTHING else to_jsonable(value)


def _get(document: Any, path: Path) -> Any:
    for part in path:
        if isinstance(document, Mapping):
            document = document.get(part, _NOTHING)
        elif isinstance(document, (list, tuple)) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return _NOTHING
    return document


def _put(document: Any, path: Path, value: Any) -> None:
    for part in path[:-1]:
        document = document.setdefault(part, {}) if isinstance(document, dict) else document[part]
    if value is _NOTHING:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = copy.deepcopy(value)


def _text(value: Any) -> str:
    if value is _NOTHING or value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(to_jsonable(value), ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _facts(before: Problem, locked: Plan) -> Iterator[Input]:
    """Constants and prices that the lock holds and the catalogue (or a calibration file) gives otherwise today."""
    old, new = locked.inputs.get("facts", ""), before.inputs["facts"]
    if old == new:
        return
    found = [*_engine(before, locked), *_accelerators(before, locked), *_prices(before, locked)]
    yield from found
    held = f"{len(found)} of the figures that the lock holds differ" if found else "no figure that the lock holds differs"
    note = f"the lock holds the figures behind its choice only, and of the others the digest: {held}"
    yield Input("facts", _digest(old), _digest(new), note=note)


def _engine(before: Problem, locked: Plan) -> Iterator[Input]:
    record = locked.facts.get("engine", {})
    for option in before.engines:
        if option.facts.id != record.get("id"):
            continue
        for name in ENGINE_RANGES:
            now = getattr(option.facts, name)
            if name in record and record[name]["value"] != to_jsonable(now.value):
                full = f"engine.{option.facts.id}.{name}"
                yield Input(full, _text(record[name]["value"]), _text(now.value), patch=_calibrated(full, record[name]))


def _calibrated(name: str, record: Mapping[str, Any]) -> Callable[[Problem], Problem]:
    error = record["fitError"]
    constant = Constant(
        record["value"], float("nan") if error is None else error, record["rows"], record["source"], origin=record["origin"]
    )
    own = Calibration({name: constant})

    def patch(problem: Problem) -> Problem:
        engines = tuple(dataclasses.replace(e, facts=own.engine(e.facts)) for e in problem.engines)
        return dataclasses.replace(problem, engines=engines)

    return patch


def _accelerators(before: Problem, locked: Plan) -> Iterator[Input]:
    kinds = {k.facts.id: k.facts for k in before.pool}
    precision = locked.choice.roles[0].weights
    for entry in locked.facts.get("accelerators", ()):
        facts = kinds.get(entry["id"])
        if facts is None:
            continue
        name = f"accelerator.{facts.id}"
        for figure in FIGURES:
            if entry[figure] != to_jsonable(getattr(facts, figure)):
                patch = _accelerator(facts.id, partial(_set, figure, entry[figure]))
                yield Input(f"{name}.{figure}", _text(entry[figure]), _text(getattr(facts, figure)), patch=patch)
        for table in TABLES:
            now = {str(k): to_jsonable(v) for k, v in getattr(facts, table).items()}
            for key, value in entry[table].items():
                if now.get(key) != value:
                    patch = _accelerator(facts.id, partial(_set_entry, table, key, value))
                    yield Input(f"{name}.{table}.{key}", _text(value), _text(now.get(key)), patch=patch)
        gemm, own = entry["gemm"], facts.gemm.get(precision)
        kept = ("ew", "ec", "rows", "origin")
        if own is not None and {k: gemm[k] for k in kept} != {k: to_jsonable(getattr(own, k)) for k in kept}:
            error = float("nan") if gemm["fitError"] is None else gemm["fitError"]
            was = GemmEfficiency(gemm["ew"], gemm["ec"], error, gemm["rows"], gemm["origin"], gemm["source"])
            patch = _accelerator(facts.id, partial(_set_entry, "gemm", precision, was))
            yield Input(f"{name}.gemm.{precision}", _shares(was), _shares(own), patch=patch)


def _shares(gemm: GemmEfficiency) -> str:
    return f"ew {gemm.ew:.9g}, ec {gemm.ec:.9g}, {gemm.origin}, {gemm.rows} rows"


def _set(name: str, value: Any, facts: AcceleratorFacts) -> AcceleratorFacts:
    return dataclasses.replace(facts, **{name: value})


def _set_entry(table: str, key: str, value: Any, facts: AcceleratorFacts) -> AcceleratorFacts:
    """Keys of a lock are text, those of all-reduce tables numbers."""
    return _set(table, {**getattr(facts, table), int(key) if re.fullmatch("[0-9]{1,9}", key) else key: value}, facts)


def _accelerator(id: str, changed: Callable[[AcceleratorFacts], AcceleratorFacts]) -> Callable[[Problem], Problem]:
    def one(kind: Kind) -> Kind:
        return dataclasses.replace(kind, facts=changed(kind.facts)) if kind.facts.id == id else kind

    return lambda problem: dataclasses.replace(problem, pool=tuple(one(k) for k in problem.pool))


def _prices(before: Problem, locked: Plan) -> Iterator[Input]:
    for kind, was in zip(before.pool, locked.pool, strict=False):
        now, old = to_jsonable(kind.plan.price_per_hour), to_jsonable(was.price_per_hour)
        if was.accelerator == kind.facts.id and now != old:
            yield Input(f"price of {kind.facts.id}", f"${old}/h", f"${now}/h", patch=_priced(kind.index, old, was.price_source))


def _priced(index: int, price: float, source: str) -> Callable[[Problem], Problem]:
    def one(kind: Kind) -> Kind:
        plan = dataclasses.replace(kind.plan, price_per_hour=price, price_source=source)
        return dataclasses.replace(kind, plan=plan) if kind.index == index else kind

    return lambda problem: dataclasses.replace(problem, pool=tuple(one(k) for k in problem.pool))


def _files(before: Problem, locked: Plan) -> Iterator[Input]:
    """Files whose content differs: of the old one only the digest is known."""
    for name in sorted((set(before.inputs) & set(locked.inputs)) - {"spec", "facts"}):
        old, new = locked.inputs[name], before.inputs[name]
        if old != new:
            yield Input(f"content of {name}", _digest(old), _digest(new), note="the lock holds its digest, not the file")


def _programs(before: Problem, locked: Plan) -> Iterator[Input]:
    engine, version = locked.choice.engine, locked.choice.engine_version
    for option in before.engines:
        if option.facts.id == engine and option.version != version:
            yield Input(f"version of {engine}", version, option.version, patch=_versioned(engine, version))
    if locked.made_by != __version__:
        yield Input("version of servegen", locked.made_by or "not known", __version__, note="the older program is not here")


def _versioned(engine: str, version: str) -> Callable[[Problem], Problem]:
    def patch(problem: Problem) -> Problem:
        engines = tuple(dataclasses.replace(e, version=version) if e.facts.id == engine else e for e in problem.engines)
        return dataclasses.replace(problem, engines=engines)

    return patch


def _digest(sha256: str) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else ABSENT
