"""``servegen calibrate --probe``: measures the device at hand in place of reading results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servegen.cli.common import put_data, say, show

if TYPE_CHECKING:
    from servegen.calibrate.probe import Device
    from servegen.calibrate.probe_fit import Profile

#: Seconds of measuring where the user states none; with warming up and moving data it takes up to twice that.
BUDGET_S = 50.0
#: Models whose shapes are probed where the user names none: on the CPU one whose products end in time.
DEFAULT_MODELS = {"cpu": "Qwen/Qwen3-0.6B"}
DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"


def probe(model: str, budget_s: float, out: Path | None, format: str, device: Device | None = None) -> int:
    """Measure ``device`` (default: what torch sees), show what it reaches, and write the calibration file to ``out``."""
    from servegen.calibrate import probe_file
    from servegen.calibrate.probe import probe as measure
    from servegen.calibrate.probe import shapes_of
    from servegen.calibrate.probe_fit import fit
    from servegen.catalog.models import resolve_model
    from servegen.report.progress import progress

    if device is None:
        from servegen.calibrate.probe_torch import open_device

        device = open_device()
    info = device.info
    shapes = shapes_of(resolve_model(model or DEFAULT_MODELS.get(info.vendor, DEFAULT_MODEL)))
    with progress("probing", 100) as bar:
        told = (lambda done, total: bar(100 * done // total)) if bar is not None else (lambda done, total: None)
        measured = measure(device, shapes, budget_s or BUDGET_S, told)
    profile = fit(info, *probe_file.identity(info), shapes, measured)
    text = probe_file.text(info, profile, measured)
    if out is not None:
        write(out, text)
    rates = [_case(m.case.kind, m.case.dtype, m.case.size, m.seconds, m.bytes_per_s, m.flops_per_s) for m in measured]
    if format == "text":
        from servegen.report.calibration import probe_blocks

        about = f"{info.name}, {info.count} of them" if info.count > 1 else info.name
        show(probe_blocks(profile.id, about, shapes.model, _constants(profile), rates, profile.notes))
        if out is None:
            say("nothing was written: --out FILE writes the calibration file")
    else:
        put_data([{
            "accelerator": profile.id,
            "device": {"name": info.name, "vendor": info.vendor, "count": info.count, "memoryBytes": info.memory_bytes},
            "inCatalogue": profile.known is not None,
            "hbmBytesPerSecond": profile.bytes_per_s,
            "peakFlops": dict(profile.peak_flops),
            "model": shapes.model,
            "constants": [
                {"name": n, "catalogue": b if math.isfinite(b) else None, "measured": v, "fitError": e, "rows": r}
                for n, b, v, e, r in _constants(profile)
            ],
            "measurements": rates,
            "notes": list(profile.notes),
            "calibration": text,
        }], True, format)  # fmt: skip
    return 0


def write(out: Path, text: str) -> None:
    """Write a calibration file. EmitError where that cannot be done."""
    from servegen.errors import Diagnostic, EmitError, Where

    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise EmitError(Diagnostic("io", f"cannot write: {error.strerror or error}", Where(str(out)))) from error


def _case(
    kind: str, dtype: str, size: tuple[int, ...], seconds: float, bytes_per_s: float, flops_per_s: float
) -> dict[str, Any]:
    moving = {"bytesPerSecond": bytes_per_s, "flopsPerSecond": flops_per_s}
    return {"kind": kind, "dtype": dtype, "size": list(size), "seconds": seconds, **moving}


def _constants(profile: Profile) -> list[tuple[str, float, float, float, int]]:
    """Name, the catalogue's value (nan: it has none), the measured one, its relative error, measurements."""
    return [(n, profile.before(n), c.value, c.fit_error, c.rows) for n, c in profile.constants.items()]
