"""An fp8 cache: half the room, and the time that reading it really takes."""

from __future__ import annotations

import numpy as np
import pytest

from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.lower import Config, lower
from servegen.solve.search import solve
from tests.solver.specs import LLAMA_70B, problem

ENGINE = resolve_engine("sglang")
MODELS = [LLAMA_70B, "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3"]
LONG = "{rate: 1.2/s, isl: {mean: 24000, p95: 40000}, osl: {mean: 500, p95: 900}}"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("accelerator", ["h100-sxm-80gb", "h200-sxm-141gb", "l40s-48gb"])
def test_it_takes_half_the_room_and_its_measured_time(model: str, accelerator: str) -> None:
    device = resolve_accelerator(accelerator)
    found = lower(resolve_model(model), ENGINE, [Config(device, "fp8", kv, 8) for kv in ("bf16", "fp8")])
    ideal = lower(resolve_model(model), ENGINE, [Config(device, "fp8", "fp8", 8)], "ideal")
    token = found.memory.token_bytes
    assert token[1] == pytest.approx(token[0] / 2)
    # Reading half the bytes at a smaller share of the bandwidth: on Hopper hardly faster, never slower than the ideal.
    share = ENGINE.kv_share.get(f"{accelerator}.fp8", 1.0)
    wide, narrow = found.terms.kv_s(5000.0)
    floor = float(ideal.terms.kv_s(5000.0)[0])
    assert floor < narrow
    if model != "deepseek-ai/DeepSeek-V3":  # latent attention may multiply for longer than it reads
        assert narrow / wide == pytest.approx(0.5 / share)
    n = np.full(2, 64.0)
    step = found.terms.decode_s(n, found.terms.kv_s(5000.0))
    assert step[1] < step[0] or share <= 0.5


def test_the_hand_over_of_a_split_moves_half() -> None:
    plans = [
        solve(
            problem(
                objective="latency",  # cost alone leaves chunks of different lengths
                traffic="{rate: 1/s, isl: 8000, osl: 200}",
                pool="[{accelerator: h100, nodes: 2, perNode: 8, fabric: {bandwidth: 10Gbps}}]",
                constraints=f"{{topology: disaggregated, kvCache: [{kv}], weights: [fp8], tp: [4]}}",
            )
        )
        for kv in ("bf16", "fp8")
    ]
    sizes = [[(r.replicas, r.tp, r.chunked_prefill_size) for r in plan.choice.roles] for plan in plans]
    assert sizes[0] == sizes[1]
    wide, narrow = (plan.prediction.ttft.mean for plan in plans)
    assert narrow < wide


def test_the_search_weighs_room_and_time() -> None:
    """A load that is bound by room for keys and values needs fewer accelerators with a narrow cache."""
    stated = {"traffic": LONG, "slo": "{ttft: {p95: 30s}, itl: {p95: 60ms}}"}
    plans = {
        kv: solve(problem(**stated, constraints=f"{{topology: aggregated, weights: [fp8], kvCache: [{kv}]}}"))
        for kv in ("bf16", "fp8", "bf16, fp8")
    }
    costs = {kv: plan.choice.cost_per_hour for kv, plan in plans.items()}
    assert costs["fp8"] <= costs["bf16"]
    assert costs["bf16, fp8"] == min(costs.values())
    rooms = [plans[kv].choice.roles[0].memory.kv_bytes_per_token * plans[kv].choice.roles[0].devices for kv in ("bf16", "fp8")]
    assert rooms[1] < rooms[0]


@pytest.mark.parametrize(("accelerator", "assumed"), [("h100", False), ("l40s", True)])
def test_a_cache_whose_reading_was_never_measured_is_named(accelerator: str, assumed: bool) -> None:
    plan = solve(
        problem(
            model="meta-llama/Llama-3.1-8B-Instruct",
            pool=f"[{{accelerator: {accelerator}, nodes: 1, perNode: 4}}]",
            constraints="{kvCache: [fp8]}",
        )
    )
    assert any("an fp8 cache" in c for c in plan.prediction.extrapolated) == assumed
