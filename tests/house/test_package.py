"""What is installed: the wheel in CI, locked dependencies, a start that loads nothing heavy, the fixed top level."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import servegen

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8")
TOP_LEVEL = {"pyproject.toml", "README.md", "LICENSE", "servegen", "templates", "specs", "tests", "out", "docs"}
LEFT_BY_TOOLS = {"build", "dist"}


def locked() -> dict[str, set[str]]:
    """Versions by canonical name; a package may stand twice, for different interpreters."""
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK, re.MULTILINE):
        versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


@pytest.mark.skipif(os.environ.get("SERVEGEN_EXPECT_WHEEL") != "1", reason="only where the built wheel is installed")
def test_the_installed_wheel_is_what_is_tested() -> None:
    home = Path(servegen.__path__[0])
    assert home.parent.name == "site-packages"
    assert (home / "templates").is_dir(), "the wheel carries the templates"
    assert not home.is_relative_to(ROOT)


def test_the_version_stands_in_one_place() -> None:
    assert servegen.__version__ == PROJECT["version"]


def test_the_top_level_is_the_agreed_one() -> None:
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")} - LEFT_BY_TOOLS
    assert found <= TOP_LEVEL, f"not part of the layout: {sorted(found - TOP_LEVEL)}"


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
def test_the_lock_meets_each_dependency(text: str) -> None:
    need = Requirement(text)
    have = locked()[canonicalize_name(need.name)]
    assert all(need.specifier.contains(v) for v in have)


def test_the_lock_holds_the_pinned_build_backend() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert backend in LOCK


def test_every_locked_release_has_hashes_and_no_host_is_named() -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == sum(len(v) for v in locked().values())
    assert all("--hash=sha256:" in e for e in entries)
    assert not re.search(r"://|index-url|find-links|pypi\.org|pythonhosted", LOCK)


@pytest.mark.parametrize(
    "library", ["numpy", "scipy", "pydantic", "jinja2", "ruamel", "jsonschema", "kubernetes", "matplotlib", "torch"]
)
def test_help_loads_nothing_heavy(library: str, loaded_by_help: set[str]) -> None:
    assert library not in loaded_by_help


@pytest.fixture(scope="session")
def loaded_by_help() -> set[str]:
    """Top-level modules in memory after ``servegen --help``."""
    program = (
        "import sys\nfrom servegen.cli import main\nsys.argv = ['servegen', '--help']\ncode = main()\n"
        "print('\\n'.join(sorted({m.partition('.')[0] for m in sys.modules})), file=sys.stderr)\nsys.exit(code)\n"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(servegen.__path__[0]).parent)}
    done = subprocess.run([sys.executable, "-P", "-c", program], env=here, capture_output=True, text=True, check=True)
    assert "build" in done.stdout
    return set(done.stderr.split())
