"""The question, resolved: facts in place of names, SI numbers in place of words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.plan import DeployPlan, PoolPlan
from servegen.record import record
from servegen.service.demand import Demand
from servegen.service.size import LoadKind, Slo
from servegen.solve.drafting import Speculation
from servegen.workload import Reuse, TraceRequests, Workload

Objective = Literal["cost", "throughput", "latency", "energy"]
#: Which end of the prediction band must meet the bounds; "high" is asked by nobody but for the plan's own cases.
Confidence = Literal["best", "low", "high"]


@record
class Kind:
    """One entry of the pool."""

    index: int
    facts: AcceleratorFacts
    plan: PoolPlan

    @property
    def devices(self) -> int:
        return self.plan.nodes * self.plan.per_node


@record
class WeightOption:
    """A weight precision that an engine can serve: what it loads, and how it quantizes while loading ("" = as stored).

    ``stored`` is the precision of the files, which decides how many bytes are read at start.
    """

    precision: str
    load: str
    quantization: str
    stored: str


@record
class EngineOption:
    """An engine with what it can load of this model, and why it cannot load the other precisions that are allowed."""

    facts: EngineFacts
    version: str
    weights: tuple[WeightOption, ...]
    refused: Mapping[str, str]  # precision -> reason
    kv: tuple[str, ...]
    refused_kv: Mapping[str, str]


@record
class Problem:
    """Everything that the search needs, frozen. ``load`` is in the unit of ``load_kind``; 0 = saturate the pool."""

    name: str
    model: ModelFacts
    served_name: str
    engines: tuple[EngineOption, ...]
    pool: tuple[Kind, ...]
    workload: Workload
    demand: Demand
    load_kind: LoadKind
    load: float
    think_s: float
    slo: Slo
    objective: Objective
    topology: Literal["auto", "aggregated", "disaggregated"]
    tps: tuple[int, ...]  # () = all
    pps: tuple[int, ...]  # () = over as many nodes as a replica takes
    dps: tuple[int, ...]  # () = all that divide TP, of models with experts
    eps: tuple[int, ...]  # () = none, and all of TP, of models with experts
    max_accelerators: int  # 0 = the pool
    utilization: float
    spares: int
    gain: float
    confidence: Confidence
    context_length: int
    trust_remote_code: bool
    deploy: DeployPlan
    allowed_weights: tuple[str, ...]
    allowed_kv: tuple[str, ...]
    shown: Mapping[str, Any]
    inputs: Mapping[str, str]
    notes: tuple[str, ...] = ()
    trace: TraceRequests | None = None  # where the spec's traffic is one; the workload has its figures
    groups: bool = True  # whether two groups of replicas on two kinds are tried; members of a fleet have one kind per role
    reuse: Reuse | None = None  # where hits depend on the room: what caches of any size find; ``demand`` is then of none
    kept_tokens: float = 0.0  # what each prefix cache must keep for the hits of ``demand``, prompts in work included
    without_chunks: tuple[int, ...] = ()  # what an explanation leaves out of the search to see what comes next
    without_limits: tuple[int, ...] = ()
    speculation: Speculation | None = None
    wrong: str = ""  # the metric (itl or ttft) of which alone predictions are as wrong as ``confidence`` says; "" is everything
    replicas: Literal["any", "one", "several"] = "any"  # of aggregated candidates, where it decides what each of them sees

    @property
    def saturate(self) -> bool:
        return self.load == 0.0

    @property
    def open_loop(self) -> bool:
        """Whether arrivals do not wait for answers."""
        return self.load_kind == "rate"

    @property
    def full(self) -> bool:
        """Whether the pool yields what it can."""
        return self.saturate or self.objective == "throughput"

    @property
    def least_replicas(self) -> int:
        """The fewest replicas of an aggregated candidate."""
        return 2 if self.replicas == "several" else 1

    @property
    def bounded_start(self) -> bool:
        """Whether some bound limits the time to first token, so that slots must be free when a request comes."""
        return any(b.metric in ("ttft", "e2e") for b in (*self.slo.bounds, *self.slo.jointly))

    def arriving(self, demand: Demand) -> Demand:
        """The demand with requests that arrive as they are stated to, whatever sizing counted on."""
        if not self.open_loop:
            return demand
        return dataclasses.replace(demand, arrival_cv2=self.demand.arrival_cv2, queue_cv2=self.demand.queue_cv2)

    @property
    def by_replicas(self) -> tuple[Problem, ...]:
        """What an aggregated replica is asked, by whether there are others. Of a stated concurrency one has all requests in
        flight at all times; each of several has a number that varies with where they are sent, and strangers before it. Of
        arrivals that are steadier than chance each of several is dealt some by chance.
        """
        if self.replicas != "any":
            return (self,)
        if self.load_kind == "concurrency":
            among = dataclasses.replace(self.demand, own=1.0, turns=False)
        elif self.open_loop and float(np.max(self.demand.arrival_cv2)) < 1.0:
            among = dataclasses.replace(self.demand, arrival_cv2=1.0, queue_cv2=1.0)
        else:
            return (self,)
        return dataclasses.replace(self, replicas="one"), dataclasses.replace(self, replicas="several", demand=among)
