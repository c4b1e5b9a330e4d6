"""Reading YAML back, and the kubelet's expansion of ``$(NAME)``."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen.manifest import documents, escape_variables, unescape_variables


def kubelet(text: str, variables: dict[str, str]) -> str:
    """The rules of k8s.io/kubernetes/third_party/forked/golang/expansion, written as one substitution."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)


@given(st.text(alphabet="$()AB x", max_size=12))
def test_an_escaped_text_reaches_the_process_unchanged(text: str) -> None:
    variables = {name: "expanded" for name in ("", "A", "B", "AB", "$", "$A")}
    assert kubelet(escape_variables(text), variables) == text
    assert unescape_variables(escape_variables(text)) == text


@pytest.mark.parametrize("text", ["$(A)", "x$(A)y", "$$$(A)"])
def test_a_live_reference_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\$\(A\)"):
        unescape_variables(text)


@pytest.mark.parametrize(("text", "want"), [("$", "$"), ("$A", "$A"), ("$(A", "$(A"), ("$$", "$"), ("$$(A)", "$(A)")])
def test_what_is_no_reference_stays(text: str, want: str) -> None:
    assert unescape_variables(text) == want == kubelet(text, {"A": "expanded"})


def test_a_plain_dollar_is_left_readable() -> None:
    assert escape_variables("$HOME/x") == "$HOME/x"


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "a: 1\na: 2", "!!python/object:os.system x", "\x00"])
def test_unreadable_yaml_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        documents(text)


def test_documents_come_in_order() -> None:
    assert documents("a: 1\n---\n- 2\n") == ({"a": 1}, [2])
