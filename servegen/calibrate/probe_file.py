"""What a probe found as a calibration file.

Of a device that the catalogue knows it holds constants by name. Any other device, the CPU among them, stands in it as a whole
accelerator, in the form of the catalogue's files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from servegen.calibrate.file import head, node, quoted
from servegen.calibrate.probe import DeviceInfo, Measured
from servegen.calibrate.probe_fit import Profile
from servegen.catalog.accelerators import match_accelerator
from servegen.catalog.facts import AcceleratorFacts

#: The CPU of the machine at hand.
CPU_LOCAL = "cpu-local"
#: Kubernetes resource by vendor.
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "cpu": "cpu"}


def identity(info: DeviceInfo) -> tuple[str, AcceleratorFacts | None]:
    """Id of a probed device, and its facts where the catalogue has it.

    ``cpu-local``, the catalogue's id, or the device's name and ``-local``.
    """
    if info.vendor == "cpu":
        return CPU_LOCAL, None
    known = match_accelerator(info.name, info.memory_bytes)
    if known is not None:
        return known.id, known
    plain = re.sub(r"[^a-z0-9]+", "-", info.name.lower()).strip("-").removeprefix(f"{info.vendor}-")
    return f"{plain}-local", None


def text(info: DeviceInfo, profile: Profile, measured: Sequence[Measured]) -> str:
    """The file's text; the same arguments give the same bytes."""
    lines = head(len(measured), profile.source)
    if profile.known is not None:
        lines.append("constants:")
        for name, c in profile.constants.items():
            key = quoted(f"accelerator.{profile.id}.{name}")
            lines.append(f"  {key}: {node(c.value, c.fit_error, c.rows, c.source, origin=c.origin)}")
    else:
        lines += ["constants: {}", "accelerators:", f"  {profile.id}:"]
        lines += [f"    {line}" for line in _entry(info, profile, measured)]
    return "\n".join([*lines, "bands: {}"]) + "\n"


def _entry(info: DeviceInfo, profile: Profile, measured: Sequence[Measured]) -> list[str]:
    """An accelerator as the catalogue has them."""
    cpu = info.vendor == "cpu"
    links = [m.bytes_per_s for m in measured if m.case.kind == "allreduce"]
    copies = [m.bytes_per_s for m in measured if m.case.kind == "copy"]
    link, link_source = (max(links), "best") if links else (max(copies) / 2.0, "memory") if cpu and copies else (None, "none")
    product = re.sub(r"\s+", "-", info.name.strip())
    selector = {"nvidia.com/gpu.product": product} if info.vendor == "nvidia" else {}
    lines = [
        f"id: {profile.id}",
        f"name: {quoted(info.name)}",
        f"vendor: {info.vendor}",
        "aliases: []",
        f"link: {'memory' if cpu else 'between the devices of the host'}",
        f"resource: {RESOURCES[info.vendor]}",
        f"node_selector: {json.dumps({'source': 'label', **selector} if selector else {})}",
        "sources:",
        f"  probe: {quoted(profile.source)}",
        f"  best: {quoted(f'the best rate that {profile.source} saw; no datasheet stands behind it')}",
        f"  device: {quoted(f'what the device reports to {info.tool}' if not cpu else 'memory of the machine')}",
        *(["  label: the name that the device reports, with dashes"] if selector else []),
        "  host: the machine that was probed",
        "  memory: one server copies to another on the same host, half the rate at which a copy reads and writes",
        "  none: neither measured nor known",
        f"hbm_bytes: {_figure(info.memory_bytes, 'device')}",
        f"usable_bytes: {_figure(info.memory_bytes, 'device')}",
        f"hbm_bytes_per_s: {_figure(profile.bytes_per_s, 'best')}",
        "peak_flops:",
        "  source: best",
        *(f"  {dtype}: {value:.4g}" for dtype, value in profile.peak_flops.items()),
        "achievable_flops: {}",
        f"link_bytes_per_s: {_figure(link, link_source)}",
        f"link_pair_bytes_per_s: {_figure(link, link_source)}",
        f"scaleup_domain: {_figure(info.count, 'host')}",
        f"tdp_w: {_figure(None, 'none')}",
        f"host_devices: {_figure(info.count, 'host')}",
        f"host_cpus: {_figure(info.host_cpus, 'host')}",
        f"host_memory_bytes: {_figure(info.host_memory_bytes, 'host')}",
    ]
    if info.compute_capability:
        lines.append(f"compute_capability: {_figure(info.compute_capability, 'device')}")
    lines.append("gemm:")
    for dtype in profile.peak_flops:
        ew, ec = (profile.constants[f"gemm.{dtype}.{name}"] for name in ("ew", "ec"))
        error, rows = max(ew.fit_error, ec.fit_error), ew.rows + ec.rows
        shares = f"ew: {ew.value:.4g}, ec: {ec.value:.4g}, fit_error: {error:.3g}, rows: {rows}"
        lines.append(f"  {dtype}: {{{shares}, origin: measured, source: probe}}")
    for name in ("kv_efficiency", "attention_efficiency"):
        c = profile.constants[name]
        lines.append(f"{name}: {{value: {c.value:.4g}, fit_error: {c.fit_error:.3g}, rows: {c.rows}, source: probe}}")
    for name in ("allreduce_alpha_s", "allreduce_bytes_per_s"):
        table = {key.rpartition(".")[2]: c.value for key, c in profile.constants.items() if key.startswith(f"{name}.")}
        inside = ", ".join(["source: probe", *(f"{tp}: {value:.4g}" for tp, value in table.items())])
        lines.append(f"{name}: {{{inside}}}" if table else f"{name}: {{}}")
    return lines


def _figure(value: float | None, source: str) -> str:
    """Counts and bytes in full, rates with four significant digits, null where nobody knows."""
    written = "null" if value is None else f"{value:.0f}" if float(value).is_integer() and value < 1e15 else f"{value:.4g}"
    return f"{{value: {written}, source: {source}}}"
