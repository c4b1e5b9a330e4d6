"""The keys of a kustomization: those that kustomize knows, that ``kubectl apply -k`` takes, and what they point to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from servegen.validate.objects import FOLDER, KUSTOMIZATION, Scene, mapping, sequence
from servegen.validate.syntax import shown

_KEY = "deploy.overrides.patches"
_VERSION = "kustomize.config.k8s.io/v1beta1"
#: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization; kustomize refuses every other key.
_KNOWN = frozenset(
    ("apiVersion", "kind", "metadata", "resources", "bases", "components", "namespace", "namePrefix", "nameSuffix",
     "labels", "commonLabels", "commonAnnotations", "images", "replicas", "patches", "patchesStrategicMerge",
     "patchesJson6902", "replacements", "vars", "configMapGenerator", "secretGenerator", "generatorOptions",
     "generators", "transformers", "validators", "configurations", "crds", "openapi", "buildMetadata", "sortOptions",
     "helmCharts", "helmGlobals", "helmChartInflationGenerator", "imageTags")
)  # fmt: skip
#: What would make other objects of those that were proven against the plan.
_UNSEEN: Mapping[str, str] = {
    "commonLabels": "it changes selectors, and that of a Deployment can never change; labels do not",
    "namePrefix": "metadata.name of the spec names them",
    "nameSuffix": "metadata.name of the spec names them",
    "images": "deploy.image of the spec says which one",
    "imageTags": "deploy.image of the spec says which one",
    "replicas": "the plan counts them",
    "patchesStrategicMerge": "deploy.overrides.patches of the spec names them",
    "patchesJson6902": "deploy.overrides.patches of the spec names them",
}
_NEEDS_HELM = ("helmCharts", "helmChartInflationGenerator")
#: Lists whose items are files, or hold one inline: a text of more than one line.
_FILES = ("bases", "components", "generators", "transformers", "validators", "configurations", "crds", "patchesStrategicMerge")
_TEXTS = ("commonLabels", "commonAnnotations")


def check_keys(scene: Scene) -> None:
    """Nothing in the kustomization that would keep ``kubectl apply -k`` from building it."""
    for field, problem in _problems(scene.kustomization, {p.removeprefix(FOLDER) for p in scene.bundle.files}):
        scene.add_file("kustomization", KUSTOMIZATION, f"{field} {problem}", _KEY)


def _problems(body: Mapping[str, Any], there: set[str]) -> Iterator[tuple[str, str]]:
    for name in body:
        if name not in _KNOWN:
            near = difflib.get_close_matches(str(name), _KNOWN, 1)
            yield str(name), "is no key of a kustomization" + (f"; did you mean {near[0]}?" if near else "")
    if body.get("apiVersion") not in (None, _VERSION):
        yield "apiVersion", f"is {shown(body['apiVersion'])}, must be {_VERSION}"
    for field, why in _UNSEEN.items():
        if body.get(field):
            yield field, f"changes the objects behind all checks: {why}"
    for label in sequence(body.get("labels")):
        if mapping(label).get("includeSelectors") is True:
            yield "labels.includeSelectors", "is true: it changes selectors, and that of a Deployment can never change"
    for field in _NEEDS_HELM:
        if body.get(field):
            yield field, "needs --enable-helm, which kubectl apply does not have"
    for field, name in _named(body):
        if "\n" not in name and "://" not in name and not name.startswith("..") and name not in there:
            yield field, f"names {shown(name)}, which is not there"
    pairs = [(field, body.get(field)) for field in _TEXTS]
    pairs += [("labels.pairs", mapping(label).get("pairs")) for label in sequence(body.get("labels"))]
    for field, values in pairs:
        for key, value in mapping(values).items():
            if not isinstance(value, str):
                yield f"{field}.{key}", f"is {shown(value)}, must be text"


def _named(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, name) of every file that a kustomization reads, its resources and patches apart."""
    for field in _FILES:
        yield from ((field, item) for item in sequence(body.get(field)) if isinstance(item, str))
    named = [("openapi", body.get("openapi")), *(("replacements", r) for r in sequence(body.get("replacements")))]
    yield from ((f"{field}.path", mapping(x)["path"]) for field, x in named if isinstance(mapping(x).get("path"), str))
    for field in ("configMapGenerator", "secretGenerator"):
        for made in (mapping(x) for x in sequence(body.get(field))):
            files = [item for item in sequence(made.get("files")) if isinstance(item, str)]
            yield from ((f"{field}.files", item.partition("=")[2] or item) for item in files)
