"""docs/accuracy.md, written anew: `python -m tests.tools.accuracy` (a minute), `--check` says whether it is current.

In sample figures are predictions with the catalogue's constants. Left-out figures come from fits that had not seen a row's
group; those fits are costly, so tests/data/left_out.csv keeps their predictions (`python -m tests.tools.refit --write`).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from servegen.calibrate.predict import OFFLINE_SEQUENCES
from servegen.calibrate.readers import read
from servegen.calibrate.rows import Metric, Row
from servegen.calibrate.run import Scored, judge
from servegen.calibrate.score import GROUPS, Pair, covered, crossed, errors, orderings, quantile, score
from servegen.catalog.accelerators import resolve_accelerator
from servegen.catalog.engines import resolve_engine
from servegen.catalog.models import resolve_model
from servegen.plan import Band
from servegen.solve.bands import band
from tests.tools import agreement

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accuracy.md"
DATA = ROOT / "tests" / "data"
LEFT_OUT = DATA / "left_out.csv"
NAMES: dict[Metric, str] = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "output_tokens_per_s": "throughput", "step_s": "decode step", "prefill_s": "prefill",
    "batch_s": "whole batch",
}  # fmt: skip
SERVING: tuple[Metric, ...] = ("tpot_s", "ttft_s", "output_tokens_per_s")
#: Partitions of the left-out predictions by name, and how they are called.
PARTITIONS = {
    "group": "model x accelerator x engine", "accelerator": "accelerator", "model": "model", "engine": "engine",
}  # fmt: skip
BAND_OF: dict[Metric, str] = {"ttft_s": "ttft", "tpot_s": "itl", "output_tokens_per_s": "throughput"}
#: Size of the plot, characters, and its range, seconds.
PLOT_WIDTH, PLOT_HEIGHT = 64, 20


def left_out(rows: Sequence[Row], partition: str = "group") -> list[Pair]:
    """Rows with the predictions of fits that had not seen their part of a partition."""
    known = {row.id: row for row in rows}
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    pairs: list[Pair] = []
    for line in lines:
        if line["id"] in known and line["left_out"] == partition:
            predicted: dict[Metric, float] = {m: float(line[m]) for m in NAMES if line.get(m)}
            pairs.append((known[line["id"]], predicted))
    return pairs


def percent(value: float) -> str:
    return f"{value * 100:.1f}"


def cell(pairs: Sequence[Pair], metric: Metric) -> str:
    """``7.1 / 5.3``: mean and median absolute error, per cent; empty without rows."""
    sizes = sorted(abs(e) for e in errors(pairs, metric))
    return f"{percent(sum(sizes) / len(sizes))} / {percent(quantile(sizes, 0.5))}" if sizes else ""


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def grouped(pairs: Sequence[Pair], unseen: Sequence[Pair], by: str) -> str:
    """In sample beside left out, by group."""
    key = GROUPS[by]
    rows = []
    for group in sorted({key(r) for r, _ in pairs}):
        some = [p for p in pairs if key(p[0]) == group]
        others = [p for p in unseen if key(p[0]) == group]
        cells = [c for m in SERVING for c in (cell(some, m), cell(others, m))]
        rows.append((group, str(len(some)), *cells))
    return table((by, "rows", *(h for m in SERVING for h in (NAMES[m], "left out"))), rows)


def plot(pairs: Sequence[Pair], metric: Metric) -> str:
    """Predicted against measured on logarithmic axes, one letter per engine; a dot where they agree."""
    points = [(math.log(r.measured[metric]), math.log(p[metric]), r.engine[0]) for r, p in pairs if metric in r.measured]
    low = min(min(x, y) for x, y, _ in points)
    high = max(max(x, y) for x, y, _ in points)
    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]

    def place(value: float, size: int) -> int:
        return min(int((value - low) / (high - low) * size), size - 1)

    for column in range(PLOT_WIDTH):
        row = place(low + (high - low) * (column + 0.5) / PLOT_WIDTH, PLOT_HEIGHT)
        grid[PLOT_HEIGHT - 1 - row][column] = "."
    for x, y, letter in points:
        grid[PLOT_HEIGHT - 1 - place(y, PLOT_HEIGHT)][place(x, PLOT_WIDTH)] = letter
    lines = ["predicted" + " " * 3 + f"{math.exp(high) * 1e3:.3g} ms", *("".join(row).rstrip() for row in grid)]
    lines.append(f"{math.exp(low) * 1e3:.3g} ms" + f"measured {math.exp(high) * 1e3:.3g} ms".rjust(PLOT_WIDTH - 8))
    return "```\n" + "\n".join(lines) + "\n```"


def bands_of(row: Row) -> dict[str, Band]:
    engine, accelerator, model = resolve_engine(row.engine), resolve_accelerator(row.accelerator), resolve_model(row.model)
    sequences = row.concurrency or OFFLINE_SEQUENCES
    return dict(band(model, engine, accelerator, row.weights or model.native_precision, sequences))


def coverage(pairs: Sequence[Pair], metric: Metric) -> str:
    def ends(row: Row) -> tuple[float, float]:
        b = bands_of(row)[BAND_OF[metric]]
        return b.low, b.high

    inside, count = covered(pairs, metric, ends)
    return _share(inside, count)


def partitions(rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """Errors when the fit had not seen the row's group, engine, accelerator or model."""
    lines = [("nothing (in sample)", *(cell(pairs, m) for m in SERVING))]
    for name, what in PARTITIONS.items():
        lines.append((what, *(cell(left_out(rows, name), m) for m in SERVING)))
    return table(("left out", *(NAMES[m] for m in SERVING)), lines)


def nested(unseen: Sequence[Pair]) -> str:
    """Coverage by bands that had not seen the group either, by group and over all."""
    found = {m: crossed(unseen, m) for m in SERVING}
    rows = []
    for group in found["tpot_s"]:
        rows.append((group, *(_share(*found[m][group]) for m in SERVING)))
    totals = [(sum(i for i, _ in f.values()), sum(n for _, n in f.values())) for f in found.values()]
    rows.append(("all", *(_share(*t) for t in totals)))
    return table(("group", *(NAMES[m] for m in SERVING)), rows)


def ordered(groups: Mapping[str, Sequence[Pair]]) -> str:
    """How often pairs of runs that differ in one thing are put the right way round."""
    lines, total, good = [], 0, 0
    for name, some in groups.items():
        for metric in NAMES:
            for o in orderings(some, metric):
                if o.pairs:
                    total, good = total + o.pairs, good + o.right
                    right = f"{o.right / o.pairs * 100:.1f} %"
                    lines.append((name, o.what, NAMES[o.metric], str(o.pairs), right))
    lines.append(("all", "", "", str(total), f"{good / total * 100:.1f} %"))
    return table(("rows", "differ in", "metric", "pairs", "ordered rightly"), lines)


def by_engine(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The rows of the tables, by engine; summaries of runs that are counted elsewhere left out."""
    found: dict[str, list[Pair]] = {}
    for pair in sorted(pairs, key=lambda p: p[0].engine):
        if not pair[0].id.startswith("summary"):
            found.setdefault(pair[0].engine, []).append(pair)
    return found


def _share(inside: int, count: int) -> str:
    return f"{inside}/{count} = {percent(inside / count)} %" if count else ""


def page() -> str:
    serving_rows = read(DATA / "serving.csv")
    table_rows = read(DATA / "measured.csv")
    serving, tables = judge(serving_rows), judge(table_rows)
    pairs = list(serving.pairs)
    unseen = [p for p in left_out(serving_rows)]
    inference_x = [p for p in pairs if p[0].shortest < 1.0]
    never = [p for p in tables.pairs if p[0].kind == "offline" and "b200" not in p[0].accelerator.lower()]
    never += [p for p in tables.pairs if p[0].kind == "offline" and p[0].accelerator.lower().startswith("gb200")]
    never = list({p[0].id: p for p in never}.values())
    parts = [
        HEAD,
        "## Serving, dense models",
        f"{len(pairs)} closed-loop runs. Absolute errors in per cent, mean / median; *left out* are predictions by fits that\n"
        "had not seen the row's group (model x accelerator x engine).",
        *(f"{grouped(pairs, unseen, by)}" for by in ("all", "group", "engine", "accelerator", "weights", "concurrency")),
        "What was left out decides how far a prediction has to reach: a new combination of known parts, or an engine, a device\n"
        "or a model of which there is no row at all.",
        partitions(serving_rows, pairs),
        f"Runs of InferenceX alone ({len(inference_x)} rows): "
        + ", ".join(f"{NAMES[m]} {cell(inference_x, m)}" for m in SERVING)
        + "; left out "
        + ", ".join(f"{NAMES[m]} {cell([p for p in unseen if p[0].shortest < 1.0], m)}" for m in SERVING)
        + ".",
        "### Predicted against measured: TPOT",
        "One letter per run: s SGLang, v vLLM, t TensorRT-LLM; dots where both agree; logarithmic axes.",
        plot(pairs, "tpot_s"),
        "### Order",
        "Pairs of runs that differ only in the thing named and whose measurements differ by more than 10 %, and how many of\n"
        "them the prediction puts the same way round.",
        ordered({"serving": pairs, **by_engine(tables.pairs)}),
        "### Bands",
        BANDS,
        nested(unseen),
        "TensorRT-LLM's offline throughput on devices whose offline rows were never fitted: "
        + coverage(never, "output_tokens_per_s")
        + "\ninside. These run up to 2,048 sequences at a time, beyond the 128 of the fitted rows.",
        "## Other published results",
        "Single steps, whole batches and offline throughput, by engine and accelerator. The constants of llama.cpp, vLLM of\n"
        "2023, MI300X and TPU v6e were fitted to these rows; TensorRT-LLM's offline rows were not, but for those on B200.",
        other(tables),
        "## What is not used, and why",
        table(("rows", "reason"), reasons([serving, tables])),
        agreement.section(),
        TAIL,
    ]
    return "\n\n".join(parts) + "\n"


def other(tables: Scored) -> str:
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in tables.pairs:
        if not pair[0].id.startswith("summary"):
            found.setdefault((pair[0].engine, resolve_accelerator(pair[0].accelerator).id), []).append(pair)
    rows = []
    for (engine, device), some in sorted(found.items()):
        for s in score(some):
            rows.append(
                (engine, device, NAMES[s.metric], str(s.rows), percent(s.mean), percent(s.median), f"{s.bias * 100:+.1f}")
            )
    return table(("engine", "accelerator", "metric", "rows", "mean %", "median %", "bias %"), rows)


def reasons(scored: Sequence[Scored]) -> list[tuple[str, str]]:
    count: dict[str, int] = {}
    for s in scored:
        for _, why in s.unpredicted:
            count[why] = count.get(why, 0) + 1
    return [(str(n), why) for why, n in sorted(count.items(), key=lambda item: (-item[1], item[0]))]


BANDS = """A prediction's band should hold 90 % of measurements. Its half-width is the conformal quantile of the left-out
residuals of all serving groups together: one or two groups of an engine say how those scatter, not how far the next one
lies. Added to it, as a root of squares, is what applies of: the error of the rule that fills in a pair (device, precision)
without rows; 0.52 for models of a kind that was not fitted; 0.2 (throughput 0.1) for more than 128 sequences at a time: fits
that had seen at most 32 users miss 90 % of the 128-user rows by up to 25.5 % in TPOT and 16.3 % in throughput, fits that had
seen those by up to 14.9 and 13.3 %.

The table is *nested*: the constants had not seen the group, and the width comes from the residuals of the other groups only.
So neither knew anything of the rows that are counted."""

HEAD = """# How accurate predictions are

*Generated by `python -m tests.tools.accuracy`; a test compares it with what that prints.*

## Method

- **Rows** are facts with sources in `tests/data`: `serving.csv` (runs of aiconfigurator@095f58a5 silicon_sample.csv, dense
  models) and `measured.csv` (TensorRT-LLM's performance pages, llama-bench tables, Splitwise's profile, ROCm's and
  sglang-jax's pages). Rows that contradict each other or physics are kept and not used; the reasons stand below.
- **Prediction**: `estimate`'s own replay of the closed loop by which such figures are measured: c users, 10c requests,
  lengths spread evenly from 0.8 of nominal (InferenceX) or fixed, the first wave left out where the generator does. Servers
  are started as the publisher starts them (`simulate/started.py`): TensorRT-LLM's batch wait and step size under InferenceX,
  one place fewer than users where a generator's figures show that, and vLLM on Blackwell with graphs of decode steps alone,
  where a layer of a prompt takes 1.5 times as long to launch. That factor was chosen on the 60 runs that it concerns, which
  flatters what stands below for them.
- **Throughput** of a closed loop is c * osl / (ttft + (osl - 1) * tpot), for measurements and predictions alike.
- **Fit**: `tests/tools/refit.py`. Robust least squares on logarithms (pseudo-Huber; TPOT counts twice TTFT), lognormal
  priors. Priors of one kind share a centre that is fitted with them, so that an engine or a device without rows gets what
  the others have in common. Engines lie within 10 % (launches of a decode step), 15 % (host work per sequence) and 5 %
  (launches of a prompt, host work per request) of that centre, shares of a device within 5 % (bandwidth) and 3 %
  (arithmetic) of what all devices have in common and their kernels' tables say; 20 and 10 % for nvfp4. The runs of one
  engine on one device share that engine's luck: a fit that takes them for as many witnesses of the device predicts unseen
  groups worse.
- **Left out**: the constants are fitted again without a group and the group's rows are replayed with them."""

TAIL = """## Noise floor

Runs of one configuration at the same engine version repeat within about 1 % (TPOT) and 3 % (TTFT); across versions the same
configuration moves by 16 % and 18 % (median). No prediction that does not know the version can be better than that on rows
of mixed versions.

## Groups that stay bad, and why

- **Llama-3.1-8B on H100 under TensorRT-LLM 1.0.0rc3, 64 and 128 users, TTFT**: TP 2, 4 and 8 end alike at 9,000 tokens/s,
  and first tokens then take up to two seconds: the front end is the limit, which the model does not have.
- **Qwen3-32B on H100 at TP 1 under SGLang 0.5.8**: about four of 16 requests run at a time, so less than half of the KV
  pool that SGLang's own rule leaves was there. The queue, and with it TTFT and throughput, is missed by a factor.
- **Llama-3.1-70B on H100 at TP 2 under vLLM, 64 users**: queueing begins where a bf16 cache would, reading costs what an
  fp8 cache does.
- **Llama-3.1-70B on B200, TTFT of long prompts**: TensorRT-LLM computes 7,400 tokens in four fifths of the time that vLLM
  takes, at every TP, though the tables of their kernels differ by a tenth. The one share of the device lies between the two.
- **Llama-3.1-70B on B200 under vLLM at TP 4 and 8, TTFT of short prompts**: TP 4 takes longer than TP 2, and neighbouring
  runs differ by half.
- **fp8 on H200 under vLLM at 32 users** is slower than at 16 and 64 by 10 %: a kernel's tile, which a share of the peak
  does not have.
- **TensorRT-LLM offline, nvfp4 on RTX PRO 6000**: predicted a fifth too fast. Its efficiencies are those of kernels, scaled
  by what the fit found on other devices.
- **Prefill under llama.cpp**: one share of the peak per device and precision; small prompts reach less.

## What is not covered

Mixture-of-experts, MLA and hybrid attention have no fit of their own and carry a wide band. Split serving, pipeline, expert
and attention data parallelism, speculative decoding and replicas over several nodes are predicted, but no measured row of
them is in the fit; all but split serving carry the wider band. L4, A10G, GH200, Gaudi, MI325X, MI355X, TPU v5e
and v5p: no rows of dense models with all settings stated, so they stand on kernel tables or on start values, with a wider
band. Engines without rows: Megatron, Mini-SGLang, JetStream."""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        if PAGE.read_text("utf-8") != text:
            print(f"{PAGE} is stale", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
