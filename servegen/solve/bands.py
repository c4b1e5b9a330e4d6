"""How wrong a prediction may be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from servegen.catalog.engines import gemm_of
from servegen.catalog.facts import AcceleratorFacts, EngineFacts, ModelFacts
from servegen.plan import Band
from servegen.solve.problem import Problem

#: Mean relative error that is assumed for what no fit covers: experts, compressed KV, windows and recurrent layers are priced
#: with the constants of dense models. Published attempts at them stay between 8 and 15 % even in their own fit.
UNFITTED_KIND_ERROR = 0.25
#: Error of shares that kernels alone reach, as shares of a whole engine's steps: mean absolute logarithm of fitted over measured
#: streaming shares of the five pairs (device, precision) that have both (tests/fixtures/efficiency.yaml).
KERNELS_ALONE_ERROR = 0.35
#: The same for speculative decoding, whose steps no fit has seen.
UNFITTED_DRAFTING_ERROR = 0.25
#: Half-width of the interval that holds 90 % of normal errors, over their mean absolute value: 1.645 / 0.798.
NINETY_OVER_MEAN = 2.06
#: Sequences at a time up to which constants were fitted, and what more of them add to the half-width: fits that had seen at most
#: 32 users miss 90 % of the 128-user rows by up to 0.255 in TPOT and 0.163 in throughput, where fits that had seen those miss
#: them by 0.149 and 0.133; of first tokens, whose scatter is wider than the difference, what TPOT has.
FITTED_SEQUENCES = 128
BEYOND_SEQUENCES = {"ttft": 0.2, "itl": 0.2, "throughput": 0.1}
#: The metrics of which a plan states a band of latency, with the bounded ones that each moves; a whole request has parts of both.
METRICS: Mapping[str, tuple[str, ...]] = {"itl": ("itl", "tpot", "e2e"), "ttft": ("ttft", "e2e")}


def dense(model: ModelFacts) -> bool:
    """Whether every layer is of the kind that the constants were fitted on: full attention and one MLP."""
    return all(g.attention.kind == "full" and not g.num_experts for g in model.layers)


def band(
    model: ModelFacts,
    engine: EngineFacts,
    accelerator: AcceleratorFacts,
    weights: str,
    drafting: bool = False,
    sequences: float = 0.0,
    cut: bool = False,
) -> Mapping[str, Band]:
    """The interval that should hold 90 % of measurements, as factors on the prediction, by metric.

    Its half-width is the conformal quantile of residuals on rows that the fit had not seen, whole groups of model, accelerator
    and engine left out in turn (docs/accuracy.md). It is wider where the pair (accelerator, precision) has no rows of its own,
    by the error of the rule that fills it in, where only kernels were measured, for models of a kind that was not fitted and
    replicas that are ``cut`` in other ways than by TP inside a node, where tokens are drafted, and for more ``sequences`` at a
    time than any fitted row had.
    """
    gemm = gemm_of(engine, accelerator, weights)
    extra = 0.0 if gemm.origin == "fitted" else gemm.fit_error
    if gemm.origin == "measured":
        extra = math.hypot(extra, KERNELS_ALONE_ERROR)
    kind = 0.0 if dense(model) and not cut else UNFITTED_KIND_ERROR
    many = sequences > FITTED_SEQUENCES
    out = {}
    for metric in ("ttft", "itl", "throughput"):
        more = UNFITTED_DRAFTING_ERROR if drafting and metric != "ttft" else 0.0
        errors = (NINETY_OVER_MEAN * error for error in (extra, kind, more))
        width = math.hypot(engine.band[metric].value, *errors, BEYOND_SEQUENCES[metric] * many)
        out[metric] = Band(1.0 / (1.0 + width), 1.0 + width)
    return {**out, "e2e": out["ttft"] if out["ttft"].high > out["itl"].high else out["itl"]}


def pessimism(problem: Problem, engine: EngineFacts, accelerator: AcceleratorFacts, cut: bool = False) -> dict[str, float]:
    """Factor on predictions that must meet the bounds, by metric; none when the best estimate decides."""
    if problem.confidence == "best":
        return {}
    end = near_end if problem.confidence == "high" else far_end
    factors = end(problem.model, engine, accelerator, problem.allowed_weights, problem.speculation is not None, cut)
    if problem.wrong:
        return {m: factors[problem.wrong] if m in METRICS[problem.wrong] else 1.0 for m in factors}
    return factors


def far_end(
    model: ModelFacts, engine: EngineFacts, accelerator: AcceleratorFacts, precisions: Sequence[str], drafting: bool = False,
    cut: bool = False,
) -> dict[str, float]:
    """The high end of the band, by metric; of several precisions the widest, and that of drafting where it is allowed."""
    bands = [band(model, engine, accelerator, p, drafting, cut=cut) for p in precisions if p in accelerator.gemm] or [
        band(model, engine, accelerator, "bf16", drafting, cut=cut)
    ]
    high = {m: max(b[m].high for b in bands) for m in ("ttft", "itl", "e2e")}
    return {**high, "tpot": high["itl"]}


def near_end(
    model: ModelFacts, engine: EngineFacts, accelerator: AcceleratorFacts, precisions: Sequence[str], drafting: bool = False,
    cut: bool = False,
) -> dict[str, float]:
    """The low end of the band, by metric: as far below the prediction as :func:`far_end` is above it."""
    return {metric: 1.0 / factor for metric, factor in far_end(model, engine, accelerator, precisions, drafting, cut).items()}
