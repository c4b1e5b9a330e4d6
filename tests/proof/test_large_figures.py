"""Figures of a whole country's users: answered at once, or refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.harness import command, spec, write_spec


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated", "static"])
@pytest.mark.parametrize("batch", [20_001, 1_000_000, 10_000_000])
def test_an_estimate_of_a_million_users_ends(batch: int, mode: str) -> None:
    """At once: in closed form, because it does not fit, or refused with a way out."""
    for accelerator in ("h100-sxm-80gb", "b300-sxm-288gb"):
        line = ("estimate", "--model", "Llama-3.1-8B", "--accelerator", accelerator, "--batch", batch, "--mode", mode)
        ran = command(*map(str, line), "--engine", "vllm", patience_s=10)
        if batch > 10**6:
            assert ran.code == 1 and "--batch" in ran.err
        elif ran.code:
            assert "at most 20,000 users" in ran.err and "--physics ideal" in ran.err, ran
        else:
            assert "fits" in ran.out


def test_a_replay_that_takes_an_hour_says_how_to_ask_for_less(tmp_path: Path) -> None:
    pool = [{"accelerator": "h100-sxm-80gb", "nodes": 100_000, "perNode": 8}]
    document = spec(slo={}, traffic={"concurrency": 1_000_000, "isl": 1024, "osl": 128}, hardware__pool=pool)
    file = write_spec(tmp_path / "s.yaml", document)
    for line in (("simulate", file), ("plan", file, "--verify"), ("build", file, "--verify", "-o", tmp_path / "out")):
        ran = command(*line, patience_s=10)
        assert ran.code == 1 and "20,000,000 requests" in ran.err and "--requests" in ran.err, ran
