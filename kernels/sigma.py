"""Encoder parameters from a standard deviation, and the deviation back from the escapes of an earlier call.

For data that look like N(0, σ²). With them the steady state of a training loop needs no look at the data before it is
encoded: each call's escapes tell the next call's base.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from zipplan.kernels.batch import Encoded
from zipplan.kernels.codec import Codec, Params

BIAS = {"bf16": 127, "fp16": 15, "fp32": 127, "fp8_e4m3": 7, "fp8_e5m2": 15}
NORMAL = NormalDist()


def params_for(codec: Codec, sigma: float) -> Params:
    """Base, and for cascade the ranking, for N(0, sigma²).

    Base: ⌈log2 σ − 0.7196⌉ − 5 (ZipCCL, arXiv 2604.27844, §4.1; the integer with the largest coverage), clamped to what
    the dtype has. Ranking: exponents in the order of their probability.
    """
    bias = BIAS[codec.dtype]
    base = math.ceil(math.log2(sigma) - 0.7196) - 5 + bias if sigma > 0 else 0
    if codec.id != "cascade":
        return Params(base=min(max(base, 0), 255))
    base = min(max(base - 5, 1), 255)

    if sigma <= 0:
        return Params(base=base, ranking=(15, *range(15)))

    def probability(symbol: int) -> float:
        first, last = (0, 1) if symbol == 15 else (base + symbol, base + symbol + 1)  # symbol 15: below 2^(1 - bias)
        low = math.ldexp(1 / sigma, first - bias) if first else 0.0
        return NORMAL.cdf(math.ldexp(1 / sigma, last - bias)) - NORMAL.cdf(low)

    return Params(base=base, ranking=tuple(sorted(range(16), key=probability, reverse=True)))


def carried_sigma(codec: Codec, params: Params, encoded: Encoded, n: int) -> float | None:
    """σ from how many of n elements escaped below and above the window that `params` gave; None if too few did to tell.

    P(|x| < 2^base) = below / n, or P(|x| ≥ 2^(base + 7)) = above / n, whichever side says more; exact for normal data.
    For cascade the span is 15 wide and escapes are rare, so it only tells when the scale has moved far.
    """
    if params.base is None or n == 0:
        return None
    below, above = int(encoded.below.sum()), int(encoded.above.sum())
    if max(below, above) < 8:  # a relative deviation of a third
        return None
    low = params.base - BIAS[codec.dtype]
    if below >= above:
        return math.ldexp(1 / NORMAL.inv_cdf((1 + min(below / n, 0.999)) / 2), low)
    high = low + (7 if codec.id == "window" else 15)
    return math.ldexp(1 / NORMAL.inv_cdf(1 - min(above / n, 0.999) / 2), high)
