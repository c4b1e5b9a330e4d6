"""What a user is told: the text of a finding, the exit code of each error."""

from __future__ import annotations

import re

import pytest

from servegen import errors
from servegen.errors import Diagnostic, Fix, InfeasibleError, ServegenError, UserError, Where

EXIT_CODES = {
    "ServegenError": 1,
    "UserError": 1,
    "SpecError": 1,
    "CatalogError": 1,
    "NotBuiltError": 1,
    "RenderError": 1,
    "BundleError": 1,
    "EmitError": 1,
    "StaleError": 2,
    "InfeasibleError": 3,
}


def tree() -> dict[str, type[ServegenError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, ServegenError)
    }


def infeasible(fixes: tuple[Fix, ...]) -> InfeasibleError:
    return InfeasibleError("chat", "itl.p95", "no layout decodes in 5 ms", "9 ms", fixes, {"slo.itl": 12}, 40)


def test_exit_codes_of_the_whole_tree() -> None:
    assert {name: kind.exit_code for name, kind in tree().items()} == EXIT_CODES


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__ or ""))
    assert drawn == set(EXIT_CODES)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where(), ""),
        (Where("a.yaml"), "a.yaml"),
        (Where("a.yaml", 3, 7), "a.yaml:3:7"),
    ],
)
def test_a_place_reads_as_editors_read_it(where: Where, text: str) -> None:
    assert str(where) == text


def test_places_sort_by_line_then_column() -> None:
    assert sorted([Where("a", 10, 1), Where("a", 9, 2), Where("a", 9, 1)]) == [
        Where("a", 9, 1),
        Where("a", 9, 2),
        Where("a", 10, 1),
    ]


def test_a_finding_says_place_severity_code_message_and_hint() -> None:
    finding = Diagnostic("spec.unit", "'500' has no unit", Where("a.yaml", 3, 7), "write 500ms")
    assert str(finding) == "a.yaml:3:7: error[spec.unit]: '500' has no unit\n  hint: write 500ms"


def test_a_finding_without_place_or_hint_is_one_bare_line() -> None:
    assert str(Diagnostic("x", "y", severity="warning")) == "warning[x]: y"


def test_a_finding_moves_without_changing() -> None:
    finding = Diagnostic("x", "y", Where("a"), "h", "note")
    moved = finding.at(Where("b", 1, 2))
    assert moved == Diagnostic("x", "y", Where("b", 1, 2), "h", "note")
    assert finding.where == Where("a")


def test_one_finding_or_many() -> None:
    one, two = Diagnostic("a", "first"), Diagnostic("b", "second")
    assert UserError(one).diagnostics == (one,)
    error = UserError(d for d in (one, two))
    assert error.diagnostics == (one, two)
    assert str(error) == "error[a]: first\nerror[b]: second"


def test_infeasible_says_bound_best_and_fixes_in_order() -> None:
    near = Fix("spec.slo.itl.p95", "5ms", "9ms", 0.8, "relax slo.itl.p95 from 5ms to 9ms")
    far = Fix("spec.hardware.pool[0].nodes", "4", "16", 3.0, "4 -> 16 nodes")
    error = infeasible((near, far))
    assert str(error).splitlines() == [
        "chat: infeasible: no layout decodes in 5 ms",
        "  binding bound: itl.p95",
        "  best attainable: 9 ms",
        "  smallest fix: relax slo.itl.p95 from 5ms to 9ms",
        "  or: 4 -> 16 nodes",
    ]
    assert error.fixes == (near, far)
    assert error.rejected == {"slo.itl": 12}
    assert error.searched == 40


def test_infeasible_without_a_fix_claims_none() -> None:
    assert "fix" not in str(infeasible(()))
