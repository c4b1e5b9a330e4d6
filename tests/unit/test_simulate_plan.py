"""Plans replayed: from a spec, from a lock, verified; and the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest

from servegen.catalog.accelerators import resolve_accelerator
from servegen.cli.app import run as servegen
from servegen.codec import dumps
from servegen.compile import compile_spec
from servegen.errors import CatalogError, InfeasibleError
from servegen.plan import Plan, loads
from servegen.report.figures import seconds
from servegen.simulate.result import RequestBound, Result
from servegen.solve.arrivals import Traffic
from servegen.solve.problem import Problem
from servegen.solve.replay import Subject, deployment, of_lock, of_problem, request_bounds, requests, run, verdicts
from servegen.solve.verify import verified
from servegen.spec.load import loads as load_spec

SPEC = """
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {name: chat}
spec:
  model: {name: meta-llama/Llama-3.1-8B-Instruct}
  slo: {ttft: {p95: 500ms}, itl: {p95: 40ms}, e2e: {mean: 60s}}
  traffic: {rate: 30/s, isl: {mean: 1024, p95: 3000}, osl: {mean: 256, p95: 600}}
  hardware: {pool: [{accelerator: h100-sxm-80gb, nodes: 1, perNode: 4, fabric: {bandwidth: 400Gbps}}]}
"""


@cache
def solved(text: str = SPEC) -> tuple[Problem, Plan]:
    found = compile_spec(load_spec(text, "chat.yaml")[0], until="plan")
    assert found.problem is not None and found.plan is not None
    return found.problem, found.plan


def played(subject: Subject, n: int) -> Result:
    return run(subject, requests(subject, Traffic(requests=n)))


def test_a_replay_agrees_with_what_the_plan_predicts() -> None:
    problem, plan = solved()
    subject = of_problem(problem, plan)
    found = played(subject, 6000)
    assert all(v.met for v in verdicts(subject, found))
    assert found.itl.p50 == pytest.approx(plan.prediction.itl.p50, rel=0.1)
    assert found.e2e.mean == pytest.approx(plan.prediction.e2e.mean, rel=0.1)
    assert found.output_tokens_per_s == pytest.approx(plan.prediction.output_tokens_per_second, rel=0.05)


def test_a_lock_gives_the_same_replay_as_its_spec() -> None:
    problem, plan = solved()
    locked = of_lock(loads(dumps(plan)))
    assert deployment(locked) == deployment(of_problem(problem, loads(dumps(plan))))
    one, other = (played(s, 500) for s in (locked, of_problem(problem, loads(dumps(plan)))))
    assert one.e2e_s.tobytes() == other.e2e_s.tobytes()


def test_a_lock_whose_spec_is_not_at_hand_replays_what_the_plan_keeps() -> None:
    _, plan = solved()
    spec = json.loads(json.dumps(plan.spec))
    spec["spec"]["traffic"] = {"trace": "gone.csv"}
    subject = of_lock(dataclasses.replace(plan, spec=spec))
    assert subject.workload.isl.mean == pytest.approx(1024)
    assert float(subject.workload.osl.quantile(0.95)) == pytest.approx(600)
    assert subject.workload.rate_per_s == 30


def test_a_lock_of_an_unknown_model_says_what_to_do() -> None:
    _, plan = solved()
    with pytest.raises(CatalogError) as caught:
        of_lock(dataclasses.replace(plan, model=dataclasses.replace(plan.model, id="nobody/nothing")))
    assert "spec" in caught.value.diagnostics[0].hint


def test_roles_become_pools() -> None:
    text = SPEC.replace("slo: {", "constraints: {topology: disaggregated}\n  slo: {")
    problem, plan = solved(text)
    split = deployment(of_problem(problem, plan))
    assert [p.scheduler for p in split.pools] == ["prefill", "decode"]
    assert [p.count for p in split.pools] == [r.replicas for r in plan.choice.roles]
    # 50 GB/s on each of the prefill server's links, of which 72 % are reached at best.
    role = plan.role("prefill")
    per_token = role.memory.kv_bytes_per_token / (0.72 * 50e9)
    assert split.handoff.token_s == pytest.approx(per_token)
    assert played(of_problem(problem, plan), 500).completed == 500


def test_the_bounds_of_a_request() -> None:
    slo = {"ttft.p50": 0.2, "ttft.p95": 0.5, "itl.p99": 0.1, "itl.p95": 0.05, "e2e.mean": 9.0}
    assert request_bounds(slo) == (RequestBound("ttft", 0.2), RequestBound("tpot", 0.05))
    assert request_bounds({**slo, "tpot.p90": 0.03})[1] == RequestBound("tpot", 0.03)


def test_verify_says_what_it_found() -> None:
    problem, plan = solved()
    found = verified(problem, plan, Traffic(requests=3000))
    assert found.choice == plan.choice
    assert found.verification is not None and found.notes == plan.notes
    assert (found.verification.requests, found.verification.arrivals) == (3000, "poisson")
    (said,) = found.verification.found
    assert said.startswith("3,000 requests, Poisson arrivals, at ") and "/s through 2x on 2 accelerators: " in said
    assert "ttft.p95" in said and "BROKEN" not in said
    assert loads(dumps(found)) == loads(dumps(loads(dumps(found))))


def optimist() -> tuple[Problem, Plan]:
    """A plan of one replica for a load that needs several."""
    problem, plan = solved()
    (role,) = plan.choice.roles
    assert role.replicas > 1
    small = dataclasses.replace(plan.choice, roles=(dataclasses.replace(role, replicas=1),))
    return problem, dataclasses.replace(plan, choice=small)


def test_verify_enlarges_a_plan_that_misses() -> None:
    problem, plan = optimist()
    found = verified(problem, plan, Traffic(requests=3000))
    assert found.choice.roles[0].replicas > 1
    assert found.verification is not None and found.verification.utilization < problem.utilization
    said = found.verification.found
    assert "BROKEN" in said[0] and "sized anew" in said[1] and "BROKEN" not in said[-1]


def test_verify_refuses_what_no_plan_keeps() -> None:
    problem, plan = optimist()
    poor = dataclasses.replace(problem, max_accelerators=plan.choice.roles[0].tp)
    with pytest.raises(InfeasibleError) as caught:
        verified(poor, plan, Traffic(requests=3000))
    assert caught.value.bound.startswith(("ttft", "itl", "e2e"))
    assert "a replay of 1x" in caught.value.message


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "chat.yaml"
    file.write_text(SPEC)
    return str(file)


@pytest.fixture
def lock(tmp_path: Path) -> str:
    file = tmp_path / "plan.lock.json"
    file.write_text(dumps(solved()[1]))
    return str(file)


def test_the_command_prints_the_same_bytes_for_the_same_seed(spec: str, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert servegen(["simulate", spec, "--requests", "800", "-o", "json"]) == 0
    one = capsys.readouterr().out
    assert servegen(["simulate", lock, "--requests", "800", "-o", "json"]) == 0
    assert capsys.readouterr().out == one
    assert servegen(["simulate", lock, "--requests", "800", "--seed", "1", "-o", "json"]) == 0
    assert capsys.readouterr().out != one
    (replay,) = json.loads(one)["replays"]
    assert replay["met"] and replay["requests"]["completed"] == 800
    assert [b["bound"] for b in replay["bounds"]] == list(solved()[1].slo)
    assert len(replay["overTime"]["kv"]) == len(replay["overTime"]["waiting"])


def test_a_missed_bound_ends_with_3(lock: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "burst.csv"
    with trace.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["arrival_s", "input_tokens", "output_tokens"])
        rows.writerows([f"{i * 0.002:.3f}", 3000, 100] for i in range(600))
    assert servegen(["simulate", lock, "--trace", str(trace)]) == 3
    out = capsys.readouterr().out
    assert "NO" in out and "Over time, as planned" in out
    assert servegen(["simulate", lock, "--trace", str(trace), "--window", "0:0.1", "--speedup", "0.01"]) == 0
    assert "50" in capsys.readouterr().out


def test_a_lost_replica_is_shown_with_a_spare_and_without(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    servegen(["simulate", lock, "--requests", "1500", "--fail-replica", "20s", "-o", "json"])
    scenes = json.loads(capsys.readouterr().out)["replays"]
    assert [s["scene"] for s in scenes] == ["as planned", "a replica lost, with a spare", "a replica lost, no spare"]
    assert scenes[0]["requests"]["resent"] == 0 < scenes[2]["requests"]["resent"]
    assert scenes[2]["ttft"]["p95"] > scenes[1]["ttft"]["p95"]


def test_the_command_replays_users_who_wait(lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The plan is for a rate: whether it keeps its bounds (0) or not (3) under users who wait is not asked here.
    assert servegen(["simulate", lock, "--requests", "3000", "--arrivals", "closed-loop"]) in (0, 3)
    assert "3,000" in capsys.readouterr().out
    Path(lock).write_text("{}")
    assert servegen(["simulate", lock]) == 1
    assert "bad-lock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--window", "3:5"], "only a trace can be cut"),
        (["--window", "3"], "is not A:B"),
        (["--speedup", "2"], "only a trace can be cut"),
        (["--trace", "x.csv", "--window", "5:2"], "ends before it begins"),
        (["--arrivals", "closed-loop", "--requests", "3"], "no steady state"),
        (["--trace", "x.csv", "--arrivals", "gamma"], "arrivals of its own"),
        (["--fail-replica", "soon"], "--fail-replica"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--arrivals", "uniform"], "--arrivals"),
        (["--trace", "x.csv", "--speedup", "0"], "--speedup"),
    ],
)
def test_what_cannot_be_replayed_is_said(arguments: list[str], said: str, lock: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert servegen(["simulate", lock, *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_verified_plan_shows_its_replay(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert servegen(["plan", spec, "--verify", "-o", "markdown"]) == 0
    assert "## Replayed\n\n- 10,000 requests, Poisson arrivals, at " in capsys.readouterr().out
    assert servegen(["plan", spec, "-o", "markdown"]) == 0
    assert "## Replayed" not in capsys.readouterr().out


def test_an_estimate_is_the_benchmark_replayed() -> None:
    """The first wave of a benchmark shows in its mean TTFT, and requests of one length march in step."""
    from servegen.solve.estimate import EstimateRequest, estimate

    def ttft(isl: int, osl: int) -> float:
        request = EstimateRequest("Llama-3.1-8B", "h100-sxm-80gb", "vllm", batch=64, isl=isl, osl=osl)
        return estimate(request).serving.ttft_s

    assert ttft(1024, 256) > 2 * ttft(1023, 256)
    assert resolve_accelerator("h100-sxm-80gb").compute_capability == 9.0


def test_a_prediction_stands_beside_every_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also beside those of percentiles and metrics that a plan tells of nothing but its bounds."""
    text = SPEC.replace("e2e: {mean: 60s}", "tpot: {p90: 40ms, p95: 45ms}").replace("ttft: {p95: 500ms}", "ttft: {p90: 500ms}")
    (tmp_path / "chat.yaml").write_text(text)
    servegen(["simulate", str(tmp_path / "chat.yaml"), "--requests", "500"])
    out = capsys.readouterr().out
    _, plan = solved(text)
    for bound, found in plan.prediction.bounds.items():
        (line,) = (line for line in out.splitlines() if line.startswith("as planned ") and f" {bound} " in line)
        assert seconds(found) in line.split()
    assert {"ttft.p90", "tpot.p90", "itl.p95"} < {*plan.prediction.bounds}
    (tpot,) = (line for line in out.splitlines() if line.startswith("TPOT "))
    assert tpot.split()[-1] == seconds(plan.prediction.bounds["tpot.p95"])
