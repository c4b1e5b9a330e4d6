"""NetworkPolicies of a plan: who may open connections to its pods, and where these may connect to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from servegen.engines.launch import Launch
from servegen.plan import Plan
from servegen.render.names import COMPONENT, INSTANCE, selector_labels

#: Label that the Prometheus operator sets on its servers.
PROMETHEUS_PODS = {"app.kubernetes.io/name": "prometheus"}
DNS_PORT = 53
HTTPS_PORT = 443
#: Where API servers listen behind their Service, whose address is translated before a policy sees the packet.
API_SERVER_PORT = 6443


def _pods(plan: Plan, components: Sequence[str]) -> dict[str, Any]:
    if len(components) == 1:
        return {"podSelector": {"matchLabels": selector_labels(plan, components[0])}}
    expression = {"key": COMPONENT, "operator": "In", "values": list(components)}
    return {"podSelector": {"matchLabels": {INSTANCE: plan.name}, "matchExpressions": [expression]}}


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": p} for p in ports]


def ingress(plan: Plan, launch: Launch, launches: Sequence[Launch], entry: Launch) -> tuple[Mapping[str, Any], ...]:
    """Rules for connections to one launch's pods. Probes come from the node and are allowed by Kubernetes itself.

    The entry is open to the spec's peers; no peers means nobody (an empty ``from`` of Kubernetes would mean everybody).
    Servers behind a router are open to it, and those of a split to each other on all ports: the KV hand-off picks free ones.
    So do the processes of a replica over several nodes.
    """
    rules: list[Mapping[str, Any]] = []
    peers = list(plan.deploy.network_policy_from or ())
    if launch is entry and peers:
        rules.append({"from": peers, "ports": _tcp(launch.port)})
    servers = [other.name for other in launches if other.role is not None]
    if entry.role is None and launch.role is not None:
        router_ports = sorted({launch.port, *launch.extra_ports.values()})
        rules.append({"from": [_pods(plan, [entry.name])], "ports": _tcp(*router_ports)})
    if launch.role is not None and (plan.choice.topology == "disaggregated" or launch.group is not None):
        rules.append({"from": [_pods(plan, servers)]})
    if plan.deploy.monitoring and launch.metrics_port:
        prometheus = {"namespaceSelector": {}, "podSelector": {"matchLabels": PROMETHEUS_PODS}}
        rules.append({"from": [prometheus], "ports": _tcp(launch.metrics_port)})
    return tuple(rules)


def egress(plan: Plan, launch: Launch, launches: Sequence[Launch]) -> tuple[Mapping[str, Any], ...]:
    """Rules for connections from one launch's pods: DNS, pods of the same plan, and what the launch has to fetch.

    Servers reach HTTPS for weights, and the ports of a proxy or hub that the environment names; the router reaches the
    Kubernetes API to discover servers.
    """
    rules: list[Mapping[str, Any]] = [
        {"ports": [{"protocol": p, "port": DNS_PORT} for p in ("UDP", "TCP")]},
    ]
    if len(launches) > 1 or launch.group is not None:
        rules.append({"to": [_pods(plan, [other.name for other in launches])]})
    if launch.role is None:
        rules.append({"ports": _tcp(HTTPS_PORT, API_SERVER_PORT)})
    else:
        rules.append({"ports": _tcp(*sorted({HTTPS_PORT, *_named_ports(launch.env)}))})
    return tuple(rules)


def _named_ports(env: Mapping[str, str]) -> set[int]:
    """Ports of the proxies and the hub in ``env``."""
    ports: set[int] = set()
    for name, value in env.items():
        if name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "HF_ENDPOINT"}:
            try:
                port = urlsplit(value).port
            except ValueError:  # not a URL: nothing to open, and the process will say so itself
                continue
            ports.add(port or (80 if value.startswith("http://") else HTTPS_PORT))
    return ports
