"""Quantities, names, labels, images and versions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from servegen.validate.syntax import image_problem, is_label_key, is_label_value, is_port_name, minor_version, quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16Gi", 16 * 2**30),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        ("2E", 2 * 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1Ei", 2**60),
        (8, 8),
        (0.5, Fraction(1, 2)),
        (1e-07, Fraction(1, 10**7)),
        ("100n", Fraction(1, 10**7)),
        ("5u", Fraction(5, 10**6)),
        ("5.", 5),
        (".5k", 500),
        ("1e-2", Fraction(1, 100)),
    ],
)
def test_quantities(text: object, value: Fraction) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["512GiB", "16 Gi", "16gi", "Gi", "", ".", "1,5", "1KB", "0x10", "nan", True, float("inf"), -0.5, None, "-1", "1e9999", "1K"],
)
def test_what_is_no_quantity(text: object) -> None:
    assert quantity(text) is None


@pytest.mark.parametrize("image", ["a:1", "r:5000/a/b:v1", "a@sha256:" + "a" * 64, "a:1@sha256:" + "a" * 64])
def test_images_that_name_one_build(image: str) -> None:
    assert image_problem(image) == ""


@pytest.mark.parametrize(
    "image", ["", None, "a", "a:latest", "r:5000/a", "a@sha256:abc", "a@md5:" + "a" * 64, "a: 1", "a:latest@sha256:x"]
)
def test_images_that_do_not(image: object) -> None:
    assert image_problem(image)


@pytest.mark.parametrize(
    ("key", "legal"),
    [("a", True), ("a.b/c_d", True), ("A/b", False), ("/b", False), ("a/", False), ("a" * 64, False), ("-a", False)],
)
def test_label_keys(key: str, legal: bool) -> None:
    assert is_label_key(key) is legal


@pytest.mark.parametrize(
    ("value", "legal"),
    [("", True), ("a-b_c.d", True), ("a ", False), ("a" * 64, False), (True, False), (1, False), ("a\n", False)],
)
def test_label_values(value: object, legal: bool) -> None:
    assert is_label_value(value) is legal


@pytest.mark.parametrize(
    ("name", "legal"),
    [("http", True), ("80", False), ("a--b", False), ("a" * 16, False), ("http-1", True), ("-a", False)],
)
def test_port_names(name: str, legal: bool) -> None:
    assert is_port_name(name) is legal


@pytest.mark.parametrize(
    ("text", "version"), [("1.34", (1, 34)), ("v1.34.2", (1, 34)), ("1", None), ("latest", None), ("1.x", None)]
)
def test_versions(text: str, version: tuple[int, int] | None) -> None:
    assert minor_version(text) == version
