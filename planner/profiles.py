"""What a tensor's exponents look like, and from that the expected size of its code.

A profile names a distribution: gaussian[:σ], laplace[:σ], relu[:σ] (half of the values zero), swiglu[:σ], random.
Expected bits follow from the probability of each exponent, in closed form where the distribution has one (ZipCCL,
arXiv 2604.27844, §4.1: for |x| in [2^e, 2^(e+1)) under N(0, σ²), P(e) = erf(2^(e+1)/(σ√2)) − erf(2^e/(σ√2))).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.errors import ConfigError, nearest

Pmf = NDArray[np.float64]
Cdf = Callable[[float], float]

_SIGMA = 0.02  # usual initial standard deviation of transformer weights (GPT-2 report, OpenAI 2019)
_WINDOW = 7  # consecutive exponents with a code of their own (ZipCCL §4.1)
_LEVELS, _DIGITS = 4, 3  # cascade: ranks 3·l to 3·l+2 end at level l (docs/wire-format.md)
_ESCAPE_BITS = 8


@dataclass(frozen=True)
class Format:
    """Bits of a float type: an element is an exponent and `rest` bits (sign, mantissa); `low`: bits that a cast from a
    narrower type leaves zero, sent in the dynamic region unless they are."""

    exponent: int
    mantissa: int
    bias: int
    low: int = 0

    @property
    def rest(self) -> int:
        """Bits beside the exponent that are always sent."""
        return 1 + self.mantissa - self.low

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 1 + self.exponent + self.mantissa


FORMATS = {
    "bf16": Format(8, 7, 127),
    "fp16": Format(5, 10, 15),
    "fp32": Format(8, 23, 127, low=16),
    "fp8_e4m3": Format(4, 3, 7),
    "fp8_e5m2": Format(5, 2, 15),
}


@dataclass(frozen=True)
class Profile:
    """A named distribution, `text` as given; `cdf`: of |x|, zeros left out, which are a share `zeros` of all values."""

    text: str
    zeros: float
    cdf: Cdf | None

    def pmf(self, dtype: str) -> Pmf:
        """Probability of each exponent field of a dtype."""
        return _pmf(self, dtype)

    def entropy_bits(self, dtype: str) -> float:
        """Entropy of the exponent, bits: no lossless code of independent exponents is shorter."""
        pmf = self.pmf(dtype)
        some = pmf[pmf > 0]
        return float(-(some * np.log2(some)).sum())


def expected_bits(codec: str, dtype: str, profile: Profile) -> tuple[float, float]:
    """Expected (static, dynamic) bits per element, frame and tile headers left out.

    A tile that does not compress is stored, so the sum is never above the element's own bits.
    """
    kind = FORMATS[dtype]
    if codec == "window":
        code, dynamic = 3.0, _ESCAPE_BITS * _window_escapes(profile.pmf(dtype))
    else:
        code, dynamic = 2.0, _deeper_bits(profile.pmf(dtype))
    static = kind.rest + code
    return static, min(dynamic + kind.low, max(0.0, kind.bits - static))


def _window_escapes(pmf: Pmf) -> float:
    """Share of the values outside the best window."""
    windows = np.convolve(pmf, np.ones(_WINDOW), mode="valid")
    return max(0.0, 1.0 - float(windows.max()))


def _deeper_bits(pmf: Pmf) -> float:
    """Cascade's bits below its first level: 2 per level for the values that reach it, 8 for each escape."""
    beyond = 1.0 - np.cumsum(np.sort(pmf)[::-1])
    reached = [float(beyond[min(_DIGITS * level, len(beyond)) - 1]) for level in range(1, _LEVELS + 1)]
    return 2 * sum(reached[:-1]) + _ESCAPE_BITS * max(0.0, reached[-1])


@lru_cache(maxsize=256)
def _pmf(profile: Profile, dtype: str) -> Pmf:
    kind = FORMATS[dtype]
    fields = 1 << kind.exponent
    if profile.cdf is None:
        return np.full(fields, 1 / fields)
    # Casting rounds to nearest: what lies within half a unit below a power of two gets the higher exponent.
    half = 2.0 ** -(kind.mantissa + 2)
    edges = [0.0]
    for field in range(1, fields):
        edges.append(profile.cdf(2.0 ** (field - kind.bias) * (1 - (2 * half if field == 1 else half))))
    pmf: Pmf = np.diff(np.array([*edges, 1.0])) * (1 - profile.zeros)
    pmf[0] += profile.zeros
    return pmf


@lru_cache(maxsize=32)
def parse_profile(text: str) -> Profile:
    """Profile from 'gaussian', 'laplace:0.01', …. Raises ConfigError on an unknown name or a σ that is not above 0."""
    name, _, sigma_text = text.partition(":")
    if name not in _SHAPES:
        raise ConfigError(f"--profile: unknown {text!r}; {nearest(name, _SHAPES)}")
    try:
        sigma = float(sigma_text) if sigma_text else _SIGMA
    except ValueError:
        sigma = math.nan
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"--profile: {text!r}: σ must be a number above 0, such as {name}:{_SIGMA}")
    zeros, shape = _SHAPES[name]
    return Profile(text, zeros, shape(sigma) if shape else None)


def _gaussian(sigma: float) -> Cdf:
    return lambda x: math.erf(x / (sigma * math.sqrt(2)))


def _laplace(sigma: float) -> Cdf:
    return lambda x: -math.expm1(-x * math.sqrt(2) / sigma)


def _swiglu(sigma: float) -> Cdf:
    """silu(g)·u of two standard normals, times σ: no closed form, so 2¹⁸ seeded samples, good to 0.01 bit."""
    gate, up = np.random.default_rng(0).standard_normal((2, 1 << 18))
    values = np.sort(np.abs(gate / (1 + np.exp(-gate)) * up) * sigma)
    return lambda x: float(np.searchsorted(values, x)) / len(values)


_SHAPES: dict[str, tuple[float, Callable[[float], Cdf] | None]] = {
    "gaussian": (0.0, _gaussian),
    "laplace": (0.0, _laplace),
    "relu": (0.5, _gaussian),
    "swiglu": (0.0, _swiglu),
    "random": (0.0, None),
}
