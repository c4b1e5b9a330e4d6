"""The keys that programs rely on, spelt out."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from ruamel.yaml import YAML

from servegen.errors import Fix, InfeasibleError
from servegen.report.json import estimate_json, infeasible_json, json_text, plan_json, yaml_text
from tests.unit.estimates import make_estimate
from tests.unit.plans import make_plan
from tests.unit.test_report_text import full_plan


def test_keys_of_a_plan() -> None:
    found = plan_json(full_plan())
    assert list(found) == [
        "name", "feasible", "choice", "prediction", "prefixCache", "binding", "why", "flips", "cases", "missing", "alternatives",
        "pareto", "searched", "rejected", "verification",
    ]  # fmt: skip
    assert set(found["choice"]) == {
        "engine", "topology", "roles", "devices", "costPerHour", "costPerMillionOutputTokens",
    }  # fmt: skip
    assert set(found["choice"]["roles"][0]) == {
        "role", "name", "share", "accelerator", "weights", "kv", "tp", "pp", "dp", "ep", "replicas", "spares", "devices",
        "maxRunningRequests", "chunkedPrefillSize", "memFractionStatic", "contextLength",
    }  # fmt: skip
    prediction = found["prediction"]
    assert set(prediction) == {
        "ttft", "itl", "e2e", "outputTokensPerSecond", "utilization", "sloAttainment", "band",
    }  # fmt: skip
    for metric in ("ttft", "itl", "e2e"):
        assert set(prediction[metric]) == {"mean", "p50", "p95", "p99"}
    assert prediction["ttft"]["p95"] == 0.4
    assert prediction["band"] == {"ttft": {"low": 0.85, "high": 1.25}}
    assert found["alternatives"][0]["whyLost"] == "costs $23.60/h more"
    assert [role["role"] for role in found["choice"]["roles"]] == ["prefill", "decode"]
    assert found["feasible"] is True and found["searched"] == 120


def test_what_is_not_a_number_is_null() -> None:
    plan = make_plan()
    plan = replace(plan, prediction=replace(plan.prediction, slo_attainment=math.nan))
    assert json.loads(json_text(plan_json(plan)))["prediction"]["sloAttainment"] is None


def test_keys_of_an_infeasible_spec() -> None:
    fixes = (Fix("slo.ttft.p95", "100ms", "180ms", 0.8, "Raise it."),)
    error = InfeasibleError("chat", "ttft.p95", "too slow", "173ms", fixes, {"ttft.p95": 12}, 12)
    assert infeasible_json(error) == {
        "name": "chat",
        "feasible": False,
        "binding": ["ttft.p95"],
        "why": ["too slow"],
        "best": "173ms",
        "fixes": [{"key": "slo.ttft.p95", "old": "100ms", "new": "180ms", "text": "Raise it."}],
        "searched": 12,
        "rejected": {"ttft.p95": 12},
    }


def test_keys_of_an_estimate() -> None:
    found = estimate_json(make_estimate())
    assert set(found) == {"model", "memory", "prefill", "decode", "serving", "band"}
    assert found["serving"]["tpot_s"] == 0.0214


def test_yaml_holds_what_json_holds() -> None:
    found = plan_json(full_plan())
    assert YAML(typ="safe", pure=True).load(yaml_text(found)) == found
    assert json.loads(json_text(found)) == found
    assert list(YAML(typ="safe", pure=True).load(yaml_text(found))) == list(found)


def test_text_is_not_escaped_to_ascii() -> None:
    assert json_text({"a": "µs"}) == '{\n  "a": "µs"\n}\n'
