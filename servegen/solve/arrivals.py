"""What a replay of a plan sends: the trace that the plan was made for, or requests drawn at the load it was sized for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from servegen.errors import Diagnostic, UserError
from servegen.plan import Plan
from servegen.record import record
from servegen.simulate import arrivals
from servegen.simulate.requests import Source
from servegen.workload import TraceRequests, Workload

Arrivals = Literal["poisson", "gamma", "closed-loop"]
#: Requests of a replay that does not say how many, ...
REQUESTS = 10_000
#: ... and how many times as many as are in the system at a time, at least: what fills and empties it is then a small part.
TURNS = 20
#: More are sent only where somebody says so: a million take about a minute.
MOST_UNASKED = 1_000_000


@record
class Traffic:
    """What is asked for. ``kind`` "" is the spec's own; ``trace``, which is called ``name``, replaces it; at most one of them.

    ``requests`` 0 is :data:`REQUESTS` or :data:`TURNS`, whichever is more, or all of a trace.
    """

    kind: Arrivals | Literal[""] = ""
    requests: int = 0
    seed: int = 0
    trace: TraceRequests | None = None
    name: str = ""
    cut: arrivals.Cut = dataclasses.field(default_factory=arrivals.Cut)


@record
class Sent:
    """What is sent: a source, which serves one replay; how it arrives; a phrase that says so ("10,000 requests, ..."); whether
    prompts carry the hashes of their blocks; how many tokens of a head they have in common else.
    """

    source: Source
    kind: Arrivals | Literal["trace"]
    words: str
    hashed: bool = False
    head_tokens: int = 0


def sent(plan: Plan, workload: Workload, own: TraceRequests | None, traffic: Traffic) -> Sent:
    """The requests. ``own`` is the trace that the spec names as its traffic, where it is at hand. UserError where a cut of a
    trace holds no request, or so few are asked for that a closed loop shows no steady state.
    """
    stated = _traffic(plan)
    declared = workload if stated.get("prefix") is not None else None
    if traffic.trace is not None:
        return _recorded(traffic.trace, traffic.name, traffic, declared if traffic.trace.hashes is None else None)
    if own is not None and not traffic.kind:
        # What the spec declares as shared took the place of the hashes when the plan was sized.
        return _recorded(own, str(stated.get("trace")), traffic, declared)
    found = _drawn(plan, workload, traffic)
    if stated.get("trace") and own is None:
        words = f"{found.words}, drawn from what the plan keeps of {stated['trace']}, for a lock does not hold the trace itself"
        return dataclasses.replace(found, words=words)
    return found


def _traffic(plan: Plan) -> dict[str, Any]:
    """The ``traffic`` section of the spec that the plan carries, empty where it carries none."""
    found = plan.spec.get("spec", {}).get("traffic", {})
    return dict(found)


def _recorded(trace: TraceRequests, name: str, traffic: Traffic, shared: Workload | None) -> Sent:
    cut = traffic.cut
    source = arrivals.recorded(trace, cut, traffic.requests, shared)
    words = f"{source.count:,} requests as {name} recorded them"
    if cut.start_s or cut.end_s != math.inf:
        words += f", from {cut.start_s:g} s" + (f" to {cut.end_s:g} s" if cut.end_s != math.inf else " on")
    if cut.speedup != 1.0:
        words += f", {cut.speedup:g} times as fast"
    return Sent(source, "trace", words, trace.hashes is not None and shared is None, _head(shared))


def _drawn(plan: Plan, w: Workload, traffic: Traffic) -> Sent:
    answer_s = plan.prediction.e2e.mean if math.isfinite(plan.prediction.e2e.mean) else 0.0
    users = w.concurrency or w.users
    if w.saturate and not traffic.kind and not plan.slo:  # offline work: every slot has a request, and another follows
        users = sum(r.replicas * r.max_running_requests for r in plan.choice.roles if r.role != "prefill")
    rate = w.rate_per_s or plan.prediction.load_rate
    kind = traffic.kind or ("closed-loop" if users else "poisson" if w.burstiness == 1.0 else "gamma")
    if kind == "closed-loop":
        # As many users as are in the system on average, where the spec states a rate.
        users = users or max(round(rate * answer_s), 1)
        n = traffic.requests or _enough(TURNS * users)
        turn_s = answer_s + w.think_time_s
        source: Source = arrivals.closed_loop(w, users, w.think_time_s, n, traffic.seed, turn_s or 1.0)
        words = f"{n:,} requests of {users:,} users in a closed loop, the first and the last {users:,} of them left out"
        return Sent(source, kind, f"{words} so that the rest is the steady state", head_tokens=_head(w))
    n = traffic.requests or _enough(math.ceil(TURNS * rate * answer_s))
    source = arrivals.open_loop(w, rate, 1.0 if kind == "poisson" else w.burstiness, n, traffic.seed)
    how = "Poisson" if kind == "poisson" else f"gamma arrivals of burstiness {w.burstiness:.3g}"
    return Sent(source, kind, f"{n:,} requests, {how}" + (" arrivals" if kind == "poisson" else ""), head_tokens=_head(w))


def _enough(requests: int) -> int:
    """How many to send where nobody says. UserError where they are so many that a replay would take many minutes."""
    if requests > MOST_UNASKED:
        message = f"{TURNS} times what is in the system are {requests:,} requests, which a replay takes many minutes for"
        hint = f"servegen simulate --requests says how many, at most {MOST_UNASKED:,} are sent unasked; verify a smaller load"
        raise UserError(Diagnostic("too-many", message, hint=hint))
    return max(REQUESTS, requests)


def _head(shared: Workload | None) -> int:
    return round(shared.prefix_shared) if shared is not None else 0
