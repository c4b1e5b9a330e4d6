"""What ``plan --explain`` and ``plan --against`` say, before any format: plain records between the solver and the reports."""

from __future__ import annotations

from servegen.rationale import Waterfall
from servegen.record import record


@record
class Binding:
    """A constraint that holds the plan back. ``slack`` is what is left of it in ``unit``, ``text`` says it in words."""

    constraint: str
    allowed: float  # nan where the constraint is no number
    found: float
    slack: float
    unit: str
    text: str


@record
class Fewer:
    """The chosen plan with one replica less of a role. ``breaks`` are ids of bounds, ``utilization`` or ``load``; () = nothing.

    ``utilization`` is the load of each over what it sustains, nan where none is left.
    """

    role: str
    replicas: int
    utilization: float
    breaks: tuple[str, ...]
    text: str


@record
class NextBest:
    """The best plan that differs from the chosen one in a dimension, all else chosen anew; ``summary`` "" where there is none.

    Figures are nan then, and ``why_lost`` says what stands in the way.
    """

    dimension: str
    chosen: str
    value: str
    summary: str
    devices: int
    cost_per_hour: float
    ttft_p95_s: float
    itl_p95_s: float
    output_tokens_per_second: float
    why_lost: str


@record
class Explanation:
    """The decision, walked through."""

    waterfalls: tuple[Waterfall, ...]
    binding: tuple[Binding, ...]
    utilization: tuple[tuple[str, float], ...]  # by role
    fewer: tuple[Fewer, ...]
    next_best: tuple[NextBest, ...]


@record
class Change:
    """A figure of the plan that is not what was locked; "" where there is none on that side."""

    what: str
    old: str
    new: str


@record
class InputChange:
    """An input that differs from the locked one, and what it does.

    ``moves`` names what changes back when it alone takes its old value (or changes when it alone takes its new one):
    choice, cost, prediction, deployment; ``restores`` what then is as it was locked. ``tried`` is false where the old value
    is not known, only its digest.
    """

    name: str
    old: str
    new: str
    tried: bool
    moves: tuple[str, ...]
    restores: tuple[str, ...]
    text: str


@record
class Against:
    """Today's plan beside a locked one. ``causes`` names the inputs that explain the weightiest change."""

    name: str
    moved: tuple[str, ...]  # of choice, cost, prediction, deployment
    changes: tuple[Change, ...]
    inputs: tuple[InputChange, ...]
    causes: tuple[str, ...]
    text: str
