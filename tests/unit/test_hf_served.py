"""Models that people serve and the catalogue does not hold: totals and active parameters against their model cards.

The configs of tests/fixtures/hf_served.json were written down by hand, with the fields that the published ones have. A
shape among them proves nothing by itself; that every total comes out as its publisher states it does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servegen.catalog.hf import model_from_config

SERVED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "hf_served.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("id", sorted(SERVED))
def test_parameters_are_as_their_model_cards_state(id: str) -> None:
    case = SERVED[id]
    model = model_from_config(case["config"], id)
    assert model.params_total / 1e9 == pytest.approx(case["total"], abs=max(case["total"] * 0.01, case["total_step"] / 2))
    if case["active"]:  # 0 where publishers count in a way of their own
        tolerance = max(case["active"] * 0.02, case["active_step"] / 2)
        assert model.params_active / 1e9 == pytest.approx(case["active"], abs=tolerance)


def test_states_and_caches_of_hybrids() -> None:
    granite = {g.attention.kind: g for g in model_from_config(SERVED["ibm-granite/granite-4.0-h-small"]["config"], "g").layers}
    assert (granite["mamba"].count, granite["full"].count, granite["full"].attention.num_kv_heads) == (36, 4, 8)
    # 128 heads x 64 x 128 in fp32, and 3 inputs of 8192 + 2 x 128 channels in 16 bits
    assert granite["mamba"].attention.state_bytes == 128 * 64 * 128 * 4 + (8192 + 256) * 3 * 2
    lfm = model_from_config(SERVED["LiquidAI/LFM2-8B-A1B"]["config"], "l")
    conv = [g for g in lfm.layers if g.attention.kind == "linear"]
    assert sum(g.count for g in conv) == 18 and {g.attention.state_bytes for g in conv} == {2048 * 2 * 2}
    command = model_from_config(SERVED["CohereLabs/c4ai-command-a-03-2025"]["config"], "c")
    assert {g.attention.kind: g.count for g in command.layers} == {"sliding": 48, "full": 16}
