"""What arrives and how fast it must be answered: the sections ``slo`` and ``traffic``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import CoreSchema

from servegen.spec.base import (
    DURATION,
    Count,
    Duration,
    Finding,
    Pause,
    Rate,
    Ratio,
    RelativePath,
    Section,
    Share,
    refuse,
    whole,
)

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = ("ttft", "itl", "e2e", "tpot")

#: Largest quantile/mean of a lognormal, exp(z^2/2) with z of the standard normal: beyond it no sigma exists.
_Z95, _Z99 = 1.6448536269514722, 2.3263478740408408
LARGEST_OVER_MEAN = {"p95": math.exp(_Z95**2 / 2), "p99": math.exp(_Z99**2 / 2)}


class Percentiles(Section):
    """Upper bounds of one latency, seconds."""

    mean: Duration | None = Field(None, description="Bound on the mean.")
    p50: Duration | None = Field(None, description="Bound on the median.")
    p90: Duration | None = Field(None, description="Bound on the 90th percentile.")
    p95: Duration | None = Field(
        None, description="Bound on the 95th percentile; a scalar in place of the mapping is this one."
    )
    p99: Duration | None = Field(None, description="Bound on the 99th percentile.")

    @model_validator(mode="before")
    @classmethod
    def _scalar_is_p95(cls, data: Any) -> Any:
        return data if isinstance(data, (dict, list)) else {"p95": data}

    @model_validator(mode="after")
    def _rules(self) -> Percentiles:
        if not dict(self.stated()):
            refuse(
                [
                    Finding(
                        "",
                        "missing-key",
                        "no bound is stated",
                        f"write one of {', '.join(STATISTICS)}, or leave the key out",
                    )
                ]
            )
        return self

    def stated(self) -> Iterator[tuple[str, float]]:
        """(statistic, seconds) of every bound that is stated, in the order of ``STATISTICS``."""
        for statistic in STATISTICS:
            bound = getattr(self, statistic)
            if bound is not None:
                yield statistic, bound

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return _or_scalar(schema, handler, DURATION.json_schema())


class Slo(Section):
    """What latency must be kept; each bound optional."""

    ttft: Percentiles | None = Field(None, description="Time from arrival to the first token.")
    itl: Percentiles | None = Field(None, description="Gap between two output tokens, over all gaps of all requests.")
    e2e: Percentiles | None = Field(None, description="Time from arrival to the last token.")
    tpot: Percentiles | None = Field(None, description="Per request: (e2e - ttft)/(osl - 1).")
    attainment: Share | None = Field(
        None,
        description="Share of requests that meet the lowest stated percentile's bound of ttft, tpot and e2e at once.",
    )

    @model_validator(mode="after")
    def _rules(self) -> Slo:
        counted = [p for p in (self.ttft, self.tpot, self.e2e) if p and any(name != "mean" for name, _ in p.stated())]
        if self.attainment is not None and not counted:
            message = "attainment counts the requests that meet ttft, tpot and e2e, and none has a percentile's bound"
            refuse([Finding("attainment", "conflict", message, "state a percentile of ttft, tpot or e2e")])
        return self

    def bounds(self) -> dict[str, float]:
        """Every stated bound in seconds by its id, ``{"ttft.p95": 0.5}``, in the order of the language."""
        return {
            f"{latency}.{statistic}": bound
            for latency in LATENCIES
            if (percentiles := getattr(self, latency)) is not None
            for statistic, bound in percentiles.stated()
        }


Figure = Annotated[float, Field(strict=True, ge=1, le=1e9)]
Bucket = tuple[Figure, Annotated[float, Field(strict=True, ge=0, le=1e12)]]
_FIGURES = ("mean", "p50", "p95", "p99")
_NUMBER = "\0"  # stands for the key that a bare number does not have; no text of a spec can hold it


class LengthSpec(Section):
    """Tokens of a prompt or an answer: ``fixed`` (a bare number), two or more figures, or a histogram."""

    fixed: Annotated[int, whole(1, 1_000_000_000)] | None = Field(None, alias="\0")
    mean: Figure | None = Field(None, description="Mean, tokens.")
    p50: Figure | None = Field(None, description="Median, tokens.")
    p95: Figure | None = Field(None, description="95th percentile, tokens.")
    p99: Figure | None = Field(None, description="99th percentile, tokens.")
    histogram: tuple[Bucket, ...] | None = Field(
        None, description="Buckets [upper bound in tokens, weight]; lengths are uniform inside a bucket."
    )

    @model_validator(mode="before")
    @classmethod
    def _number_is_fixed(cls, data: Any) -> Any:
        return data if isinstance(data, (dict, list)) else {_NUMBER: data}

    @model_validator(mode="after")
    def _rules(self) -> LengthSpec:
        figures = {name: value for name in _FIGURES if (value := getattr(self, name)) is not None}
        if self.histogram is not None:
            refuse(_of_histogram(self.histogram, figures))
        elif self.fixed is None:
            refuse(_of_figures(figures))
        return self

    @model_serializer(mode="wrap")
    def _show(self, handler: SerializerFunctionWrapHandler) -> Any:
        shown = super()._show(handler)
        return shown.get(_NUMBER, shown)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 1, "description": "Every request has so many tokens."}
        return _or_scalar(schema, handler, number)


def _of_histogram(buckets: tuple[Bucket, ...], figures: dict[str, float]) -> list[Finding]:
    found = [Finding(name, "conflict", f"{name} and histogram exclude each other", "keep one") for name in figures]
    if sum(weight for _, weight in buckets) <= 0:
        found.append(
            Finding("histogram", "out-of-range", "no bucket has a weight above zero", "write [[upper, weight], ...]")
        )
    for index in range(1, len(buckets)):
        if buckets[index][0] <= buckets[index - 1][0]:
            message = "the upper bounds do not rise"
            hint = f"order the buckets; {buckets[index][0]:g} follows {buckets[index - 1][0]:g}"
            found.append(Finding(f"histogram.{index}", "out-of-range", message, hint))
            break
    return found


def _of_figures(figures: dict[str, float]) -> list[Finding]:
    if len(figures) < 2:
        message = "one figure does not say how lengths spread" if figures else "no length is stated"
        return [
            Finding(
                "",
                "missing-key",
                message,
                "write a number where all are equal, else for example {mean: 2048, p95: 6000}",
            )
        ]
    found = []
    quantiles = [(name, figures[name]) for name in ("p50", "p95", "p99") if name in figures]
    for (low, below), (high, above) in itertools.pairwise(quantiles):
        if below > above:
            found.append(
                Finding(
                    low, "conflict", f"{low} {below:g} is above {high} {above:g}", "percentiles rise with their number"
                )
            )
    if len(figures) > 2 or "mean" not in figures or found:
        return found
    name, value = quantiles[0]
    mean = figures["mean"]
    if name == "p50" and value > mean:
        found.append(
            Finding(
                "p50",
                "conflict",
                f"p50 {value:g} is above the mean {mean:g}",
                "a lognormal's median is at most its mean",
            )
        )
    elif name != "p50" and value < mean:
        found.append(
            Finding(name, "conflict", f"{name} {value:g} is below the mean {mean:g}", f"{name} is at least the mean")
        )
    elif name != "p50" and value > mean * LARGEST_OVER_MEAN[name]:
        most = LARGEST_OVER_MEAN[name]
        message = f"no lognormal has {name}/mean = {value / mean:.2f}; the largest is {most:.2f}"
        found.append(Finding(name, "out-of-range", message, "state a third figure (p50 or p99), or a histogram"))
    return found


class Users(Section):
    """A closed population: each user pauses after an answer, ``think_time`` seconds on average."""

    active: Count = Field(description="Users at the same time.")
    think_time: Pause = Field(
        description="Mean pause between an answer and the user's next request; single pauses are exponentially distributed."
    )


class Prefix(Section):
    """What prompts have in common."""

    shared: Annotated[int, whole(0, 1_000_000_000)] | None = Field(
        None, description="Tokens of a prompt head that all requests share."
    )
    hit_rate: Ratio | None = Field(None, description="Share of prompt tokens that the cache holds already.")

    @model_validator(mode="after")
    def _rules(self) -> Prefix:
        if self.shared is None and self.hit_rate is None:
            refuse(
                [Finding("", "missing-key", "neither shared nor hitRate is stated", "state one, or leave prefix out")]
            )
        if self.shared is not None and self.hit_rate is not None:
            refuse([Finding("hitRate", "conflict", "shared and hitRate exclude each other", "keep one")])
        return self


#: Keys that each say how requests arrive: at most one of them.
LOADS = ("rate", "concurrency", "users", "trace")


class Traffic(Section):
    """The load, its lengths and what it shares; with none of ``LOADS`` stated, saturate the pool."""

    rate: Rate | None = Field(None, description="Peak arrivals, open loop.")
    concurrency: Count | None = Field(None, description="Requests in flight, closed loop.")
    users: Users | None = Field(None, description="Users who think between requests, closed loop.")
    trace: Annotated[str, RelativePath((".csv", ".jsonl", ".csv.gz", ".jsonl.gz"))] | None = Field(
        None, description="File of recorded requests: arrivals and lengths."
    )
    trough: Rate | None = Field(None, description="Least arrivals; sizes the autoscaler's minimum.")
    isl: LengthSpec | None = Field(None, description="Input sequence length, tokens.")
    osl: LengthSpec | None = Field(None, description="Output sequence length, tokens.")
    burstiness: Annotated[float, Field(strict=True, ge=0, le=100)] = Field(
        1.0,
        description="Coefficient of variation of inter-arrival times; 1 is Poisson. Only with rate, or without a load.",
    )
    prefix: Prefix | None = Field(None, description="What prompts have in common.")

    @model_validator(mode="after")
    def _rules(self) -> Traffic:
        stated = [key for key in LOADS if getattr(self, key) is not None]
        found = [
            Finding(key, "conflict", f"{key} and {stated[0]} exclude each other", "state one load: " + ", ".join(LOADS))
            for key in stated[1:]
        ]
        for key in ("isl", "osl"):
            length = getattr(self, key)
            if self.trace is not None and length is not None:
                found.append(
                    Finding(key, "conflict", f"{key} and trace exclude each other", "a trace brings its own lengths")
                )
            if self.trace is None and length is None:
                found.append(
                    Finding("", "missing-key", f"{key} is missing", f"for example {key}: {{mean: 512, p95: 1024}}")
                )
        closed = next((key for key in stated if key != "rate"), "")
        if "burstiness" in self.model_fields_set and closed:
            message = f"burstiness and {closed} exclude each other"
            hint = "the trace has its own" if closed == "trace" else "a closed loop has no arrivals of its own"
            found.append(Finding("burstiness", "conflict", message, hint))
        if self.trough is not None and self.rate is None and self.trace is None:
            hint = "state rate, the peak, or leave trough out"
            found.append(Finding("trough", "conflict", "trough is the least of a rate, and no rate is stated", hint))
        if self.trough is not None and self.rate is not None and self.trough > self.rate:
            found.append(Finding("trough", "conflict", "trough is above rate", "rate is the peak, trough the least"))
        found += self._shared_head()
        refuse(found)
        return self

    def _shared_head(self) -> list[Finding]:
        shared = self.prefix.shared if self.prefix else None
        longest = (self.isl.fixed or self.isl.mean) if self.isl else None
        if shared is None or longest is None or shared <= longest:
            return []
        message = f"prefix.shared {shared} is above the mean prompt of {longest:g} tokens"
        return [
            Finding(
                "prefix.shared", "conflict", message, "every prompt holds the shared head, so isl is at least as long"
            )
        ]

    @model_serializer(mode="wrap")
    def _show(self, handler: SerializerFunctionWrapHandler) -> Any:
        shown = super()._show(handler)
        if self.concurrency is not None or self.users is not None or self.trace is not None:
            del shown["burstiness"]
        return shown


def _or_scalar(schema: CoreSchema, handler: GetJsonSchemaHandler, scalar: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a mapping that a scalar may stand for."""
    mapping = handler.resolve_ref_schema(handler(schema))
    mapping["properties"].pop(_NUMBER, None)
    return {"anyOf": [scalar, mapping]}
