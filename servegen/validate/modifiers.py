"""Checks of what KEDA makes of its triggers, and of annotations by which it leaves a count alone (keda.sh/docs, scaling)."""

from __future__ import annotations

import re

from servegen.errors import Severity
from servegen.validate.objects import Manifest, Scene, mapping, sequence
from servegen.validate.syntax import quantity, shown, whole

_KEY = "deploy.autoscaling"
_PAUSED, _PAUSED_AT, _PAUSED_OUT = (f"autoscaling.keda.sh/paused{rest}" for rest in ("", "-replicas", "-scale-out"))
_TEXT = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"[A-Za-z_]\w*")
#: Triggers whose figures the formula cannot have: Kubernetes asks for them itself.
_OF_KUBERNETES = ("cpu", "memory")


def check_modifiers(scene: Scene, m: Manifest) -> None:
    """A formula puts one figure in place of all triggers' own: it must be made of them, and be held against a target."""
    path = "spec.advanced.scalingModifiers"
    modifiers = mapping(m.get(path))
    if not modifiers:
        return
    formula = modifiers.get("formula")
    triggers = [mapping(t) for t in sequence(m.get("spec.triggers"))]
    names = {str(t["name"]) for t in triggers if t.get("name") and t.get("type") not in _OF_KUBERNETES}
    have = ", ".join(sorted(names)) or "none that has a name"
    if not isinstance(formula, str) or not formula.strip():
        scene.add("scaling", m, f"{path}.formula", "there is none, and KEDA refuses modifiers without one", _KEY)
    elif not (words := set(_WORD.findall(_TEXT.sub("", formula)))):
        problem = f"is {shown(formula)}, the same whatever the load: it must be made of the triggers ({have})"
        scene.add("scaling", m, f"{path}.formula", problem, _KEY)
    elif not words & names:
        problem = f"is {shown(formula)}, which names no trigger of it: {have}"
        scene.add("scaling", m, f"{path}.formula", problem, _KEY)
    if not (quantity(modifiers.get("target")) or 0) > 0:
        problem = f"is {shown(modifiers.get('target'))}: the formula is held against it; it must be a positive number in quotes"
        scene.add("scaling", m, f"{path}.target", problem, _KEY)


def check_paused(scene: Scene, m: Manifest) -> None:
    """Annotations that stop the scaling of a whole object."""
    notes, path = mapping(m.get("metadata.annotations")), "metadata.annotations"
    at = whole(notes.get(_PAUSED_AT))
    severity: Severity = "error" if at == 0 else "warning"
    if at is not None:
        problem = f"{_PAUSED_AT} is {at}: " + ("nobody is ever served" if at == 0 else "the count stays there whatever the load")
        scene.add("scaling", m, path, f"{problem}; take it out", _KEY, severity)
    for name, stays in ((_PAUSED, "stays where it is"), (_PAUSED_OUT, "never grows")):
        if str(notes.get(name)).lower() == "true":
            scene.add("scaling", m, path, f"{name} is true: the count {stays} whatever the load; take it out", _KEY, "warning")
