"""Flags that a server accepts and its own deployment does not: the role it has, and how probes, Services and peers reach it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from servegen.engines.launch import Arg, Launch
from servegen.errors import Diagnostic
from servegen.plan import Plan
from servegen.validate.syntax import whole

#: All addresses of a pod: no other is known before it runs.
_EVERYWHERE = ("0.0.0.0", "::", "[::]")
#: After any of these a server no longer answers the plain HTTP that probes, Services and the router speak.
_NOT_HTTP = ("--ssl-certfile", "--ssl-keyfile", "--grpc-mode", "--smg-grpc-mode")
_JSON = ("--json-model-override-args",)


def check_serving(args: Sequence[Arg], launch: Launch, plan: Plan | None) -> list[Diagnostic]:
    """Findings about the flags of ``launch``, whose server ``plan`` puts in a role. Codes: value-role, value-range."""
    values = {a.flag: a.values[0] if a.values else "" for a in args}
    found = [*_reach(values, launch)]
    for flag in _JSON:
        if flag in values:
            try:
                json.loads(values[flag])
            except (ValueError, RecursionError) as error:
                found.append(Diagnostic("value-range", f"{flag}: it is no JSON: {error}"))
    if values.get("--load-format") == "dummy":
        message = "--load-format dummy: the weights are made up, and so is every answer; only a benchmark wants that"
        found.append(Diagnostic("value-range", message, severity="warning"))
    if plan is None or launch.role is None:
        return found
    mode, due = values.get("--disaggregation-mode", "null"), launch.role if launch.role in ("prefill", "decode") else "null"
    if mode != due:
        message = f"--disaggregation-mode {mode}: the plan makes this server one that has {due} there"
        found.append(Diagnostic("value-role", message, hint="constraints.topology decides it"))
    found += [*_memory(values, launch, plan)]
    mean = round(plan.traffic.isl_mean + plan.traffic.osl_mean)
    length = values.get("--context-length", "")
    tokens = whole(length)
    if tokens is not None and tokens < mean:
        message = f"--context-length {length}: a request of the traffic takes {mean} tokens on average, and would be refused"
        found.append(Diagnostic("value-range", message))
    return found


def _memory(values: dict[str, str], launch: Launch, plan: Plan) -> Iterator[Diagnostic]:
    """What leaves no room for the weights, or for one request of the traffic."""
    memory = plan.role(launch.name).memory
    least = memory.weight_bytes / memory.usable_bytes
    try:
        share = float(values.get("--mem-fraction-static", "nan"))
    except ValueError:  # the contract says so
        share = math.nan
    if 0.0 < share <= least:
        message = f"--mem-fraction-static {share:g}: the weights alone take {least:.3f} of the device's memory"
        yield Diagnostic("value-range", message)
    longest = plan.traffic.isl_mean + plan.traffic.osl_mean
    tokens = whole(values.get("--max-total-tokens", ""))
    if tokens is not None and tokens < longest:
        message = f"--max-total-tokens {tokens}: a request of the traffic takes {round(longest)} tokens on average"
        yield Diagnostic("value-range", message)


def _reach(values: dict[str, str], launch: Launch) -> Iterator[Diagnostic]:
    host = values.get("--host", _EVERYWHERE[0])
    if host not in _EVERYWHERE:
        yield Diagnostic("value-range", f"--host {host}: it must be 0.0.0.0 or ::, since nothing else is an address of every pod")
    for flag in _NOT_HTTP:
        if flag in values:
            yield Diagnostic("value-range", f"{flag}: probes, Services and routers speak plain HTTP to the server")
    if launch.group is not None and values.get("--port") == str(launch.group.port):
        yield Diagnostic("value-range", f"--port {launch.group.port}: the processes of the replica meet at this port")
