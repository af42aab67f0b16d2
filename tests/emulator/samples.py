"""Test data: bytes of every dtype, different at every position, from tame to hostile; and the CPU codec's answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zipplan.kernels import Codec, Encoded, Params, encode, max_dynamic_size, static_size
from zipplan.kernels.codec import ITEM_BYTES

FLOATS = tuple(d for d in ITEM_BYTES if d != "u8")
SIZES = (0, 1, 31, 32, 33, 127, 129, 4095, 4096, 4097, 65537)  # round lanes, planes and tiles (F013, F032)
CODECS = [Codec("raw", dtype) for dtype in ITEM_BYTES] + [
    Codec(codec, dtype, slack) for codec in ("window", "cascade") for dtype in FLOATS for slack in (0, 112, 384)
]


def sample(kind: str, dtype: str, n: int, seed: int = 0) -> np.ndarray:
    """n elements as uint8. Kinds: normal, scales (many decades), zeros (half), upcast (bf16 in fp32), random."""
    rng = np.random.default_rng([seed, n])
    if kind == "random":
        return rng.integers(0, 256, n * ITEM_BYTES[dtype], dtype=np.uint8)
    values = rng.normal(0, 0.02, n)
    if kind == "scales":
        values *= 10.0 ** rng.integers(-6, 6, n)
    if kind == "zeros":
        values[rng.random(n) < 0.5] = 0
    wide = np.clip(values, -240, 240).astype(np.float32)
    bits = wide.view(np.uint32)
    half = np.clip(wide, -6e4, 6e4).astype(np.float16)
    if dtype == "fp32":
        return (bits & 0xFFFF0000 if kind == "upcast" else bits).view(np.uint8)
    if dtype == "bf16":
        return (bits >> 16).astype(np.uint16).view(np.uint8)
    if dtype == "fp16":
        return half.view(np.uint8)
    if dtype == "fp8_e4m3":  # sign, then exponent and mantissa cut from FP32 around 2^-7
        magnitude = np.clip((bits >> 20 & 0x7FF).astype(np.int64) - 8 * 114, 0, 126).astype(np.uint32)
        return (bits >> 24 & 0x80 | magnitude).astype(np.uint8)
    return (half.view(np.uint16) >> 8).astype(np.uint8)  # fp8_e5m2, and bytes for u8


def on_cpu(
    codec: Codec, chunks: Sequence[np.ndarray], params: Params | None = None
) -> tuple[np.ndarray, np.ndarray, Encoded]:
    """(static regions, dynamic regions, sizes) by the CPU backend."""
    counts = [chunk.nbytes // codec.item_bytes for chunk in chunks]
    static = np.empty(sum(static_size(codec, n) for n in counts), np.uint8)
    dynamic = np.empty(sum(max_dynamic_size(codec, n) for n in counts), np.uint8)
    encoded = encode(codec, chunks, static, dynamic, params=params)
    return static, dynamic[: encoded.sizes.sum()], encoded
