"""docs/accuracy.md, written anew: `python -m tests.tools.accuracy` (a minute), `--check` says whether it is current.

In sample figures are predictions with the catalogue's constants. Left-out figures come from fits that had not seen a row's
group; those fits are costly, so tests/data/left_out.csv keeps their predictions (`python -m tests.tools.refit --write`).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from servegen.calibrate.readers import read
from servegen.calibrate.rows import Metric, Row
from servegen.calibrate.run import Scored, judge
from servegen.calibrate.score import GROUPS, Pair, covered, errors, orderings, quantile, score
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
BAND_OF: dict[Metric, str] = {"ttft_s": "ttft", "tpot_s": "itl", "output_tokens_per_s": "throughput"}
#: Size of the plot, characters, and its range, seconds.
PLOT_WIDTH, PLOT_HEIGHT = 64, 20


def left_out(rows: Sequence[Row]) -> list[Pair]:
    """Rows with the predictions of fits that had not seen their group."""
    known = {row.id: row for row in rows}
    with LEFT_OUT.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    pairs: list[Pair] = []
    for line in lines:
        if line["id"] in known:
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
    return dict(band(model, engine, accelerator, row.weights or model.native_precision))


def coverage(pairs: Sequence[Pair], metric: Metric) -> str:
    def ends(row: Row) -> tuple[float, float]:
        b = bands_of(row)[BAND_OF[metric]]
        return b.low, b.high

    inside, count = covered(pairs, metric, ends)
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
    orders = [o for m in ("tpot_s", "output_tokens_per_s") for o in orderings(pairs, m)]  # type: ignore[arg-type]
    parts = [
        HEAD,
        "## Serving, dense models",
        f"{len(pairs)} closed-loop runs. Absolute errors in per cent, mean / median; *left out* are predictions by fits that\n"
        "had not seen the row's group (model x accelerator x engine).",
        *(f"{grouped(pairs, unseen, by)}" for by in ("all", "group", "engine", "accelerator", "weights", "concurrency")),
        f"Runs of InferenceX alone ({len(inference_x)} rows): "
        + ", ".join(f"{NAMES[m]} {cell(inference_x, m)}" for m in SERVING)
        + ".",
        "### Predicted against measured: TPOT",
        "One letter per run: s SGLang, v vLLM, t TensorRT-LLM; dots where both agree; logarithmic axes.",
        plot(pairs, "tpot_s"),
        "### Order",
        "Pairs of runs that differ only in the thing named and whose measurements differ by more than 10 %, and how many of\n"
        "them the prediction puts the same way round.",
        table(
            ("differ in", "metric", "pairs", "ordered rightly"),
            [(o.what, NAMES[o.metric], str(o.pairs), f"{o.right / o.pairs * 100:.1f} %") for o in orders if o.pairs],
        ),
        "### Bands",
        "A prediction's band should hold 90 % of measurements. Its half-width is the conformal quantile of the left-out\n"
        "residuals of the engine; what has no rows of its own is wider. How many measurements lie inside, of unseen rows:",
        table(
            ("rows", *(NAMES[m] for m in SERVING)),
            [
                ("left out", *(coverage(unseen, m) for m in SERVING)),
                ("TensorRT-LLM offline, never fitted", "", "", coverage(never, "output_tokens_per_s")),
            ],
        ),
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


HEAD = """# How accurate predictions are

*Generated by `python -m tests.tools.accuracy`; a test compares it with what that prints.*

## Method

- **Rows** are facts with sources in `tests/data`: `serving.csv` (runs of aiconfigurator@095f58a5 silicon_sample.csv, dense
  models) and `measured.csv` (TensorRT-LLM's performance pages, llama-bench tables, Splitwise's profile, ROCm's and
  sglang-jax's pages). Rows that contradict each other or physics are kept and not used; the reasons stand below.
- **Prediction**: `estimate`'s own replay of the closed loop by which such figures are measured: c users, 10c requests,
  lengths spread evenly from 0.8 of nominal (InferenceX) or fixed, the first wave left out where the generator does.
- **Throughput** of a closed loop is c * osl / (ttft + (osl - 1) * tpot), for measurements and predictions alike.
- **Fit**: `tests/tools/refit.py`. Robust least squares on logarithms (pseudo-Huber; TPOT counts twice TTFT), lognormal
  priors. Priors of one kind share a centre that is fitted with them, so that an engine or a device without rows gets what
  the others have in common.
- **Left out**: the constants are fitted again without a group and the group's rows are replayed with them."""

TAIL = """## Noise floor

Runs of one configuration at the same engine version repeat within about 1 % (TPOT) and 3 % (TTFT); across versions the same
configuration moves by 16 % and 18 % (median). No prediction that does not know the version can be better than that on rows
of mixed versions.

## Groups that stay bad, and why

- **Llama-3.1-8B on H100 under TensorRT-LLM 1.0.0rc3, TTFT**: above 64 users every request waits as if one slot fewer were
  there, and TP 4 and TP 8 end at the same 36 requests/s: the front end is the limit, which the model does not have. These
  first tokens count a tenth in the fit.
- **Qwen3-32B on H100 at TP 1 under SGLang 0.5.8**: about four of 16 requests run at a time, so less than half of the KV
  pool that SGLang's own rule leaves was there. The queue, and with it TTFT and throughput, is missed by a factor.
- **Llama-3.1-70B on H100 at TP 2 under vLLM, 64 users**: queueing begins where a bf16 cache would, reading costs what an
  fp8 cache does.
- **Llama-3.1-70B on B200 under TensorRT-LLM, 1024/1024 tokens at TP 1 to 4**: first tokens take 1.8 to 3.7 times as long as
  with 1024/8192 tokens, at the same prompt and less load.
- **fp8 on H200 under vLLM at 32 users** is slower than at 16 and 64 by 10 %: a kernel's tile, which a share of the peak
  does not have.
- **Prefill under llama.cpp**: one share of the peak per device and precision; small prompts reach less.

## What is not covered

Mixture-of-experts, MLA and hybrid attention have no fit of their own and carry a wide band. Split serving, pipeline, expert
and attention data parallelism, speculative decoding, multi-node replicas. L4, A10G, GH200, Gaudi, MI325X, MI355X, TPU v5e
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
