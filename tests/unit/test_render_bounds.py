"""A template cannot ask for more time or memory than any page needs: each case ends at once, at its line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servegen.errors import RenderError
from servegen.render.environment import Environment

TOO_LARGE = {
    "center": "('a' * 10**6)|center(10**9)",
    "center by keyword": "'a'|center(width=10**9)",
    "indent": "('a\\n' * 10**5)|indent(10**6)",
    "indent by a text": "('a\\n' * 10**5)|indent('b' * 10**5)",
    "indent of many lines": "('a\\n' * 2000)|indent(4000)",
    "replace": "('a' * 10**5)|replace('a', 'b' * 10**5)",
    "replace nothing": "('a' * 1000)|replace('', 'b' * 1000)",
    "a method": "('a' * 1000).replace('a', 'b' * 1000)",
    "join": "range(90000)|map('string')|join('b' * 1000)",
    "join as a method": "('x' * 1000).join(range(90000)|map('string'))",
    "translate": "('a' * 1000).translate({97: 'b' * 1000})",
    "repetition": "'a' * 10**12",
    "repetition of a list": "[['a' * 1000] * 1000] * 1000",
    "repetition of a tuple": "10**9 * (1, 2)",
    "a power": "10**10**10",
    "a power of a power": "(10**60)**64",
    "format": "'%1000000000d'|format(1)",
    "format by name": "'%(a)1000000000d'|format(a=1)",
    "format by a value": "'%*d'|format(10**9, 1)",
    "precision": "'%.1000000000f' % 1",
    "percent by a value": "'%*d' % (10**9, 1)",
    "percent of bytes": "'%1000000000d'.encode() % 1",
    "a format method": "'{:>1000000000}'.format(1)",
    "a format method by a value": "'{:>{}}'.format(1, 10**9)",
    "format_map": "'{x:>1000000000}'.format_map({'x': 1})",
    "batch": "[1]|batch(10**9, 'x')|list",
    "slice": "[1]|slice(10**9)|list",
    "range": "range(10**9)|list",
    "ljust": "'a'.ljust(10**9)",
    "zfill": "'a'.zfill(10**9)",
    "expandtabs": "'\\t'.expandtabs(10**9)",
    "to_bytes": "(1).to_bytes(10**9, 'big')",
    "wordwrap": "('a' * 60000)|wordwrap(1)",
    "tojson": "[1]|tojson(indent=10**9)",
    "round": "1.5|round(10**9)",
    "sum of lists": "[[1]]|sum(start=[])",
    "striptags": "('<' * 60000)|striptags",
    "urlize": "('http://a.' * 6000)|urlize",
    "concatenation": "('a' * 10**5) ~ ('b' * 10**5) ~ ('c' * 10**5)",
    "many items": "range(90000)|map('center', 4000)|join",
    "a power of a text": "('a' * 1000) ** 2",
}
LOOPS = {
    "texts that double": ("x='aa'", "x = n.x ~ n.x"),
    "sums that double": ("x='aa'", "x = n.x + n.x"),
    "lists that double": ("x=[1]", "x = [n.x, n.x]"),
    "mappings that double": ("x=[1]", "x = dict(a=n.x, b=n.x)"),
    "numbers that double": ("x=3", "x = n.x * n.x"),
    "one filter again and again": ("x=1", "x = ('a' * 60000)|title"),
    "one slice again and again": ("x='a' * 10**5", "y = n.x[1:]"),
    "one value written again and again": ("x='a' * 10**5", "y = n.x|yaml"),
}


def ended(tmp_path: Path, text: str) -> str:
    """What the user is told of a template of theirs, whose second line is at fault; it must be told within a second."""
    (tmp_path / "kubernetes").mkdir()
    file = tmp_path / "kubernetes" / "role.yaml.j2"
    file.write_text(f"a\n{text}\n", encoding="utf-8")
    environment = Environment(tmp_path)
    before = time.process_time()
    with pytest.raises(RenderError) as caught:
        environment.render("kubernetes/role.yaml.j2", {})
    assert time.process_time() - before < 1
    (found,) = caught.value.diagnostics
    assert (found.where.file, found.where.line) == (str(file), 2)
    return found.message


@pytest.mark.parametrize("text", TOO_LARGE.values(), ids=TOO_LARGE)
def test_no_filter_operator_or_method_makes_more_than_fits(tmp_path: Path, text: str) -> None:
    said = ended(tmp_path, f"{{{{ {text} }}}}")
    told = ("too large", "larger", "longer", "beyond", "wider", "width", "Range too big", "lists", "numbers")
    assert any(word in said for word in told), said


@pytest.mark.parametrize(("start", "step"), LOOPS.values(), ids=LOOPS)
def test_nor_do_many_of_them(tmp_path: Path, start: str, step: str) -> None:
    text = f"{{% set n = namespace({start}) %}}{{% for i in range(90000) %}}{{% set n.{step} %}}{{% endfor %}}"
    said = ended(tmp_path, text)
    assert any(word in said for word in ("too large", "larger", "longer", "more than")), said


def test_what_a_template_needs_is_left_alone(tmp_path: Path) -> None:
    lines = (
        "{{ ('line\n' * 200)|indent(12) }}", "{{ 'a'|center(80)|trim }}", "{{ ['b', 'a']|sort|join(', ') }}",
        "{{ 'port 30000: {:>8} {{}}'.format(1) }}", "{{ '100 000 %s %5.2f'|format('x', 1.5) }}", "{{ '%03d' % 7 }}",
        "{% for a, b in [(1, 2), (3, 4)] %}{{ a ~ '-' ~ b }}{% endfor %}", "{% set c, d = 1, 2 %}{{ {'c': c}.items()|list }}",
        "{{ range(2000)|map('string')|join(' ')|length }}", "{{ absent|default(10**9) }}", "{{ 'a,b'.split(',', 10**9)|last }}",
        "{{ ('word ' * 80)|wordwrap(60) }}", "{{ ('many words ' * 600)|wordwrap(140)|length }}",
        "{% filter replace('the pool', 'p' * 70) %}{{ 'the pool is here ' * 300 }}{% endfilter %}",
        "{{ 5 * 7 + 2**16 }}", "{{ ('a' * 60000)|yaml|length }}", "{{ '-' * 100 }}",
    )  # fmt: skip
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes" / "role.yaml.j2").write_text("\n".join(lines), encoding="utf-8")
    text = Environment(tmp_path).render("kubernetes/role.yaml.j2", {})
    for said in ("port 30000:        1 {}", "100 000 x  1.50", "007", "1-23-4", "a, b", "65571", "60002"):
        assert said in text


def test_a_template_that_takes_in_itself_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = ended(tmp_path, "{% include 'kubernetes/role.yaml.j2' %}")
    assert "more than 250 templates" in said
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "word"),
    [("{{ cycler() }}", "at least one item"), ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply")],
)
def test_what_a_template_raises_is_its_fault(tmp_path: Path, text: str, word: str) -> None:
    assert word in ended(tmp_path, text)
