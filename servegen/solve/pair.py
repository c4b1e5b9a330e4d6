"""One prefill and one decode configuration put together: what a pair of them carries, and the candidate that it becomes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from servegen.record import record
from servegen.roofline.step import take
from servegen.service import latency, size
from servegen.service.demand import Demand
from servegen.service.disciplines import DISCIPLINES, means_only
from servegen.service.server import Server
from servegen.solve.bands import pessimism
from servegen.solve.candidate import Block, Candidate, RoleChoice
from servegen.solve.counts import Frontier, fill
from servegen.solve.problem import Kind, Problem
from servegen.solve.split import Array, Index, Servers

#: Why candidates are none that no number of servers makes enough.
MISSED = "split: more accelerators needed than there are, or a bound missed at the load"


@record
class Pair:
    """One prefill configuration (candidates ``p``: its chunks) with one decode configuration (``q``: its batch limits)."""

    problem: Problem
    pre: Block
    dec: Block
    start: Servers
    gaps: Servers
    p: Index
    q: Index
    front: Frontier
    idle_s: tuple[Array, Array]  # of a closed loop's turn, each candidate's part when nothing waits (:func:`idle_s`)

    @property
    def searched(self) -> int:
        """Candidates of the pair."""
        return len(self.p) * len(self.q)

    @cached_property
    def rates(self) -> tuple[Array, Array]:
        """Requests/s that one server of each role sustains, shapes (p, 1) and (1, q)."""
        return self.start.rate[self.p][:, None], self.gaps.rate[self.q][None, :]

    @cached_property
    def load(self) -> Array:
        """Requests/s of the load, shape (p, 1). A closed loop is fastest when nothing waits: that rate is the safe one."""
        if self.problem.saturate or self.problem.open_loop:
            return np.full((len(self.p), 1), self.problem.load)
        first, second = self.idle_s
        turn = first[self.p] + second[self.q[0]] + self.problem.think_s
        return np.asarray((self.problem.load / turn)[:, None])

    @cached_property
    def factors(self) -> dict[str, float]:
        """Factors on predictions, by metric: the larger of both roles'. A configuration is cut or not, whatever its candidate."""
        sides = (self.pre, self.start.row[self.p[0]]), (self.dec, self.gaps.row[self.q[0]])
        ends = [pessimism(self.problem, b.engine.facts, b.kind.facts, bool(b.rows.is_cut(b.kind)[row])) for b, row in sides]
        return {metric: max(end[metric] for end in ends) for metric in ends[0]}

    def most(self) -> float:
        """The largest load that the pool carries with any candidate, in the unit of the load."""
        if not self.front.any:
            return 0.0
        rate_p, rate_d = self.rates
        x, y = fill(self.front, rate_p, rate_d)
        carried = self.problem.utilization * np.minimum(x * rate_p, y * rate_d)
        # A closed loop's rate grows with its users.
        return float(np.max(carried if self.problem.open_loop else self.problem.load * carried / self.load))

    def devices(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Accelerators of each role with so many servers, spares counted."""
        return (x + self.problem.spares) * self.front.tp_p, (y + self.problem.spares) * self.front.tp_d

    def price(self, x: Array, y: Array) -> tuple[Array, Array]:
        """$/h and W of so many servers of each role, spares counted."""
        return price((self.pre.kind, self.dec.kind), *self.devices(x, y))

    def candidate(self, i: int, j: int, x: float, y: float, load: float, objective: tuple[float, ...]) -> Candidate:
        """``x`` servers of a prefill and ``y`` of a decode candidate, which carry ``load`` requests/s."""
        rate_p, rate_d = self.rates
        carried = min(x * float(rate_p[i, 0]), y * float(rate_d[0, j]))
        starting, decoding = self.devices(np.array(x), np.array(y))
        cost, watts = price((self.pre.kind, self.dec.kind), starting, decoding)
        load = min(load, carried)
        roles = (
            role_of("prefill", self.pre, self.start, self.p[i], x, load),
            role_of("decode", self.dec, self.gaps, self.q[j], y, load),
        )
        return Candidate(
            topology="disaggregated",
            engine=self.pre.engine,
            roles=roles,
            objective=objective,
            devices=int(starting + decoding),
            cost_per_h=float(cost),
            watts=float(watts),
            output_tokens_per_s=load * self.problem.demand.osl_mean,
            headroom=carried if self.problem.open_loop else 1.0,
        )


def turn_s(problem: Problem, pre: Server, dec: Server) -> Array:
    """Shortest mean turn of a closed loop: the first token when nothing waits, the gaps of a lone sequence, the pause."""
    d = problem.demand
    return first_token_s(pre, d) + gaps_s(dec, d) + problem.think_s


def first_token_s(pre: Server, d: Demand) -> Array:
    """Mean first token of each prefill server when nothing waits."""
    return latency.ttft_mean(DISCIPLINES["prefill"](means_only(pre), d, np.full(len(pre.chunk), size.IDLE)))


def gaps_s(dec: Server, d: Demand) -> Array:
    """Mean gaps of an answer that each decode server gives alone."""
    return np.asarray(d.gaps * DISCIPLINES["decode"](means_only(dec), d, np.ones(len(dec.chunk))).gap_mean_s)


def idle_s(problem: Problem, start: Servers, gaps: Servers) -> tuple[Array, Array]:
    """First token and gaps of every prefill and decode candidate when nothing waits, which :func:`turn_s` adds up; of an open
    loop, which has no turns, none.
    """
    if problem.open_loop or problem.saturate:
        return np.zeros(0), np.zeros(0)
    out = []
    for servers, part in ((start, first_token_s), (gaps, gaps_s)):
        assert servers.block is not None  # it has candidates
        rows, of = np.unique(servers.row, return_inverse=True)
        out.append(part(take(servers.block.server, rows), problem.demand)[of])
    return out[0], out[1]


def price(kinds: tuple[Kind, Kind], starting: Array, decoding: Array) -> tuple[Array, Array]:
    """$/h and W of so many accelerators of each role."""
    first, second = kinds
    if first is second:  # one product: equal counts cost exactly the same whatever they do
        devices = starting + decoding
        return devices * first.plan.price_per_hour, devices * first.facts.tdp_w
    cost = starting * first.plan.price_per_hour + decoding * second.plan.price_per_hour
    return cost, starting * first.facts.tdp_w + decoding * second.facts.tdp_w


def role_of(name: str, block: Block, servers: Servers, index: int, count: float, load: float) -> RoleChoice:
    """``count`` of a role's servers that carry ``load`` together."""
    return RoleChoice(
        role=name,  # type: ignore[arg-type]
        block=block,
        row=int(servers.row[index]),
        limit=int(servers.limit[index]),
        replicas=int(count),
        sustained=float(servers.rate[index]),
        load=float(load / count),
        level_cap=float(servers.level[index]),
    )
