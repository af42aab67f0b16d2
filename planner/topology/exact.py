"""Unit strings that parse back to exactly the same number (units.format_* round for people)."""

from __future__ import annotations


def exact_rate(value: int, bits: bool = False) -> str:
    """A unit string that parses back to the same bytes/s: '15.75GB/s', or with `bits` '400Gb/s' where that is whole."""
    if bits and value * 8 % 10**9 == 0:
        return f"{value * 8 // 10**9}Gb/s"
    if value % 10**7 == 0:
        return f"{value // 10**9}.{value % 10**9 // 10**7:02d}".rstrip("0").rstrip(".") + "GB/s"
    for unit, factor in (("MB/s", 10**6), ("KB/s", 10**3)):
        if value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}B/s"


def exact_time(value: int) -> str:
    """A unit string that parses back to the same picoseconds."""
    for unit, factor in (("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}ps"
