"""Nothing is defined that nobody names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [p for room in ("servegen", "templates", "tests") for p in (ROOT / room).rglob("*") if p.suffix in (".py", ".j2")]


def defined(tree: ast.Module) -> list[str]:
    """Functions, classes and methods that no decorator hands to a framework, and the constants of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [n.name for n in ast.walk(tree) if isinstance(n, kinds) and not n.decorator_list and not n.name.startswith("__")]
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        names += [t.id for t in targets if isinstance(t, ast.Name) and not t.id.startswith("__")]
    return names


def test_every_name_is_named_somewhere_else() -> None:
    seen: Counter[str] = Counter()
    for file in FILES:
        seen.update(re.findall(r"\w+", file.read_text("utf-8")))
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in FILES
        if file.suffix == ".py" and file.is_relative_to(ROOT / "servegen")
        for name in defined(ast.parse(file.read_text("utf-8")))
        if seen[name] == 1
    }
    assert not found, "delete what nothing uses"
