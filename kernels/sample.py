"""Synthetic tensors of named shapes, as raw bytes: for the benchmark, for tests, for a first look at a codec."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zipplan.kernels.codec import ITEM_BYTES
from zipplan.planner.errors import CodecError, nearest

# dtype -> exponent bits, mantissa bits, largest magnitude as bits (beyond it: infinity, or NaN for e4m3)
FORMATS = {"bf16": (8, 7, 0x7F80), "fp8_e4m3": (4, 3, 0x7F), "fp8_e5m2": (5, 2, 0x7C)}


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n, dtype=np.float32)


def _swiglu(rng: np.random.Generator, n: int) -> np.ndarray:
    gate = _normal(rng, n)
    return _normal(rng, n) * gate / (1 + np.exp(-gate))


def _random(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)


PROFILES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "gaussian": _normal,
    "laplace": lambda rng, n: rng.laplace(0, 0.5**0.5, n).astype(np.float32),
    "swiglu": _swiglu,  # silu(g) * u of two normals
    "relu": lambda rng, n: np.maximum(_normal(rng, n), 0),  # half of it exact zeros
    "random": _random,  # every bit pattern alike
}


def sample(profile: str, dtype: str, n: int, *, scale: float = 0.02, seed: int = 0) -> np.ndarray:
    """n elements of a profile in PROFILES times `scale`, rounded to nearest even, as uint8; CodecError if unknown."""
    if profile not in PROFILES:
        raise CodecError(f"profile {profile!r} is unknown; {nearest(profile, PROFILES)}")
    values = PROFILES[profile](np.random.default_rng(seed), n)
    if profile == "random":
        return np.ascontiguousarray(values.view(np.uint8).reshape(n, 4)[:, : ITEM_BYTES[dtype]]).reshape(-1)
    return to_bytes(values * np.float32(scale), dtype)


def update(
    dtype: str, n: int, *, step: float = 1e-5, scale: float = 0.02, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(after, before) one step of Adam on n normal weights with FP32 masters, each rounded to dtype, as uint8.

    step: the learning rate. Under gradients of pure noise m / sqrt(v) has the variance (1 - b1) / (1 + b1) of their
    running mean (Kingma and Ba, arXiv 1412.6980, with its b1 = 0.9; b2 so near 1 that v stands still).
    """
    rng = np.random.default_rng(seed)
    before = _normal(rng, n) * np.float32(scale)
    after = before - _normal(rng, n) * np.float32(step * (0.1 / 1.9) ** 0.5)
    return to_bytes(after, dtype), to_bytes(before, dtype)


def to_bytes(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values (finite) as the raw bytes of a dtype, rounded to nearest even."""
    values = values.astype(np.float32, copy=False)
    if dtype == "fp32":
        return values.view(np.uint8)
    if dtype == "fp16":
        return values.astype(np.float16).view(np.uint8)
    exponent_bits, mantissa_bits, top = FORMATS[dtype]
    bits = values.view(np.uint32)
    magnitude = bits & 0x7FFFFFFF
    if dtype != "bf16":
        # Scaled by a power of two, an FP32 has the narrow dtype's exponent field, subnormals included.
        scale = np.float32(2.0) ** ((1 << (exponent_bits - 1)) - 1 - 127)
        magnitude = (magnitude.view(np.float32) * scale).view(np.uint32)
    drop = np.uint32(23 - mantissa_bits)
    narrow = np.minimum((magnitude + (np.uint32(1) << drop - 1) - 1 + (magnitude >> drop & 1)) >> drop, top)
    narrow |= bits >> 31 << (exponent_bits + mantissa_bits)
    return narrow.astype(f"<u{ITEM_BYTES[dtype]}").view(np.uint8)
