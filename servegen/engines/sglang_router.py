"""sglang-router: the door of a split deployment, where it sends each request to a prefill and a decode server at once, and of
two groups of replicas, where it sends each request to the emptier of two.

In a cluster it finds its servers by label; on bare machines its script is told their addresses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from servegen.engines.contract import load_contract, require
from servegen.engines.launch import ROLE_LABEL, Arg, Launch, Probes
from servegen.engines.startup import startup_budget_s
from servegen.plan import Plan, Role

PROGRAM = ("python3", "-m", "sglang_router.launch_router")
CONTRACT = "sglang-router-0.3.2"
PORT = 8000
PROMETHEUS_PORT = 29000
COMPONENT = "app.kubernetes.io/component"
PROBES = Probes(liveness="/liveness", readiness="/readiness", timeout_s=5)


def launch(plan: Plan, servers: Sequence[Launch]) -> Launch:
    """The router of a plan, as its pod runs it: servers are found by their labels through the Kubernetes API."""
    split = plan.choice.topology == "disaggregated"
    budget_s = max(startup_budget_s(plan, role) for role in plan.choice.roles)
    args = (
        *((Arg("--pd-disaggregation"),) if split else ()),
        Arg("--host", ("0.0.0.0",)),
        Arg("--port", (str(PORT),)),
        Arg("--service-discovery"),
        Arg("--service-discovery-namespace", (plan.deploy.namespace or "default",)),
        *(_split(plan, servers) if split else _groups(plan, servers)),
        Arg("--worker-startup-timeout-secs", (str(math.ceil(budget_s)),)),
        Arg("--prometheus-port", (str(PROMETHEUS_PORT),)),
    )
    require(load_contract(CONTRACT), args, "sglang-router")
    return Launch(
        name="router",
        role=None,
        program=PROGRAM,
        args=args,
        env={},
        port=PORT,
        probes=PROBES,
        contract=CONTRACT,
        metrics_port=PROMETHEUS_PORT,
    )


def _split(plan: Plan, servers: Sequence[Launch]) -> tuple[Arg, ...]:
    port = next(s.port for s in servers if s.role == "prefill")
    prefill = "cache_aware" if plan.traffic.prefix_hit > 0 else _by_load(plan.role("prefill"))
    return (
        Arg("--service-discovery-port", (str(port),)),
        *(Arg(f"--{s.name}-selector", _selector(plan, f"{COMPONENT}={s.name}", s)) for s in servers),
        Arg("--prefill-policy", (prefill,)),
        # Decode servers keep no prefix cache, so that only their load is a reason to prefer one.
        Arg("--decode-policy", (_by_load(plan.role("decode")),)),
    )


def _groups(plan: Plan, servers: Sequence[Launch]) -> tuple[Arg, ...]:
    """Every replica of both groups takes part alike: what is in flight tells the faster ones, which then get more."""
    policy = "cache_aware" if plan.traffic.prefix_hit > 0 else "power_of_two"
    thresholds: tuple[Arg, ...] = ()
    if plan.choice.balance is not None and policy == "cache_aware":
        most, factor = plan.choice.balance
        thresholds = (Arg("--balance-abs-threshold", (str(most),)), Arg("--balance-rel-threshold", (f"{factor:g}",)))
    return (
        Arg("--service-discovery-port", (str(servers[0].port),)),
        Arg("--selector", _selector(plan, f"{ROLE_LABEL}=serve", *servers)),
        Arg("--policy", (policy,)),
        *thresholds,
    )


def joins_groups(router: Launch) -> bool:
    """Whether the router stands before two groups of replicas, not before the roles of a split."""
    return all(a.flag != "--pd-disaggregation" for a in router.args)


def standalone(router: Launch) -> Launch:
    """The same router without the Kubernetes flags: what its launch script holds before the servers' addresses."""
    return replace(router, args=tuple(a for a in router.args if not _is_discovery(a.flag)))


def _by_load(role: Role) -> str:
    """The emptier of two servers; the router refuses that policy at start when it is told a single address."""
    return "power_of_two" if role.total_replicas > 1 else "round_robin"


def _is_discovery(flag: str) -> bool:
    return flag.startswith("--service-discovery") or flag.endswith("-selector")


def _selector(plan: Plan, label: str, *servers: Launch) -> tuple[str, ...]:
    """The labels of the pods that serve: of a replica over several nodes only its leader does."""
    leader = ("servegen.dev/group-role=leader",) if any(s.group is not None for s in servers) else ()
    return (f"app.kubernetes.io/instance={plan.name}", label, *leader)
