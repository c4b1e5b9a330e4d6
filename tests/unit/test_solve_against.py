"""A plan beside a locked one: the input that caused the difference is named, and no other."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from servegen.codec import dumps
from servegen.errors import InfeasibleError
from servegen.explanation import Against, InputChange
from servegen.plan import Plan, Verification, loads
from servegen.solve.against import against, moved
from servegen.solve.resolve import resolve
from servegen.solve.search import solve
from servegen.spec.load import LoadedSpec
from servegen.spec.load import loads as load_specs
from tests.solver.specs import LENGTHS, LLAMA_8B, reduced, spec_text

SPACE = ([1, 4, 8, 16, 32, 64, 128, 256], [512, 2048, 8192])
BASE: dict[str, Any] = {
    "spec.traffic.rate": "9/s",
    "spec.traffic.trough": "1/s",
    "spec.slo.ttft.p95": "1s",
    "spec.slo.itl.p95": "40ms",
    "spec.hardware.pool.0.accelerator": "h100",
    "spec.hardware.pool.0.nodes": 2,
    "spec.hardware.pool.0.price": "3/h",
    "spec.constraints.utilization": 0.85,
    "spec.constraints.spareReplicas": 0,
    "spec.constraints.weights": ["fp8"],
    "spec.constraints.kvCache": ["bf16"],
    "spec.constraints.tp": [1, 2],
    "spec.constraints.disaggregationGain": 1.1,
    "spec.objective": "cost",
    "spec.deploy.namespace": "llm",
    "spec.model.contextLength": 8192,
}
CHANGES: dict[str, list[Any]] = {
    "spec.traffic.rate": ["1/s", "30/s", "90/s"],
    "spec.traffic.trough": ["5/s"],
    "spec.slo.ttft.p95": ["300ms", "5s"],
    "spec.slo.itl.p95": ["7ms", "12ms", "100ms"],
    "spec.hardware.pool.0.accelerator": ["h200", "l40s"],
    "spec.hardware.pool.0.nodes": [1, 3],
    "spec.hardware.pool.0.price": ["2/h", "9/h"],
    "spec.constraints.utilization": [0.5, 0.84],
    "spec.constraints.spareReplicas": [1],
    "spec.constraints.weights": [["bf16"], ["bf16", "fp8"]],
    "spec.constraints.kvCache": [["bf16", "fp8"]],
    "spec.constraints.tp": [[2], [4, 8]],
    "spec.constraints.disaggregationGain": [1.5],
    "spec.objective": ["latency", "energy"],
    "spec.deploy.namespace": ["other"],
    "spec.model.contextLength": [16384],
}

#: Keys of which every value above moves something; else the tests would compare nothing.
MOVING = {
    "spec.traffic.rate", "spec.hardware.pool.0.accelerator", "spec.hardware.pool.0.price", "spec.constraints.spareReplicas",
    "spec.constraints.tp", "spec.deploy.namespace", "spec.model.contextLength",
}  # fmt: skip


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """A document from dotted keys."""
    traffic = {"isl": {"mean": 1024, "p95": 3000}, "osl": {"mean": 256, "p95": 600}}
    pool = {"perNode": 8, "fabric": {"bandwidth": "400Gbps"}}
    document: dict[str, Any] = {
        "apiVersion": "servegen/v1alpha1",
        "kind": "ServingSpec",
        "metadata": {"name": "asked"},
        "spec": {"model": {"name": LLAMA_8B}, "traffic": traffic, "hardware": {"pool": [pool]}},
    }
    for key, value in flat.items():
        node: Any = document
        *path, last = key.split(".")
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        node[last] = value
    return document


def loaded(flat: dict[str, Any]) -> LoadedSpec:
    return load_specs(json.dumps(nested(flat)), "asked.yaml")[0]


def of_text(**stated: str) -> LoadedSpec:
    return load_specs(spec_text(**stated), "asked.yaml")[0]


def planned(spec: LoadedSpec) -> Plan | None:
    """As ``servegen plan`` and a lock hold it."""
    try:
        return loads(dumps(solve(resolve(spec))))
    except InfeasibleError:
        return None


def locked(spec: LoadedSpec) -> Plan:
    plan = planned(spec)
    assert plan is not None
    return plan


def held(spec: LoadedSpec, lock: Plan) -> Against:
    return against(spec, planned(spec), lock)


@pytest.fixture(scope="module")
def base() -> Plan:
    with reduced(*SPACE):
        return locked(loaded(BASE))


KEYS = sorted(CHANGES)
ONE = [(key, value) for key in KEYS for value in CHANGES[key]]


@pytest.mark.parametrize(("key", "value"), ONE, ids=lambda v: str(v))
def test_one_changed_key_is_named_exactly(base: Plan, key: str, value: Any) -> None:
    with reduced(*SPACE):
        spec = loaded({**BASE, key: value})
        plan = planned(spec)
        found = against(spec, plan, base)
    assert [i.name for i in found.inputs] == [key]
    assert found.moved == moved(base, plan)
    assert found.causes == ((key,) if found.moved else ())
    (item,) = found.inputs
    assert item.tried and item.moves == found.moved == item.restores
    assert bool(found.changes) == bool(found.moved)
    assert found.moved or key not in MOVING


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_of_two_changed_keys_only_the_one_that_matters_is_named(base: Plan, data: st.DataObject) -> None:
    one, other = data.draw(st.lists(st.sampled_from(KEYS), min_size=2, max_size=2, unique=True))
    values = {key: data.draw(st.sampled_from(CHANGES[key])) for key in (one, other)}
    with reduced(*SPACE):
        spec = loaded({**BASE, **values})
        plan = planned(spec)
        alone = {key: planned(loaded({**BASE, key: values[key]})) for key in (one, other)}
        found = against(spec, plan, base)
    assert {i.name for i in found.inputs} == {one, other}
    assert set(found.causes) <= {one, other}
    assert bool(found.causes) == bool(found.moved)
    # What the other does not change at all, with the first or without it, the first has changed alone.
    assume(found.moved)
    main = found.moved[0]
    for key, rest in ((one, other), (other, one)):
        if main not in moved(alone[key], plan) and main not in moved(alone[rest], base):
            assert found.causes == (key,)


def test_nothing_changed(base: Plan) -> None:
    with reduced(*SPACE):
        found = held(loaded(BASE), base)
    assert (found.moved, found.changes, found.inputs, found.causes) == ((), (), (), ())
    assert found.text == "The plan is the locked one."


def test_where_each_alone_would_have_sufficed_both_are_named() -> None:
    """Two caps of which each forbids the same: with either set back the other still does."""
    roomy = {**BASE, "spec.constraints.weights": ["bf16", "fp8"], "spec.constraints.tp": [1, 2, 4]}
    with reduced(*SPACE):
        lock = locked(loaded({**roomy, "spec.traffic.rate": "30/s"}))
        spec = loaded({**roomy, "spec.traffic.rate": "30/s", "spec.slo.itl.p95": "1ms", "spec.slo.ttft.p95": "1ms"})
        found = held(spec, lock)
    assert found.moved[0] == "choice" and planned(spec) is None
    assert set(found.causes) == {"spec.slo.itl.p95", "spec.slo.ttft.p95"}
    assert all("with all else as it was, its new value alone" in i.text for i in found.inputs)


def test_keys_that_exclude_each_other_are_tried_together() -> None:
    lock = locked(of_text(traffic=f"{{rate: 6/s, {LENGTHS}}}", slo="{itl: {p95: 50ms}}"))
    found = held(of_text(traffic=f"{{concurrency: 40, {LENGTHS}}}", slo="{itl: {p95: 50ms}}"), lock)
    assert found.causes == ("spec.traffic",)
    assert found.inputs[0].old == '{"burstiness": 1, "rate": "6/s"}' and found.inputs[0].new == '{"concurrency": 40}'


def test_a_default_that_was_not_stated_then_is_no_change(base: Plan) -> None:
    spec = copy.deepcopy(dict(base.spec))
    del spec["spec"]["constraints"]["confidence"]
    with reduced(*SPACE):
        found = held(loaded(BASE), dataclasses.replace(base, spec=spec))
    assert found.inputs == ()


# --- facts, prices, versions, files -----------------------------------------------------------------------------------


def older(spec: LoadedSpec, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Plan:
    """A lock that was made when the catalogue said something else."""
    from servegen.catalog import calibration
    from servegen.solve import resolve

    with monkeypatch.context() as then:
        for name, change in changed.items():
            room = resolve if hasattr(resolve, name) else calibration
            now = getattr(room, name)
            then.setattr(room, name, lambda *a, now=now, change=change: change(now(*a)))
        return locked(spec)


def by_name(found: Against) -> dict[str, InputChange]:
    return {i.name: i for i in found.inputs}


def test_a_constant_that_was_fitted_anew_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(facts: Any) -> Any:
        return dataclasses.replace(facts, step_s=dataclasses.replace(facts.step_s, value=2 * facts.step_s.value))

    spec = loaded(BASE)
    with reduced(*SPACE):
        found = held(spec, older(spec, monkeypatch, resolve_engine=slower))
    assert found.moved and found.causes == ("engine.sglang.step_s",)
    assert set(by_name(found)) == {"engine.sglang.step_s", "facts"}
    digest = by_name(found)["facts"]
    assert not digest.tried and digest.old.startswith("sha256 ") and digest.old != digest.new


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda f: dataclasses.replace(f, hbm_bytes_per_s=f.hbm_bytes_per_s * 0.7), "hbm_bytes_per_s"),
        (lambda f: dataclasses.replace(f, usable_bytes=f.usable_bytes * 0.8), "usable_bytes"),
        (lambda f: dataclasses.replace(f, peak_flops={**f.peak_flops, "fp8": 5e14}), "peak_flops.fp8"),
        (lambda f: dataclasses.replace(f, gemm={**f.gemm, "fp8": dataclasses.replace(f.gemm["fp8"], ew=0.4)}), "gemm.fp8"),
    ],
)
def test_a_figure_of_an_accelerator_is_named(change: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = loaded(BASE)
    with reduced(*SPACE):
        found = held(spec, older(spec, monkeypatch, resolve_accelerator=change))
    assert found.moved and found.causes == (f"accelerator.h100-sxm-80gb.{name}",)
    assert by_name(found)[found.causes[0]].restores == found.moved


def test_an_all_reduce_figure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(f: Any) -> Any:
        return dataclasses.replace(f, allreduce_alpha_s={**f.allreduce_alpha_s, 4: 9e-5})

    spec = loaded({**BASE, "spec.constraints.tp": [4]})
    with reduced(*SPACE):
        found = held(spec, older(spec, monkeypatch, resolve_accelerator=slower))
    assert found.moved and found.causes == ("accelerator.h100-sxm-80gb.allreduce_alpha_s.4",)


def test_a_price_of_the_catalogue_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = loaded({k: v for k, v in BASE.items() if not k.endswith("price")})
    with reduced(*SPACE):
        lock = older(spec, monkeypatch, resolve_accelerator=lambda f: dataclasses.replace(f, price_per_h=1.25))
        found = held(spec, lock)
    assert found.moved == ("cost",) and found.causes == ("price of h100-sxm-80gb",)
    assert by_name(found)[found.causes[0]].old == "$1.25/h"


def test_facts_that_the_lock_does_not_hold_are_named_by_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_reserve(facts: Any) -> Any:
        memory = dataclasses.replace(facts.memory, per_chunk_token_bytes=facts.memory.per_chunk_token_bytes * 8)
        return dataclasses.replace(facts, memory=memory)

    spec = loaded(BASE)
    with reduced(*SPACE):
        found = held(spec, older(spec, monkeypatch, resolve_engine=other_reserve))
    assert found.moved and found.causes == ("facts",)
    assert "no figure that the lock holds differs" in by_name(found)["facts"].text


def test_versions_are_inputs(base: Plan) -> None:
    choice = dataclasses.replace(base.choice, engine_version="0.5.0")
    with reduced(*SPACE):
        found = held(loaded(BASE), dataclasses.replace(base, choice=choice))
        assert found.causes == ("version of sglang",) and found.moved == ("choice",)
        found = held(loaded(BASE), dataclasses.replace(base, made_by="0.0.1"))
    assert found.moved == () and [i.name for i in found.inputs] == ["version of servegen"]
    assert not found.inputs[0].tried


def test_a_replay_that_enlarged_the_lock_is_named(base: Plan) -> None:
    bigger = {**BASE, "spec.constraints.utilization": 0.3}
    with reduced(*SPACE):
        record = Verification("poisson", 1000, 0, 0.3, ("missed", "sized anew", "kept"))
        lock = dataclasses.replace(locked(loaded(bigger)), spec=base.spec, inputs=base.inputs, verification=record)
        found = held(loaded(BASE), lock)
    assert found.moved[0] == "choice" and found.causes == ("--verify",)


def test_the_content_of_a_file_is_named_by_its_digest(tmp_path: Path) -> None:
    trace = tmp_path / "requests.csv"
    spec = tmp_path / "asked.yaml"
    spec.write_text(spec_text(model=LLAMA_8B, traffic="{trace: requests.csv}", slo="{itl: {p95: 50ms}}"))

    def write(gap_s: float) -> LoadedSpec:
        rows = "".join(f"{i * gap_s:.3f},{500 + i % 7 * 100},{100 + i % 5 * 20}\n" for i in range(400))
        trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
        return load_specs(spec.read_bytes(), str(spec))[0]

    lock = locked(write(1.0))
    found = held(write(0.02), lock)
    assert found.moved[0] == "choice" and found.causes == ("content of traffic.trace",)
    assert not found.inputs[0].tried


def test_a_calibration_that_the_spec_now_names(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "apiVersion: servegen/v1alpha1\nkind: Calibration\nconstants: {engine.sglang.step_s: {value: 0.02}}\n"
    )

    def write(deploy: str) -> LoadedSpec:
        text = spec_text(model=LLAMA_8B, slo="{itl: {p95: 50ms}}", deploy=deploy)
        return load_specs(text, str(tmp_path / "asked.yaml"))[0]

    lock = locked(write("{}"))
    found = held(write("{calibration: own.yaml}"), lock)
    assert found.causes == ("spec.deploy.calibration",) and len(found.inputs) == 1


def test_a_file_of_the_old_spec_that_is_gone_cannot_be_tried(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("apiVersion: servegen/v1alpha1\nkind: Calibration\nconstants: {engine.sglang.step_s: {value: 0.02}}\n")
    name = str(tmp_path / "asked.yaml")
    old = load_specs(spec_text(model=LLAMA_8B, slo="{itl: {p95: 50ms}}", deploy="{calibration: own.yaml}"), name)[0]
    lock = locked(old)
    own.unlink()
    found = held(load_specs(spec_text(model=LLAMA_8B, slo="{itl: {p95: 50ms}}"), name)[0], lock)
    assert found.moved and any("calibration" in i.name or "deploy" in i.name or i.name == "spec" for i in found.inputs)
    assert found.causes
