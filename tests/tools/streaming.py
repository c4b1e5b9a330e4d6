"""llama.cpp on devices without rows: `python -m tests.tools.streaming` prints the rule and its error, `--write` applies it.

Its matrix-vector kernels stream a share of the bandwidth of devices with little of it, and on those with much a rate that
hardly depends on it: 0.9 to 1.2 TB/s of the 2 TB/s of A100 and H100. So the rule for a device is min(share, rate / W) in
place of ew, with share and rate fitted by precision to the devices that have rows (servegen/catalog/engines/llama-cpp.yaml).
The error is the one on devices that were left out.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from scipy.optimize import least_squares

from servegen.catalog.accelerators import list_accelerators, resolve_accelerator
from servegen.catalog.engines import resolve_engine

FILE = Path(__file__).resolve().parents[2] / "servegen" / "catalog" / "engines" / "llama-cpp.yaml"
ENGINE = "llama-cpp"
#: Precisions without rows follow those of the bytes that they come nearest to.
LIKE = {"bf16": "bf16", "int8": "bf16", "int4": "int4"}
#: Where a fit starts and, for the share, how near it stays: the rows cannot tell it where no device is slow.
SHARE, SIGMA, RATES = 0.85, 2.0, (7e11, 9e11, 1.1e12)


def known(precision: str) -> dict[str, float]:
    """Fitted share of the bandwidth by device."""
    kernels = resolve_engine(ENGINE).kernels
    pairs = {k.rsplit(".", 1)[0]: g for k, g in kernels.items() if k.endswith(f".{precision}") and g.origin == "fitted"}
    return {device: g.ew for device, g in sorted(pairs.items())}


def rule(shares: Mapping[str, float]) -> tuple[float, float]:
    """Share and rate (bytes/s) by least squares on logarithms over these devices."""
    points = [(resolve_accelerator(d).hbm_bytes_per_s, ew) for d, ew in shares.items()]

    def residuals(z: list[float]) -> list[float]:
        misses = [math.log(min(math.exp(z[0]), math.exp(z[1]) / width) / ew) for width, ew in points]
        return [*misses, (z[0] - math.log(SHARE)) / SIGMA]

    best = min((least_squares(residuals, [math.log(SHARE), math.log(r)]) for r in RATES), key=lambda f: f.cost)
    return math.exp(best.x[0]), math.exp(best.x[1])


def share_of(device: str, found: tuple[float, float]) -> float:
    """The share of its bandwidth that a device's kernels stream by the rule."""
    return min(found[0], found[1] / resolve_accelerator(device).hbm_bytes_per_s)


def left_out(precision: str) -> dict[str, float]:
    """Relative error of the rule on each device that has rows, fitted to the others."""
    shares = known(precision)
    return {d: share_of(d, rule({o: s for o, s in shares.items() if o != d})) / ew - 1.0 for d, ew in shares.items()}


def lines() -> list[str]:
    """The kernels of every device without rows, as the catalogue writes them."""
    engine = resolve_engine(ENGINE)
    fitted = {k for k, g in engine.kernels.items() if g.origin == "fitted"}
    out = []
    for precision, like in LIKE.items():
        found = rule(known(like))
        misses = [abs(e) for e in left_out(like).values()]
        error = sum(misses) / len(misses)
        peaks = [g.ec for k, g in engine.kernels.items() if k in fitted and k.endswith(f".{like}")]
        ec = math.exp(sum(math.log(e) for e in peaks) / len(peaks))
        for device in list_accelerators():
            facts = resolve_accelerator(device)
            if facts.vendor in engine.vendors and precision in facts.gemm and f"{device}.{precision}" not in fitted:
                known_as = f"fit_error: {error:.2g}, rows: 0, origin: scaled, source: streaming"
                out.append(f"  {device}.{precision}: {{ew: {share_of(device, found):.3f}, ec: {ec:.3f}, {known_as}}}\n")
    return sorted(out)


def write() -> None:
    text = re.sub(r"^  \S+: \{ew.*origin: scaled.*\}\n", "", FILE.read_text("utf-8"), flags=re.MULTILINE)
    text = re.sub(r"^(kernels:\n(?:  .*\n)+)", lambda m: m.group(1) + "".join(lines()), text, flags=re.MULTILINE)
    FILE.write_text(text, "utf-8")


def main() -> None:
    for precision in ("bf16", "int4"):
        share, rate = rule(known(precision))
        print(f"{precision}: {share:.3f} of the bandwidth, at most {rate / 1e9:.0f} GB/s")
        for device, error in left_out(precision).items():
            print(f"  {device} left out: {error:+.1%}")
    if "--write" in sys.argv:
        write()


if __name__ == "__main__":
    main()
