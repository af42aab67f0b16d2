"""The one unit parser (field cases F024, F114)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.errors import ConfigError
from zipplan.planner.units import format_size, format_time, parse_bandwidth, parse_size, parse_time, short_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("16", 16), ("16B", 16), ("16K", 16384), ("16M", 16 << 20), ("16MiB", 16 << 20),
        ("16 MB", 16 * 10**6), ("1.5G", 3 << 29), ("1.5K", 1536), ("2TiB", 2 << 40), ("1kB", None), ("0.3", None),
        ("1_000", None), ("", None), ("16Q", None),
        ("-1", None), ("abc", None), ("1e6", None), ("16Mb", None), ("١٦", None), ("nan", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    """F024: '16M' is 16 MiB and never 16 bytes; what cannot be read is quoted in the error."""
    if size is not None:
        assert parse_size(text) == size
        return
    with pytest.raises(ConfigError) as error:
        parse_size(text, "--size")
    assert repr(text) in str(error.value)
    assert str(error.value).startswith("--size")


@given(st.integers(0, 2**50))
def test_a_printed_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (9999, "9999"), (16 << 20, "16M"), (1000 << 10, "1000K"), (10_001, "9.77K"), (426_000 << 10, "416.0M"),
     (2_101_346_305, "1.96G"), (2004 << 20, "2004M"), (99 << 40, "99T")],
)  # fmt: skip
def test_sizes_in_tables_are_short(size: int, text: str) -> None:
    assert short_size(size) == text


@given(st.integers(1, 2**50))
def test_a_short_size_is_near(size: int) -> None:
    text = short_size(size)
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}.get(text[-1], 1)
    assert float(text.rstrip("KMGT")) * factor == pytest.approx(size, rel=6e-3)
    assert len(text) <= 6


def test_bandwidths_say_bits_or_bytes() -> None:
    """F114: the first three agree within rounding, the last ones are ambiguous."""
    assert parse_bandwidth("400Gb/s") == parse_bandwidth("50GB/s") == 50_000_000_000
    assert parse_bandwidth("46.6GiB/s") == pytest.approx(50e9, rel=2e-3)
    for text in ("400Gbps", "400G", "400", "0GB/s", "-1GB/s", "infGB/s", "nanGB/s", "400gb/s", ""):
        with pytest.raises(ConfigError):
            parse_bandwidth(text)


def test_times() -> None:
    assert parse_time("1.5us") == parse_time("1.5µs") == parse_time("1500ns") == 1_500_000
    assert parse_time("0ns") == 0
    for text in ("1.5", "1.5 m", "-1us", "nanus"):
        with pytest.raises(ConfigError):
            parse_time(text)


@pytest.mark.parametrize(
    ("ps", "text"),
    [(0, "0 ps"), (999, "999 ps"), (1_500, "1.50 ns"), (12_340_000, "12.3 µs"), (123e9, "123 ms"), (2.5e12, "2.50 s")],
)
def test_printed_times(ps: float, text: str) -> None:
    assert format_time(ps) == text
