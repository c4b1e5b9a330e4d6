"""The user's patches: each by itself, and what the cluster would be given once they are merged, under the checks of the bundle.

A patch is the user's last word. What it asks for on purpose and a cluster takes (a port of the node, another account) is a
warning; what cannot work, or contradicts the plan, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from servegen.errors import Diagnostic, Where
from servegen.governing import written
from servegen.manifest import UnreadableError, documents
from servegen.record import record
from servegen.secrecy import secret_value
from servegen.validate.locate import narrowest, nearest
from servegen.validate.merge import PatchError, merged
from servegen.validate.objects import FOLDER, ON_PURPOSE, PATCHES, TEMPLATES, Manifest, Scene, dig, mapping, sequence
from servegen.validate.schema import NEWEST, problems
from servegen.validate.syntax import minor_version, shown

_KEY = "deploy.overrides.patches"

Judge = Callable[[list[Manifest]], list[Diagnostic]]


@record
class Patch:
    """One patch: its place among the spec's, its file in the bundle, and what it says."""

    index: int
    path: str
    text: str
    body: Mapping[str, Any]

    @property
    def target(self) -> tuple[str, str]:
        return str(self.body.get("kind")), str(dig(self.body, "metadata.name"))

    def where(self, at: str, merged_body: Any = None) -> Where:
        """The nearest place that the patch has of a dotted path, in itself or in the object that it was merged into."""
        return Where(self.path, *nearest(self.text, self.body, at, merged_body))

    @property
    def whole(self) -> Where:
        """Of all that the patch changes."""
        return Where(self.path, *narrowest(self.text, self.body))

    def found(self, code: str, at: str, problem: str, key: str = "") -> Diagnostic:
        """A finding about one place of the patch, against what ``key`` of the spec says."""
        target = "/".join(self.target)
        hint = f"{self.hint}, against {written(key)}" if key else self.hint
        return Diagnostic(f"bundle-{code}", f"{target}: {at}: {problem}" if at else problem, self.where(at), hint)

    @property
    def hint(self) -> str:
        return f"spec.{_KEY}[{self.index}]"


def check_patches(scene: Scene, before: list[Diagnostic], judge: Judge) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """What the patches of the bundle leave of what was wrong ``before`` them, and what is wrong with them.

    ``judge`` says what is wrong with a set of objects. Who applies the bundle applies its patches: what they mend is no fault.
    """
    found: list[Diagnostic] = []
    patches = list(_read(scene, found))
    release = minor_version(scene.plan.deploy.kubernetes_version) or NEWEST
    sound = []
    for patch in patches:
        wrong = list(_by_itself(scene, patch, release))
        found += wrong
        if all(d.severity != "error" for d in wrong):
            sound.append(patch)
    if not sound:
        return before, found
    steps = [scene.manifests]
    for patch in list(sound):
        try:
            steps.append(_applied(steps[-1], patch))
        except PatchError as error:
            found.append(patch.found("patch", error.path, error.problem))
            sound.remove(patch)
    if len(steps) == 1:
        return before, found
    known, last = {_identity(d) for d in before}, judge(steps[-1])
    new = [d for d in last if _identity(d) not in known]
    there = {_identity(d) for d in last}
    return [d for d in before if _identity(d) in there], found + list(_brought(new, judge, steps, sound))


def _read(scene: Scene, found: list[Diagnostic]) -> Iterator[Patch]:
    """The patches in the order in which they are merged."""
    listed = [PurePosixPath(str(mapping(p).get("path"))).name for p in sequence(scene.kustomization.get("patches"))]
    there = [p.removeprefix(PATCHES) for p in scene.bundle.files if p.startswith(PATCHES)]
    named = [PurePosixPath(name.replace("\\", "/")).name for name, _ in scene.plan.deploy.patches]
    for name in sorted(there, key=lambda n: listed.index(n) if n in listed else len(listed)):
        path, text = PATCHES + name, scene.bundle.files[PATCHES + name]
        index = named.index(name) if name in named else 0
        try:
            patches = [p for p in documents(text) if p is not None]
        except UnreadableError as error:
            found.append(_of_file(path, index, f"is no YAML: {error}", error.line, error.column))
            continue
        if not patches:
            found.append(_of_file(path, index, "is empty"))
        for patch in patches:
            if not isinstance(patch, Mapping):
                found.append(_of_file(path, index, "is no strategic merge patch (an object with kind and metadata.name)"))
            elif len(patches) > 1:
                found.append(_of_file(path, index, f"holds {len(patches)} patches, and a file holds one"))
                break
            else:
                yield Patch(index, path, text, patch)


def _of_file(path: str, index: int, problem: str, line: int = 1, column: int = 1) -> Diagnostic:
    where = Where(path, line, column)
    return Diagnostic("bundle-patch", f"{path.removeprefix(FOLDER)}: {problem}", where, f"spec.{_KEY}[{index}]")


def _by_itself(scene: Scene, patch: Patch, release: tuple[int, int]) -> Iterator[Diagnostic]:
    """What can be said of a patch without the object that it changes."""
    known = {(m.kind, m.name): m for m in scene.manifests}
    kind, name = patch.target
    if patch.target not in known:
        names = ", ".join(f"{k}/{n}" for k, n in sorted(known) if k == kind) or ", ".join(sorted({k for k, _ in known}))
        yield patch.found("patch", "", f"patches {kind}/{name}, which is not in the bundle; there are {names}")
        return
    version = patch.body.get("apiVersion")
    if version is not None and version != known[patch.target].body.get("apiVersion"):
        wanted = known[patch.target].body.get("apiVersion")
        problem = f"is {shown(version)}, the object's is {shown(wanted)}"
        yield patch.found("patch", "apiVersion", problem, "deploy.kubernetesVersion")
    for at, problem in _lost_by(patch.body):
        yield patch.found("patch", at, problem)
    for at, problem in problems(patch.body, kind, release, partial=True):
        if at == "apiVersion":
            continue  # judged above
        yield patch.found("patch", at, problem)
    for at, text in _leaves(patch.body, ""):
        if what := secret_value(text):
            yield patch.found("secret", at, f"holds {what} in plain text; refer to a Secret")


def _lost_by(patch: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What a patch takes from the containers of a group: no list of a custom resource has a key by which it is merged."""
    for at in TEMPLATES["LeaderWorkerSet"] if patch.get("kind") == "LeaderWorkerSet" else ():
        for i, container in enumerate(sequence(dig(patch, f"{at}.spec.containers"))):
            lost = [field for field in ("image", "command", "args", "resources") if field not in mapping(container)]
            if lost:
                problem = f"kustomize replaces lists of a custom resource whole: this container loses its {', '.join(lost)}"
                yield f"{at}.spec.containers[{i}]", problem


def _leaves(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, text) of every text in a patch, wherever it stands."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for name, value in node.items():
            yield from _leaves(value, f"{path}.{name}" if path else str(name))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{path}[{i}]")


def _applied(manifests: list[Manifest], patch: Patch) -> list[Manifest]:
    """The objects with one patch merged into its target. Raises PatchError."""
    out = []
    for m in manifests:
        body: Mapping[str, Any] | None = m.body
        if (m.kind, m.name) == patch.target:
            body = merged(m.body, patch.body)
        if body is not None:
            out.append(replace(m, body=body))
    return out


def _brought(new: list[Diagnostic], judge: Judge, steps: list[list[Manifest]], patches: list[Patch]) -> Iterator[Diagnostic]:
    """What is wrong once all patches are merged and was not before, each with the patch that brought it."""
    if not new:
        return
    by_step = [{_identity(d) for d in judge(step)} for step in steps[1:-1]] + [{_identity(d) for d in new}]
    for d in new:
        patch = next(p for p, there in zip(patches, by_step, strict=True) if _identity(d) in there)
        yield _told(d, patch, steps[-1])


def _identity(found: Diagnostic) -> tuple[str, str]:
    return found.code, found.message


def _told(found: Diagnostic, patch: Patch, manifests: list[Manifest]) -> Diagnostic:
    """A finding about a merged object as one about the patch: where, and which key would be the one for it."""
    subject, _, rest = found.message.partition(": ")
    at = rest.partition(": ")[0] if subject == "/".join(patch.target) else ""
    body = next((m.body for m in manifests if (m.kind, m.name) == patch.target), None)
    within = "." in at or at in patch.body
    where = patch.where(at, body) if within else patch.whole
    governing = found.hint.partition(";")[0]
    hint = patch.hint if not governing or _KEY in governing else f"{patch.hint}, against {governing}"
    accepted = found.code in ON_PURPOSE
    message = f"with the patch, {found.message}"
    return replace(found, message=message, where=where, hint=hint, severity="warning" if accepted else found.severity)


