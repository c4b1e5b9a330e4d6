"""Counts of small models of every family that transformers has, against its own modules (tests/tools/hf_counts.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from servegen.catalog.hf import model_from_config

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "hf_counts.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[str(case["family"]) for case in CASES])
def test_counts_are_those_of_the_family_s_own_code(case: dict[str, Any]) -> None:
    assert model_from_config(case["config"], "test/model").params_total == case["params"]
    for flag, value, params in case["flags"]:  # each flag that changes the count is read
        assert model_from_config({**case["config"], flag: value}, "test/model").params_total == params, flag


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 90
    assert sum(len(case["flags"]) for case in CASES) >= 150
