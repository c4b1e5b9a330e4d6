"""What the rows cannot tell, and what they tell that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from servegen.calibrate.constants import short
from servegen.calibrate.fit import Fit
from servegen.calibrate.rows import Row
from servegen.catalog.calibration import physical_range
from servegen.errors import Diagnostic

#: Below this share of its prior's variance removed, a constant is the prior's, not the rows'.
TOLD = 0.5
#: Within this share of the end of its range a constant stands at it.
AT_THE_END = 1e-3
#: Above this factor from its start a constant has moved so far that the rows mean something else by it.
FAR = 4.0


def warnings(fit: Fit) -> list[Diagnostic]:
    """One warning per constant that the rows cannot tell, that stands at the end of what is physical, or that moved far; and
    per pair that the rows tell apart badly.
    """
    out = []
    for name in sorted(fit.values):
        value, start = fit.values[name], fit.start[name]
        limits = physical_range(name) or (0.0, float("inf"))
        if value >= limits[1] * (1 - AT_THE_END) or value <= limits[0] * (1 + AT_THE_END):
            message = f"{name} stands at {value:.4g}, the end of its physical range {limits[0]:g} to {limits[1]:g}"
            out.append(
                _warning(
                    "unphysical", message, "the rows hold something that the model does not, or their settings are not as stated"
                )
            )
        elif max(value / start, start / value) > FAR:
            message = f"{name} moved from {start:.4g} to {value:.4g}"
            out.append(
                _warning("moved-far", message, "check the settings of the rows: precision, TP, lengths, speculative decoding")
            )
        if fit.told[name] < TOLD:
            message = (
                f"the rows cannot tell {name}: {fit.told[name]:.0%} of its prior's variance is removed by {fit.rows[name]} rows"
            )
            out.append(_warning("not-identified", message, _what_would(name)))
    for (one, other), r in sorted(fit.alike.items()):
        message = f"{one} and {other} cannot be told apart (correlation {r:+.2f}): only their sum is known"
        out.append(_warning("alike", message, _what_would(one, other)))
    return out


def _warning(code: str, message: str, hint: str) -> Diagnostic:
    return Diagnostic(code, message, hint=hint, severity="warning")


#: What a benchmark must vary for a constant to show.
VARY = {
    "step_s": "models of different depth", "layer_s": "models of different depth", 
    "prompt_layer_s": "short prompts at high TP", "sequence_s": "concurrency at short prompts",
    "request_s": "first tokens at concurrency 1", "ew": "concurrency 1 and low TP", "ec": "long prompts at high concurrency",
    "kv_efficiency": "long contexts at high concurrency", "attention_efficiency": "prompts above 8192 tokens",
    "allreduce_latency_factor": "TP at low concurrency", "allreduce_bandwidth_factor": "TP with long prompts",
    "allreduce_alpha_s": "TP at low concurrency", "allreduce_bytes_per_s": "TP with long prompts",
}  # fmt: skip


def _what_would(*names: str) -> str:
    return "benchmarks that vary " + " and ".join(dict.fromkeys(VARY[short(n)] for n in names)) + " would tell"


def folds(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """What to leave out in turn, by name: groups of model, accelerator and engine; of a single group its TPs, then its lengths.

    Empty where the rows differ in none of them.
    """
    keys: tuple[Callable[[Row], str], ...] = (
        lambda r: " / ".join(r.group),
        lambda r: f"TP {r.tp}",
        lambda r: f"{r.isl:g}/{r.osl:g} tokens",
        lambda r: f"concurrency {r.concurrency}",
    )
    for key in keys:
        found: dict[str, list[Row]] = {}
        for row in rows:
            found.setdefault(key(row), []).append(row)
        if len(found) > 1:
            return sorted(found.items())
    return []
