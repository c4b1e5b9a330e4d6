"""Names and labels of everything that a plan deploys: RFC 1123 labels of at most 63 characters."""

from __future__ import annotations

import re

from servegen.errors import Diagnostic, RenderError
from servegen.plan import Plan

MANAGED_BY = "servegen"
HASH_ANNOTATION = "servegen.dev/plan-hash"

INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
#: ``leader`` or ``worker`` on the pods of a replica over several nodes. A label of our own: those of the controller that
#: makes the pods are in no template, so that nobody who reads the files sees what a selector would find.
GROUP_ROLE = "servegen.dev/group-role"

_LABEL_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NOT_IN_VALUE = re.compile(r"[^A-Za-z0-9._-]+")


def object_name(plan: Plan, suffix: str = "") -> str:
    """``<plan>`` or ``<plan>-<suffix>``. Raises RenderError unless it is an RFC 1123 label of at most 63 characters."""
    name = f"{plan.name}-{suffix}" if suffix else plan.name
    if len(name) > 63 or _LABEL_NAME.fullmatch(name) is None:
        raise RenderError(
            Diagnostic(
                "render-name",
                f"{name!r} cannot name a Kubernetes object",
                hint="metadata.name: lower-case letters, digits and '-', at most 40 characters, no '-' at either end",
            )
        )
    return name


def namespace(plan: Plan) -> str:
    """Where the objects go."""
    return plan.deploy.namespace or "default"


def label_value(text: str) -> str:
    """``text`` as a legal label value: other characters become ``-``, at most 63, alphanumeric at both ends."""
    return _NOT_IN_VALUE.sub("-", text)[:63].strip("-._")


def selector_labels(plan: Plan, component: str) -> dict[str, str]:
    """What selects the pods of one component.

    Only labels that never change: a Deployment's selector is immutable, so an engine or its version must not be in it.
    """
    return {INSTANCE: plan.name, COMPONENT: component}


def common_labels(plan: Plan, component: str = "") -> dict[str, str]:
    """The recommended labels of an object; ``component`` is left out for what belongs to the whole plan."""
    labels = {
        "app.kubernetes.io/name": label_value(plan.choice.engine),
        INSTANCE: plan.name,
        "app.kubernetes.io/part-of": plan.name,
        "app.kubernetes.io/managed-by": MANAGED_BY,
    }
    if component:
        labels[COMPONENT] = component
    if version := label_value(plan.choice.engine_version):
        labels["app.kubernetes.io/version"] = version
    return dict(sorted(labels.items()))
