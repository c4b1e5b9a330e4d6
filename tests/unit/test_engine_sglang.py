"""SGLang's commands: what each role is started with, and what the user's overrides may change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from servegen.engines import sglang, sglang_router, startup
from servegen.engines.contract import load_contract
from servegen.engines.launch import Launch
from servegen.engines.registry import get_engine, overridden, script_template
from servegen.errors import NotBuiltError, UserError
from servegen.plan import CachePlan, Plan
from tests.unit.plans import POOL, make_plan, make_role, make_split_plan


def launches(plan: Plan) -> dict[str, Launch]:
    return {launch.name: launch for launch in get_engine("sglang").launches(plan)}


def flags(launch: Launch) -> dict[str, str | None]:
    return {a.flag: " ".join(a.values) if a.values else None for a in launch.args}


def overrides(args: dict[str, Any], **more: Any) -> Plan:
    return make_plan(deploy_args=args, **more)


def test_aggregated_command_word_by_word() -> None:
    (serve,) = launches(make_plan()).values()
    assert serve.argv() == (
        "python3", "-m", "sglang.launch_server",
        "--model-path", "meta-llama/Llama-3.1-70B-Instruct",
        "--served-model-name", "meta-llama/Llama-3.1-70B-Instruct",
        "--host", "0.0.0.0", "--port", "30000", "--tp-size", "8", "--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16",
        "--context-length", "8192", "--mem-fraction-static", "0.857", "--max-running-requests", "256",
        "--chunked-prefill-size", "8192", "--max-prefill-tokens", "8192", "--cuda-graph-max-bs-decode", "256",
        "--schedule-policy", "fcfs", "--enable-metrics",
    )  # fmt: skip
    assert (serve.role, serve.port, serve.metrics_port, serve.extra_ports) == ("serve", 30000, 30000, {})
    assert serve.env == {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    assert (serve.probes.liveness, serve.probes.readiness) == ("/health", "/health_generate")
    assert serve.probes.timeout_s >= 20


def test_precision_and_options() -> None:
    role = make_role(tp=4, weights="fp8", kv="fp8", quantization="fp8", mixed_chunk=True)
    given = flags(launches(make_plan(role, model_trust_remote_code=True, traffic_prefix_hit=0.3))["serve"])
    assert given["--dtype"] == "auto"
    assert given["--quantization"] == "fp8"
    assert given["--kv-cache-dtype"] == "fp8_e4m3"
    assert given["--schedule-policy"] == "lpm"
    assert "--enable-mixed-chunk" in given
    assert "--trust-remote-code" in given


def test_a_stored_quantization_is_left_to_the_checkpoint() -> None:
    assert "--quantization" not in flags(launches(make_plan(make_role(weights="fp8")))["serve"])


def test_attention_dp_pipeline_and_experts() -> None:
    given = flags(launches(make_plan(make_role(tp=4, pp=2, dp=2, ep=4)))["serve"])
    assert (given["--tp-size"], given["--pp-size"], given["--attn-dp-size"], given["--ep-size"]) == ("4", "2", "2", "4")
    assert "--dp-size" not in given
    assert given["--cuda-graph-max-bs-decode"] == "128"  # per rank


def test_split_roles() -> None:
    split = launches(make_split_plan(traffic_prefix_hit=0.3))
    assert list(split) == ["prefill", "decode", "router"]
    prefill, decode = flags(split["prefill"]), flags(split["decode"])
    assert (prefill["--disaggregation-mode"], decode["--disaggregation-mode"]) == ("prefill", "decode")
    assert prefill["--disaggregation-transfer-backend"] == decode["--disaggregation-transfer-backend"] == "nixl"
    assert (prefill["--max-running-requests"], decode["--max-running-requests"]) == ("32", "128")
    assert split["prefill"].extra_ports == {"bootstrap": 8998}
    assert split["decode"].extra_ports == {}
    assert "--chunked-prefill-size" not in decode
    assert "--cuda-graph-max-bs-decode" not in prefill
    assert (prefill["--schedule-policy"], decode["--schedule-policy"]) == ("lpm", "fcfs")
    assert not any("ib-device" in f for f in (*prefill, *decode))


@pytest.mark.parametrize(
    ("prefill", "decode", "model", "staged"),
    [
        ({"tp": 4}, {"tp": 4}, {}, False),
        ({"tp": 2}, {"tp": 4}, {}, True),
        ({"tp": 4}, {"tp": 8, "dp": 2}, {}, False),  # attention TP is 4 on both sides
        ({"tp": 2, "pp": 2}, {"tp": 4}, {}, False),
        ({"tp": 2}, {"tp": 4}, {"model_architecture": "DeepseekV3ForCausalLM"}, False),
        ({"tp": 2}, {"tp": 4}, {"model_hf_config": {"kv_lora_rank": 512}}, False),
    ],
)
def test_staging_buffer_only_where_heads_lie_differently(
    prefill: dict[str, int], decode: dict[str, int], model: dict[str, Any], staged: bool
) -> None:
    plan = make_plan(make_role("prefill", **prefill), make_role("decode", **decode), **model)
    for name in ("prefill", "decode"):
        assert ("SGLANG_DISAGG_STAGING_BUFFER" in launches(plan)[name].env) is staged


def test_router_finds_servers_by_label() -> None:
    router = launches(make_split_plan(traffic_prefix_hit=0.3))["router"]
    given = flags(router)
    assert given["--prefill-selector"] == "app.kubernetes.io/instance=llama-chat app.kubernetes.io/component=prefill"
    assert given["--decode-selector"] == "app.kubernetes.io/instance=llama-chat app.kubernetes.io/component=decode"
    assert given["--service-discovery-namespace"] == "llm"
    assert given["--service-discovery-port"] == "30000"
    assert (given["--prefill-policy"], given["--decode-policy"]) == ("cache_aware", "power_of_two")
    assert (router.port, router.metrics_port, router.role) == (8000, 29000, None)
    assert (router.probes.liveness, router.probes.readiness) == ("/liveness", "/readiness")


def test_router_policy_for_a_lone_server() -> None:
    """Seen with 0.3.2: "Power-of-two policy for decode requires at least 2 decode workers"."""
    plan = make_plan(make_role("prefill", tp=4, replicas=2), make_role("decode", tp=4, replicas=1))
    given = flags(launches(plan)["router"])
    assert (given["--prefill-policy"], given["--decode-policy"]) == ("power_of_two", "round_robin")


def test_standalone_router_has_no_kubernetes_flags() -> None:
    router = launches(make_split_plan())["router"]
    alone = flags(sglang_router.standalone(router))
    assert not any("selector" in f or "discovery" in f for f in alone)
    assert set(flags(router)) - set(alone) == {
        "--service-discovery", "--service-discovery-namespace", "--service-discovery-port", "--prefill-selector",
        "--decode-selector",
    }  # fmt: skip


def test_every_planned_flag_is_canonical_and_legal() -> None:
    plans = [
        make_plan(),
        make_split_plan(),
        make_plan(make_role(tp=4, pp=2, dp=2, ep=2, quantization="fp8", mixed_chunk=True)),
    ]
    for launch in (one for plan in plans for one in launches(plan).values()):
        contract = load_contract(launch.contract)
        assert contract.check(launch.args) == []
        assert all(contract.flags[a.flag].canonical == a.flag for a in launch.args)


def test_overrides_replace_add_and_remove() -> None:
    plan = overrides({
        "schedule-policy": "lpm", "tensor-parallel-size": 4, "disable-radix-cache": True, "tool-call-parser": "llama3",
        "enable-metrics": False, "enable-mixed-chunk": False, "cuda-graph-bs-decode": [1, 2],
        "max-prefill-tokens": "16k",
    })  # fmt: skip
    serve = launches(plan)["serve"]
    given = flags(serve)
    assert given["--schedule-policy"] == "lpm"
    assert given["--tp-size"] == "4"
    assert "--tensor-parallel-size" not in given
    assert given["--cuda-graph-bs-decode"] == "1 2"
    assert given["--max-prefill-tokens"] == "16k"
    assert "--disable-radix-cache" in given
    assert "--enable-metrics" not in given
    assert serve.metrics_port == 0
    assert list(given)[-3:] == ["--cuda-graph-bs-decode", "--disable-radix-cache", "--tool-call-parser"]
    planned = [f for f in flags(launches(make_plan())["serve"]) if f != "--enable-metrics"]
    assert list(given)[: len(planned)] == planned


def test_a_switch_with_a_no_twin() -> None:
    twins = [f.canonical for f in load_contract("sglang-0.5.23").flags.values() if f.action == "bool"]
    name = twins[0].removeprefix("--")
    assert f"--no-{name}" in flags(launches(overrides({name: False}))["serve"])
    assert f"--{name}" in flags(launches(overrides({name: True}))["serve"])


def test_overridden_ports_reach_whoever_needs_them() -> None:
    split = launches(make_split_plan(deploy_args={"port": 31000, "disaggregation-bootstrap-port": 9000}))
    assert split["prefill"].port == split["decode"].port == split["decode"].metrics_port == 31000
    assert split["prefill"].extra_ports == {"bootstrap": 9000}
    assert flags(split["router"])["--service-discovery-port"] == "31000"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"schedule-policy": "lmp"}, "deploy.overrides.args.schedule-policy: --schedule-policy does not take 'lmp'"),
        ({"schedul-policy": "lpm"}, "did you mean --schedule-policy?"),
        ({"tp": 8}, "deploy.overrides.args.tp: --tp is an abbreviation"),
        ({"tp-size": True}, "deploy.overrides.args.tp-size: --tp-size takes one value"),
        ({"tp-size": 8, "tensor-parallel-size": 4}, "means the same flag as tensor-parallel-size"),
        ({"enable-metrics": "yes"}, "takes no value"),
        ({"model-path": False}, "--model-path cannot be removed"),
        ({"tp-size": [1, 2]}, "takes one value, not 1 2"),
    ],
)
def test_overrides_that_the_parser_would_refuse(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        launches(overrides(args))
    assert said in str(caught.value)


def test_overrides_of_a_split_plan_apply_to_both_servers_and_not_to_the_router() -> None:
    plain, changed = launches(make_split_plan()), launches(make_split_plan(deploy_args={"log-level": "debug"}))
    assert flags(changed["prefill"])["--log-level"] == flags(changed["decode"])["--log-level"] == "debug"
    assert changed["router"] == plain["router"]


def test_overridden_lists_what_breaks_the_planned_numbers() -> None:
    assert overridden(make_plan()) == ()
    plan = make_split_plan(
        deploy_args={"max-running-requests": 64, "log-level": "debug", "enable-metrics": False},
        deploy_env={"NCCL_IB_HCA": "mlx5", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "1"},
    )
    lines = overridden(plan)
    assert lines == (
        "prefill: --max-running-requests 64 (planned: 32; the predictions hold for the planned value)",
        "--enable-metrics (removed; planned: --enable-metrics)",
        "--log-level debug (added)",
        "NCCL_IB_HCA=mlx5 (added)",
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=1 (planned: 0)",
        "decode: --max-running-requests 64 (planned: 128; the predictions hold for the planned value)",
    )
    assert overridden(overrides({"tp-size": 8})) == ()


def test_environment_is_merged() -> None:
    plan = make_split_plan(deploy_env={"NCCL_IB_HCA": "mlx5"})
    assert launches(plan)["decode"].env["NCCL_IB_HCA"] == "mlx5"
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" in launches(plan)["decode"].env
    assert launches(plan)["router"].env == {}
    with pytest.raises(UserError, match=r"deploy\.overrides\.env\.A-B"):
        launches(make_plan(deploy_env={"A-B": "1"}))


def test_what_cannot_be_rendered() -> None:
    with pytest.raises(UserError, match="no int8 KV cache"):
        launches(make_plan(make_role(kv="int8")))
    with pytest.raises(NotBuiltError, match="12 accelerators spans nodes of 8"):
        launches(make_plan(make_role(tp=4, pp=3)))
    with pytest.raises(UserError, match=r"which flags sglang 0\.4\.0 accepts"):
        launches(make_plan(choice_engine_version="0.4.0"))
    with pytest.raises(UserError, match="sglang serve: --quantization does not take 'int8'"):
        launches(make_plan(make_role(quantization="int8")))
    with pytest.raises(NotBuiltError, match="no launch commands for vllm"):
        get_engine("vllm")


def test_templates_by_process() -> None:
    split = launches(make_split_plan())
    assert script_template(split["decode"]) == "sglang/launch.sh.j2"
    assert script_template(split["router"]) == "sglang/router.sh.j2"


def test_startup_budget() -> None:
    one = make_role(replicas=1)
    # 141.1 GB at 2 GB/s, half as much again, two minutes: 225.8 s, in whole tens.
    assert startup.startup_budget_s(make_plan(one), one) == 230.0
    two_on_a_node = make_role(tp=4, replicas=2)
    assert startup.startup_budget_s(make_plan(two_on_a_node), two_on_a_node) == math.ceil(331.65 / 10) * 10
    created = make_plan(one, deploy_cache=CachePlan(size_bytes=200e9))
    assert startup.startup_budget_s(created, one) == math.ceil((225.825 + 1128.8) / 10) * 10
    silent = replace(POOL, storage_bytes_per_s=0.0)
    assert startup.startup_budget_s(make_plan(one, pool=(silent,)), one) == math.ceil((423.3 + 120) / 10) * 10


def test_router_waits_for_the_slowest_role() -> None:
    plan = make_split_plan()
    budget = max(startup.startup_budget_s(plan, r) for r in plan.choice.roles)
    assert flags(launches(plan)["router"])["--worker-startup-timeout-secs"] == str(int(budget))


def test_is_mla() -> None:
    assert not sglang.is_mla(make_plan())
    assert sglang.is_mla(make_plan(model_architecture="DeepseekV3ForCausalLM"))
