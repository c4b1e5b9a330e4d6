#!/usr/bin/env bash
# Builds specs/ with every Python and with the oldest and newest dependencies that pyproject.toml allows; all must agree.
#
# Usage: tests/tools/determinism.sh [PYTHON ...]        default: every python3.11 to python3.14 on the path
#
# Each Python gets two virtual environments in a temporary folder. The oldest dependencies are the lower bounds of
# pyproject.toml, where that Python can install them, else the first release after them that it can. The bytes must be
# those of out/, which is committed, and the build must say nothing on stderr.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pythons=("$@")
if [ ${#pythons[@]} -eq 0 ]; then
  for minor in 11 12 13 14; do
    # A name on the path may be a shim of a version that is not installed.
    if "python3.$minor" -c "" 2>/dev/null; then pythons+=("python3.$minor"); fi
  done
fi

# The ranges of [project.dependencies], one a line; "oldest" pins each to the first release that this Python can use.
ranges() {
  "$1" - "$2" <<'PY'
import re, sys, tomllib
#: First releases with wheels for a Python that is younger than the lower bound.
LATER = {
    ("numpy", 13): "2.1.0", ("numpy", 14): "2.3.2", ("pydantic", 13): "2.8.0", ("pydantic", 14): "2.12.0",
    ("ruamel.yaml.clib", 13): "0.2.12", ("ruamel.yaml.clib", 14): "0.2.15",
}
with open("pyproject.toml", "rb") as file:
    found = tomllib.load(file)["project"]["dependencies"]
for requirement in found:
    name, lowest = re.fullmatch(r"([\w.-]+)>=([\w.]+),.*", requirement).groups()
    lowest = LATER.get((name, sys.version_info[1]), lowest)
    print(requirement if sys.argv[1] == "newest" else f"{name}=={lowest}")
PY
}

failed=0
for python in "${pythons[@]}"; do
  for age in newest oldest; do
    venv="$scratch/venv-$(basename "$python")-$age"
    "$python" -m venv "$venv"
    ranges "$venv/bin/python" "$age" >"$venv/requirements"
    "$venv/bin/pip" install -qq --only-binary :all: -r "$venv/requirements"
    "$venv/bin/python" -m servegen build specs/ -o "$scratch/out" >/dev/null 2>"$scratch/said"
    version=$("$venv/bin/python" -c 'import platform; print(platform.python_version())')
    packages=$("$venv/bin/pip" freeze | grep -iE '^(jinja2|numpy|pydantic|rich|ruamel.yaml|typer)==' | paste -sd' ')
    if [ -s "$scratch/said" ]; then
      echo "WARNINGS: Python $version, $packages"
      cat "$scratch/said"
      failed=1
    fi
    if diff -r "$scratch/out" out; then
      echo "same bytes: Python $version, $packages"
    else
      echo "OTHER BYTES: Python $version, $packages"
      failed=1
    fi
    rm -rf "$scratch/out"
  done
done
exit "$failed"
