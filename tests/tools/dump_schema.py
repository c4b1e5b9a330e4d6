#!/usr/bin/env python3
"""Write servegen/validate/schema.json: the fields of every kind that servegen renders, by Kubernetes release.

Usage: dump_schema.py > servegen/validate/schema.json

Sources: the OpenAPI schemas of Kubernetes 1.29 to 1.37 inside PyPI kubernetes-validate, and tests/fixtures/crds.
Facts only: names, types, what is required, and from or until which release a field is there. A field reads
``{"name": "type"}``, ``!`` behind a name that is required, ``[type]`` a list, ``{type}`` a map, ``=a|b`` one of these
words, ``>1.30`` from that release on, ``<1.35`` until the one before it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate

RELEASES = [f"1.{minor}" for minor in range(29, 38)]
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
CRDS = Path(__file__).parents[1] / "fixtures" / "crds"
KINDS = {
    "Deployment": "deployment-apps-v1",
    "Service": "service-v1",
    "ServiceAccount": "serviceaccount-v1",
    "PersistentVolumeClaim": "persistentvolumeclaim-v1",
    "Role": "role-rbac-v1",
    "RoleBinding": "rolebinding-rbac-v1",
    "NetworkPolicy": "networkpolicy-networking-v1",
    "PodDisruptionBudget": "poddisruptionbudget-policy-v1",
    "HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
}
CUSTOM = {
    "LeaderWorkerSet": "leaderworkersets_v1.json",
    "PodMonitor": "podmonitors_v1.json",
    "ScaledObject": "scaledobjects_v1alpha1.json",
}
#: Fields of custom resources that hold a type of Kubernetes itself, which their schemas spell out.
EMBEDDED = {
    "LeaderWorkerSet.spec.leaderWorkerTemplate.leaderTemplate": "PodTemplateSpec",
    "LeaderWorkerSet.spec.leaderWorkerTemplate.workerTemplate": "PodTemplateSpec",
    "LeaderWorkerSet.spec.leaderWorkerTemplate.volumeClaimTemplates": "[PersistentVolumeClaim]",
}
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
#: Written by the server or by its clients, never by hand: of no use to a check of what was rendered.
LEFT_OUT = {"status", "managedFields"}

Types = dict[str, dict[str, str]]


class Reader:
    """Collects the types that one release's kinds reach."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions
        self.types: Types = {}

    def name_of(self, schema: dict[str, Any], owner: str) -> str:
        """The notation of one schema; ``owner`` names the type if it has fields of its own."""
        if "$ref" in schema:
            reference = schema["$ref"].rsplit("/", 1)[-1]
            if reference == QUANTITY:
                return "quantity"
            short = reference.rsplit(".", 1)[-1]
            if short not in self.types:
                self.types[short] = {}
                found = self.definitions[reference]
                if "properties" not in found:
                    del self.types[short]
                    return self.name_of(found, owner)
                self.read(short, found)
            return short
        if "enum" in schema:
            return "=" + "|".join(str(word) for word in schema["enum"] if word is not None)
        if schema.get("x-kubernetes-int-or-string") or "anyOf" in schema or "oneOf" in schema:
            return "word"
        kind = schema.get("type", "any")
        kind = next(k for k in kind if k != "null") if isinstance(kind, list) else kind
        if kind == "array":
            return f"[{self.name_of(schema.get('items', {}), owner)}]"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"{{{self.name_of(schema['additionalProperties'], owner)}}}"
        if kind == "object" and "properties" in schema:
            self.read(owner, schema)
            return owner
        return "any" if kind == "object" else "int32" if schema.get("format") == "int32" else str(kind)

    def read(self, name: str, schema: dict[str, Any]) -> None:
        fields = self.types.setdefault(name, {})
        required = set(schema.get("required", ()))
        for field, inner in sorted(schema["properties"].items()):
            if field not in LEFT_OUT:
                here = f"{name}.{field}"
                fields[field + "!" * (field in required)] = EMBEDDED.get(here) or self.name_of(inner, here)


def merged(by_release: dict[str, Types]) -> Types:
    """One set of types, each field with the releases that have it where not all do. The newest notation counts."""
    result: Types = {}
    for types in by_release.values():
        for name, fields in types.items():
            for field in fields:
                has = [r for r, t in by_release.items() if field in t.get(name, {})]
                marked = by_release[has[-1]][name][field]
                bare = field.rstrip("!")
                if has[0] != RELEASES[0] and bare + "!" not in by_release[RELEASES[0]].get(name, {}):
                    marked += f">{has[0]}"
                if has[-1] != RELEASES[-1]:
                    marked += f"<{RELEASES[RELEASES.index(has[-1]) + 1]}"
                result.setdefault(name, {})[field] = marked
    return result


def main() -> None:
    by_release: dict[str, Types] = {}
    for release in RELEASES:
        folder = SCHEMAS / f"v{release}.0-local"
        reader = Reader(json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"])
        for kind, file in KINDS.items():
            reader.read(kind, json.loads((folder / f"{file}.json").read_text(encoding="utf-8")))
        for kind, file in CUSTOM.items():
            reader.read(kind, json.loads((CRDS / file).read_text(encoding="utf-8"))["openAPIV3Schema"])
            reader.types[kind]["metadata"] = "ObjectMeta"
        by_release[release] = reader.types
    lines = [f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(merged(by_release).items())]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
