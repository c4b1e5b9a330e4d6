"""Plan and bundle -> the same bundle, once every check has passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servegen.bundle import Bundle
from servegen.engines.launch import Launch
from servegen.engines.registry import get_engine
from servegen.errors import BundleError, Diagnostic, NotBuiltError, Where
from servegen.manifest import documents
from servegen.plan import Plan
from servegen.validate.access import check_access
from servegen.validate.containers import check_containers
from servegen.validate.groups import check_groups
from servegen.validate.kustomize import check_keys
from servegen.validate.manifests import check_kustomization, check_objects
from servegen.validate.network import check_network
from servegen.validate.objects import FOLDER, KUSTOMIZATION, PATCHES, Manifest, Scene
from servegen.validate.placement import check_placement
from servegen.validate.pods import check_pods
from servegen.validate.references import check_references
from servegen.validate.scaling import check_scaling
from servegen.validate.scripts import check_script
from servegen.validate.unions import check_rules
from servegen.validate.volumes import check_volumes

CHECKS: tuple[Callable[[Scene], None], ...] = (
    check_objects,
    check_kustomization,
    check_keys,
    check_pods,
    check_groups,
    check_containers,
    check_volumes,
    check_placement,
    check_references,
    check_network,
    check_access,
    check_scaling,
    check_rules,
)


def validate(plan: Plan, bundle: Bundle) -> Bundle:
    """``bundle`` itself. Raises BundleError with every error that was found; an empty bundle has nothing to check."""
    errors = [d for d in findings(plan, bundle) if d.severity == "error"]
    if errors:
        raise BundleError(errors)
    return bundle


def findings(plan: Plan, bundle: Bundle) -> list[Diagnostic]:
    """Everything that the checks say about ``bundle``, errors and warnings, manifests before scripts."""
    if not any(path.startswith((FOLDER, "launch/")) for path in bundle.files):
        return []
    try:
        launches = get_engine(plan.choice.engine).launches(plan)
    except NotBuiltError as error:
        return list(error.diagnostics)
    manifests, kustomization, found = _read(bundle)
    scene = Scene(plan, bundle, launches, manifests, kustomization, found)
    for check in CHECKS:
        check(scene)
    return [*scene.found, *_scripts(plan, bundle, launches)]


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
        except ValueError as error:
            found.append(Diagnostic("bundle-yaml", f"{path}: {error}", Where(path), f"template {template}"))
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


def _scripts(plan: Plan, bundle: Bundle, launches: tuple[Launch, ...]) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for launch in launches:
        path = f"launch/{launch.name}.sh"
        if path not in bundle.files:
            found.append(Diagnostic("bundle-script", f"{path} is missing", Where(path)))
            continue
        if path not in bundle.executable:
            found.append(Diagnostic("bundle-script", f"{path} is not executable", Where(path)))
        found += check_script(path, bundle.files[path], launch, plan)
    return found
