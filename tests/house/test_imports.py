"""The house rules that a machine can read. The table of docs/architecture.md says which room may import what."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "servegen"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted((ROOT / "templates").rglob("*.j2"))
MAX_LINES = 400

# What makes two runs differ: chance, the clock, the machine. Only rooms that talk to a person or a cluster may ask.
NONDETERMINISTIC = {"random", "secrets", "uuid", "time", "socket", "getpass", "platform", "locale"}
MAY_ASK_THE_MACHINE = {"cli", "cluster"}

# Paths of a machine that the project was written on, spelt so that this file does not match itself.
FOREIGN_PATHS = re.compile(
    r"/(?:w[o]rk|f[a]rm)(?:/|\b(?![-\w]))|/\.librar[y]\b|/tm[p]/dev\b|/hom[e]/\w+/|/User[s]/"
    r"|(?<![\w/.-])share[d]/(?:design|reference|data|contracts|crds|tools|hooks|seeds)\b"
)
# Prose and code of the project; lock and licence are other people's words.
TEXTS = [
    ROOT / "README.md",
    ROOT / "pyproject.toml",
    *sorted(
        path
        for top in ("servegen", "templates", "specs", "tests", "out", "docs", ".ci", ".github")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "requirements.lock"
    ),
]


@dataclass(frozen=True)
class Room:
    name: str
    rooms: frozenset[str]
    libraries: frozenset[str]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def read_table() -> dict[str, Room]:
    """The rows of the table of rooms, in order."""
    rooms: dict[str, Room] = {}
    for line in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) != 4 or not re.fullmatch(r"`\w+(\.py|/)`", cells[0]):
            continue
        name = cells[0].strip("`").removesuffix(".py").rstrip("/")
        allowed = frozenset(rooms) if cells[2] == "all above" else frozenset(words(cells[2]))
        rooms[name] = Room(name, allowed, frozenset(words(cells[3])))
    return rooms


ROOMS = read_table()


def room_of(path: Path) -> str:
    """The room that a file stands in; the package's own ``__init__`` and ``__main__`` are doors, not rooms."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(text: str, place: Path) -> list[tuple[int, str]]:
    """Every import of ``text`` at ``place``, also inside functions and for type checkers: line, dotted name."""
    found: list[tuple[int, str]] = []
    package = list(place.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join(base + ([node.module] if node.module else []))
            found += [(node.lineno, f"{source}.{alias.name}") for alias in node.names]
    return found


def imports_of(path: Path) -> list[tuple[int, str]]:
    return imports(path.read_text(encoding="utf-8"), path)


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_table_names_every_room_once() -> None:
    built = {room_of(p) for p in SOURCES} - {"__init__", "__main__"}
    assert set(ROOMS) == built


def test_the_table_only_points_up() -> None:
    above: set[str] = set()
    for room in ROOMS.values():
        assert room.rooms <= above, f"{room.name} may import {sorted(room.rooms - above)}, which stand below it"
        above.add(room.name)


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_imports_keep_to_the_table(path: Path) -> None:
    name = room_of(path)
    if name in ("__init__", "__main__"):
        room = Room(name, frozenset({"cli"} if name == "__main__" else ()), frozenset())
    else:
        room = ROOMS[name]
    wrong = []
    for line, module in imports_of(path):
        top, _, rest = module.partition(".")
        if top == "servegen":
            target = rest.partition(".")[0]
            if target not in room.rooms | {room.name, "__version__"}:
                wrong.append(f"line {line}: room {room.name} may not import room {target or 'servegen'}")
        elif top not in sys.stdlib_module_names and top not in room.libraries:
            wrong.append(f"line {line}: room {room.name} may not import library {top}")
        elif top in NONDETERMINISTIC and name not in MAY_ASK_THE_MACHINE:
            wrong.append(f"line {line}: {top} makes two runs differ")
    assert not wrong, f"{label(path)}: " + "; ".join(wrong)


def test_the_table_allows_no_more_than_is_used() -> None:
    used: dict[str, set[str]] = {name: set() for name in ROOMS}
    for path in SOURCES:
        if room_of(path) in used:
            for _, module in imports_of(path):
                top, _, rest = module.partition(".")
                used[room_of(path)].add(rest.partition(".")[0] if top == "servegen" else top)
    idle = {r.name: sorted(extra) for r in ROOMS.values() if (extra := r.libraries - used[r.name])}
    assert not idle


def test_every_form_of_import_is_read() -> None:
    text = "from . import a\nfrom .b import c\nfrom ..plan import Plan\ndef f():\n    import servegen.units, numpy\n"
    read = [module for _, module in imports(text, PACKAGE / "solve" / "search.py")]
    assert read == [
        "servegen.solve.a",
        "servegen.solve.b.c",
        "servegen.plan.Plan",
        "servegen.units",
        "numpy",
    ]
    assert imports("from . import a", PACKAGE / "solve" / "__init__.py") == [(1, "servegen.solve.a")]


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_no_file_is_two_rooms(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def arithmetic(text: str) -> list[str]:
    """Line and operator of every computation of a template; a negative literal, as in ``words[:-1]``, is none."""
    tree = Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"]).parse(text)
    operators = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg)
    return [
        f"line {node.lineno}: {type(node).__name__}"
        for node in tree.find_all(operators)
        if not (isinstance(node, nodes.Neg) and isinstance(node.node, nodes.Const))
    ]


@pytest.mark.parametrize("path", TEMPLATES, ids=label)
def test_templates_do_no_arithmetic(path: Path) -> None:
    found = arithmetic(path.read_text(encoding="utf-8"))
    assert not found, f"{label(path)}: " + "; ".join(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{ a }} 1 + 1 {{ words[:-1] ~ 'x' }}", []),
        ("{{ a }}\n{% if a - 1 > 0 %}{% endif %}", ["line 2: Sub"]),
        ("{{ -a }}{{ a * 2 }}{{ 'x%s' % a }}", ["line 1: Mul", "line 1: Mod", "line 1: Neg"]),
        ("{% set b = a // 2 %}{% for i in range(a ** b) %}{{ i / 3 + 1 }}{% endfor %}", None),
    ],
)
def test_arithmetic_would_be_found(text: str, found: list[str] | None) -> None:
    if found is None:
        assert {f.rpartition(" ")[2] for f in arithmetic(text)} == {"FloorDiv", "Pow", "Div", "Add"}
    else:
        assert sorted(arithmetic(text)) == sorted(found)


def test_no_path_of_another_machine() -> None:
    found = []
    for path in TEXTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if FOREIGN_PATHS.search(line) or (path.is_relative_to(ROOT / "out") and str(ROOT) in line):
                found.append(f"{label(path)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)
