"""Bad input is harmless: thousands of broken specs, none of which may crash, hang, write, or leave its reader guessing.

1,000 in the default run; ``python -m pytest tests/proof/test_mutated_specs.py -m slow -s`` tries 10,000.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from servegen.spec.load import load_all
from tests.proof.harness import Ran, command, process, working_in
from tests.proof.mutate import mutated

#: Mutants that are still specs are solved and rendered, too; every so many of them, for they take most of the time.
SOLVED_OF = 4
PLACE = re.compile(r"(?:^|[( ])[^\s:()]*spec\.yaml:[1-9]\d*:[1-9]\d*\b")


def judge(seed: int, folder: Path) -> str:
    """What one mutant came to; AssertionError where it did harm."""
    out, file = folder / "out", folder / "spec.yaml"
    data = mutated(seed)
    file.write_bytes(data)
    _, errors = load_all([file])
    if errors:
        built = command("build", file, "-o", out, *(["--format", "json"] if seed % 2 else []))
        assert built.code == 1, f"seed {seed}: {built}"
        if seed % 2:
            check_errors(built, seed)
        else:
            found = re.findall(r"^.*?error\[", built.err, re.MULTILINE)
            assert found and all(PLACE.match(line) for line in found), f"seed {seed}: {built}"
        if b"---" not in data:  # of several documents, those that are specs are built
            assert not out.exists(), f"seed {seed}: a build that failed wrote {list(out.rglob('*'))}"
        shutil.rmtree(out, ignore_errors=True)
        return "refused"
    if seed % SOLVED_OF:
        return "a spec"
    built = command("build", file, "-o", out, "--format", "json")
    assert built.code in (0, 1, 3), f"seed {seed}: {built}"
    if b"---" not in data:
        assert out.exists() == (built.code == 0), f"seed {seed}: exit code {built.code}, and out/ {out.exists()}"
    assert {p.name for p in folder.iterdir()} <= {"out", "spec.yaml"}, seed
    assert file.read_bytes() == data, f"seed {seed}: the spec was changed"
    if built.code == 1:
        check_errors(built, seed)
    if built.code == 3 and b"---" not in data:
        (found,) = json.loads(built.out)["diagnostics"]
        assert found["code"] == "infeasible", f"seed {seed}: {built}"
        assert "binding bound: " in found["message"] and "best attainable: " in found["message"], f"seed {seed}: {built}"
    shutil.rmtree(out, ignore_errors=True)
    return {0: "built", 1: "refused at build", 3: "infeasible"}[built.code]


def check_errors(ran: Ran, seed: int) -> None:
    """Every finding says what is wrong and where in the spec: as its place, or in its hint where it is about a result."""
    entries = json.loads(ran.out)
    found = [d for entry in (entries if isinstance(entries, list) else [entries]) for d in entry["diagnostics"]]
    assert found, f"seed {seed}: exit code {ran.code} without a reason"
    for diagnostic in found:
        assert diagnostic["message"] and diagnostic["code"], (seed, diagnostic)
        in_spec = str(diagnostic["file"]).endswith("spec.yaml") and diagnostic["line"] and diagnostic["column"]
        assert in_spec or PLACE.search(diagnostic["hint"] or ""), (seed, diagnostic)


def prove(seeds: range, folder: Path) -> Counter[str]:
    return Counter(judge(seed, folder) for seed in seeds)


def test_a_thousand_mutants_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = prove(range(1000), tmp_path)
    with capsys.disabled():
        print(f"\n1,000 mutated specs: {report(found)}; no traceback, no hang, nothing written on error, always line and column")
    assert found["refused"] > 600 and found["built"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_mutants_do_no_harm(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = prove(range(part * 1000, part * 1000 + 1000), tmp_path)
    with capsys.disabled():
        print(f"\nmutated specs {part * 1000} to {part * 1000 + 999}: {report(found)}")


def report(found: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in found.most_common())


def test_real_processes_say_the_same(tmp_path: Path) -> None:
    rng = random.Random(7)
    for seed in rng.sample(range(1000), 5):
        file = tmp_path / "spec.yaml"
        file.write_bytes(mutated(seed))
        ran = process("validate", "spec.yaml", cwd=tmp_path)
        with working_in(tmp_path):
            assert ran == command("validate", "spec.yaml"), seed
        assert "Traceback" not in ran.err and "bug in servegen" not in ran.err, (seed, ran)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["spec.yaml"]
