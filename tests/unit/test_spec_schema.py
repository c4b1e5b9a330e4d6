from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from servegen.spec.load import LoadedSpec, load, loads
from servegen.spec.not_yet import NOT_YET
from servegen.spec.presets import PRESETS, SPEAKS_FOR, apply_preset
from servegen.spec.schema import Constraints, Deploy, Slo, json_schema

VALID = Path(__file__).parent.parent / "fixtures" / "specs" / "valid"


@pytest.fixture(scope="module")
def full() -> LoadedSpec:
    return load(VALID / "full.yaml")[0]


@pytest.fixture(scope="module")
def minimal() -> LoadedSpec:
    return load(VALID / "minimal.yaml")[0]


def spec_of(traffic: str = "{isl: 1024, osl: 128}", **keys: str) -> LoadedSpec:
    """A spec with flow-style YAML under the given keys of ``spec``."""
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    text = "\n".join(
        [
            "{apiVersion: servegen/v1alpha1, kind: ServingSpec, metadata: {name: x}, spec: {",
            "  model: {name: m},",
            "  hardware: {pool: [{accelerator: h100, nodes: 1, perNode: 1}]},",
            *(line + "," for line in lines),
            f"  traffic: {traffic}",
            "}}",
        ]
    )
    return loads(text, "x.yaml")[0]


def test_values_are_si_floats(full: LoadedSpec) -> None:
    spec = full.spec.spec
    assert spec.slo.bounds() == {"ttft.p95": 0.5, "ttft.p99": 1.0, "itl.p95": 0.05, "e2e.p95": 30.0}
    assert list(spec.slo.bounds()) == ["ttft.p95", "ttft.p99", "itl.p95", "e2e.p95"]
    assert (spec.traffic.rate, spec.traffic.trough, spec.traffic.burstiness) == (12.0, 3.0, 1.3)
    node = spec.hardware.pool[0]
    assert node.price == 2.95
    assert node.fabric is not None and node.fabric.bandwidth == 50e9 and node.fabric.rdma
    assert node.storage is not None and node.storage.bandwidth == 2e9
    assert node.node_selector == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert node.tolerations is not None
    assert node.tolerations[0].manifest() == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert spec.constraints.weights == ("bf16", "fp8")
    assert spec.constraints.disaggregation_gain == 1.1
    assert spec.deploy.overrides is not None and spec.deploy.overrides.args == {"schedule-policy": "lpm"}
    assert spec.deploy.network_policy is not None
    assert spec.deploy.network_policy.from_[0].manifest() == {"namespaceSelector": {"matchLabels": {"role": "gateway"}}}


def test_every_default(minimal: LoadedSpec) -> None:
    assert minimal.shown == {
        "apiVersion": "servegen/v1alpha1",
        "kind": "ServingSpec",
        "metadata": {"name": "minimal"},
        "spec": {
            "model": {
                "name": "meta-llama/Llama-3.1-8B-Instruct",
                "contextLength": None,
                "checkpoints": None,
                "trustRemoteCode": False,
            },
            "slo": {},
            "traffic": {"isl": 1024, "osl": 128, "burstiness": 1},
            "hardware": {
                "pool": [
                    {
                        "accelerator": "h100-sxm-80gb",
                        "nodes": 1,
                        "perNode": 1,
                        "price": None,
                        "cpu": None,
                        "memory": None,
                        "resource": None,
                    }
                ]
            },
            "objective": "cost",
            "constraints": {
                "engines": ["sglang"],
                "weights": None,
                "kvCache": ["bf16"],
                "topology": "auto",
                "utilization": 0.85,
                "spareReplicas": 0,
                "disaggregationGain": 1.1,
                "confidence": "best",
            },
            "deploy": {
                "engineVersion": None,
                "image": None,
                "namespace": "default",
                "kubernetesVersion": "1.34",
                "autoscaling": "none",
                "monitoring": False,
                "multiNode": "leaderworkerset",
                "gateway": "none",
            },
        },
    }


@pytest.mark.parametrize("section", [Slo, Constraints, Deploy])
def test_a_section_that_is_left_out_is_one_without_keys(section: Any) -> None:
    made, checked = section.model_construct(), section.model_validate({})
    assert made == checked and vars(made) == vars(checked) and made.model_dump() == checked.model_dump()


@pytest.mark.parametrize(
    "item", [item for file in sorted(VALID.glob("*.yaml")) for item in load(file)], ids=lambda i: i.name
)
def test_what_is_shown_loads_as_the_same_spec(item: LoadedSpec) -> None:
    again = loads(yaml_flow(item.shown), "again.yaml")[0]
    assert again.spec == item.spec
    assert again.shown == item.shown


def yaml_flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {yaml_flow(item)}' for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(yaml_flow(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_units_are_shown_as_a_person_writes_them(full: LoadedSpec) -> None:
    body = full.shown["spec"]
    assert body["slo"]["ttft"] == {"p95": "500ms", "p99": "1s"}
    assert body["traffic"]["rate"] == "12/s"
    assert body["hardware"]["pool"][0]["price"] == "2.95/h"
    assert body["traffic"]["isl"] == {"mean": 2048, "p95": 6000}
    memory = load(VALID / "variants.yaml")[0].shown["spec"]["hardware"]["pool"][0]["memory"]
    assert memory == "1TiB"


def test_lengths() -> None:
    spec = spec_of("{isl: {histogram: [[128, 1], [1024, 2.5]]}, osl: {mean: 10, p50: 8, p99: 90}}").spec.spec
    isl, osl = spec.traffic.isl, spec.traffic.osl
    assert isl is not None and isl.histogram == ((128, 1), (1024, 2.5)) and isl.fixed is None
    assert osl is not None and (osl.mean, osl.p50, osl.p95, osl.p99) == (10, 8, None, 90)
    fixed = spec_of("{isl: 1024, osl: 1}").spec.spec.traffic.isl
    assert fixed is not None and fixed.fixed == 1024 and fixed.mean is None


@pytest.mark.parametrize(
    "length",
    ["{mean: 1000, p95: 3868}", "{mean: 1000, p95: 1000}", "{mean: 1000, p50: 1000}", "{p50: 10, p95: 900}",
     "{mean: 1000, p99: 14900}", "{p95: 10, p99: 10}", "{mean: 100, p50: 10, p95: 5000}"],
)  # fmt: skip
def test_lengths_at_the_edge_of_the_legal(length: str) -> None:
    assert spec_of(f"{{isl: {length}, osl: 1}}")


def test_percentiles_in_their_order() -> None:
    spec = spec_of(slo="{tpot: {mean: 20ms, p90: 40ms, p50: 1s}, e2e: 30s, itl: 1ms}").spec.spec
    assert list(spec.slo.bounds().items()) == [
        ("itl.p95", 0.001), ("e2e.p95", 30.0), ("tpot.mean", 0.02), ("tpot.p50", 1.0), ("tpot.p90", 0.04),
    ]  # fmt: skip


def test_rdma_follows_its_resource() -> None:
    fabric = load(VALID / "variants.yaml")[0].spec.spec.hardware.pool[0].fabric
    assert fabric is not None and fabric.rdma


def test_peers_as_kubernetes_writes_them() -> None:
    policy = load(VALID / "variants.yaml")[0].spec.spec.deploy.network_policy
    assert policy is not None
    assert [peer.manifest() for peer in policy.from_] == [
        {"podSelector": {}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["search", "chat"]}]}},
    ]


# --- presets


def test_presets_fill_what_is_silent() -> None:
    chat = spec_of(preset="chat").spec.spec
    assert chat.slo.bounds() == {"ttft.p95": 0.5, "itl.p95": 0.05}
    assert (chat.objective, chat.traffic.burstiness) == ("cost", 1.5)
    api = spec_of(preset="api").spec.spec
    assert api.slo.bounds() == {"ttft.p95": 1.0, "itl.p95": 0.03}
    assert (api.objective, api.traffic.burstiness) == ("cost", 1.0)
    batch = spec_of(preset="batch").spec.spec
    assert batch.slo.bounds() == {}
    assert (batch.objective, batch.constraints.utilization) == ("throughput", 1.0)
    long = spec_of(preset="long-context").spec.spec
    assert long.slo.bounds() == {"ttft.p95": 10.0, "itl.p95": 0.05}
    assert (long.objective, long.constraints.kv_cache) == ("cost", ("bf16", "fp8"))
    edge = spec_of(preset="edge").spec.spec
    assert (edge.objective, edge.traffic.concurrency, edge.slo.bounds()) == ("latency", 1, {})


def test_presets_leave_what_is_stated() -> None:
    spec = spec_of(
        "{isl: 1, osl: 1, burstiness: 1}", preset="chat", slo="{ttft: 2s, itl: {p99: 1s}}", objective="energy"
    ).spec.spec
    assert spec.slo.bounds() == {"ttft.p95": 2.0, "itl.p95": 0.05, "itl.p99": 1.0}
    assert (spec.objective, spec.traffic.burstiness) == ("energy", 1.0)
    batch = spec_of(preset="batch", constraints="{utilization: 0.5}", slo="{e2e: 1s}").spec.spec
    assert (batch.constraints.utilization, batch.slo.bounds()) == (0.5, {"e2e.p95": 1.0})


@pytest.mark.parametrize("load", ["concurrency: 8", "users: {active: 1, thinkTime: 0s}", "rate: 3/s", "burstiness: 2"])
def test_presets_never_contradict_the_load(load: str) -> None:
    for preset in PRESETS:
        traffic = spec_of(f"{{isl: 1, osl: 1, {load}}}", preset=preset).spec.spec.traffic
        assert traffic.concurrency in ({"concurrency: 8": (8,)}.get(load, (None,)))
    for preset in PRESETS:
        assert spec_of("{trace: a.csv}", preset=preset).spec.spec.traffic.concurrency is None


def test_a_null_is_silence() -> None:
    spec = spec_of(preset="chat", slo="null", objective="null", constraints="{utilization: null}").spec.spec
    assert spec.slo.bounds() == {"ttft.p95": 0.5, "itl.p95": 0.05}
    assert spec.constraints.utilization == 0.85


def test_presets_do_not_touch_their_input() -> None:
    body = {"preset": "chat", "slo": {"ttft": {}}, "traffic": {}}
    before = copy.deepcopy(body)
    assert apply_preset(body)["slo"] == {"ttft": {"p95": "500ms"}, "itl": {"p95": "50ms"}}
    assert body == before
    for odd in (None, 3, [], {}, {"preset": ["chat"]}, {"preset": "none"}):
        assert apply_preset(odd) == odd
    assert apply_preset({"preset": "api", "slo": 3}) == {"preset": "api", "slo": 3, "objective": "cost"}


def test_rivals_are_rivals_of_keys_that_presets_fill() -> None:
    filled = {key for preset in PRESETS.values() for key in preset}
    assert set(SPEAKS_FOR) <= filled


# --- the schema for editors


def properties(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield from node.get("properties", {}).items()
        for value in node.values():
            yield from properties(value)
    elif isinstance(node, list):
        for value in node:
            yield from properties(value)


def test_every_key_is_described() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    keys = dict(properties(schema))
    assert len(keys) > 90
    assert [name for name, about in keys.items() if not about.get("description")] == []
    assert [name for name in keys if not name.isalnum()] == []


def test_the_schema_holds_what_is_not_built() -> None:
    keys = dict(properties(json_schema()))
    assert {row.key.split(".")[-1] for row in NOT_YET} - {"*"} <= set(keys)
    assert {"members", "priority", "acceptance"} <= set(keys)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("slo.ttft.p95", "500"),
        ("slo.ttft", 5),
        ("traffic.rate", 12),
        ("traffic.isl", "long"),
        ("traffic.colour", 1),
        ("objective", "speed"),
        ("constraints.tp", [0]),
        ("constraints.utilization", 1.5),
        ("deploy.image", "sglang:latest"),
        ("deploy.kubernetesVersion", "1.5"),
        ("model.contextLength", 0),
    ],
)
def test_the_schema_refuses(full: LoadedSpec, path: str, value: object) -> None:
    document = copy.deepcopy(full.shown)
    validator = jsonschema.Draft202012Validator(json_schema())
    assert validator.is_valid(document)
    node = document["spec"]
    *parents, last = path.split(".")
    for key in parents:
        node = node[key]
    node[last] = value
    assert not validator.is_valid(document)


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, servegen.spec.load; print({'numpy', 'jinja2', 'rich'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
