"""Checks of a server's time limits: how long it may take to start, when it is ended, and how it drains before that."""

from __future__ import annotations

import math
import re
from typing import Any

from servegen.errors import Severity
from servegen.plan import Role
from servegen.validate.objects import Manifest, Scene, dig, mapping, sequence
from servegen.validate.syntax import shown

_MAX_GRACE_S = 3600
#: A sleep in a command of whatever shell: of what a variable says, or with its number and unit where it is a number.
_SLEEP = re.compile(r"""(?<![\w.-])sleep(?![\w.-])(?:\s+["']?(?:(\$)|([0-9]{1,6}(?:\.[0-9]{1,6})?)([smhd]?)(?![\w.])))?""")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def check_lifecycle(scene: Scene) -> None:
    """Every pod of a role, by the process that the plan puts there."""
    for m in scene.pods:
        role = scene.role(m)
        if role is None or not m.containers:
            continue
        _check_liveness(scene, m, m.server)
        _check_startup(scene, m, role, m.server)
        if not m.is_worker:
            _check_grace(scene, m, role, m.server)


def _check_liveness(scene: Scene, m: Manifest, container: Any) -> None:
    """A server that is only busy must be taken out before it is ended: a restart loads all weights again."""
    spans = []
    for probe in ("livenessProbe", "readinessProbe"):
        period, failures = (dig(container, f"{probe}.{field}") for field in ("periodSeconds", "failureThreshold"))
        spans.append(period * failures if isinstance(period, int) and isinstance(failures, int) else 0)
    if min(spans) > 0 and spans[0] < spans[1]:
        problem = f"ends the server after {spans[0]} s, before the {spans[1]} s after which it is taken out"
        scene.add("probe", m, f"{m.server_path}.livenessProbe", problem, "deploy.overrides.patches")


def _check_startup(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    probe = mapping(container.get("startupProbe"))
    period, failures = probe.get("periodSeconds"), probe.get("failureThreshold")
    if not isinstance(period, int) or not isinstance(failures, int):
        return
    initial = probe.get("initialDelaySeconds")
    budget_s = period * failures + (initial if isinstance(initial, int) else 0)
    storage = scene.plan.pool[role.pool].storage_bytes_per_s
    if storage > 0 and budget_s < role.checkpoint_bytes / storage:
        problem = f"gives {budget_s} s, reading the weights alone takes {role.checkpoint_bytes / storage:.0f} s"
        scene.add("startup", m, f"{m.server_path}.startupProbe", problem, "hardware.pool[].storage.bandwidth")
    deadline = m.get("spec.progressDeadlineSeconds")
    if m.kind == "Deployment" and (not isinstance(deadline, int) or deadline <= budget_s):
        problem = f"is {shown(deadline)}, a pod may take {budget_s} s to start"
        scene.add("rollout", m, "spec.progressDeadlineSeconds", problem, "hardware.pool[].storage.bandwidth")


def _slept(command: str) -> list[float]:
    """Seconds of every sleep of a command: nan where a variable says them, 0 where nothing does."""
    return [math.nan if variable else float(number or 0) * _UNITS_S[unit] for variable, number, unit in _SLEEP.findall(command)]


def _check_grace(scene: Scene, m: Manifest, role: Role, container: Any) -> None:
    grace = m.pod.get("terminationGracePeriodSeconds")
    sleep = dig(container, "lifecycle.preStop.sleep.seconds")
    command = " ".join(map(str, sequence(dig(container, "lifecycle.preStop.exec.command"))))
    sleeps = _slept(command)
    unseen = sleep is None and bool(command) and (not sleeps or math.isnan(sum(sleeps)))  # it may wait all the same
    if sleep is None:
        sleep = math.fsum(sleeps)
    if unseen or not isinstance(sleep, (int, float)) or sleep < 1:
        refused = "requests that still arrive while endpoints are updated would be refused"
        problem = f"no sleep of a stated length; if it does not wait, {refused}" if unseen else f"no sleep: {refused}"
        severity: Severity = "warning" if unseen else "error"
        scene.add("grace", m, f"{m.server_path}.lifecycle.preStop", problem, "deploy.overrides.patches", severity)
        sleep = 0
    plan = scene.plan
    decode_s = plan.traffic.longest_output * plan.prediction.itl.p99 if role.role != "prefill" else 0.0
    needed = min(_MAX_GRACE_S, sleep + decode_s)
    if not isinstance(grace, int) or grace < needed:
        problem = f"is {shown(grace)}; the sleep and the longest decode take {needed:.0f} s"
        scene.add("grace", m, f"{m.pod_path}.terminationGracePeriodSeconds", problem, "traffic.osl")
