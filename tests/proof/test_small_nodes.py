"""Nodes whose memory or processors are too few for what runs on them: refused or warned of, at the key of the chosen pool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.proof.harness import command, spec, write_spec

HEALTHY = {"accelerator": "h100-sxm-80gb", "nodes": 1, "perNode": 8}


@pytest.mark.parametrize(
    ("memory", "cpu", "code", "says"),
    [
        ("8GiB", 96, 1, "memory: 768Mi, and the processes hold at least 1 x 2 GiB before they load anything: they are killed"),
        ("16GiB", 96, 1, "memory: 1792Mi, and the processes hold at least"),
        ("32GiB", 96, 0, "memory: 3584Mi, and the processes take about 1 x 4 GiB: they may be killed"),
        ("64GiB", 96, 0, ""),
        ("64GiB", 4, 0, "a node has fewer CPUs (4) than accelerators (8), each of which keeps one busy"),
        ("64GiB", 8, 0, ""),
    ],
)
def test_a_small_node_is_told_of(memory: str, cpu: int, code: int, says: str, tmp_path: Path) -> None:
    """The cheaper pool is the second one, so that a finding must not name the first."""
    small: dict[str, Any] = {"accelerator": "l40s-48gb", "nodes": 2, "perNode": 8, "memory": memory, "cpu": cpu}
    file = write_spec(tmp_path / "s.yaml", spec(hardware__pool=[HEALTHY, small]))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == code and (tmp_path / "out").exists() == (code == 0), ran
    if not says:
        assert ran.err == ""
        return
    assert says in ran.err and ("error[" if code else "warning[") + "bundle-resources]" in ran.err
    key = "memory" if says.startswith("memory") else "cpu"
    line = next(i for i, text in enumerate(file.read_text().splitlines(), start=1) if f'"{key}": ' in text)
    assert re.search(rf"spec\.hardware\.pool\[1\]\.{key} \(\S*s\.yaml:{line}:\d+\)", ran.err), ran


def test_a_server_over_a_node_counts_its_processes(tmp_path: Path) -> None:
    pool = [{**HEALTHY, "memory": "16GiB"}]
    file = write_spec(tmp_path / "s.yaml", spec(hardware__pool=pool, constraints__tp=[8]))
    ran = command("build", file, "-o", tmp_path / "out")
    assert ran.code == 1 and "memory: 14Gi, and the processes hold at least 8 x 2 GiB" in ran.err, ran
