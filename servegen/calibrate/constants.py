"""The constants that a prediction depends on, by name, and what a metric gains when one of them moves.

Once the order of steps is fixed, every time of a replay is linear in the seconds of the parts of a step: the launch, a
sequence, the weights, a token's multiplications ... Each part in turn is linear in a constant or in its inverse. So a metric
is, near a set of constants, y = y0 + sum of slope_i * (u_i - u_i0), with u_i = c_i, or 1/c_i for shares of a peak; the slopes
come from replays with one part lengthened. They leave out only that the order itself moves, which the next round sees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from servegen.calibrate.predict import Replica, Setting, predict_replica, replica, setting
from servegen.calibrate.rows import Metric, Row
from servegen.catalog.calibration import Calibration
from servegen.catalog.engines import gemm_of
from servegen.catalog.facts import Constant
from servegen.record import record

#: Parts of a step by the constant that sets them. What is left of a part when its constant vanishes does not matter: only
#: the change is used.
PARTS: Mapping[str, tuple[str, ...]] = {
    "step_s": ("fixed_s",), "layer_s": ("fixed_s",), "allreduce_latency_factor": ("fixed_s",), "allreduce_alpha_s": ("fixed_s",),
    "prompt_layer_s": ("prompt_s",), "sequence_s": ("sequence_s",),
    "ew": ("weight_s",), "ec": ("flop_s",), "kv_efficiency": ("read_s",),
    "attention_efficiency": ("pair_s",), "allreduce_bandwidth_factor": ("wire_s",), "allreduce_bytes_per_s": ("wire_s",),
    "request_s": (),
}  # fmt: skip
#: Constants that a time is inverse to: shares of a speed, and speeds.
INVERSE = frozenset({"ew", "ec", "kv_efficiency", "attention_efficiency", "allreduce_bandwidth_factor", "allreduce_bytes_per_s"})
#: How much longer a part is made to see what a metric gains.
STRETCH = 0.03
REQUEST_STEP_S = 1e-3


def short(name: str) -> str:
    """The last word of a constant's name that says what it is: ``step_s``, ``ew``, ``allreduce_alpha_s``."""
    parts = name.split(".")
    return parts[-2] if parts[-1].isdigit() else parts[-1]


def names_of(s: Setting) -> tuple[str, ...]:
    """The constants that the prediction of a setting depends on."""
    engine, device = f"engine.{s.engine.id}", f"accelerator.{s.accelerator.id}"
    latencies = ("step_s", "layer_s", "prompt_layer_s", "sequence_s", "request_s")
    names = [f"{engine}.{n}" for n in (*latencies, "kv_efficiency", "attention_efficiency")]
    own = f"{s.accelerator.id}.{s.weights}"
    gemm = f"{engine}.kernels.{own}" if own in s.engine.kernels else f"{device}.gemm.{s.weights}"
    names += [f"{gemm}.ew", f"{gemm}.ec"]
    if s.row.tp > 1:
        names += [f"{engine}.allreduce_latency_factor", f"{engine}.allreduce_bandwidth_factor"]
        names += [f"{device}.allreduce_alpha_s.{s.row.tp}", f"{device}.allreduce_bytes_per_s.{s.row.tp}"]
    return tuple(names)


def value_of(name: str, s: Setting) -> float:
    """The present value of a constant in a setting that depends on it."""
    parts = name.split(".")
    if parts[2] in ("gemm", "kernels"):
        return float(getattr(gemm_of(s.engine, s.accelerator, s.weights), parts[-1]))
    if parts[0] == "engine":
        return float(getattr(s.engine, parts[2]).value)
    return float(getattr(s.accelerator, parts[2])[int(parts[3])])


def matches(pattern: str, name: str) -> bool:
    """Whether a constant is meant by a name that may have ``*`` as its engine or accelerator."""
    if pattern == name:
        return True
    kind, id, rest = pattern.split(".", 2)
    other_kind, _, other = name.split(".", 2)
    return id == "*" and kind == other_kind and rest == other


@record
class Response:
    """What a row's metrics are at the present constants, and their slopes in u by the name of each constant chosen."""

    row: Row
    at: Mapping[Metric, float]
    slopes: Mapping[str, Mapping[Metric, float]]


def calibration_of(values: Mapping[str, float]) -> Calibration:
    """Plain values as a calibration."""
    return Calibration({name: Constant(value, float("nan"), 0, "") for name, value in values.items()})


def respond(row: Row, chosen: Sequence[str], values: Mapping[str, float]) -> Response:
    """Replay a row at ``values`` of the ``chosen`` constants, and again with each part of its steps stretched."""
    s = setting(row, calibration_of(values))
    base = replica(s)
    at = predict_replica(base)
    used = {n: c for n in names_of(s) if (c := next((p for p in chosen if matches(p, n)), None)) is not None}
    parts = sorted({part for n in used for part in PARTS[short(n)]})
    gain = {part: _gain(base, part, at) for part in parts}
    slopes: dict[str, dict[Metric, float]] = {}
    for name, pattern in used.items():
        moved = replica(setting(row, calibration_of({**values, pattern: 1.01 * value_of(name, s)})))
        old, new = u_of(pattern, value_of(name, s)), u_of(pattern, 1.01 * value_of(name, s))
        found: dict[Metric, float] = dict.fromkeys(at, 0.0)
        for part in PARTS[short(name)]:
            change = (getattr(moved.model, part) - getattr(base.model, part)) / (new - old)
            for metric in at:
                found[metric] += gain[part][metric] * change
        if short(name) == "request_s":  # no part of a step, and cheap to know: a replay's own times do not move
            found = {"ttft_s": 1.0} if row.kind == "closed" else _request_slopes(base)
        slopes[pattern] = found
    return Response(row, at, slopes)


def u_of(name: str, value: float) -> float:
    """What times are linear in: the constant, or its inverse."""
    return 1.0 / value if short(name) in INVERSE else value


def _gain(base: Replica, part: str, at: Mapping[Metric, float]) -> dict[Metric, float]:
    """Change of each metric per second that ``part`` is longer."""
    seconds = getattr(base.model, part)
    if not seconds:
        return dict.fromkeys(at, 0.0)
    changes = {part: seconds * (1.0 + STRETCH)}
    if part in ("sequence_s", "wire_s"):  # a decoding sequence carries both
        changes["decode_s"] = base.model.decode_s + seconds * STRETCH
    longer = predict_replica(dataclasses.replace(base, model=dataclasses.replace(base.model, **changes)))
    return {metric: (longer[metric] - at[metric]) / (seconds * STRETCH) for metric in at}


def _request_slopes(base: Replica) -> dict[Metric, float]:
    """What each metric gains per second that the engine adds to a first token."""
    longer = predict_replica(dataclasses.replace(base, request_s=base.request_s + REQUEST_STEP_S))
    at = predict_replica(base)
    return {metric: (longer[metric] - at[metric]) / REQUEST_STEP_S for metric in at}
