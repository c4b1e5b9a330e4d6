"""Numbers of pods: shares of a node, time limits, and rollouts that cannot deadlock."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from servegen.plan import Plan
from servegen.render import scaling, sizing
from servegen.rollout import surge_fits
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan

GIB = 2**30


def test_a_pod_gets_what_serving_needs_and_at_most_its_share_of_nine_tenths_of_a_node() -> None:
    size = sizing.pod_size(make_role(tp=4, checkpoint_bytes=100.0 * GIB), POOL)
    assert size.cpu == "32"  # 8 an accelerator; the share would be 96 * 4/8 * 0.9 = 43
    assert size.memory_bytes == 192 * GIB  # 48 an accelerator; the share would be 460
    assert size.shm_bytes == 16 * GIB
    small = replace(POOL, node_cpus=32, node_memory_bytes=256.0 * GIB)
    size = sizing.pod_size(make_role(tp=4, checkpoint_bytes=10.0 * GIB), small)
    assert size.cpu == "14"  # 32 * 4/8 * 0.9 = 14.4
    assert size.memory_bytes == 115 * GIB  # 256 * 4/8 * 0.9 = 115.2


def test_memory_is_raised_to_what_loading_takes_but_not_beyond_the_node() -> None:
    small = replace(POOL, node_memory_bytes=256.0 * GIB)
    role = make_role(tp=5, checkpoint_bytes=150.0 * GIB)  # alone on its node: share 144 GiB, needs 150 + 20 + 16
    assert sizing.pod_size(role, small).memory_bytes == 186 * GIB
    two = make_role(tp=4, checkpoint_bytes=150.0 * GIB)  # two on a node: 0.9 * 256 / 2 each
    assert sizing.pod_size(two, small).memory_bytes == 115 * GIB


def test_one_accelerator_needs_no_shared_memory() -> None:
    assert sizing.pod_size(make_role(tp=1), POOL).shm_bytes == 0


def test_shared_memory_never_takes_more_than_half() -> None:
    size = sizing.pod_size(make_role(tp=2, checkpoint_bytes=1e9), replace(POOL, node_memory_bytes=32.0 * GIB))
    assert size.memory_bytes == 7 * GIB  # 32 * 2/8 * 0.9 = 7.2
    assert size.shm_bytes == 3.5 * GIB
    assert sizing.mib(size.shm_bytes) == "3584Mi"


@pytest.mark.parametrize(
    ("itl_s", "output", "grace"),
    # 15 s of sleep + 0.7 s of first token + output * itl, up to the next doubling of a minute, an hour at most
    [(0.04, 100, 60), (0.04, 2048, 120), (0.04, 10_000, 480), (1.0, 100_000, 3600), (float("nan"), 1, 3600)],
)
def test_grace_covers_the_longest_decode(itl_s: float, output: int, grace: int) -> None:
    plan = make_plan(traffic_longest_output=output)
    prediction = replace(plan.prediction, itl=replace(plan.prediction.itl, p99=itl_s))
    plan = replace(plan, prediction=prediction)
    assert sizing.grace_s(plan, plan.role("serve")) == grace
    assert sizing.grace_s(plan, None) == grace


def test_a_small_refit_does_not_change_the_grace() -> None:
    plan = make_plan()
    refit = replace(plan.prediction, itl=replace(plan.prediction.itl, p99=plan.prediction.itl.p99 * 1.03))
    assert sizing.grace_s(replace(plan, prediction=refit), None) == sizing.grace_s(plan, None)


def test_a_prefill_server_ends_with_its_prompt() -> None:
    plan = make_split_plan(traffic_longest_output=100_000)
    assert sizing.grace_s(plan, plan.role("prefill")) == 60
    assert sizing.grace_s(plan, plan.role("decode")) == 3600


def placements(nodes: int, per_node: int, pods: list[int]) -> set[tuple[int, ...]]:
    """Free accelerators per node for every way in which ``pods`` can stand."""
    ends: set[tuple[int, ...]] = set()
    for where in itertools.product(range(nodes), repeat=len(pods)):
        free = [per_node] * nodes
        for size, node in zip(pods, where, strict=True):
            free[node] -= size
        if min(free) >= 0:
            ends.add(tuple(free))
    return ends


def pool_of(plan: Plan, nodes: int, per_node: int) -> Plan:
    return replace(plan, pool=(replace(POOL, nodes=nodes, per_node=per_node),))


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("per_node", [4, 8])
@pytest.mark.parametrize("sizes", [(4,), (2,), (2, 4), (1, 4), (3,)])
def test_a_surge_fits_however_pods_stand(nodes: int, per_node: int, sizes: tuple[int, ...]) -> None:
    names = ("serve",) if len(sizes) == 1 else ("prefill", "decode")
    for counts in itertools.product(range(1, 4), repeat=len(sizes)):
        roles = [make_role(n, tp=s, replicas=c) for n, s, c in zip(names, sizes, counts, strict=True)]
        plan = pool_of(make_plan(*roles), nodes, per_node)
        ends = placements(nodes, per_node, [s for s, c in zip(sizes, counts, strict=True) for _ in range(c)])
        for role in plan.choice.roles:
            always = bool(ends) and all(max(free) >= role.devices for free in ends)
            if surge_fits(plan, role):
                assert always or not ends
            elif len(sizes) == 1 and per_node % role.devices == 0:
                assert not always, "pods of one size that divides the node leave no doubt: the test is exact"


def test_an_autoscaler_at_its_maximum_leaves_no_room_for_a_surge() -> None:
    plan = pool_of(make_plan(make_role(tp=8, replicas=2)), 4, 8)
    assert surge_fits(plan, plan.role("serve"))
    scaled = replace(plan, deploy=replace(plan.deploy, autoscaling="keda", autoscaling_max={"serve": 4}))
    assert not surge_fits(scaled, scaled.role("serve"))


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize(("size", "other"), [(4, 4), (4, 2), (2, 1), (8, 4)])
def test_a_surge_finds_room_beside_the_fleets_other_members(nodes: int, size: int, other: int) -> None:
    for count, others in itertools.product(range(1, 4), range(1, 4)):
        plan = pool_of(make_plan(make_role(tp=size, replicas=count)), nodes, 8)
        shared = replace(plan, pool=(replace(plan.pool[0], others={str(other): others}),))
        ends = placements(nodes, 8, [size] * count + [other] * others)
        if surge_fits(shared, shared.role("serve")):
            assert surge_fits(plan, plan.role("serve"))
            assert not ends or all(max(free) >= size for free in ends)


@pytest.mark.parametrize(("budget_s", "failures"), [(1450.0, 145), (1451.0, 146), (0.0, 1)])
def test_startup_probe_gives_the_budget(budget_s: float, failures: int) -> None:
    assert sizing.startup_failures(budget_s) == failures


@pytest.mark.parametrize(
    ("value", "text", "quantity"),
    [(4.0, "4", "4"), (2.5, "2.5", "2500m"), (12288.4, "12288", "12288400m"), (1e-9, "0.001", "1m")],
)
def test_numbers_of_autoscalers_have_no_exponent(value: float, text: str, quantity: str) -> None:
    assert (scaling.number(value), scaling.quantity(value)) == (text, quantity)
