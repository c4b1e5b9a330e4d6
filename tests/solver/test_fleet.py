"""Fleets of real specs: one member is its own solution, choices are the best of all, promises are kept, shortages are told."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.codec import dumps
from servegen.errors import InfeasibleError, NotBuiltError
from servegen.fleet import Fleet
from servegen.plan import Plan
from servegen.solve.allot import allot
from servegen.solve.fleet import Entrant, FleetObjective, FleetProblem, look, solve_fleet
from servegen.solve.options import Option, eligible
from servegen.solve.problem import Problem
from servegen.solve.resolve import resolve
from servegen.solve.search import search, solve
from servegen.solve.shortage import grown
from servegen.solve.verify_fleet import verified_fleet
from servegen.spec.load import load
from tests.solver.specs import LENGTHS, LLAMA_8B, problem, reduced
from tests.unit.test_solve_packing import nodes_by_filling

pytest.importorskip("scipy")

SPECS = Path(__file__).resolve().parents[2] / "specs"
TWO = "[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 400Gbps}}, {accelerator: l40s, nodes: 2, perNode: 4}]"
CHAT = "{ttft: {p95: 500ms}, itl: {p95: 50ms}}"


def member(rate: str, **more: str) -> Problem:
    stated = {"slo": CHAT, "pool": TWO, "traffic": f"{{rate: {rate}, {LENGTHS}}}", **more}
    return problem(**stated)


def fleet(objective: FleetObjective, *members: tuple[int, Problem]) -> FleetProblem:
    named = [Entrant(f"m{i}.yaml", p, dataclasses.replace(q, name=f"m{i}")) for i, (p, q) in enumerate(members)]
    return FleetProblem("fleet", objective, tuple(named), {}, {})


def bare(plan: Plan) -> str:
    """The plan without what a fleet adds to say that it is one."""
    return dumps(dataclasses.replace(plan, notes=(), name=""))


@pytest.mark.parametrize("name", ["llama3-70b-chat", "llama3-8b-l40s", "llama3-70b-split", "llama3-405b"])
def test_a_fleet_of_one_is_the_plain_solution(name: str) -> None:
    own = resolve(load(SPECS / f"{name}.yaml")[0])
    for objective in ("cost", "unmet"):
        solved = solve_fleet(FleetProblem("fleet", objective, (Entrant("a.yaml", 0, own),), {}, {}))  # type: ignore[arg-type]
        assert solved.members[0] is not None
        assert bare(solved.members[0]) == bare(solve(own))
        assert solved.plan.cost_per_hour == solved.members[0].choice.cost_per_hour


@pytest.mark.parametrize("more", ["spareReplicas: 1", "topology: disaggregated", "maxAccelerators: 5", "disaggregationGain: 1.0"])
def test_a_fleet_of_one_keeps_every_constraint(more: str) -> None:
    own = member("3/s", constraints=f"{{{more}}}")
    found = solve_fleet(fleet("cost", (0, own))).members[0]
    assert found is not None
    assert found.choice == solve(own).choice


def test_energy_adds_up_watts() -> None:
    own = member("4/s", objective="energy")
    solved = solve_fleet(fleet("energy", (0, own), (0, own)))
    assert solved.plan.watts == pytest.approx(2.0 * solve(own).choice.watts)


def packs(chosen: tuple[Option, ...], fleet: FleetProblem) -> bool:
    for kind in fleet.pool:
        servers: dict[int, int] = {}
        for option in chosen:
            for (at, size), count in option.uses:
                if at == kind.index:
                    servers[size] = servers.get(size, 0) + count
        if nodes_by_filling(servers, kind.plan.per_node) > kind.plan.nodes:
            return False
    return True


RATES = st.sampled_from(("1/s", "3/s", "8/s", "20/s"))
ASKED = st.tuples(RATES, st.sampled_from(("h", "8b")), st.integers(0, 1), st.sampled_from((0, 4)))
NODES = st.tuples(st.integers(1, 2), st.integers(1, 3))


@settings(deadline=None, max_examples=10)
@given(st.lists(ASKED, min_size=1, max_size=3), NODES)
def test_small_fleets_cost_the_least_of_all_combinations(asked: list[Any], nodes: tuple[int, int]) -> None:
    pool = TWO.replace("nodes: 2", f"nodes: {nodes[0]}", 1).replace("l40s, nodes: 2", f"l40s, nodes: {nodes[1]}")
    members = []
    for rate, model, spares, most in asked:
        limits = [f"spareReplicas: {spares}"] + ([f"maxAccelerators: {most}"] if most else [])
        named = {"model": LLAMA_8B} if model == "8b" else {}
        members.append((0, member(rate, pool=pool, constraints=f"{{{', '.join(limits)}}}", **named)))
    with reduced((8, 32, 128), (2048,)):
        question = fleet("cost", *members)
        every = [contender.options for contender in look(question).options]
        possible = [c for c in itertools.product(*every) if packs(c, question)]
        if not possible:
            assert allot(look(question).options, question.pool) is None
            return
        solved = solve_fleet(question)
    least = min((round(sum(o.spent for o in c), 9), sum(o.devices for o in c)) for c in possible)
    assert solved.plan.cost_per_hour == pytest.approx(least[0])
    assert solved.plan.devices == least[1]


def crowded(objective: FleetObjective = "unmet", first: int = 10, second: int = 5) -> FleetProblem:
    """Two models that want all of the H100s."""
    return fleet(objective, (first, member("11/s", pool=ONE)), (second, member("8/s", pool=ONE)))


ONE = "[{accelerator: h100, nodes: 2, perNode: 8}]"


def test_the_higher_priority_is_carried_first() -> None:
    shares = [m.share for m in solve_fleet(crowded()).plan.members]
    assert shares[0] == 1.0
    assert 0.0 < shares[1] < 1.0
    turned = [m.share for m in solve_fleet(crowded(first=5, second=10)).plan.members]
    assert turned[1] == 1.0
    assert turned[0] < 1.0


def test_a_part_is_planned_for_what_it_carries() -> None:
    solved = solve_fleet(crowded())
    given, plan = solved.plan.members[1], solved.members[1]
    assert plan is not None
    assert given.carried == pytest.approx(given.share * 8.0)
    assert plan.prediction.load_rate == pytest.approx(given.carried, rel=1e-6)
    assert plan.traffic.rate == pytest.approx(given.carried)
    assert all(plan.prediction.bounds[key] <= bound * (1 + 1e-6) for key, bound in plan.slo.items())
    assert plan.choice.devices == given.devices
    assert plan.choice.roles[0].utilization <= 0.85 + 1e-9
    assert "of this model's load" in plan.notes[-1]


@pytest.mark.parametrize("load", ["concurrency: 600", "users: {active: 3000, thinkTime: 20s}"])
def test_closed_loops_are_cut_to_whole_users(load: str) -> None:
    pool = "[{accelerator: h100, nodes: 1, perNode: 8}]"
    asked = member("1/s", pool=pool, traffic=f"{{{load}, {LENGTHS}}}", slo="{itl: {p95: 50ms}}")
    solved = solve_fleet(fleet("unmet", (0, asked), (0, asked)))
    carried = [m.carried for m in solved.plan.members]
    assert any(m.share < 1.0 for m in solved.plan.members)
    assert all(c == pytest.approx(round(c)) for c in carried)
    assert sum(carried) >= 1
    for m, plan in zip(solved.plan.members, solved.members, strict=True):
        assert (plan is None) == (m.share == 0.0)
        if plan is not None:
            assert plan.traffic.concurrency == pytest.approx(m.carried)
            assert plan.prediction.bounds["itl.p95"] <= 0.050 * (1 + 1e-6)


def test_a_split_may_be_cut_too() -> None:
    own = resolve(load(SPECS / "llama3-70b-split.yaml")[0])
    solved = solve_fleet(fleet("unmet", (0, own), (1, own)))
    assert solved.plan.members[1].share == 1.0
    assert all(p.used_nodes <= p.nodes for p in solved.plan.pool)
    for plan in solved.members:
        if plan is not None:
            assert all(plan.prediction.bounds[key] <= bound * (1 + 1e-6) for key, bound in plan.slo.items())


def test_a_shortage_names_who_does_not_fit_and_the_least_that_mends_it() -> None:
    question = crowded("cost")
    with pytest.raises(InfeasibleError) as told:
        solve_fleet(question)
    error = told.value
    assert "m1 does not fit" in error.message
    assert "1 of 2 members wholly" in error.best
    (fix,) = error.fixes
    assert fix.key == "hardware.pool.0.nodes"
    enough = int(fix.new) - int(fix.old)
    assert solve_fleet(grown(question, {0: enough})).plan.unmet == ()
    with pytest.raises(InfeasibleError):
        solve_fleet(grown(question, {0: enough - 1}))


def test_a_member_that_no_pool_carries_says_what_binds_it() -> None:
    hasty = member("1/s", slo="{ttft: {p95: 1ms}}")
    for objective in ("cost", "unmet"):
        with pytest.raises(InfeasibleError) as told:
            solve_fleet(fleet(objective, (0, member("1/s")), (0, hasty)))  # type: ignore[arg-type]
        assert told.value.bound == "m1.ttft.p95"
        assert "m1 does not fit, even alone" in told.value.message
        assert told.value.fixes[0].key.startswith("m1.slo.")


def test_more_nodes_never_cost_more_and_never_leave_more_unmet() -> None:
    question = fleet("unmet", (1, member("14/s")), (0, member("10/s")), (0, member("30/s", model=LLAMA_8B)))
    before: Fleet | None = None
    for nodes in range(4):
        solved = solve_fleet(grown(question, {0: nodes}))
        if before is not None:
            unmet = [sum(1.0 - m.share for m in f.plan.members if m.priority == 1) for f in (before, solved)]
            assert unmet[1] <= unmet[0] + 1e-9
            if not before.plan.unmet:
                assert not solved.plan.unmet
                assert solved.plan.cost_per_hour <= before.plan.cost_per_hour + 1e-9
        before = solved


def test_a_member_that_gave_way_says_so() -> None:
    node = "{{accelerator: {}, nodes: {}, perNode: 8, price: {}/h}}"
    pool = f"[{node.format('h100', 1, 1)}, {node.format('a100-sxm-80gb', 3, 3)}]"
    relaxed = "{ttft: {p95: 5s}, itl: {p95: 100ms}}"
    solved = solve_fleet(fleet("cost", *[(i, member("10/s", pool=pool, slo=relaxed)) for i in range(3)]))
    moved = [m for m in solved.plan.members if m.note]
    assert moved
    for m in moved:
        plan = next(p for p in solved.members if p is not None and p.name == m.name)
        assert any("other use for its accelerators" in a.why_lost for a in plan.alternatives)
    assert "sharing it costs" in solved.plan.why[-1]


def test_members_know_what_the_others_use_and_do_not_grow_into_it() -> None:
    solved = solve_fleet(fleet("cost", (0, member("6/s")), (0, member("6/s"))))
    for i, plan in enumerate(solved.members):
        assert plan is not None
        other = solved.plan.members[1 - i]
        known = {(k, int(size)): n for k, p in enumerate(plan.pool) for size, n in p.others.items()}
        assert known == {(u.pool, u.devices): u.servers for u in other.uses}
        assert plan.deploy.autoscaling_max == {r.role: r.total_replicas for r in plan.choice.roles}


def test_splits_pass_the_same_gate() -> None:
    own = resolve(load(SPECS / "llama3-70b-split.yaml")[0])
    seen = search(own)
    kept = eligible(own, seen)
    together = min(c.objective[0] for c in seen.candidates if c.topology == "aggregated")
    splits = [c for c in seen.candidates if c.topology == "disaggregated"]
    assert any(c in kept for c in splits)
    assert all((c in kept) == (together / c.objective[0] >= own.gain) for c in splits)


def test_the_same_fleet_has_the_same_answer() -> None:
    assert dumps(solve_fleet(crowded())) == dumps(solve_fleet(crowded()))


def test_a_replay_confirms_a_fleet() -> None:
    from servegen.solve.arrivals import Traffic

    question = fleet("cost", (0, member("3/s")), (0, member("5/s", model=LLAMA_8B)))
    solved = solve_fleet(question)
    checked = verified_fleet(question, solved, Traffic(requests=300))
    assert all(p.verification is not None and p.verification.found for p in checked.members if p is not None)
    assert checked.plan.devices >= solved.plan.devices


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(NotBuiltError) as told:
        solve_fleet(fleet("cost", (0, member("1/s"))))
    assert "servegen-compiler[fleet]" in told.value.diagnostics[0].hint
