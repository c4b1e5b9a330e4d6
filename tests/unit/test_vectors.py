"""Worked examples of the literature come out exactly, each through the functions that its row names."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

import tests.reference.serving  # noqa: F401 - enters its methods
from servegen.errors import InfeasibleError
from servegen.roofline.attention import causal_pairs
from servegen.roofline.collectives import allreduce_wire_bytes
from servegen.solve.estimate import EstimateRequest, estimate
from servegen.solve.resolve import resolve
from servegen.solve.search import solve
from servegen.spec.load import loads
from tests.reference import formulas, textbook
from tests.reference.methods import METHODS, Inputs
from tests.tools import seed_tables

ROOT = Path(__file__).parents[2]
FIXTURE: Any = YAML(typ="safe", pure=True).load(ROOT / "tests" / "fixtures" / "vectors.yaml")
META: Any = FIXTURE["meta"]
VECTORS: list[dict[str, Any]] = FIXTURE["vectors"]
COMPUTED = [v for v in VECTORS if "reason" not in v]
#: Prefixes that a unit may begin with.
SCALES = {"ms": 1e-3, "us": 1e-6}


def inputs(row: dict[str, Any]) -> Inputs:
    return Inputs(row["given"], META)


def scale(row: dict[str, Any]) -> float:
    return SCALES.get(row["unit"].split()[0], 1.0)


def code_of(name: str) -> CodeType:
    """The code of a function or method by its dotted name."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            thing = getattr(thing, part)
        return thing.__code__  # type: ignore[no-any-return]
    raise AssertionError(name)


def called(run: Callable[[], float]) -> tuple[float, set[CodeType]]:
    """What ``run`` returns, and the code of every Python function that ran meanwhile."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        return run(), seen
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("row", COMPUTED, ids=[v["id"] for v in COMPUTED])
def test_vector(row: dict[str, Any]) -> None:
    found, ran = called(lambda: METHODS[row["method"]](inputs(row)))
    assert found / scale(row) == pytest.approx(row["expect"], rel=max(row["rel_tol"], 1e-9), abs=0.0)
    for name in row["through"]:
        assert code_of(name) in ran, f"{name} took no part"


def test_all_vectors_are_there_once() -> None:
    ids = [v["id"] for v in VECTORS]
    listed = [v for v in VECTORS if "reason" in v]
    product = [v for v in COMPUTED if any(t.startswith("servegen.") for t in v["through"])]
    reference = [v for v in COMPUTED if all(t.startswith("tests.reference.") for t in v["through"])]
    assert len(set(ids)) == len(ids) == 266
    assert (len(product), len(reference), len(listed)) == (218, 48, 0)
    assert Counter(v["origin"] for v in VECTORS) == {"primer": 69, "primer-page": 76, "book": 40, "computed": 81}
    assert {v["origin"] for v in VECTORS} <= set(FIXTURE["origins"])


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for devices in (2.0, 4.0, 8.0, 72.0):
        both = 2.0 * formulas.switch_gather_s(1e6, devices, 450e9)
        assert allreduce_wire_bytes(1e6, devices) / 450e9 == pytest.approx(both)


@pytest.mark.parametrize("window", [0.0, 100.0, 700.0])
def test_the_attention_of_chunks_adds_up_to_that_of_the_prompt(window: float) -> None:
    """F8b: a chunk that starts at p of c tokens costs what p + c tokens cost beyond p; a window caps what each sees."""
    windows, edges = np.array([window]), [0.0, 64.0, 500.0, 900.0, 2000.0]
    parts = [float(causal_pairs(np.array([b]), np.array([a]), windows)[0, 0]) for a, b in pairwise(edges)]
    assert sum(parts) == pytest.approx(float(causal_pairs(np.array([2000.0]), np.array([0.0]), windows)[0, 0]))
    seen = np.arange(1, 2001) if not window else np.minimum(np.arange(1, 2001), window)
    assert sum(parts) == pytest.approx(2.0 * float(seen.sum()), rel=0.02)
    assert parts[1] == pytest.approx(2.0 * float(seen[64:500].sum()), rel=0.02)


def test_no_method_is_idle() -> None:
    assert set(METHODS) == {v["method"] for v in COMPUTED}


@pytest.mark.parametrize("row", [v for v in VECTORS if "printed" in v], ids=lambda v: v["id"])
def test_printed_figures_are_marked_where_they_are_wrong(row: dict[str, Any]) -> None:
    right = row["printed"] == pytest.approx(row["expect"], rel=row["rel_tol"] * (1 + 1e-9), abs=1e-12)
    assert right != row.get("printed_wrong", False)


def test_the_page_lists_the_vectors_of_each_formula() -> None:
    page = (ROOT / "docs" / "physics.md").read_text(encoding="utf-8")
    items = re.findall(r"^- \*\*(F\d+[a-z]?)\*\* (.*?)(?=\n- \*\*|\n\n|\n```)", page, re.MULTILINE | re.DOTALL)
    written = {f: " ".join(text.split()).partition("*Vectors* ")[2].rstrip(".").split() for f, text in items}
    pinned: dict[str, list[str]] = {}
    for v in VECTORS:
        pinned.setdefault(v["formula"], []).append(v["id"])
    assert len(written) == len(items), "a formula stands twice"
    assert {f: ids for f, ids in written.items() if ids != ["none"]} == pinned


# -- the tables, as an estimate tells them ------------------------------------------------------------------------------


@pytest.mark.parametrize("title", seed_tables.TABLES)
def test_a_table_comes_out_right(title: str) -> None:
    by_estimate = 0
    for row in seed_tables.rows(title, FIXTURE):
        # An estimate asks for one token, so that its context is half a token longer.
        assert row.ours == pytest.approx(row.right, rel=2e-3), row.id
        by_estimate += row.how == "estimate"
    assert by_estimate or title == "12.4 requests/s per chip"


# -- errata: pinned, refused, or listed with the reason -----------------------------------------------------------------


def test_every_erratum_is_pinned_refused_or_explained() -> None:
    ids = {v["id"] for v in VECTORS}
    refused = {x["id"] for x in (*FIXTURE["too_large"], *FIXTURE["too_slow"])}
    how = Counter[str]()
    for e in FIXTURE["errata"]:
        assert set(e.get("vectors", ())) <= ids, e["id"]
        assert e.get("refused", False) == (e["id"] in refused), e["id"]
        how["tested" if e.get("vectors") or e["id"] in refused else "listed"] += 1
        assert ("reason" in e) != bool(e.get("vectors") or e["id"] in refused), e["id"]
    assert how == {"tested": 38, "listed": 14}


@pytest.mark.parametrize("row", FIXTURE["too_large"], ids=lambda r: f"{r['id']}-{r['given']['B']}")
def test_what_does_not_fit_is_refused_before_any_latency(row: dict[str, Any]) -> None:
    i = inputs(row)
    case = i.case()
    share = i("mem_fraction", 1.0)
    case = i.case(chip=textbook.chip(i("C"), i("W"), share * i("HBM")))
    said = textbook.estimated(case, i("B"), i("S") - 1)
    assert said.memory.max_running_requests == row["most"] < i("B")
    assert not said.memory.fits
    assert math.isnan(said.serving.tpot_s) and math.isnan(said.serving.output_tokens_per_s)
    if row["most"]:
        held = textbook.estimated(case, row["most"], i("S") - 1)
        assert held.memory.fits and held.serving.output_tokens_per_s > 0


def test_a_70b_in_4_bits_on_one_h100_has_no_room_for_32_sequences_of_8k() -> None:
    """X31 with the catalogue's figures: what the engine itself takes is not there for the cache."""
    request = EstimateRequest(
        model="hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
        accelerator="h100",
        kv="fp8",
        batch=32,
        isl=8191,
        osl=1,
        mode="static",
    )
    said = estimate(request)
    assert 0 < said.memory.max_running_requests < 32
    assert not said.memory.fits and math.isnan(said.serving.tpot_s)


@pytest.mark.parametrize("row", FIXTURE["too_slow"], ids=lambda r: r["id"])
def test_what_fits_and_is_too_slow_is_refused_by_its_bound(row: dict[str, Any]) -> None:
    i = inputs(row)
    assert textbook.estimated(i.case(), i("B"), i("S") - 1).memory.fits
    bound_s = row["bound_ms"] * 1e-3
    assert i.case().decode_s(i("B"), i("S")) > bound_s
    if row["most"]:
        assert METHODS["whole_batch_within"](i.but(bound_s=bound_s)) == row["most"]


SPEC = """\
apiVersion: servegen/v1alpha1
kind: ServingSpec
metadata: {{name: too-large}}
spec:
  model: {{name: meta-llama/Llama-3.1-70B-Instruct}}
  slo: {{itl: {{p95: 1ms}}}}
  traffic: {{rate: 1/s, isl: 1024, osl: 128}}
  hardware: {{pool: [{{accelerator: h100-sxm-80gb, nodes: 1, perNode: {devices}}}]}}
  constraints: {{weights: [bf16], kvCache: [bf16]}}
"""


def reasons(devices: int) -> dict[str, int]:
    """Why the search finds nothing on ``devices`` H100."""
    (loaded,) = loads(SPEC.format(devices=devices), "spec.yaml")
    with pytest.raises(InfeasibleError) as failed:
        solve(resolve(loaded))
    return dict(failed.value.rejected)


def test_the_search_names_memory_first_and_latency_only_of_what_fits() -> None:
    alone = reasons(devices=1)
    assert any(why.startswith("memory:") and count for why, count in alone.items())
    assert not any("itl" in why and count for why, count in alone.items())
    eight = reasons(devices=8)
    assert any("itl" in why and count for why, count in eight.items())
