"""What a tensor's exponents look like, and from that the expected size of its code.

A profile names a distribution: gaussian[:σ], laplace[:σ], relu[:σ] (half of the values zero), swiglu[:σ], random.
Expected bits follow in closed form from the probability of each exponent (ZipCCL, arXiv 2604.27844, §4.1: for
|x| in [2^e, 2^(e+1)) under N(0, σ²), P(e) = erf(2^(e+1)/(σ√2)) − erf(2^e/(σ√2))).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.errors import ConfigError, nearest

Pmf = NDArray[np.float64]

_SIGMA = 0.02  # usual initial standard deviation of transformer weights (GPT-2 report, OpenAI 2019)
_BIAS, _FIELDS = 127, 256  # of a bf16 exponent: 8 bits
_WINDOW = 7  # consecutive exponents with a code of their own (ZipCCL §4.1)
_ESCAPE_BITS = 8


@dataclass(frozen=True)
class Profile:
    """A named distribution of a bf16 tensor: `text` as given, `pmf[f]` the probability of exponent field f."""

    text: str
    pmf: Pmf

    @cached_property
    def window_escapes(self) -> float:
        """Share of the values outside the best window of 7 consecutive exponents."""
        windows = np.convolve(self.pmf, np.ones(_WINDOW), mode="valid")
        return max(0.0, 1.0 - float(windows.max()))

    @cached_property
    def entropy_bits(self) -> float:
        """Entropy of the exponent, bits: no lossless code of independent exponents is shorter."""
        some = self.pmf[self.pmf > 0]
        return float(-(some * np.log2(some)).sum())


def window_bits(profile: Profile) -> tuple[float, float]:
    """Expected (static, dynamic) bits per bf16 element of the `window` code, frame overhead left out.

    Static: sign and mantissa 8, code 3. Dynamic: 8 for each escape (ZipCCL §4).
    """
    return 8.0 + 3.0, _ESCAPE_BITS * profile.window_escapes


@lru_cache(maxsize=32)
def parse_profile(text: str) -> Profile:
    """Profile from 'gaussian', 'laplace:0.01', …. Raises ConfigError on an unknown name or a σ that is not above 0."""
    name, _, sigma_text = text.partition(":")
    if name not in _MAKERS:
        raise ConfigError(f"--profile: unknown {text!r}; {nearest(name, _MAKERS)}")
    try:
        sigma = float(sigma_text) if sigma_text else _SIGMA
    except ValueError:
        sigma = math.nan
    if not (math.isfinite(sigma) and sigma > 0):
        raise ConfigError(f"--profile: {text!r}: σ must be a number above 0, such as {name}:{_SIGMA}")
    return Profile(text, _MAKERS[name](sigma))


def _from_cdf(cdf: Callable[[float], float]) -> Pmf:
    """Probability of each exponent field from the distribution of |x|; below the smallest normal is field 0."""
    edges = [0.0, *(cdf(2.0 ** (field - _BIAS)) for field in range(1, _FIELDS)), 1.0]
    pmf: Pmf = np.diff(np.array(edges))
    return pmf


def _gaussian(sigma: float) -> Pmf:
    return _from_cdf(lambda x: math.erf(x / (sigma * math.sqrt(2))))


def _laplace(sigma: float) -> Pmf:
    return _from_cdf(lambda x: -math.expm1(-x * math.sqrt(2) / sigma))


def _relu(sigma: float) -> Pmf:
    half = _gaussian(sigma) / 2
    half[0] += 0.5
    return half


def _swiglu(sigma: float) -> Pmf:
    """silu(g)·u of two normals of deviation √(σ): no closed form, so 2¹⁸ seeded samples, good to 0.01 bit."""
    gate, up = np.random.default_rng(0).standard_normal((2, 1 << 18))
    values = np.abs(gate / (1 + np.exp(-gate)) * up) * sigma
    fields = np.frexp(values)[1] - 1 + _BIAS
    pmf: Pmf = np.bincount(np.clip(fields, 0, _FIELDS - 1), minlength=_FIELDS) / values.size
    return pmf


def _random(sigma: float) -> Pmf:
    return np.full(_FIELDS, 1 / _FIELDS)


_MAKERS: dict[str, Callable[[float], Pmf]] = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "relu": _relu,
    "swiglu": _swiglu,
    "random": _random,
}
