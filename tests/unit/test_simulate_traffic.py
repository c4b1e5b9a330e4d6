"""What a replay sends: the spec's own trace, drawn requests, users in a loop whose steady state is reported."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servegen.cli.app import run as servegen
from servegen.codec import dumps
from servegen.compile import compile_spec
from servegen.errors import UserError
from servegen.plan import loads
from servegen.simulate.arrivals import closed_loop, recorded
from servegen.simulate.deployment import Deployment, Handoff, _Run, replay
from servegen.simulate.requests import Closed
from servegen.solve.arrivals import TURNS, Sent, Traffic, sent
from servegen.solve.estimate import EstimateRequest, estimate
from servegen.solve.replay import Loss, Subject, deployment, of_lock, of_problem, requests, run
from servegen.spec.load import load
from servegen.workload import Lengths, Workload, trace_requests
from tests.unit.simulations import make_model, make_pool, one, send

SPEC = """
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: chat}}
spec:
  model: {{name: meta-llama/Llama-3.1-8B-Instruct}}
  slo: {{ttft: {{p95: 500ms}}, itl: {{p95: 40ms}}}}
  traffic: {{{traffic}}}
  hardware: {{pool: [{{accelerator: h100-sxm-80gb, nodes: 1, perNode: 4}}]}}
"""
LENGTHS = "isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}"


def write_trace(folder: Path, hashed: bool = False) -> None:
    """700 requests at 7/s, every tenth of a length that no other has."""
    with (folder / "t.jsonl").open("w") as file:
        for i in range(700):
            row = {"timestamp": round(i * 1000 / 7), "input_length": 1024 + (i % 10 == 0) * i, "output_length": 50}
            file.write(json.dumps({**row, "hash_ids": [0, i + 1]} if hashed else row) + "\n")


def subject(folder: Path, traffic: str) -> Subject:
    (folder / "chat.yaml").write_text(SPEC.format(traffic=traffic))
    found = compile_spec(load(folder / "chat.yaml")[0], until="plan")
    assert found.problem is not None and found.plan is not None
    return of_problem(found.problem, found.plan)


def lengths(given: Sent) -> list[int]:
    return [given.source.take().isl for _ in range(given.source.count)]


def test_a_spec_whose_traffic_is_a_trace_replays_it(tmp_path: Path) -> None:
    write_trace(tmp_path)
    of = subject(tmp_path, "trace: t.jsonl")
    given = requests(of, Traffic())
    assert (given.kind, given.words) == ("trace", "700 requests as t.jsonl recorded them")
    assert lengths(given) == [1024 + (i % 10 == 0) * i for i in range(700)]
    assert run(of, requests(of, Traffic())).requests == 700
    # What the command line asks for takes its place.
    drawn = requests(of, Traffic("poisson", 50))
    assert (drawn.kind, drawn.source.count, drawn.words) == ("poisson", 50, "50 requests, Poisson arrivals")
    other = trace_requests(Path(__file__).parents[1] / "fixtures" / "traces" / "azure.csv")
    assert requests(of, Traffic(trace=other, name="other.csv")).words == f"{len(other):,} requests as other.csv recorded them"


def test_the_command_cuts_the_specs_own_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path)
    subject(tmp_path, "trace: t.jsonl")
    spec = str(tmp_path / "chat.yaml")
    assert servegen(["simulate", spec, "--window", "10:20", "--speedup", "0.5", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arrivals"] == "trace"
    assert found["sent"] == "70 requests as t.jsonl recorded them, from 10 s to 20 s, 0.5 times as fast"
    assert found["replays"][0]["requests"]["sent"] == 70
    assert servegen(["simulate", spec, "--arrivals", "gamma", "--window", "10:20"]) == 1
    assert "only a trace can be cut" in capsys.readouterr().err


def test_a_lock_says_that_it_holds_no_trace(tmp_path: Path) -> None:
    write_trace(tmp_path)
    of = subject(tmp_path, "trace: t.jsonl")
    given = requests(of_lock(loads(dumps(of.plan))), Traffic(requests=20))
    assert given.kind != "trace"
    assert given.words.endswith("what the plan keeps of t.jsonl, for a lock does not hold the trace itself")


def test_hashes_count_where_the_spec_declares_no_sharing_itself(tmp_path: Path) -> None:
    write_trace(tmp_path, hashed=True)
    own = requests(subject(tmp_path, "trace: t.jsonl"), Traffic())
    assert own.hashed and own.source.take().blocks == (0, 1)
    of = subject(tmp_path, "trace: t.jsonl, prefix: {shared: 200}")
    declared = requests(of, Traffic())
    first = declared.source.take()
    assert not declared.hashed and (first.blocks, first.cached) == ((), 200)
    # A trace from the command line has its own hashes, and without them the spec's sharing holds.
    trace = trace_requests(tmp_path / "t.jsonl")
    assert requests(of, Traffic(trace=trace, name="t")).hashed
    plain = requests(of, Traffic(trace=dataclasses.replace(trace, hashes=None), name="t"))
    assert not plain.hashed and plain.source.take().cached == 200


def test_a_recorded_request_beyond_the_context_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path)
    of = subject(tmp_path, "trace: t.jsonl")
    spec = tmp_path / "chat.yaml"
    spec.write_text(spec.read_text().replace("Llama-3.1-8B-Instruct}", "Llama-3.1-8B-Instruct, contextLength: 1500}"))
    assert servegen(["simulate", str(spec), "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)["replays"][0]["requests"]
    longer = sum((i % 10 == 0) * i > 1500 - 1074 for i in range(700))
    assert (found["refused"], found["completed"]) == (longer, 700 - longer)
    assert servegen(["plan", str(spec), "--verify"]) == 0
    assert f"{longer} of the requests not answered" in capsys.readouterr().out
    assert run(of, requests(of, Traffic())).refused == 0


def test_declared_sharing_never_covers_a_whole_prompt(tmp_path: Path) -> None:
    write_trace(tmp_path)
    workload = Workload(Lengths.fixed(100), Lengths.fixed(10), rate_per_s=1, prefix_shared=5000)
    request = recorded(trace_requests(tmp_path / "t.jsonl"), workload=workload).take()
    assert request.cached == request.isl - 1


# -- the steady state of closed loops --------------------------------------------------------------------------------

WORKLOAD = Workload(Lengths.fixed(100), Lengths.lognormal(30, p=0.95, q=90), concurrency=1)


def test_a_loop_reports_its_steady_state() -> None:
    """Slots and room for all: every step takes 10 ms, so a user turns in its output's steps, whoever else is there."""
    pool = one(make_pool(make_model(fixed_s=0.01), "mixed"))
    turn_s = 0.3 + 0.2
    found = replay(pool, closed_loop(WORKLOAD, 50, 0.2, 4000, 1, turn_s))
    assert (found.requests, found.completed, found.left_out) == (4000, 4000, 100)
    assert found.request_rate == pytest.approx(50 / (found.e2e.mean + 0.2), rel=0.01)
    assert found.sent_rate == pytest.approx(found.request_rate, rel=0.01)
    assert found.output_tokens_per_s == pytest.approx(found.request_rate * 30, rel=0.02)
    assert found.itl.mean == pytest.approx(0.01, rel=1e-6)


def test_nobody_waits_for_the_rush_of_a_beginning() -> None:
    """One prompt takes 100 ms: 40 who come at once wait 2 s on average; spread over their pauses they hardly wait."""
    pool = one(make_pool(make_model(flop_s=0.001), chunk=100))
    workload = Workload(Lengths.fixed(100), Lengths.fixed(1), users=40, think_time_s=20.0)
    rush = replay(pool, closed_loop(workload, 40, 20.0, 200, 1))
    steady = replay(pool, closed_loop(workload, 40, 20.0, 800, 1, 20.1))
    assert rush.ttft_s[:40].mean() > 2.0
    assert steady.ttft.mean < 0.15
    starts = sorted(steady.e2e_s[:40])
    assert starts[-1] < 1.0


def test_users_begin_anywhere_in_their_turn() -> None:
    source = closed_loop(WORKLOAD, 500, 1.0, 5000, 3, 8.0)
    at = [source.take().arrival_s for _ in range(500)]
    assert at == sorted(at) and 0.0 < at[0] < 0.2 and 7.8 < at[-1] < 8.0
    assert np.mean(at) == pytest.approx(4.0, rel=0.1)
    assert source.steady == range(500, 4500)


def test_starts_and_returns_are_sent_in_order_of_time() -> None:
    source = Closed(3, np.full(6, 9), np.full(6, 9), 0.5, starts_s=np.array([0.0, 1.0, 5.0]))
    first = source.take()
    source.finished(first, 0.2)
    taken = [source.take().arrival_s for _ in range(3)]
    assert taken == [0.7, 1.0, 5.0]
    assert source.next_s == math.inf


def test_too_few_requests_for_a_steady_state_are_refused() -> None:
    with pytest.raises(UserError, match="100 requests of 50 users show no steady state"):
        closed_loop(WORKLOAD, 50, 0.2, 100, 1, 1.0)
    assert closed_loop(WORKLOAD, 50, 0.2, 101, 1, 1.0).steady == range(50, 51)


@settings(max_examples=60)
@given(
    st.integers(1, 30),
    st.integers(3, 8),
    st.floats(0, 2),
    st.floats(0.01, 5),
    st.integers(0, 9),
    st.sampled_from(["prefill-first", "mixed", "whole", "static"]),
)
def test_loops_keep_the_laws(users: int, turns: int, pause: float, turn_s: float, seed: int, scheduler: str) -> None:
    """Every token of every request is counted, left out or not; never more users than there are; rates obey Little."""
    model = make_model(fixed_s=0.01, flop_s=1e-5, decode_s=1e-3, read_s=1e-7)
    n = users * turns
    found = replay(one(make_pool(model, scheduler, 2, chunk=256)), closed_loop(WORKLOAD, users, pause, n, seed, turn_s))
    assert found.completed == n and found.left_out == 2 * users
    assert found.prefilled_tokens == found.prompt_tokens == 100 * n
    held = found.e2e_s.sum() + pause * (n - users)
    assert held <= users * (found.duration_s + pause) * (1 + 1e-9)
    assert max(found.timeline.running) <= users * (1 + 1e-9)
    assert 0.0 <= found.utilization <= 1.0 + 1e-9


def test_a_concurrency_is_replayed_in_its_steady_state(tmp_path: Path) -> None:
    of = subject(tmp_path, f"concurrency: 100, {LENGTHS}")
    given = requests(of, Traffic())
    assert given.words == (
        "10,000 requests of 100 users in a closed loop, the first and the last 100 of them left out "
        "so that the rest is the steady state"
    )
    found = run(of, given)
    assert found.left_out == 200
    assert found.request_rate * found.e2e.mean == pytest.approx(100, rel=0.02)
    assert found.itl.p95 == pytest.approx(of.plan.prediction.itl.p95, rel=0.1)


def test_a_load_that_fills_the_system_for_long_is_replayed_for_longer(tmp_path: Path) -> None:
    of = subject(tmp_path, f"rate: 20/s, {LENGTHS}")
    slow = dataclasses.replace(of.plan.prediction, e2e=dataclasses.replace(of.plan.prediction.e2e, mean=90.0))
    given = sent(dataclasses.replace(of.plan, prediction=slow), of.workload, None, Traffic())
    assert given.source.count == TURNS * 20 * 90


def test_work_without_bounds_fills_every_slot_and_work_within_bounds_comes_at_the_sized_rate(tmp_path: Path) -> None:
    of = subject(tmp_path, LENGTHS)
    assert requests(of, Traffic()).kind == "poisson"
    free = dataclasses.replace(of, plan=dataclasses.replace(of.plan, slo={}))
    slots = sum(r.replicas * r.max_running_requests for r in of.plan.choice.roles)
    assert f"{slots:,} users in a closed loop" in requests(free, Traffic()).words


LOSSES = st.tuples(st.floats(0, 2), st.integers(0, 1))


@settings(max_examples=80)
@given(
    st.sampled_from(["prefill-first", "mixed", "whole", "static", "split"]),
    st.sampled_from(["random", "round-robin", "power-of-two", "cache-aware"]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 900), st.integers(1, 120)), min_size=1, max_size=50),
    st.sampled_from([700.0, 1500.0, 1e9]),
    st.booleans(),
    LOSSES,
)
def test_a_loss_loses_no_request_and_makes_up_no_time(kind, policy, rows, pool_bytes, hashed, loss) -> None:  # type: ignore[no-untyped-def]
    """What a lost server had is answered by the others; Little's law holds through the loss."""
    rows = sorted(rows)
    at, isl, osl = [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]
    limits = {"chunk": 200, "max_running": 16, "pool_bytes": pool_bytes}
    model, block = make_model(fixed_s=0.01, flop_s=1e-5, read_s=1e-7), 64 if hashed else 0
    if kind == "split":
        pools = (make_pool(model, "prefill", 2, block_tokens=block, **limits), make_pool(model, "decode", 2, **limits))
    else:
        pools = (make_pool(model, kind, 2, block_tokens=block, **limits),)
    blocks = [tuple(range(n // 64)) for n in isl] if hashed else None
    run_ = _Run(Deployment(pools, policy, Handoff(0.01, 1e-5)), send(at, isl, osl, blocks=blocks), 0)
    run_.play(loss[0], None, min(loss[1], len(pools) - 1))
    log = run_.log
    end, sent_s = np.array(log.end), np.array(log.arrival)
    done = ~np.isnan(end)
    assert done.sum() + log.refused == len(at)
    assert log.prefilled + log.cached >= sum(np.array(isl)[done]) and log.generated >= sum(np.array(osl)[done])
    area, spent = log.queue.area + log.running.area, (end - sent_s)[done].sum()
    if kind == "split":  # what is on its way between two servers is in neither
        assert area <= spent * (1 + 1e-6) + 1e-9
    else:
        assert area == pytest.approx(spent, rel=1e-6, abs=1e-9)
    for replica in (r for pool in run_.pools for r in pool if r.alive):
        assert not replica.in_flight and not replica.waiting and not replica.batch.running


# -- split serving ---------------------------------------------------------------------------------------------------


def test_links_move_one_prompt_after_the_other() -> None:
    pools = (make_pool(make_model(fixed_s=0.01), "prefill"), make_pool(make_model(fixed_s=0.01), "decode"))
    found = replay(Deployment(pools, handoff=Handoff(0.5, 0.0)), send([0, 0, 0], [10, 10, 10], [1, 1, 1]))
    assert found.ttft_s.tolist() == pytest.approx([0.51, 1.01, 1.51])


def test_a_lost_decode_server_has_its_prompts_computed_again() -> None:
    pools = (make_pool(make_model(fixed_s=0.01), "prefill", 2), make_pool(make_model(fixed_s=0.01), "decode", 2))
    at = np.arange(100) / 50.0
    sent_ = {"at": at, "isl": [40] * 100, "osl": [30] * 100}
    found = replay(Deployment(pools), send(**sent_), fail_s=1.0, fail_pool=1)
    assert found.completed == 100 and found.resent > 0
    assert found.prefilled_tokens == 40 * (100 + found.resent)
    alone = replay(Deployment((pools[0], dataclasses.replace(pools[1], count=1))), send(**sent_), fail_s=1.0, fail_pool=1)
    assert alone.unserved > 0 and alone.utilization <= 1.0


def test_spares_stand_by_for_the_role_that_loses(tmp_path: Path) -> None:
    of = subject(tmp_path, f"rate: 20/s, {LENGTHS}")
    (role,) = of.plan.choice.roles
    counts = [deployment(of, loss=loss).pools[0].count for loss in (None, Loss(1.0, 0, 2), Loss(1.0, 0, 0))]
    assert counts == [role.replicas, role.replicas + 2, role.replicas]


SPLIT = EstimateRequest(
    "Llama-3.1-8B", "h100-sxm-80gb", batch=32, isl=1500, osl=300, mode="disaggregated", prefill_workers=2, decode_workers=2
)


def test_a_split_estimate_is_the_loop_replayed() -> None:
    found = estimate(SPLIT)
    users = found.serving.output_tokens_per_s / 300 * (found.serving.ttft_s + 299 * found.serving.tpot_s)
    # Little's law of the loop, but for its end, when users leave one after the other.
    assert users == pytest.approx(32, rel=0.12)
    assert found.serving.output_tokens_per_s_per_device == pytest.approx(found.serving.output_tokens_per_s / 4)
    ideal = estimate(dataclasses.replace(SPLIT, physics="ideal")).serving
    assert ideal.ttft_s < found.serving.ttft_s and ideal.tpot_s < found.serving.tpot_s
    more = estimate(dataclasses.replace(SPLIT, decode_workers=4)).serving
    assert more.tpot_s < found.serving.tpot_s
    assert estimate(dataclasses.replace(SPLIT, prefill_workers=4)).serving.ttft_s < found.serving.ttft_s


def test_a_split_fits_only_where_both_roles_do() -> None:
    big = dataclasses.replace(SPLIT, model="Llama-3.1-70B", decode_tp=4, prefill_tp=4)
    assert estimate(big).memory.fits
    assert not estimate(dataclasses.replace(big, prefill_tp=1)).memory.fits
    assert not estimate(dataclasses.replace(big, decode_tp=1)).memory.fits


# -- a tree that was verified ----------------------------------------------------------------------------------------


def test_a_verified_tree_is_checked_as_it_was_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, out = tmp_path / "chat.yaml", str(tmp_path / "out")
    spec.write_text(SPEC.format(traffic=f"rate: 20/s, {LENGTHS}"))
    build = ["build", str(spec), "-o", out]
    assert servegen([*build, "--verify"]) == 0
    page = (tmp_path / "out" / "chat" / "PLAN.md").read_text()
    assert "## Replayed\n\n- 10,000 requests, Poisson arrivals" in page
    for flags in (["--check"], ["--diff"], ["--check", "--verify"], ["--check", "--locked"], ["--locked"]):
        assert servegen([*build, *flags]) == 0, flags
    assert (tmp_path / "out" / "chat" / "PLAN.md").read_text() == page
    capsys.readouterr()
    # What was found stands in the lock; a lock that says something else is stale.
    lock = tmp_path / "out" / "chat" / "plan.lock.json"
    kept = lock.read_text()
    lock.write_text(kept.replace('"requests": 10000', '"requests": 9'))
    assert servegen([*build, "--check"]) == 2
    out_text = capsys.readouterr().out
    assert "plan.lock.json" in out_text and "--verify" in out_text
    lock.write_text(kept)
    # A build without --verify is what it says, and says so; then it is checked without a replay.
    assert servegen(build) == 0
    assert "was verified by a replay, this one is not" in capsys.readouterr().err
    assert "## Replayed" not in (tmp_path / "out" / "chat" / "PLAN.md").read_text()
    assert servegen([*build, "--check"]) == 0
    assert servegen([*build, "--check", "--verify"]) == 2
    assert servegen(build) == 0
    assert "verified" not in capsys.readouterr().err


def test_a_lock_that_cannot_be_read_was_not_verified(tmp_path: Path) -> None:
    spec, out = tmp_path / "chat.yaml", tmp_path / "out"
    spec.write_text(SPEC.format(traffic=f"rate: 20/s, {LENGTHS}"))
    build = ["build", str(spec), "-o", str(out)]
    assert servegen([*build, "--check"]) == 2  # nothing there
    assert servegen([*build, "--verify"]) == 0
    (out / "chat" / "plan.lock.json").write_text("{")
    assert servegen([*build, "--check"]) == 2


def test_verify_replays_the_trace_that_is_the_traffic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path)
    subject(tmp_path, "trace: t.jsonl")
    assert servegen(["plan", str(tmp_path / "chat.yaml"), "--verify", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["verification"]
    assert (found["arrivals"], found["requests"]) == ("trace", 700)
    assert found["found"][-1].startswith("700 requests as t.jsonl recorded them, at 7.01/s through ")
