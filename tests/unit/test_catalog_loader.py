from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servegen.catalog import loader
from servegen.errors import CatalogError

GOOD = "id: x\nsources: {s: a source}\nhbm_bytes: {value: 80e9, source: s}\npeak_flops: {source: s, bf16: 1e12}\n"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("80e9, source: s", "80e9", "hbm_bytes has no source"),
        ("80e9, source: s", "80e9, source: t", "'t' is not in the table"),
        ("80e9", "eighty", "hbm_bytes is no number"),
        ("80e9", "true", "hbm_bytes is no number"),
        ("{source: s, bf16: 1e12}", "{bf16: 1e12}", "peak_flops.bf16 has no source"),
        ("hbm_bytes: {value: 80e9, source: s}", "hbm_bytes: 80e9", "hbm_bytes is no mapping"),
        ("id: x", "id: x\ntypo: 1", "unknown key typo"),
        ("id: x", "id: x\nid: y", "does not parse"),
        ("hbm_bytes", "hmb_bytes", "hbm_bytes is missing"),
    ],
)
def test_a_broken_file_does_not_load(tmp_path: Path, old: str, new: str, why: str) -> None:
    def take(text: str) -> loader.Sheet:
        (tmp_path / "x.yaml").write_text(text)
        sheet = loader.Sheet(tmp_path / "x.yaml")
        assert sheet.text("id") == "x"
        assert sheet.figure("hbm_bytes") == 80e9
        assert sheet.figures("peak_flops") == {"bf16": 1e12}
        sheet.done()
        return sheet

    assert take(GOOD).sources == {"hbm_bytes": "a source", "peak_flops.bf16": "a source"}
    assert old in GOOD
    with pytest.raises(CatalogError, match=why):
        take(GOOD.replace(old, new, 1))


def test_the_fast_parser_reads_every_file_of_the_catalogue_as_the_slow_one_does() -> None:
    files = sorted(loader.ROOT.rglob("*.yaml"))
    assert len(files) > 100
    for file in files:
        text = file.read_text("utf-8")
        assert repr(loader.own(text, file)) == repr(loader.parse(text, file)), file  # repr, as nan is not equal to itself


@pytest.mark.parametrize(
    "broken",
    ["a: 1\na: 2\n", "a: [1, 2\n", "a: b: c\n", 'a: "\\q"\n', "- 1\n", "", "a: *b\n", "a: !thing 1\n", "\x00", "a: \ud800"],
)
def test_a_broken_file_gives_the_same_message_whatever_parser_reads_it_first(broken: str) -> None:
    def message(read: Callable[[str, Path], object]) -> str:
        with pytest.raises(CatalogError) as caught:
            read(broken, Path("x.yaml"))
        return str(caught.value)

    assert message(loader.own) == message(loader.parse)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h10080gbhbm3"),
        ("h100_sxm", "h100sxm"),
        ("RTX 4090", "rtx4090"),
        ("AMD", "amd"),
        ("-", ""),
    ],
)
def test_names_are_compared_without_case_separators_and_vendor(name: str, key: str) -> None:
    assert loader.normal(name) == key


@pytest.mark.parametrize("kind", ["accelerators", "engines"])
def test_the_scan_finds_what_the_parser_reads(kind: str) -> None:
    for name in loader.ids(kind):
        aliases = loader.Sheet(loader.ROOT / kind / f"{name}.yaml").texts("aliases")
        assert all(name in loader._names(kind)[loader.normal(alias)] for alias in aliases)


@pytest.mark.parametrize("kind", ["accelerators", "engines"])
def test_no_alias_shadows_an_id(kind: str) -> None:
    for name in loader.ids(kind):
        assert loader._names(kind)[loader.normal(name)] == (name,)


def test_explain_of_something_else_is_empty() -> None:
    assert loader.explain("text") == []
