"""Regular expressions of other people's: those that are safe to try are told from those that would hang."""

from __future__ import annotations

import time

import pytest

from servegen.catalog.hf_fields import Fields
from servegen.catalog.hf_quant import Matcher
from servegen.errors import ServegenError
from servegen.regex import broken, meets, tame

POD = "llama-chat-serve-6d4cf56db6-x7k2q"


@pytest.mark.parametrize(
    ("pattern", "met"),
    [
        ("llama-chat-serve-[a-z0-9]+-[a-z0-9]+", True), ("llama-chat-(serve|decode)-.*", True), (".+", True),
        ("(?i)LLAMA.*", True), ("(?:llama-)?chat-.*", True), ("(?:llama-)?serve-.*", False),
        ("other-.*", False), ("llama", False), ("(", False), ("[", False), ("", False),
        ("llama-chat-serve-[0-9a-f]{10}-.{5}", True), (r"[^\]]*", True), ("(-?[a-z0-9]{5,10}){1}", None),
        ("([a-z0-9-]+)+Z", None), ("(a|a)+", None), ("((a?)b)*", None), ("(a?){50}", None), (".*" * 6, None), ("a?" * 30, None),
        ("(a|b)" * 40, None), ("a" * 3000, None), ("[[:alnum:]-]+", None), (r"\pL+", None), (".*+", None),
    ],
)  # fmt: skip
def test_a_pattern_is_met_or_not_or_not_tried(pattern: str, met: bool | None) -> None:
    before = time.perf_counter()
    assert meets(pattern, POD) is met
    assert time.perf_counter() - before < 1


@pytest.mark.parametrize("pattern", ["(", "[a", "a)", "*a", "(?!a)b", "a(?=b)", "(?<=a)b", "x(?<!y)", "[z-a]"])
def test_what_nobody_reads_is_broken(pattern: str) -> None:
    assert broken(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["", "(.*)", "[(?=]", r"\(?=", "(?i)a", "a(?i)b", "(?s).*", r"\pL+", "[[:alpha:]]+", "^*", r"\b+", r"\x{10FFFF}", "a{,5}",
     "(?P<n>a)", "([a-z]+)+", "a]", r"\."],
)  # fmt: skip
def test_what_may_be_read_is_not(pattern: str) -> None:
    assert not broken(pattern)


@pytest.mark.parametrize("pattern", [".*.*.*.*Z", "(a|b|c|d)?[a-z]*[a-z]*[a-z]*Z", r"(\d+\.)?.*x.*y"])
def test_the_worst_that_is_tried_is_soon_done(pattern: str) -> None:
    before = time.perf_counter()
    assert tame(pattern) and meets(pattern, "a" * 100) is False
    assert time.perf_counter() - before < 10


@pytest.mark.parametrize(
    "pattern",
    [r".*lm_head", r"model\.layers\.\d+\.(self_attn|mlp)\..*", r"^(?!.*visual).*", r".*experts.\d+\.(gate|up|down)_proj$",
     "layers.(" + "|".join(map(str, range(94))) + ").self_attn.*"],
)  # fmt: skip
def test_what_checkpoints_write_is_tried(pattern: str) -> None:
    assert tame(pattern)


def test_a_checkpoint_cannot_hold_a_build_up() -> None:
    with pytest.raises(ServegenError, match="too many ways"):
        Matcher(Fields({}, "config.json"), "ignore", ["re:([a-z0-9_.]+)+Z"])
