"""Two groups of replicas on two kinds: the plan, its predictions against the replay, and what is rendered of it."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.engines.registry import get_engine, script_template
from servegen.errors import InfeasibleError
from servegen.manifest import documents
from servegen.plan import Plan, dumps, loads, read
from servegen.render.bundle import launches_of, render
from servegen.report.figures import percent
from servegen.report.json import plan_json
from servegen.report.text import plain, plan_blocks
from servegen.service import size
from servegen.simulate.router import cache_aware
from servegen.solve.arrivals import Traffic
from servegen.solve.explained import explained
from servegen.solve.predict import Seen, candidate_points, p95, role_points
from servegen.solve.problem import Problem
from servegen.solve.replay import deployment, of_lock, of_problem, requests, run
from servegen.solve.routing import forced, fully_used, shared_out, usable
from servegen.solve.search import search, solve
from servegen.solve.uncertainty import missing
from servegen.solve.verify import verified
from servegen.validate.check import findings
from tests.solver.specs import LLAMA_8B, problem, reduced

FEW = ((8, 32, 64, 96, 106, 128, 256), (512, 2048))
POOL = "[{accelerator: h100, nodes: 1, perNode: 1}, {accelerator: l40s, nodes: 1, perNode: 4}]"
LENGTHS = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"
CONSTRAINTS = "weights: [bf16, fp8]"


def asked(**stated: str) -> Problem:
    given_ = {
        "model": LLAMA_8B,
        "traffic": f"{{rate: 30/s, trough: 6/s, {LENGTHS}}}",
        "slo": "{ttft: {p95: 1s}, itl: {p95: 60ms}}",
        "pool": POOL,
        "constraints": f"{{{CONSTRAINTS}}}",
        **stated,
    }
    return problem(**given_)


@pytest.fixture(scope="module")
def question() -> Problem:
    return asked(deploy="{autoscaling: keda, networkPolicy: {from: [{podSelector: {matchLabels: {app: web}}}]}}")


def test_the_cache_gives_way_to_load_as_soon_as_groups_differ() -> None:
    """A prompt head that all share is cached in every replica: the router must not go by it while one fills up."""
    full = SimpleNamespace(in_flight=30, cache=SimpleNamespace(match=lambda blocks: 9))
    free = SimpleNamespace(in_flight=20, cache=SimpleNamespace(match=lambda blocks: 8))
    rng, request = np.random.default_rng(0), SimpleNamespace(blocks=tuple(range(10)))
    assert cache_aware(rng)([full, free], request) is full  # type: ignore[list-item, arg-type, comparison-overlap]
    assert cache_aware(rng, 4, 1.1)([full, free], request) is free  # type: ignore[list-item, arg-type, comparison-overlap]


def test_a_plan_with_a_shared_prefix_keeps_its_bounds() -> None:
    question = asked(traffic=f"{{rate: 34/s, prefix: {{shared: 512}}, {LENGTHS}}}")
    with reduced(*FEW):
        plan = solve(question)
    assert plan.choice.roles[0].grouped
    subject = of_problem(question, plan)
    assert deployment(subject).policy == "cache-aware" and deployment(subject).balance == plan.choice.balance
    given_ = requests(subject, Traffic("", 6000, 1))
    result = run(subject, given_, 1)
    assert result.ttft.p95 <= 1.0 and result.itl.p95 <= 0.06


@pytest.fixture(scope="module")
def plan(question: Problem) -> Plan:
    with reduced(*FEW):
        return solve(question)


def test_the_plan_names_each_group_and_its_share(plan: Plan) -> None:
    first, second = plan.choice.roles
    assert (plan.choice.topology, plan.choice.ratio) == ("aggregated", f"{first.replicas}x+{second.replicas}x")
    assert [r.name for r in (first, second)] == ["serve-0", "serve-1"]
    assert first.share + second.share == pytest.approx(1.0)
    assert plan.role("serve-1") is second
    with pytest.raises(KeyError):
        plan.role("serve")
    again = read(dumps(plan))
    alone = dataclasses.replace(plan, choice=dataclasses.replace(plan.choice, roles=(first,)))
    with pytest.raises(ValueError, match="two serve roles"):
        read(dumps(alone))
    assert [(r.name, r.pool, r.grouped) for r in again.choice.roles] == [("serve-0", 0, True), ("serve-1", 1, True)]
    assert dumps(loads(dumps(again))) == dumps(again)
    found = plan_json(plan)["choice"]["roles"]
    assert [(r["name"], r["role"]) for r in found] == [("serve-0", "serve"), ("serve-1", "serve")]
    assert [r["share"] for r in found] == pytest.approx([first.share, second.share])
    page = plain(plan_blocks(plan))
    assert "requests" in page.splitlines()[1] and percent(first.share) in page
    assert any("emptier of two replicas" in sentence for sentence in plan.why)


def test_scaling_is_by_group(plan: Plan) -> None:
    d = plan.deploy
    assert set(d.autoscaling_min) == set(d.autoscaling_max) == set(d.autoscaling_queue) == {"serve-0", "serve-1"}
    assert d.autoscaling_max == {"serve-0": 1, "serve-1": 4}
    assert {m.role for m in plan.missing} == {"serve-0", "serve-1"}
    assert plan.missing[0].left == 0 and plan.missing[0].utilization > 1.0  # the other group alone is too few


def test_percentiles_are_of_the_mixture(question: Problem) -> None:
    with reduced(*FEW):
        best = search(question).best
        assert best is not None and best.grouped
        points = role_points(question, best.roles)
        apart = [p95(Seen.join([(p, (1.0,))]), question.demand) for p in points]
        together = p95(candidate_points(question, [best]), question.demand)
    for metric in (0, 1):
        ends = sorted(float(x[metric][0]) for x in apart)
        assert ends[0] < float(together[metric][0]) < ends[1]
    t = np.array([0.3])
    mixed = candidate_points(question, [best]).exceeds("ttft", question.demand, t)
    alone = [size.exceeds("ttft", p, question.demand, t)[0] for p in points]
    assert mixed[0] == pytest.approx(sum(r.share * x for r, x in zip(best.roles, alone, strict=True)))


def test_every_replica_meets_every_bound_at_what_it_sustains(question: Problem) -> None:
    with reduced(*FEW):
        best = search(question).best
        assert best is not None
        full = [dataclasses.replace(r, load=r.sustained) for r in best.roles]
        for point in role_points(question, full):
            assert not any(flags.any() for flags in size.violations(point, question.demand, question.slo, {}).values())


def test_both_groups_hold_as_many_requests_as_one_may(question: Problem) -> None:
    with reduced(*FEW):
        best = search(question).best
        assert best is not None
        full = [dataclasses.replace(r, load=r.sustained) for r in best.roles]
        held = [float(size.load("concurrency", p, question.demand)[0]) for p in role_points(question, full, routed=False)]
    assert held[0] == pytest.approx(held[1], rel=1e-4)
    assert sum(r.held for r in best.roles) == 1


def test_the_replay_finds_what_was_predicted(question: Problem, plan: Plan) -> None:
    subject = of_problem(question, plan)
    pools = deployment(subject).pools
    assert [p.count for p in pools] == [r.replicas for r in plan.choice.roles]
    assert deployment(subject).policy == "power-of-two"
    result = run(subject, requests(subject, Traffic("", 10_000, 1)))
    assert result.ttft.p95 == pytest.approx(plan.prediction.ttft.p95, rel=0.2)
    assert result.itl.p95 == pytest.approx(plan.prediction.itl.p95, rel=0.1)
    assert result.completed == result.requests


def test_a_plan_is_verified_and_replayed_from_its_lock(question: Problem, plan: Plan) -> None:
    with reduced(*FEW):
        kept = verified(question, plan, Traffic("", 4000))
    assert kept.verification is not None and len(kept.verification.found) == 1
    subject = of_lock(loads(dumps(plan)))
    assert len(deployment(subject).pools) == 2


def test_the_bundle_has_a_deployment_for_each_group_and_a_router(plan: Plan) -> None:
    launches = launches_of(plan)
    assert [(x.name, x.role) for x in launches] == [("serve-0", "serve"), ("serve-1", "serve"), ("router", None)]
    router = {a.flag: a.values for a in launches[-1].args}
    assert "--pd-disaggregation" not in router and router["--policy"] == ("power_of_two",)
    assert script_template(launches[-1]) == "sglang/balancer.sh.j2"
    bundle = render(plan)
    assert findings(plan, bundle) == []
    selected = dict(word.split("=") for word in router["--selector"])
    pods = {
        name: documents(bundle.files[f"kubernetes/deployment-{name}.yaml"])[0]["spec"]["template"]["metadata"]["labels"]
        for name in ("serve-0", "serve-1", "router")
    }
    found = {name for name, labels in pods.items() if all(labels.get(k) == v for k, v in selected.items())}
    assert found == {"serve-0", "serve-1"}
    assert "WORKER_URLS" in bundle.files["launch/router.sh"]
    assert documents(bundle.files["kubernetes/service-router.yaml"])[0]["metadata"]["name"] == plan.name
    with_hits = dataclasses.replace(plan, traffic=dataclasses.replace(plan.traffic, prefix_hit=0.4))
    cached = {a.flag: a.values for a in get_engine("sglang").launches(with_hits)[-1].args}
    assert cached["--policy"] == ("cache_aware",)
    running = min(r.running_requests for r in plan.choice.roles)
    assert cached["--balance-abs-threshold"] == (str(round(running / 10)),)
    assert cached["--balance-rel-threshold"] == ("1.1",)
    assert "--balance-abs-threshold" not in router


def test_a_router_that_selects_one_group_only_is_found(plan: Plan) -> None:
    bundle = render(plan)
    path = "kubernetes/deployment-serve-1.yaml"
    broken = bundle.files[path].replace('"servegen.dev/role": "serve"', '"servegen.dev/role": "other"')
    assert broken != bundle.files[path]
    found = findings(plan, dataclasses.replace(bundle, files={**bundle.files, path: broken}))
    assert any(d.code == "bundle-discovery" for d in found)


def test_the_explanation_speaks_of_groups(question: Problem, plan: Plan) -> None:
    with reduced(*FEW):
        found = explained(question, plan)
    assert [f.role for f in found.fewer] == ["serve-0", "serve-1"]
    assert found.fewer[0].breaks == ("load",) and found.fewer[0].replicas == 0
    names = [n.dimension for n in found.next_best]
    assert names[-2:] == ["replicas of serve-0", "replicas of serve-1"]
    kinds = next(n for n in found.next_best if n.dimension == "accelerator")
    assert kinds.chosen == "h100-sxm-80gb + l40s-48gb"


def test_what_cannot_be_carried_names_what_both_kinds_carry() -> None:
    with reduced(*FEW), pytest.raises(InfeasibleError) as caught:
        solve(asked(traffic=f"{{rate: 45/s, {LENGTHS}}}"))
    error = caught.value
    most = float(error.best.split()[0])
    alone = search(dataclasses.replace(asked(), groups=False)).outcomes
    assert error.bound == "pool" and most > max(o.most for o in alone)
    with reduced(*FEW):
        assert search(asked(traffic=f"{{rate: {most * 0.99:.3f}/s, {LENGTHS}}}")).best is not None
    assert any(fix.key.startswith("hardware.pool") for fix in error.fixes)


def test_engines_without_a_router_keep_to_one_kind() -> None:
    question = asked()
    engines = tuple(
        dataclasses.replace(e, facts=dataclasses.replace(e.facts, disaggregation=False)) for e in question.engines
    )
    with reduced(*FEW):
        assert any(c.grouped for c in search(question).candidates)
        assert search(dataclasses.replace(question, engines=engines)).best is None


def test_a_pool_of_one_kind_is_untouched() -> None:
    question = asked(pool="[{accelerator: h100, nodes: 1, perNode: 8}]")
    with reduced(*FEW):
        with_groups, without = search(question), search(dataclasses.replace(question, groups=False))
    assert [c.name for c in with_groups.candidates] == [c.name for c in without.candidates]
    assert with_groups.searched == without.searched


counts = st.integers(1, 40)
ratio = st.floats(1.0, 30.0)


@given(counts, counts, ratio)
def test_the_draw_of_two(x: int, y: int, q: float) -> None:
    """Against the chances themselves: of n(n-1)/2 equally likely pairs y(y-1)/2 lie in the second group."""
    pairs = math.comb(x + y, 2)
    assert float(forced(np.array(float(x)), np.array(float(y)))) == pytest.approx(math.comb(y, 2) / pairs)
    rates = np.array(q), np.array(1.0)
    part = float(usable(np.array(float(x)), np.array(float(y)), rates))
    assert 0.0 < part <= 1.0
    edge = float(fully_used(np.array(float(x)), np.array(q)))
    assert (part >= 1.0 - 1e-9) == (y <= edge * (1 + 1e-9)) or math.isclose(y, edge, rel_tol=1e-6)
    load = part * (x * q + y)
    shares, loads, _ = shared_out((x, y), (q, 1.0), (q, 1.0), load)
    assert sum(shares) == pytest.approx(1.0)
    assert loads[0] <= q * (1 + 1e-9) and loads[1] <= 1 + 1e-9
    assert x * loads[0] + y * loads[1] == pytest.approx(load)
    assert max(loads[0] / q, loads[1]) == pytest.approx(1.0)


def test_one_group_takes_over_from_a_group_of_one_replica_that_is_down(question: Problem) -> None:
    with reduced(*FEW):
        chosen = search(question).best
        assert chosen is not None and 1 in [r.replicas for r in chosen.roles]
        index = [r.replicas for r in chosen.roles].index(1)
        quiet = dataclasses.replace(chosen, roles=tuple(dataclasses.replace(r, load=0.3 * r.load) for r in chosen.roles))
        whole, part = missing(question, chosen)[index], missing(question, quiet)[index]
    assert whole.left == part.left == 0
    assert whole.utilization > 1.0 and not whole.bounds_hold and math.isnan(whole.ttft_p95_s)
    assert part.utilization == pytest.approx(0.3 * whole.utilization)
    assert part.bounds_hold and 0.0 < part.ttft_p95_s <= 1.0 and 0.0 < part.itl_p95_s <= 0.06
