from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from servegen.calibrate import file, fit, identify, run, score
from servegen.calibrate.constants import calibration_of, names_of, respond, u_of, value_of
from servegen.calibrate.predict import predict, setting
from servegen.calibrate.rows import Row, usable
from servegen.catalog.calibration import NONE, load_calibration, physical_range
from servegen.errors import CatalogError, SpecError
from servegen.solve.estimate import EstimateRequest, estimate

pytest.importorskip("scipy")
STEP, LAYER, REQUEST = "engine.vllm.step_s", "engine.vllm.layer_s", "engine.vllm.request_s"
EW = "accelerator.h100-sxm-80gb.gemm.fp8.ew"


def closed(users: int = 8, tp: int = 2, model: str = "meta-llama/Llama-3.1-70B", **changes: object) -> Row:
    base = Row(
        "r", "test", "vllm", model, "h100-sxm-80gb", 1024, 128, users, {"ttft_s": 0.2, "tpot_s": 0.02}, tp=tp, weights="fp8",
        kv="fp8", date="2026-01-02",
    )  # fmt: skip
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def decode(model: str, users: int, tp: int) -> Row:
    return closed(users, tp, model, kind="decode", id=f"{model}-{users}-{tp}", measured={"step_s": 0.02})


def from_truth(rows: list[Row], truth: dict[str, float]) -> list[Row]:
    """The rows as a machine with these constants would have measured them."""
    return [dataclasses.replace(r, measured={m: predict(r, calibration_of(truth))[m] for m in r.measured}) for r in rows]


def loose(truth: dict[str, float]) -> dict[str, fit.Prior]:
    """Priors that hold nothing: what is found is found in the rows."""
    return {name: fit.Prior(value * 1.5, 10.0) for name, value in truth.items()}


DECODES = [
    decode(m, u, tp) for m in ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-8B") for u in (1, 16, 64) for tp in (1, 2, 8)
]
DECODES = [r for r in DECODES if r.tp > 1 or "8B" in r.model]


@pytest.mark.parametrize(
    ("engine", "accelerator", "weights", "isl", "osl"),
    [
        ("vllm", "h100-sxm-80gb", "fp8", 1024, 1024),
        ("sglang", "h100-sxm-80gb", "bf16", 2048, 256),
        ("vllm", "b200-sxm-180gb", "nvfp4", 1000, 100),
    ],
)
def test_a_row_is_predicted_as_estimate_does(engine: str, accelerator: str, weights: str, isl: int, osl: int) -> None:
    shortest, warm = (0.8, False) if (isl, osl) == (1024, 1024) else (1.0, isl == 1000)
    row = closed(
        16, 4, engine=engine, accelerator=accelerator, weights=weights, kv="bf16", isl=isl, osl=osl, shortest=shortest, warm=warm
    )
    found = predict(row)
    request = EstimateRequest(
        model=row.model, accelerator=accelerator, engine=engine, tp=4, weights=weights, kv="bf16", batch=16, isl=isl, osl=osl
    )
    said = estimate(request).serving
    assert (found["ttft_s"], found["tpot_s"]) == pytest.approx((said.ttft_s, said.tpot_s), rel=1e-9)


def test_slopes_are_the_derivatives_of_a_replay() -> None:
    row = closed(8)
    start = fit.start_values([row], [STEP, LAYER, REQUEST, EW])
    response = respond(row, list(start), start)
    for name, value in start.items():
        moved = predict(row, calibration_of({**start, name: 1.02 * value}))
        change = u_of(name, 1.02 * value) - u_of(name, value)
        for metric in ("ttft_s", "tpot_s"):
            expected = moved[metric] - response.at[metric]  # type: ignore[index]
            assert response.slopes[name].get(metric, 0.0) * change == pytest.approx(expected, rel=0.1, abs=2e-6)  # type: ignore[call-overload]


def test_single_steps_give_back_the_constants_that_made_them() -> None:
    truth = {STEP: 0.0021, LAYER: 2.0e-5, EW: 0.61}
    rows = from_truth(DECODES, truth)
    found = fit.fit(rows, list(truth), loose(truth), rounds=5)
    for name, value in truth.items():
        assert found.values[name] == pytest.approx(value, rel=0.02), name
        assert found.told[name] > 0.8
    assert all(found.rows[n] == len(rows) for n in (STEP, LAYER, EW))


def test_a_replayed_loop_gives_back_what_made_it() -> None:
    truth = {REQUEST: 0.08, EW: 0.6}
    rows = from_truth([closed(u, tp, id=f"{u}-{tp}") for u in (2, 8) for tp in (2, 4)], truth)
    found = fit.fit(rows, list(truth), loose(truth), rounds=3)
    assert found.values[EW] == pytest.approx(0.6, rel=0.02)
    assert found.values[REQUEST] == pytest.approx(0.08, rel=0.05)


def test_a_wild_row_counts_little() -> None:
    truth = {STEP: 0.0021, EW: 0.61}
    rows = from_truth(DECODES, truth)
    rows[0] = dataclasses.replace(rows[0], measured={"step_s": rows[0].measured["step_s"] * 10})
    assert fit.fit(rows, list(truth), rounds=4).values[EW] == pytest.approx(0.61, rel=0.08)


def test_no_constant_leaves_its_physical_range() -> None:
    impossible = [dataclasses.replace(r, measured={"step_s": predict(r)["step_s"] / 3}) for r in DECODES]
    found = fit.fit(impossible, [EW, LAYER], rounds=3)
    for name, value in found.values.items():
        low, high = physical_range(name) or (0.0, 0.0)
        assert low <= value <= high
    assert "unphysical" in {w.code for w in identify.warnings(found)}


def test_a_pool_speaks_for_what_has_no_rows() -> None:
    truth = {STEP: 0.003}
    rows = from_truth(DECODES, truth)
    other = "engine.sglang.step_s"
    response = [respond(r, [STEP], {STEP: 0.00125}) for r in rows]
    priors = {STEP: fit.Prior(1.0, 0.1, "step"), other: fit.Prior(1.0, 0.1, "step")}
    found = fit.solve(response, {STEP: 0.00125, other: 0.00125}, priors, {"step": fit.Prior(0.00125, 1.0)})
    assert found.values[other] == pytest.approx(0.003, rel=0.15)


def test_what_rows_of_one_depth_cannot_tell() -> None:
    rows = from_truth([r for r in DECODES if "70B" in r.model], {STEP: 0.002, LAYER: 3e-5})
    found = identify.warnings(fit.fit(rows, [STEP, LAYER], {STEP: fit.Prior(1e-3, 2.0), LAYER: fit.Prior(2e-5, 2.0)}, rounds=2))
    assert "alike" in {w.code for w in found}
    assert any("models of different depth" in w.hint for w in found)
    assert all(w.severity == "warning" for w in found)


def test_a_constant_that_no_row_has_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no row depends on engine\.sglang\.step_s") as caught:
        fit.fit(DECODES, ["engine.sglang.step_s"])
    assert STEP in caught.value.diagnostics[0].hint


def test_every_constant_of_a_row_has_a_value_and_a_range() -> None:
    for row in (
        closed(),
        closed(engine="llama-cpp", accelerator="l40s-48gb", weights="int4", kv="bf16", tp=1, model="llama-3-8b"),
    ):
        s = setting(row)
        for name in names_of(s):
            low, high = physical_range(name) or (math.inf, 0.0)
            assert low <= value_of(name, s) <= high, name


def test_the_whole_run_and_its_file(tmp_path: Path) -> None:
    truth = {STEP: 0.0009, LAYER: 3.5e-5, EW: 0.65}
    rows = from_truth(DECODES, truth)
    found = run.calibrate(rows, list(truth), rounds=3)
    before, after = (score.score(p)[0].mean for p in (found.before, found.after))
    assert after < 0.02 < before
    assert len(found.left_out) == len(rows) and len(found.folds) == 2
    text = file.text(found.fit, rows, {"vllm": {"itl": (0.2, 30)}}, run.engine_ids(rows))
    assert text == file.text(found.fit, rows, {"vllm": {"itl": (0.2, 30)}}, run.engine_ids(rows))
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    own = load_calibration(path)
    assert own.constants[EW].value == pytest.approx(found.fit.values[EW], rel=1e-3)
    assert own.constants[EW].date == "2026-01-02" and own.constants[EW].rows == len(rows)
    for row in rows[:3]:
        assert predict(row, own)["step_s"] == pytest.approx(row.measured["step_s"], rel=0.03)
        assert setting(row, own).engine.band["itl"].value == 0.2


def test_rows_that_cannot_be_predicted_say_why() -> None:
    scored = run.judge([closed(), closed(id="a", accelerator="nothing"), closed(id="b", pp=2), closed(id="c", skip="broken")])
    assert len(scored.pairs) == 1
    assert {i: w for i, w in scored.unpredicted}["c"] == "broken"
    assert "no accelerator" in dict(scored.unpredicted)["a"] and "pipeline" in dict(scored.unpredicted)["b"]


def test_faster_than_the_ideal_is_not_believed() -> None:
    row = DECODES[0]
    ideal = predict(row, physics="ideal")["step_s"]
    fast = dataclasses.replace(row, measured={"step_s": ideal * 0.9})
    assert "beats" in dict(run.judge([fast]).unpredicted)[fast.id]
    assert run.judge([dataclasses.replace(row, measured={"step_s": ideal * 1.1})]).pairs


def test_no_prediction_is_below_the_ideal() -> None:
    for row in DECODES:
        assert predict(row)["step_s"] > predict(row, physics="ideal")["step_s"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: Calibration\napiVersion: servegen/v1\nconstants: {}\n", "is no calibration"),
        ("{", "does not parse"),
        ("- 1\n", "no mapping"),
        (
            "apiVersion: servegen/v1alpha1\nkind: Calibration\nconstants: {engine.vllm.speed: {value: 1}}\n",
            "there is no constant",
        ),
        ("apiVersion: servegen/v1alpha1\nkind: Calibration\nconstants: {engine.vllm.step_s: {value: fast}}\n", "has no value"),
        (
            f"apiVersion: servegen/v1alpha1\nkind: Calibration\nconstants: {{{EW}: {{value: 1.2, fit_error: 0.1, rows: 3}}}}\n",
            "physical range",
        ),
    ],
)
def test_a_calibration_file_that_is_none(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(CatalogError, match=why):
        load_calibration(path)


def test_a_star_means_every_engine() -> None:
    own = calibration_of({"engine.*.kv_efficiency": 0.5, "engine.vllm.kv_efficiency": 0.6})
    assert setting(closed(), own).engine.kv_efficiency.value == 0.6
    assert setting(closed(engine="sglang"), own).engine.kv_efficiency.value == 0.5
    assert setting(closed(), NONE).engine.kv_efficiency.value not in (0.5, 0.6)


# -- scores -----------------------------------------------------------------------------------------------------------


def pairs(*ratios: float) -> list[score.Pair]:
    return [(closed(id=str(i), measured={"tpot_s": 1.0}), {"tpot_s": r}) for i, r in enumerate(ratios)]


def test_scores() -> None:
    (s,) = score.score(pairs(1.1, 0.8, 1.0, 1.0))
    assert (s.rows, s.mean, s.median, s.bias) == (4, pytest.approx(0.075), pytest.approx(0.05), pytest.approx(-0.025))
    assert [
        g.group for g in score.score([*pairs(1.0), (closed(64, measured={"tpot_s": 1.0}), {"tpot_s": 2.0})], "concurrency")
    ] == [
        "1-8",
        "33-128",
    ]


def test_a_band_holds_nine_tenths_of_unseen_rows() -> None:
    ratios = [1.0 + i / 100 for i in range(1, 100)]
    width = score.half_width(pairs(*ratios), "tpot_s")
    inside, count = score.covered(pairs(*ratios), "tpot_s", lambda _: (1 / (1 + width), 1 + width))
    assert (inside, count) == (90, 99)
    assert math.isnan(score.half_width([], "tpot_s"))


def test_orderings_ask_only_clear_pairs() -> None:
    def at(tp: int, measured: float, predicted: float) -> score.Pair:
        return closed(8, tp, id=str(tp), measured={"tpot_s": measured}), {"tpot_s": predicted}

    (tp, *_) = score.orderings([at(1, 4.0, 4.0), at(2, 2.0, 4.5), at(4, 1.9, 1.0)], "tpot_s")
    assert (tp.what, tp.pairs, tp.right) == ("tp", 2, 1)


def test_usable_rows_have_figures() -> None:
    assert not usable([closed(measured={"ttft_s": 0.0})]) and not usable([closed(measured={})]) and usable([closed()])
