"""Overrides against the plan: what they decide otherwise, what they cut a server off from, and whom they do not reach."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servegen.engines.contract import load_contract
from servegen.engines.decisions import LEFT_OUT, WIRING
from servegen.engines.registry import get_engine
from servegen.errors import Diagnostic
from servegen.plan import CachePlan, Plan
from servegen.render.bundle import render
from servegen.validate.check import findings
from tests.proof.harness import command, spec, write_spec
from tests.unit.plans import make_plan, make_role, make_split_plan
from tests.unit.test_validate_patched import judged

TWO_NODES = make_role(tp=8, pp=2)
PLANS = {
    "sglang": make_plan(make_role(mixed_chunk=True)),
    "sglang over two nodes": make_plan(make_role(tp=16, ep=2, dp=2)),
    "sglang, split": make_split_plan(),
    "megatron": make_plan(choice_engine="megatron", choice_engine_version="0.19.2"),
}


def found(plan: Plan) -> list[Diagnostic]:
    return findings(plan, render(plan))


def overridden(plan: Plan, **args: Any) -> list[Diagnostic]:
    named = {key.replace("_", "-"): value for key, value in args.items()}
    return found(replace(plan, deploy=replace(plan.deploy, args=named)))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_planned_flag_is_a_decision_or_says_only_where_a_server_is(plan: Plan) -> None:
    """A switch is taken away, a number made another, a choice another one; what is refused outright is told at once."""
    assert found(plan) == []
    for launch in get_engine(plan.choice.engine).launches(plan):
        contract = load_contract(launch.contract).flags
        for arg in launch.args if launch.role is not None else ():
            flag = contract[arg.flag]
            if arg.flag in WIRING or flag.required or arg.flag == "--nnodes":
                continue
            same = {*arg.values} | ({"auto"} if arg.flag == "--dtype" else set())
            other: Any = False if not arg.values else next((c for c in flag.choices if c not in same), "")
            if other == "":
                other = arg.values[0].translate(str.maketrans("123456789", "234567898"))
            hits = [d for d in overridden(plan, **{arg.flag[2:]: other}) if f"{arg.flag}" in d.message]
            assert hits and all(f"deploy.overrides.args.{arg.flag[2:]}" in d.hint or d.severity == "error" for d in hits), arg


@pytest.mark.parametrize("engine", LEFT_OUT)
def test_what_a_plan_leaves_out_is_known_to_the_engine(engine: str) -> None:
    (contract,) = {x.contract for x in get_engine(engine).launches(PLANS[engine])}
    assert set(LEFT_OUT[engine]) <= set(load_contract(contract).flags)


DECIDED = (
    ({"model_path": "/models/other"}, "--model-path /models/other: the plan says meta-llama", "spec.model.name decides it"),
    ({"quantization": "fp8"}, "--quantization fp8: the plan leaves it out", "spec.constraints.weights decides it"),
    ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2: the plan says bfloat16", "spec.constraints.kvCache decides"),
    ({"dtype": "float16"}, "--dtype float16: the plan says bfloat16", "spec.constraints.weights"),
    ({"chunked_prefill_size": 2048}, "--chunked-prefill-size 2048: the plan says 8192", "servegen estimate"),
    ({"max_running_requests": 8}, "--max-running-requests 8: the plan says 256", "leave it out"),
    ({"mem_fraction_static": 0.9}, "--mem-fraction-static 0.9: the plan says 0.857", "; leave it out"),
    ({"context_length": 16384}, "--context-length 16384: the plan says 8192", "spec.model.contextLength"),
    ({"expert_parallel_size": 2}, "--ep-size 2: the plan leaves it out", "spec.constraints.ep"),
    ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm NGRAM: the plan leaves", "spec.model.speculative"),
)


@pytest.mark.parametrize(("args", "says", "right"), DECIDED, ids=[next(iter(args)) for args, _, _ in DECIDED])
def test_a_decision_of_the_plan_that_is_overridden_is_a_warning(args: dict[str, Any], says: str, right: str) -> None:
    (told,) = overridden(PLANS["sglang"], **args)
    assert (told.code, told.severity, told.where.file) == ("value-decided", "warning", "launch/serve.sh")
    assert told.message.startswith(f"Deployment/llama-chat-serve: launch/serve.sh: {says}")
    key = next(iter(args)).replace("_", "-")
    assert told.hint.startswith(f"spec.deploy.overrides.args.{key}; ") and right in told.hint
    assert told.where.line


def test_weights_that_are_made_up_are_told() -> None:
    (told,) = overridden(PLANS["sglang"], load_format="dummy")
    assert told.severity == "warning" and "every answer" in told.message
    assert overridden(PLANS["sglang"], load_format="safetensors") == []


def test_what_a_bf16_checkpoint_says_of_itself_is_no_other_decision() -> None:
    assert overridden(PLANS["sglang"], dtype="auto") == []


def test_of_megatron_too() -> None:
    (told,) = overridden(PLANS["megatron"], load="/other")
    assert "--load /other: the plan says" in told.message and "spec.model.name decides it" in told.hint


def test_each_server_of_a_split_plan_is_told_of() -> None:
    told = overridden(PLANS["sglang, split"], max_running_requests=64)
    assert [d.message.partition(":")[0] for d in told] == ["Deployment/llama-chat-prefill", "Deployment/llama-chat-decode"]


@pytest.mark.parametrize(
    "args",
    [
        {"mem_fraction_static": "0.8570"}, {"tp_size": 8}, {"pp_size": 1}, {"schedule_policy": "lpm"}, {"port": 8080},
        {"attention_backend": "fa3"}, {"tool_call_parser": "llama3"}, {"log_level": "warning"}, {"served_model_name": "m"},
        {"enable_metrics": False}, {"disable_radix_cache": True}, {"watchdog_timeout": 600}, {"schedule_conservativeness": 0.8},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_prediction_rests_on_is_the_users(args: dict[str, Any]) -> None:
    assert overridden(PLANS["sglang"], **args) == []


def test_an_engine_for_which_nothing_is_rendered_heeds_no_override(tmp_path: Path) -> None:
    overrides = {"args": {"quantization": "fp8"}, "env": {"A": "b"}}
    file = write_spec(tmp_path / "s.yaml", spec(constraints__engines=["vllm"], deploy__overrides=overrides))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == 0, ran
    for key in ("args.quantization", "env.A"):
        assert re.search(rf"s\.yaml:\d+:\d+: warning\[override-unheard\]: deploy\.overrides\.{key}: nothing is rendered", ran.err)


def told(plan: Plan, **env: str) -> list[tuple[str, str]]:
    changed = replace(plan, deploy=replace(plan.deploy, env=env))
    return [(d.severity, d.message) for d in found(changed)]


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_loopback_reaches_no_other_node(name: str) -> None:
    over = make_plan(TWO_NODES)
    for value in ("lo", "=lo", "lo,lo"):
        both = told(over, **{name: value})
        assert len(both) == 2 and all(s == "error" and f"{name} is {value!r}: loopback does not" in m for s, m in both)
        assert both[0][1].startswith("LeaderWorkerSet/llama-chat-serve: ")
        assert told(PLANS["sglang"], **{name: value}) == []
    for value in ("eth0", "^lo,docker", "lo,eth0", "=eth1"):
        assert told(over, **{name: value}) == []


def test_the_hub_is_asked_where_nothing_is_cached() -> None:
    def cached(**cache: Any) -> list[tuple[str, str]]:
        return told(make_plan(deploy_cache=CachePlan(**cache)), HF_HUB_OFFLINE="1")

    assert [s for s, m in cached() if "/models is empty in a new pod" in m] == ["error"]
    assert [s for s, m in cached(size_bytes=4e11) if "is made empty" in m] == ["warning"]
    assert cached(claim="there-already") == cached(host_path="/data") == []
    assert told(make_plan(make_role(load="/models/llama"), deploy_cache=CachePlan()), HF_HUB_OFFLINE="1") == []
    assert told(make_plan(deploy_cache=CachePlan()), HF_HUB_OFFLINE="0") == []
    elsewhere = make_plan(deploy_cache=CachePlan(), deploy_args={"model-path": "/in/the/image"})
    assert not any("HF_HUB_OFFLINE" in m for _, m in told(elsewhere, HF_HUB_OFFLINE="1"))


@pytest.mark.parametrize(("value", "says"), [("", "no program is found"), ("bin", "no program"), ("/a:$PATH", "nothing expands")])
def test_programs_are_looked_for_somewhere(value: str, says: str) -> None:
    ((severity, message),) = told(PLANS["sglang"], PATH=value)
    assert severity == "error" and says in message
    assert told(PLANS["sglang"], PATH="/opt/venv/bin:/usr/bin:/bin") == []


def test_what_a_cluster_takes_and_a_patch_asks_for_is_a_warning() -> None:
    never = judged("serve", "Deployment", spec={"template": {"spec": {"containers": [
        {"name": "serve", "imagePullPolicy": "Never"}]}}})  # fmt: skip
    local = judged("serve", "Service", name="llama-chat", spec={"internalTrafficPolicy": "Local"})
    for (told,), field in ((never, "imagePullPolicy: is Never"), (local, "internalTrafficPolicy: is Local")):
        assert told.severity == "warning" and field in told.message


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ({}, True),
        ({"HF_HUB_OFFLINE": "0"}, True),
        ({"HF_HUB_OFFLINE": "1"}, False),
        ({"HF_ENDPOINT": "http://mirror.llm.svc"}, False),
    ],
)
def test_a_closed_port_matters_to_those_who_ask_the_hub(env: dict[str, str], asked: bool) -> None:
    plan = make_plan(deploy_network_policy_from=(), deploy_env=env, deploy_cache=CachePlan(claim="there-already"))
    made = render(plan)
    closed = {path: text.replace('"port": 443}', '"port": 8443}') for path, text in made.files.items()}
    assert any("cannot fetch" in d.message for d in findings(plan, replace(made, files=closed))) == asked


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.1.2.3", "leader.llm.svc", ""])
def test_a_leader_that_calls_itself_by_a_name_of_its_own_alone(name: str) -> None:
    told_of = [m for _, m in told(make_plan(TWO_NODES), SGLANG_HOST_IP=name) if "find themselves" in m]
    assert bool(told_of) == (name not in ("10.1.2.3", "leader.llm.svc", ""))
