"""The spec's ``deploy`` section with its defaults: before the search what the spec says, after it what the choice implies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from servegen import inputs
from servegen.catalog.facts import EngineFacts
from servegen.errors import Diagnostic, SpecError
from servegen.plan import CachePlan, DeployPlan, Role
from servegen.solve.candidate import Candidate, RoleChoice
from servegen.solve.problem import Problem
from servegen.solve.space import occupancy, replicas_that_fit
from servegen.spec.load import LoadedSpec

#: Room in a created cache beyond the checkpoint's files: tokenizer, index, a partial download that is resumed.
CACHE_SLACK = 1.25
#: A patch is a few lines of YAML, and stands in the plan.
MOST_PATCH_BYTES = 2**20
GIB = 2.0**30


def versioned(loaded: LoadedSpec, engine: EngineFacts) -> str:
    """The stated engine version, or the newest known. SpecError if there is no contract for it."""
    stated = loaded.spec.spec.deploy.engine_version
    known = engine.versions
    if stated is None:
        return known[0] if known else ""
    if stated not in known:
        message = f"no contract of {engine.id} {stated} is known"
        hint = f"one of {', '.join(known)}" if known else "leave deploy.engineVersion out"
        raise SpecError(Diagnostic("unknown-version", message, loaded.where.at("spec.deploy.engineVersion"), hint))
    return stated


def base_deploy(loaded: LoadedSpec) -> DeployPlan:
    """What the spec says, without what only the choice decides (default image, cache size, scaling limits)."""
    d = loaded.spec.spec.deploy
    overrides = d.overrides
    patches = []
    for i, relative in enumerate((overrides.patches or ()) if overrides else ()):
        key = f"spec.deploy.overrides.patches.{i}"
        path = loaded.path(relative, key)
        try:
            patches.append((path.name, inputs.read(path, MOST_PATCH_BYTES).decode("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(Diagnostic("unreadable", f"cannot read {relative} as UTF-8 text", loaded.where.at(key))) from error
    if len({name for name, _ in patches}) < len(patches):
        where = loaded.where.at("spec.deploy.overrides.patches")
        raise SpecError(Diagnostic("duplicate-name", "two patches have the same file name", where, "rename one"))
    cache = d.model_cache
    return DeployPlan(
        image=d.image or "",
        namespace=d.namespace,
        kubernetes_version=d.kubernetes_version,
        image_pull_secrets=tuple(d.image_pull_secrets or ()),
        cache=CachePlan(cache.claim or "", cache.host_path or "", cache.size or 0.0, cache.storage_class or "")
        if cache
        else CachePlan(),
        hf_token_secret=(d.hf_token_secret.name, d.hf_token_secret.key) if d.hf_token_secret else None,
        autoscaling=d.autoscaling,
        autoscaling_min={},
        autoscaling_max={},
        autoscaling_queue={},
        monitoring=d.monitoring,
        network_policy_from=tuple(p.manifest() for p in d.network_policy.from_) if d.network_policy else None,
        priority_class=d.priority_class or "",
        runtime_class=d.runtime_class or "",
        args=dict(overrides.args or {}) if overrides else {},
        env=dict(overrides.env or {}) if overrides else {},
        patches=tuple(patches),
    )


def finished_deploy(problem: Problem, candidate: Candidate, roles: tuple[Role, ...]) -> DeployPlan:
    """The deployment with what the choice decides."""
    base = problem.deploy
    files = max(r.checkpoint_bytes for r in roles)
    nothing = base.cache == CachePlan()
    cache = CachePlan(size_bytes=math.ceil(files * CACHE_SLACK / GIB) * GIB) if nothing else base.cache
    return dataclasses.replace(
        base,
        image=base.image or candidate.engine.facts.images.get(candidate.engine.version, ""),
        cache=cache,
        autoscaling_min=_least(problem, candidate),
        autoscaling_max=_most(problem, candidate),
        autoscaling_queue={r.name: _queue(problem, r) for r in roles},
        autoscaling_kv={r.name: _kv(problem, c, r) for c, r in zip(candidate.roles, roles, strict=True) if c.role != "prefill"},
    )


def _least(problem: Problem, candidate: Candidate) -> Mapping[str, int]:
    """Replicas that the trough needs at the same utilisation; the sized number when no trough is stated."""
    trough = problem.workload.trough_per_s
    if not trough or not problem.load:
        return {r.name: r.replicas + problem.spares for r in candidate.roles}
    return {
        r.name: max(math.ceil(trough * r.share / (problem.utilization * r.sustained) - 1e-9), 1) + problem.spares
        for r in candidate.roles
    }


def _most(problem: Problem, candidate: Candidate) -> Mapping[str, int]:
    """Replicas up to which the pool lets every role grow in step: the pool over what is sized, never less than that.

    Groups need not keep step: each may fill its kind, unless maxAccelerators binds them together.
    """
    sized = {r.name: r.replicas + problem.spares for r in candidate.roles}
    if len(candidate.roles) == 1 or (candidate.grouped and not problem.max_accelerators):
        out = {}
        for role in candidate.roles:
            most = int(replicas_that_fit(role.block.kind, np.array(float(role.devices))))
            if problem.max_accelerators:
                most = min(most, problem.max_accelerators // role.devices)
            out[role.name] = max(most, sized[role.name])
        return out
    growth = (problem.max_accelerators or math.inf) / candidate.devices
    for kind in candidate.kinds:
        growth = min(growth, kind.devices / sum(sized[r.name] * r.devices for r in candidate.roles if r.block.kind is kind))
    return {name: max(math.floor(count * growth), count) for name, count in sized.items()}


def _kv(problem: Problem, choice: RoleChoice, role: Role) -> float:
    """Share of a replica's KV pool in use that calls for another: what the batch limit holds on average, at the utilisation.

    Beyond it requests wait for memory, whatever their number: they are longer than those that were planned for.
    """
    mean, _, _ = occupancy(problem, choice.block.rows)
    held = role.max_running_requests / role.dp * float(mean[choice.row]) / role.memory.kv_pool_bytes
    return min(problem.utilization * held, 1.0)


def _queue(problem: Problem, role: Role) -> float:
    """Waiting requests of one replica that call for another: as many as prefill within the slack of the TTFT bound.

    Without such a bound, a quarter of the batch limit.
    """
    starts = [b.seconds for b in problem.slo.bounds if b.metric == "ttft"]
    if not starts or role.prefill_time_s <= 0:
        return max(role.max_running_requests / 4.0, 1.0)
    return max(math.floor((min(starts) - role.prefill_time_s) / role.prefill_time_s), 1.0)
