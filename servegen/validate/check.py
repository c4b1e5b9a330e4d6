"""Plan and bundle -> what is wrong with the bundle: errors, and warnings beside which it may be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from servegen.bundle import Bundle
from servegen.engines.registry import get_engine
from servegen.errors import BundleError, Diagnostic, NotBuiltError, Where
from servegen.manifest import UnreadableError, documents
from servegen.plan import Plan
from servegen.secrecy import secret_value
from servegen.validate.access import check_access
from servegen.validate.affinity import check_affinity
from servegen.validate.budgets import check_budgets
from servegen.validate.containers import check_containers
from servegen.validate.decided import check_unheard
from servegen.validate.groups import check_groups
from servegen.validate.homes import check_homes
from servegen.validate.kustomize import check_keys
from servegen.validate.lifecycle import check_lifecycle
from servegen.validate.locate import nearest
from servegen.validate.manifests import check_kustomization, check_objects
from servegen.validate.monitors import check_monitors
from servegen.validate.mounts import check_mounts
from servegen.validate.network import check_network
from servegen.validate.objects import FOLDER, KUSTOMIZATION, PATCHES, Manifest, Scene
from servegen.validate.outside import check_outside
from servegen.validate.patches import check_patches
from servegen.validate.placement import check_placement
from servegen.validate.pods import check_pods
from servegen.validate.references import check_references
from servegen.validate.resolving import check_resolving
from servegen.validate.rollouts import check_rollouts
from servegen.validate.scaling import check_scaling
from servegen.validate.scripts import check_script
from servegen.validate.unions import check_rules
from servegen.validate.variables import check_variables
from servegen.validate.volumes import check_volumes

CHECKS: tuple[Callable[[Scene], None], ...] = (
    check_objects,
    check_kustomization,
    check_keys,
    check_pods,
    check_rollouts,
    check_lifecycle,
    check_homes,
    check_groups,
    check_containers,
    check_variables,
    check_volumes,
    check_mounts,
    check_placement,
    check_affinity,
    check_resolving,
    check_references,
    check_monitors,
    check_budgets,
    check_network,
    check_access,
    check_scaling,
    check_outside,
    check_rules,
)


def validate(plan: Plan, bundle: Bundle) -> list[Diagnostic]:
    """The warnings. Raises BundleError with every error that was found; an empty bundle has nothing to check."""
    found = findings(plan, bundle)
    errors = [d for d in found if d.severity == "error"]
    if errors:
        raise BundleError(errors)
    return found


def findings(plan: Plan, bundle: Bundle) -> list[Diagnostic]:
    """Everything that the checks say about ``bundle``, errors and warnings, manifests before scripts."""
    if not any(path.startswith((FOLDER, "launch/")) for path in bundle.files):
        return list(check_unheard(plan))
    try:
        launches = get_engine(plan.choice.engine).launches(plan)
    except NotBuiltError as error:
        return list(error.diagnostics)
    manifests, kustomization, found = _read(bundle)

    def judge(objects: list[Manifest]) -> list[Diagnostic]:
        scene = Scene(plan, bundle, launches, objects, kustomization)
        for check in CHECKS:
            check(scene)
        return scene.found

    scene = Scene(plan, bundle, launches, manifests, kustomization)
    left, of_patches = check_patches(scene, judge(manifests), judge)
    found += [*(_placed(d, manifests, bundle) for d in left), *of_patches]
    return [*found, *_shown_secrets(bundle, found), *_scripts(scene)]


def _placed(found: Diagnostic, manifests: list[Manifest], bundle: Bundle) -> Diagnostic:
    """A finding about an object with its line in the file, which shows what a template made of the plan."""
    subject, _, rest = found.message.partition(": ")
    for m in manifests:
        if m.path == found.where.file and not found.where.line and subject == f"{m.kind}/{m.name}":
            return found.at(Where(m.path, *nearest(bundle.files[m.path], m.body, rest.partition(": ")[0])))
    return found


def _shown_secrets(bundle: Bundle, found: list[Diagnostic]) -> list[Diagnostic]:
    """Secrets, by their form, in any file at all: what a check above says of a variable is not said twice."""
    told = {d.where.file for d in found if d.code in ("bundle-secret", "secret-value")}
    return [
        Diagnostic("bundle-secret", f"{path}: line {number} holds {what}; refer to a Secret", Where(path, number, 1))
        for path, text in bundle.files.items()
        if path not in told and secret_value(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if (what := secret_value(line))
    ]


def _read(bundle: Bundle) -> tuple[list[Manifest], Mapping[str, Any], list[Diagnostic]]:
    """The objects, the kustomization, and what could not be read."""
    manifests: list[Manifest] = []
    kustomization: Mapping[str, Any] = {}
    found: list[Diagnostic] = []
    for path, text in bundle.files.items():
        if not path.startswith(FOLDER) or path.startswith(PATCHES):
            continue
        template = bundle.templates.get(path, "")
        try:
            bodies = documents(text)
        except UnreadableError as error:
            where = Where(path, error.line, error.column)
            found.append(Diagnostic("bundle-yaml", f"{path}: {error}", where, f"template {template}"))
            continue
        for body in bodies:
            if not isinstance(body, Mapping):
                message = f"{path}: holds {type(body).__name__}, not an object"
                found.append(Diagnostic("bundle-yaml", message, Where(path), f"template {template}"))
            elif path == KUSTOMIZATION:
                kustomization = body
            else:
                manifests.append(Manifest(path, body))
    return manifests, kustomization, found


def _scripts(scene: Scene) -> list[Diagnostic]:
    """What is wrong with the launch scripts, each finding under the name of the object whose pods run the same command."""
    bundle = scene.bundle
    found: list[Diagnostic] = []
    for launch in scene.launches:
        path = f"launch/{launch.name}.sh"
        template = bundle.templates.get(path, "")
        if path not in bundle.files:
            found.append(Diagnostic("bundle-script", f"{path} is missing", Where(path)))
            continue
        if path not in bundle.executable:
            found.append(Diagnostic("bundle-script", f"{path} is not executable", Where(path)))
        runs = next((m for m in scene.runners if scene.launch(m) is launch), None)
        subject = f"{runs.kind}/{runs.name}: {path}" if runs is not None else path
        for d in check_script(path, bundle.files[path], launch, scene.plan, template):
            found.append(replace(d, message=f"{subject}: {d.message}"))
    return found
