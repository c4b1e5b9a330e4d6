"""Plan -> Bundle: the manifests of ``kubernetes/`` and the scripts of ``launch/``, each proven against the plan."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from servegen.bundle import Bundle
from servegen.engines.launch import Launch
from servegen.engines.registry import get_engine, script_template
from servegen.errors import Diagnostic, NotBuiltError, RenderError, Where
from servegen.manifest import UnreadableError, documents
from servegen.plan import DeployPlan, Plan
from servegen.render.environment import Environment, environment
from servegen.render.intent import prove
from servegen.render.kept import check_kept
from servegen.render.kubernetes import kustomization_view, object_views
from servegen.render.names import object_name
from servegen.render.views import KustomizationView

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def render(plan: Plan, templates: Path | None = None) -> Bundle:
    """The manifests and launch scripts of ``plan``; no files for an engine that only predicts in this version.

    ``templates`` is a user's folder that is searched before the shipped templates. Raises RenderError when a template
    fails or its output differs from the plan, UserError when the engine cannot do what the plan's overrides ask.
    """
    launches = launches_of(plan)
    if not launches:
        return Bundle(name=plan.name, files={})
    templating = environment(templates)
    files: dict[str, str] = {}
    origin: dict[str, str] = {}
    for view in object_views(plan, launches):
        wrote = templating.written_by(view.template)
        _write(files, origin, view.meta.path, wrote)
        files[view.meta.path] = templating.render(view.template, {"o": view})
        place = templating.place(view.template)
        prove(view.meta.path, files[view.meta.path], view, wrote, templating.is_users(view.template), place)
    patches = _patches(plan.deploy)
    _kustomize(plan, templating, files, origin, patches)
    scripts = _scripts(plan, launches, templating, origin)
    files |= patches | scripts
    return Bundle(plan.name, dict(sorted(files.items())), frozenset(scripts), dict(sorted(origin.items())))


def launches_of(plan: Plan) -> tuple[Launch, ...]:
    """The processes of ``plan``; () when this version renders nothing for its engine."""
    try:
        engine = get_engine(plan.choice.engine)
    except NotBuiltError:
        return ()
    return engine.launches(plan)


def _write(files: dict[str, str], origin: dict[str, str], path: str, template: str) -> None:
    if path in files:
        raise RenderError(
            Diagnostic("render-twice", f"{path} would be written twice, by {origin[path]} and {template}")
        )
    origin[path] = template


def _kustomize(
    plan: Plan, templating: Environment, files: dict[str, str], origin: dict[str, str], patches: dict[str, str]
) -> None:
    names = [PurePosixPath(path).name for path in files]
    entries = [_patch_entry(path, text) for path, text in patches.items()]
    view, template = kustomization_view(plan, names, entries), KustomizationView.template
    path = "kubernetes/kustomization.yaml"
    files[path] = templating.render(template, {"o": view})
    origin[path] = templating.origin(template)
    prove(path, files[path], view, origin[path], templating.is_users(template), templating.place(template))


def check_patches(deploy: DeployPlan) -> None:
    """RenderError where a patch is no object that names its target; what it says is for the checks of the bundle."""
    for path, text in _patches(deploy).items():
        _patch_entry(path, text)


def _patches(deploy: DeployPlan) -> dict[str, str]:
    """The user's patches by their path in the bundle, in the spec's order. RenderError on a name that repeats."""
    patches: dict[str, str] = {}
    for name, content in deploy.patches:
        base = PurePosixPath(name.replace("\\", "/")).name
        path = f"kubernetes/patches/{base}"
        if _FILE_NAME.fullmatch(base) is None:
            raise _bad_patch(f"{name!r} has no usable file name", "file names of letters, digits, '.', '_' and '-'")
        if path in patches:
            raise _bad_patch(f"two patches are named {base!r}", "one file name each")
        patches[path] = content if content.endswith("\n") else content + "\n"
    return patches


def _patch_entry(path: str, text: str) -> dict[str, Any]:
    """The kustomization's entry of one patch; the patch names its target. RenderError if it names none."""
    relative = path.removeprefix("kubernetes/")
    hint = "a strategic merge patch: one YAML object with kind and metadata.name"
    try:
        bodies = [body for body in documents(text) if body is not None]
    except UnreadableError as error:
        raise _bad_patch(f"{relative}: {error}", hint, Where(path, error.line, error.column)) from error
    if len(bodies) != 1:
        count = f"{len(bodies)} objects" if bodies else "no object"
        raise _bad_patch(f"{relative}: it holds {count}", hint, Where(path, 1, 1))
    body = bodies[0]
    kind = body.get("kind") if isinstance(body, dict) else None
    meta = body.get("metadata") if isinstance(body, dict) else None
    name = meta.get("name") if isinstance(meta, dict) else None
    if not isinstance(kind, str) or not isinstance(name, str):
        lacks = "kind" if not isinstance(kind, str) else "metadata.name"
        is_list = "it is a list, as JSON6902 patches are" if isinstance(body, list) else f"it has no {lacks} that is a text"
        raise _bad_patch(f"{relative}: {is_list}", hint, Where(path, 1, 1))
    return {"path": relative, "target": {"kind": kind, "name": name}}


def _bad_patch(message: str, hint: str, where: Where | None = None) -> RenderError:
    return RenderError(Diagnostic("render-patch", message, where or Where(), f"deploy.overrides.patches: {hint}"))


def _scripts(
    plan: Plan, launches: tuple[Launch, ...], templating: Environment, origin: dict[str, str]
) -> dict[str, str]:
    header = (
        f"Written by servegen for {plan.name}, plan {plan.content_hash}. "
        "Change the spec: an edit here is lost with the next build."
    )
    scripts: dict[str, str] = {}
    found: list[Diagnostic] = []
    for launch in launches:
        path, template = f"launch/{launch.name}.sh", script_template(launch)
        said = {"plan": plan, "launch": launch, "header": header}
        scripts[path] = templating.render(template, said)
        origin[path] = templating.origin(template)
        if templating.is_users(template) and (shipped := environment().render(template, said)) != scripts[path]:
            subject = f"{_kind(launch)}/{object_name(plan, launch.name)}: {path}"
            found += check_kept(
                scripts[path], shipped, subject, templating.place(template), templating.source(template), f"templates/{template}"
            )
    if found:
        raise RenderError(found)
    return scripts


def _kind(launch: Launch) -> str:
    """What runs the same command in the cluster."""
    return "Deployment" if launch.group is None else "LeaderWorkerSet"
