"""One candidate as the search compares it, and the total order by which it chooses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, total_ordering

import numpy as np
from numpy.typing import NDArray

from servegen.lower import Config
from servegen.plan import RoleName
from servegen.rationale import Topology
from servegen.record import record
from servegen.service.server import Server
from servegen.solve.budget import Budget
from servegen.solve.problem import EngineOption, Kind, Problem
from servegen.solve.space import Rows, Shape, budget_of, shape_of

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Powers of ten, and by what numbers from there on are multiplied and divided to have three digits before the point: powers that
#: are exact, so that what comes of three digits is the number nearest to them.
DECADES: Array = np.array([float(f"1e{power}") for power in range(-20, 25)])
UP: Array = np.array([float(f"1e{max(2 - power, 0)}") for power in range(-20, 25)])
DOWN: Array = np.array([float(f"1e{max(power - 2, 0)}") for power in range(-20, 25)])


@record
class Block:
    """The columns that a role was taken from, with the question that they answer: hits differ with the room for a cache."""

    problem: Problem
    discipline: str
    engine: EngineOption
    kind: Kind
    rows: Rows
    server: Server
    limits: Array
    level_limit: Array  # (rows,) largest level within the bounds

    @property
    def budget(self) -> Budget:
        """Memory of every (row, limit), made anew each time: kept, it would be most of what a search holds."""
        return self.budget_of(self.rows)

    def budget_of(self, rows: Rows) -> Budget:
        """The same of some rows; both roles of a split keep staging buffers."""
        return budget_of(self.problem, self.engine, rows, self.limits, handoff=self.discipline in ("prefill", "decode"))


@record
class RoleChoice:
    """A row and batch limit of a block with its replicas. ``sustained`` is the load one replica carries at utilisation 1.

    ``share`` is the part of the requests that pass through. Of two groups (``grouped``) one may be ``held``: the router keeps
    as many requests in each of its replicas as the other group may hold, which is fewer than its own bounds allow.
    """

    role: RoleName
    block: Block
    row: int
    limit: int  # index into block.limits
    replicas: int
    sustained: float
    load: float  # per replica, at the sized load
    level_cap: float  # level at the sustained load
    grouped: bool = False
    held: bool = False
    share: float = 1.0

    @property
    def name(self) -> str:
        """Unique in a candidate; that of the plan's role."""
        return f"{self.role}-{self.block.kind.index}" if self.grouped else self.role

    @property
    def config(self) -> Config:
        """What its row was lowered from."""
        return self.block.rows.lowered.configs[int(self.block.rows.config[self.row])]

    @property
    def shape(self) -> Shape:
        return shape_of(self.config)

    @property
    def tp(self) -> int:
        return self.config.tp

    @property
    def is_cut(self) -> bool:
        """Whether the replica is cut in other ways than by TP inside a node."""
        return bool(self.block.rows.is_cut(self.block.kind)[self.row])

    @property
    def devices(self) -> int:
        """Accelerators of one replica."""
        return int(self.block.rows.devices[self.row])

    @property
    def rows(self) -> Rows:
        """The row alone."""
        return self.block.rows.at(np.array([self.row]))

    @property
    def budget(self) -> Budget:
        """Memory of its row, shape (1, limits)."""
        return self.block.budget_of(self.rows)

    @property
    def batch_limit(self) -> int:
        return int(self.block.limits[self.limit])

    @property
    def chunk(self) -> int:
        return int(self.block.rows.chunk[self.row])


@record
class Candidate:
    """``objective`` is what is minimised. Cost in $/h, output in tokens/s, spares counted in devices and cost."""

    topology: Topology
    engine: EngineOption
    roles: tuple[RoleChoice, ...]
    objective: tuple[float, ...]
    devices: int
    cost_per_h: float
    watts: float
    output_tokens_per_s: float
    headroom: float

    @property
    def grouped(self) -> bool:
        """Whether its roles are groups that share the requests out, and not roles through which each request passes."""
        return self.roles[0].grouped

    @property
    def problem(self) -> Problem:
        """The question that it answers, with the demand that its prefix caches leave."""
        return self.roles[0].block.problem

    @property
    def hands_over_cut(self) -> bool:
        """Whether roles hand over a KV cache of which each device has a part; of a compressed one each has all."""
        return not self.grouped and any(group.attention.kind != "mla" for group in self.problem.model.layers)

    @property
    def caches(self) -> int:
        """Prefix caches that the prompts are spread over: each attention group of a replica has its own. Spares left out."""
        return self.roles[0].replicas * self.roles[0].shape.dp

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of accelerator that the roles stand on, each once."""
        return tuple({r.block.kind.index: r.block.kind for r in self.roles}.values())

    @property
    def config(self) -> tuple[str, str]:
        """Weight and KV precision; both roles share them."""
        c = self.roles[0].config
        return c.weights, c.kv

    @property
    def drafted(self) -> int:
        """Tokens drafted ahead of a step; both roles of a split draft alike."""
        return self.roles[0].config.drafted

    @cached_property
    def name(self) -> str:
        """Says everything that the search decides; sorts like its numbers."""
        weights, kv = self.config
        parts = []
        for r in self.roles:
            mixed = "-mixed" if r.block.discipline == "mixed" else ""
            c = r.config
            others = (("pp", c.pp), ("dp", c.dp), ("ep", c.ep))
            cut = "".join(f"-{name}{n:02d}" for name, n in others if n > 1)
            parts.append(f"{r.role}-tp{c.tp:02d}{cut}-c{r.chunk:05d}-b{r.batch_limit:04d}{mixed}")
        drafts = f"draft{self.drafted:02d}/" if self.drafted else ""
        return f"{self.engine.facts.id}/{'+'.join(k.facts.id for k in self.kinds)}/{weights}-kv-{kv}/{drafts}" + "+".join(parts)

    def key(self, problem: Problem) -> tuple[object, ...]:
        """The total order: objective; fewer accelerators; one TP for both roles of a split, if their devices have parts of the KV
        cache, which is then handed over as it lies; lower TP; the checkpoint's own precision before a narrower one; more headroom
        (to three digits); fewer roles; fewer drafted tokens; the name."""
        c = self.roles[0].config
        return (
            *self.objective,
            self.devices,
            len({r.tp for r in self.roles}) if self.hands_over_cut else 1,
            max(r.tp for r in self.roles),
            problem.allowed_weights.index(c.weights),
            problem.allowed_kv.index(c.kv),
            -float(three_digits(np.array(self.headroom))),
            len(self.roles),
            c.drafted,
            ByName(self),
        )


@total_ordering
class ByName:
    """A candidate that compares by its name, which is only spelled where everything before it in a key is equal."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByName) and self.candidate.name == other.candidate.name

    def __lt__(self, other: ByName) -> bool:
        return self.candidate.name < other.candidate.name


def leading(problem: Problem, candidates: Iterable[Candidate], count: int) -> list[Candidate]:
    """The first ``count`` in the total order; the others are told by how that begins, without making all of their keys."""
    every = [((*c.objective, c.devices), c) for c in candidates]
    last = sorted(start for start, _ in every)[:count][-1:]
    return sorted((c for start, c in every if [start] <= last), key=lambda c: c.key(problem))[:count]


def first_of(problem: Problem, candidates: Iterable[Candidate]) -> Candidate | None:
    """The first in the total order, None of none."""
    return next(iter(leading(problem, candidates, 1)), None)


def three_digits(values: Array) -> Array:
    """Rounded to three significant digits, so that differences far below the prediction's error do not decide.

    What has the same digits is the same number, and more is never less. (Logarithms would not do: their last bits differ by
    processor.) What lies beyond :data:`DECADES` stays as it is.
    """
    told = (values >= DECADES[0]) & (values < DECADES[-1])
    safe = np.where(told, values, 1.0)
    decade = np.searchsorted(DECADES, safe, side="right") - 1
    up, down = UP[decade], DOWN[decade]
    return np.where(told, np.round(safe * up / down) / up * down, values)


def place_of(values: Array) -> Index:
    """Where the three digits of ``values``, which are within :data:`DECADES`, stand among all three digits, ascending."""
    told = three_digits(values)
    decade = np.searchsorted(DECADES, told, side="right") - 1
    return (900 * decade + np.round(told * UP[decade] / DOWN[decade]) - 100).astype(np.int64)


def least_of(place: Index) -> Array:
    """About the least number whose three digits stand there: halfway from those before."""
    below, above = (
        (100 + at % 900) / UP[at // 900] * DOWN[at // 900] for at in (np.asarray(place, dtype=np.int64) - 1, np.asarray(place))
    )
    return np.asarray((below + above) / 2.0 * (1.0 + 1e-9))


def leaders(mask: NDArray[np.bool_], keys: tuple[Array, ...], headroom: Array | None = None) -> NDArray[np.bool_]:
    """Per row the columns that are lexicographically least by ``keys``, and of these those that have the most ``headroom`` to
    three digits; all shape (rows, columns), nothing but False in a row without any column."""
    left = mask.copy()
    for key in keys:
        value = np.where(left, key, np.inf)
        left &= value <= value.min(axis=1, keepdims=True)
    if headroom is not None:
        value = np.full(left.shape, np.inf)
        value[left] = -three_digits(headroom[left])
        left &= value <= value.min(axis=1, keepdims=True)
    return left
