"""The one parser and printer of unit strings. Inside zipplan: bytes, bytes per second, integer picoseconds.

Binary prefixes for sizes as nccl-tests has them (16M = 16 MiB), decimal when the unit is written out (16MB).
Bandwidths must say bits or bytes: 400Gb/s, 50GB/s and 46.6GiB/s are read, 400G and 400Gbps are refused.
"""

from __future__ import annotations

import math
import re

from zipplan.planner.errors import ConfigError

PS_PER_SECOND = 10**12

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_SIZE = re.compile(_NUMBER + r"\s*([A-Za-z]*)")
_RATE = re.compile(_NUMBER + r"\s*([KMGT]i?)?(b|B)/s")
_TIME = re.compile(_NUMBER + r"\s*(ps|ns|us|µs|ms|s)")

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    **{k: 2 ** (10 * (i + 1)) for i, k in enumerate("KMGT")},
    **{k + "B": v for k, v in _DECIMAL.items() if k},
    **{k + "B": v for k, v in _BINARY.items() if k},
}
_TIME_UNITS = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9, "s": PS_PER_SECOND}


def parse_size(text: str, what: str = "size") -> int:
    """Bytes from '16', '64K', '16M' (binary), '16MB' (decimal), '16MiB'. Raises ConfigError."""
    match = _SIZE.fullmatch(text.strip())
    factor = _SIZE_UNITS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ConfigError(
            f"{what}: cannot read {text!r}; expected a number with K, M, G, T (binary: 16M = 16 MiB), "
            "KB, MB, GB, TB (decimal), KiB, MiB, GiB, TiB, or nothing (bytes)",
            text=text,
        )
    value = _exact(match[1], factor)
    if value is None:
        raise ConfigError(f"{what}: {text!r} is not a whole number of bytes", text=text)
    return value


def parse_bandwidth(text: str, what: str = "bandwidth") -> int:
    """Bytes per second from '400Gb/s', '50GB/s', '46.6GiB/s'; > 0. Raises ConfigError."""
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"{what}: cannot read {text!r}; expected a rate that says bits or bytes, such as 400Gb/s, 50GB/s or "
            "46.6GiB/s (400G and 400Gbps are ambiguous)",
            text=text,
        )
    prefix = match[2] or ""
    factor = {**_DECIMAL, **_BINARY}[prefix]
    value = round(float(match[1]) * factor / (8 if match[3] == "b" else 1))
    if value <= 0:
        raise ConfigError(f"{what}: {text!r} is not above zero", text=text)
    return value


def parse_time(text: str, what: str = "time") -> int:
    """Picoseconds from '350ps', '1.5us', '2ms'; ≥ 0. Raises ConfigError."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{what}: cannot read {text!r}; expected a number with ps, ns, us, ms or s", text=text)
    return round(float(match[1]) * _TIME_UNITS[match[2]])


def _exact(number: str, factor: int) -> int | None:
    """number × factor when that is whole, else None (1.5K is 1536, 1.3 bytes is nothing)."""
    whole, _, fraction = number.partition(".")
    scale = 10 ** len(fraction)
    value, rest = divmod(int(whole + fraction) * factor, scale)
    return None if rest else value


def format_size(size: int) -> str:
    """'16M' for 16 MiB, as nccl-tests prints it; exact, so that parse_size gives the same number back."""
    for unit, power in (("T", 40), ("G", 30), ("M", 20), ("K", 10)):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def short_size(size: int) -> str:
    """For a table: as `format_size` where that has at most four digits, else four digits of it: '416.0M', '64.25K'."""
    exact = format_size(size)
    if len(exact.rstrip("KMGT")) <= 4:
        return exact
    unit, power = next((u, p) for u, p in (("T", 40), ("G", 30), ("M", 20), ("K", 10)) if size >= 1 << p)
    value = size / (1 << power)
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}{unit}"


def format_bandwidth(rate: float) -> str:
    """'50.0 GB/s' (decimal giga), '125 MB/s'."""
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if rate >= factor:
            return f"{rate / factor:.3g} {unit}"
    return f"{rate:.3g} B/s"


def format_time(ps: float) -> str:
    """'12.3 µs' with three or four significant digits."""
    if not math.isfinite(ps):
        return "n/a"
    for unit, factor in (("s", 1e12), ("ms", 1e9), ("µs", 1e6), ("ns", 1e3)):
        if abs(ps) >= factor:
            value = ps / factor
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{ps:.0f} ps"
