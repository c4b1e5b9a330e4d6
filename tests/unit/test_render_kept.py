"""A script that a user's template writes keeps every line of code of the shipped one, and adds none that changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from servegen.errors import RenderError
from servegen.plan import Plan
from servegen.render.bundle import render
from servegen.render.environment import templates_root
from tests.unit.plans import make_plan, make_role, make_split_plan

ROUTER, LAUNCH, MEGATRON = "sglang/router.sh.j2", "sglang/launch.sh.j2", "megatron/launch.sh.j2"
SPLIT, GROUP, ONE = make_split_plan(), make_plan(make_role(tp=8, pp=2)), make_plan()
MEGA = make_plan(choice_engine="megatron", choice_engine_version="0.19.2")

FAULTS: tuple[tuple[Plan, str, str, str, str], ...] = (
    (SPLIT, ROUTER, 'endpoints+=(--decode "${url}")', 'endpoints+=(--prefill "${url}")', "the line: endpoints+=(--decode"),
    (SPLIT, ROUTER, 'endpoints+=(--decode "${url}")', ":", "the line: endpoints+=(--decode"),
    (SPLIT, ROUTER, 'in "${decode[@]}"', 'in "${prefill[@]}"', "the line: for url in"),
    (SPLIT, ROUTER, 'endpoints+=(--decode "${url}")', 'endpoints=(--decode "${url}")', "the line: endpoints+=(--decode"),
    (SPLIT, ROUTER, 'endpoints+=(--decode "${url}")', 'endpoints+=(--decode "${uri}")', "the line: endpoints+=(--decode"),
    (SPLIT, ROUTER, "read -r -a prefill", "read -r prefill", "the line: read -r -a prefill"),
    (SPLIT, ROUTER, "read -r -a prefill", "IFS=, read -r -a prefill", "the line: read -r -a prefill"),
    (SPLIT, ROUTER, "read -r -a prefill", "IFS=,\nread -r -a prefill", "it sets IFS"),
    (SPLIT, ROUTER, "-8998}", "-8999}", "BOOTSTRAP_PORT:-8998"),
    (SPLIT, ROUTER, '  "${endpoints[@]}" \\\n', "", 'the command lacks "${endpoints[@]}"'),
    (SPLIT, ROUTER, "endpoints=()\n", "", "the line: endpoints=()"),
    (SPLIT, ROUTER, "\nexec ", "\nendpoints=()\nexec ", "it sets endpoints"),
    (SPLIT, ROUTER, "\nexec ", '\nmapfile -t endpoints <<< "x"\nexec ', "it sets endpoints"),
    (SPLIT, ROUTER, "; do\n  endpoints+=(--decode", "; do\n  continue\n  endpoints+=(--decode", "it keeps a loop"),
    (SPLIT, ROUTER, "endpoints=()\n", "false &&\nendpoints=()\n", "it makes the next line depend on it"),
    (SPLIT, ROUTER, "read -r -a prefill", "if false; then\nread -r -a prefill", "the line: read -r -a prefill"),
    (SPLIT, ROUTER, "-a decode <<<", "-a decode \\\n# of them\n<<<", "the line: read -r -a decode"),
    (SPLIT, ROUTER, "read -r -a decode", "# read -r -a decode", "the line: read -r -a decode"),
    (GROUP, LAUNCH, "{0,3})$", "{0,2})$", "the line: if [["),
    (GROUP, LAUNCH, '-z "${NODE_RANK:-}"', '-n "${NODE_RANK:-}"', "the line: if [["),
    (GROUP, LAUNCH, "((NODE_RANK >= {{", "((NODE_RANK > {{", "the line: if [["),
    (GROUP, LAUNCH, "\nexec ", "\nNODE_RANK=0\nexec ", "it sets NODE_RANK"),
    (GROUP, LAUNCH, "set -euo pipefail\n", "set -euo pipefail\n: ${NODE_RANK:=0}\n", "it gives NODE_RANK a default"),
    (GROUP, LAUNCH, "set -euo pipefail\n", 'set -euo pipefail\nNODE_RANK="${NODE_RANK:-0}"\n', "it sets NODE_RANK"),
    (GROUP, LAUNCH, "\nexec ", "\n[[ -n x ]] && LEADER_ADDRESS=here\nexec ", "it sets LEADER_ADDRESS"),
    (GROUP, LAUNCH, "  exit 1\n", "", "the line: exit 1"),
    (ONE, LAUNCH, "\nexec ", "\nset -- --tp-size 9\nexec ", "set changes the arguments"),
    (ONE, LAUNCH, "\nexec ", "\nshift\nexec ", "shift changes the arguments"),
    (ONE, LAUNCH, "\nexec ", "\n[[ -d / ]] && exec sleep 1\nexec ", "it starts something else"),
    (MEGA, MEGATRON, ":-/opt/megatron-lm}", ":-/opt/other}", 'the line: MEGATRON_DIR="${MEGATRON_DIR:-/opt/megatron-lm}"'),
)  # fmt: skip


def own(folder: Path, name: str, old: str, new: str) -> Path:
    text = (templates_root() / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("plan", "name", "old", "new", "says"), FAULTS, ids=[f"{f[3][:24]}: {f[4][:30]}" for f in FAULTS])
def test_a_line_that_is_lost_or_changed_is_an_error(tmp_path: Path, plan: Plan, name: str, old: str, new: str, says: str) -> None:
    with pytest.raises(RenderError) as caught:
        render(plan, own(tmp_path, name, old, new))
    found = [d for d in caught.value.diagnostics if says in d.message]
    assert found, caught.value
    assert found[0].code == "render-script" and found[0].where.file == str(tmp_path / name) and found[0].where.line > 1, found
    assert ": launch/" in found[0].message and "chat" in found[0].message and f"templates/{name}" in found[0].hint


KEPT = (
    (SPLIT, ROUTER, "\nexec ", "\n# a note\necho \"starting ${endpoints[0]}, NODE_RANK=0\" >&2\nexec "),
    (SPLIT, ROUTER, "endpoints=()\n", "  endpoints=()   # of both\nulimit -n 4096\n"),
    (GROUP, LAUNCH, "\nexec ", "\nif [[ -d /scratch ]]; then\n  cd /\nfi\necho rank=$NODE_RANK NODE_RANK=$NODE_RANK\nexec "),
    (SPLIT, ROUTER, "-a decode <<<", "-a  decode \\\n  <<<"),
    (GROUP, LAUNCH, "  exit 1\n", "  sleep 1\n  exit 1\n"),
    (ONE, LAUNCH, "\nexec ", "\nworkers=3\nset -o noclobber\nexec "),
)  # fmt: skip


@pytest.mark.parametrize(("plan", "name", "old", "new"), KEPT)
def test_lines_that_only_add_are_allowed(tmp_path: Path, plan: Plan, name: str, old: str, new: str) -> None:
    assert render(plan, own(tmp_path, name, old, new)).files
