from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servegen import units

FINITE = st.floats(min_value=0, max_value=1e290, allow_nan=False, allow_subnormal=False)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_duration, "500ms", 0.5),
        (units.parse_duration, "1s", 1.0),
        (units.parse_duration, " 1.5 s ", 1.5),
        (units.parse_duration, "250us", 0.00025),
        (units.parse_duration, "2min", 120.0),
        (units.parse_duration, "0.5h", 1800.0),
        (units.parse_duration, "1e3ms", 1.0),
        (units.parse_duration, ".1s", 0.1),
        (units.parse_duration, "0ms", 0.0),
        (units.parse_bytes, "80GB", 80e9),
        (units.parse_bytes, "64GiB", 64 * 2.0**30),
        (units.parse_bytes, "1TiB", 2.0**40),
        (units.parse_bytes, "1TB", 1e12),
        (units.parse_bytes, "1kB", 1000.0),
        (units.parse_bytes, "1KiB", 1024.0),
        (units.parse_bytes, "3MB", 3e6),
        (units.parse_bytes, "3MiB", 3 * 2.0**20),
        (units.parse_bytes, "7B", 7.0),
        (units.parse_bandwidth, "400Gbps", 50e9),
        (units.parse_bandwidth, "2GB/s", 2e9),
        (units.parse_bandwidth, "2GiB/s", 2.0**31),
        (units.parse_bandwidth, "3.35TB/s", 3.35e12),
        (units.parse_bandwidth, "8kbps", 1000.0),
        (units.parse_rate, "20/s", 20.0),
        (units.parse_rate, "90/min", 1.5),
        (units.parse_rate, "3600/h", 1.0),
        (units.parse_rate, "1e2/s", 100.0),
        (units.parse_price, "2.95/h", 2.95),
        (units.parse_price, "$2.95/h", 2.95),
        (units.parse_price, "0/h", 0.0),
    ],
)
def test_parses(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (units.parse_duration, "500", ["'500' has no unit", "500ms", "us, ms, s, min, h"]),
        (units.parse_duration, "500MS", ["did you mean ms?"]),
        (units.parse_duration, "5GB", ["'GB'", "no unit of a duration", "us, ms, s, min, h"]),
        (units.parse_duration, "-5ms", ["negative"]),
        (units.parse_duration, "nan", ["is not a duration"]),
        (units.parse_duration, "nans", ["is not a duration"]),
        (units.parse_duration, "infs", ["is not a duration"]),
        (units.parse_duration, "1e999s", ["too large"]),
        (units.parse_duration, "1_000s", ["no unit of a duration"]),
        (units.parse_duration, "", ["is not a duration"]),
        (units.parse_duration, "ms", ["is not a duration"]),
        (units.parse_duration, "1s 2ms", ["is not a duration"]),
        (units.parse_duration, "1,5s", ["no unit of a duration"]),
        (units.parse_duration, "\u0665s", ["is not a duration"]),
        (units.parse_duration, "9" * 5000 + "s", ["is not a duration"]),
        (units.parse_bytes, "64Gi", ["did you mean GiB?"]),
        (units.parse_bytes, "80G", ["did you mean GB?"]),
        (units.parse_bytes, "1KB", ["did you mean kB?"]),
        (units.parse_bytes, "400Gbps", ["no unit of a size", "B, kB, MB"]),
        (units.parse_bandwidth, "2GB", ["no unit of a bandwidth", "GB/s"]),
        (units.parse_bandwidth, "400gbps", ["did you mean Gbps?"]),
        (units.parse_rate, "20", ["has no unit", "20/s"]),
        (units.parse_rate, "20s", ["did you mean /s?"]),
        (units.parse_rate, "20/day", ["/s, /min, /h"]),
        (units.parse_price, "2.95", ["has no unit", "2.95/h"]),
        (units.parse_price, "$2.95", ["'$2.95' has no unit"]),
        (units.parse_price, "2.95/s", ["no unit of a price"]),
        (units.parse_price, "$-1/h", ["negative"]),
    ],
)
def test_refuses(parse: Callable[[str], float], text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("parse", [units.parse_duration, units.parse_bytes, units.parse_rate, units.parse_price])
def test_refuses_a_bare_number(parse: Callable[[object], float]) -> None:
    with pytest.raises(ValueError, match="has no unit"):
        parse(0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_duration(0.5), "500ms"),
        (units.format_duration(1.5), "1.5s"),
        (units.format_duration(0.00025), "250us"),
        (units.format_duration(120), "2min"),
        (units.format_duration(90), "90s"),
        (units.format_duration(7200), "2h"),
        (units.format_duration(0), "0s"),
        (units.format_duration(0.0123456, digits=3), "12.3ms"),
        (units.format_bytes(80e9), "80GB"),
        (units.format_bytes(64 * 2**30), "64GiB"),
        (units.format_bytes(2**40), "1TiB"),
        (units.format_bytes(1000 * 2**30), "1000GiB"),
        (units.format_bytes(2**40, digits=4), "1.1TB"),
        (units.format_bytes(0), "0B"),
        (units.format_bytes(131072), "131.072kB"),
        (units.format_bandwidth(50e9), "50GB/s"),
        (units.format_gib(2**30), "1Gi"),
        (units.format_gib(2**30 + 1), "2Gi"),
        (units.format_gib(0), "0Gi"),
        (units.format_rate(12), "12/s"),
        (units.format_rate(1 / 3, digits=3), "0.333/s"),
        (units.format_price(2.95), "2.95/h"),
        (units.format_money(0), "$0.00"),
        (units.format_money(23.6), "$23.60"),
        (units.format_money(1234567.891), "$1,234,567.89"),
        (units.format_money(0.4213), "$0.421"),
        (units.format_money(0.5), "$0.50"),
        (units.format_money(0.00123), "$0.00123"),
        (units.format_money(0.99999), "$1.00"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("write", [getattr(units, name) for name in dir(units) if name.startswith("format_")])
def test_formats_refuse_what_is_no_quantity(write: Callable[[float], str], bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        write(bad)


@given(FINITE)
def test_round_trips(value: float) -> None:
    assert units.parse_duration(units.format_duration(value)) == value
    assert units.parse_bytes(units.format_bytes(value)) == value
    assert units.parse_bandwidth(units.format_bandwidth(value)) == value
    assert units.parse_rate(units.format_rate(value)) == value
    assert units.parse_price(units.format_price(value)) == value


@given(st.integers(0, 10**15), st.sampled_from(sorted(units.BYTES)))
def test_what_a_person_writes_stays_exact(count: int, unit: str) -> None:
    size = units.parse_bytes(f"{count}{unit}")
    assert size == float(count * int(units.BYTES[unit]))
    assert units.parse_bytes(units.format_bytes(size)) == size


@given(st.floats(0, 1e18))
def test_gib_holds_the_bytes(size: float) -> None:
    gib = int(units.format_gib(size).removesuffix("Gi"))
    assert gib * 2**30 >= size > (gib - 1) * 2**30 or size == gib == 0


@given(st.text(max_size=60))
def test_any_text_gives_a_number_or_a_clean_error(text: str) -> None:
    for parse in (units.parse_duration, units.parse_bytes, units.parse_bandwidth, units.parse_rate, units.parse_price):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert "write a" in str(error) or "negative" in str(error) or "too large" in str(error)
