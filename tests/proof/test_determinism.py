"""The same inputs give the same bytes, whatever the process that compiles them lives in.

Other Pythons and other releases of the dependencies take environments of their own: ``tests/tools/determinism.sh``.
"""

from __future__ import annotations

import ast
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from numpy._core import _multiarray_umath

from tests.proof.harness import ROOT, SPECS, process, tree

#: A split, and a mixture of experts.
CHOSEN = [path for path in SPECS if path.stem in ("llama3-70b-split", "qwen3-235b-h200")]
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
TASKSET = ("taskset", "-c", str(CPUS[-1])) if shutil.which("taskset") else ()

#: What numpy has other loops for on this processor than on an older one: their last bits differ.
NEWER = " ".join(name for name in _multiarray_umath.__cpu_dispatch__ if _multiarray_umath.__cpu_features__[name])

WORLDS: dict[str, dict[str, Any]] = {
    "hash seed 1, Tokyo, locale C": {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "hash seed 2, Turkish, UTF-8": {"PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "1", "COLUMNS": "20"},
    "random hashes, optimized, Latin-1": {"PYTHONHASHSEED": "random", "PYTHONOPTIMIZE": "2", "PYTHONIOENCODING": "latin-1"},
    "one core, one thread": {"prefix": TASKSET, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "eight threads, an older processor": {"OMP_NUM_THREADS": "8", "OPENBLAS_NUM_THREADS": "8", "NPY_DISABLE_CPU_FEATURES": NEWER},
    "another folder, no home": {"HOME": "/nonexistent", "USER": "nobody", "TMPDIR": "/var/tmp", "NO_COLOR": "1"},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("expected")
    assert process("build", *CHOSEN, "-o", out).code == 0
    assert {path.split("/")[0] for path in tree(out)} == {path.stem for path in CHOSEN} and len(tree(out)) > 30
    return out


@pytest.mark.parametrize("name", WORLDS)
def test_the_world_around_leaves_no_trace(name: str, built: Path, tmp_path: Path) -> None:
    changes = dict(WORLDS[name])
    prefix = changes.pop("prefix", ())
    paths: list[Path | str] = list(reversed(CHOSEN))
    cwd = None
    if "folder" in name:
        # Specs that lie elsewhere, named as seen from there.
        shutil.copytree(CHOSEN[0].parent, tmp_path / "some where")
        cwd, paths = tmp_path / "some where", [path.name for path in CHOSEN]
    ran = process("build", *paths, "-o", tmp_path / "out", cwd=cwd, prefix=prefix, **changes)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "out") == tree(built)


def test_a_second_build_touches_nothing(built: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    again = process("build", *CHOSEN, "-o", built, PYTHONHASHSEED="9")
    assert again.code == 0 and again.out.count("unchanged") == len(CHOSEN)
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before


def test_no_source_says_what_a_younger_python_warns_of() -> None:
    """Python 3.14 cannot be had everywhere: what it warns of (PEP 765) or took out is looked for in the sources instead."""
    gone = {"ast.Num", "ast.Str", "ast.Bytes", "ast.NameConstant", "ast.Ellipsis", "pkgutil.find_loader", "pkgutil.get_loader"}
    files = sorted((ROOT / "servegen").rglob("*.py"))
    assert len(files) > 100
    for path in files:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            compile(tree, str(path), "exec")
        for node in ast.walk(tree):
            if isinstance(node, ast.Try):
                steps = [n for step in node.finalbody for n in ast.walk(step)]
                left = [n.lineno for n in steps if isinstance(n, (ast.Return, ast.Break, ast.Continue))]
                assert not left, f"{path}:{left[0]}: a finally block is left by a jump"
            assert not isinstance(node, ast.Attribute) or ast.unparse(node) not in gone, f"{path}:{node.lineno}"
