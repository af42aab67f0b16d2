"""decode_reduce in every dtype: FP32 in sender order, one rounding, against torch's own conversions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zipplan.kernels import Codec, decode_reduce, encode, max_dynamic_size, static_size
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.sample import sample

TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
NAN = {"bf16": 0x7FC0, "fp16": 0x7E00, "fp32": 0x7FC00000, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7F}


def reduced(codec: Codec, chunks: list[np.ndarray], *, threads: int = 1) -> np.ndarray:
    n = chunks[0].nbytes // codec.item_bytes
    static = np.empty(len(chunks) * static_size(codec, n), np.uint8)
    dynamic = np.empty(len(chunks) * max_dynamic_size(codec, n), np.uint8)
    sizes = encode(codec, chunks, static, dynamic).sizes
    out = np.empty(chunks[0].nbytes, np.uint8)
    decode_reduce(codec, static, dynamic[: sizes.sum()], [out], senders=len(chunks), threads=threads)
    return out.view(f"<u{codec.item_bytes}")


def to_torch(raw: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(raw.view(np.uint8)).view(TORCH[dtype])


def patterns(dtype: str) -> np.ndarray:
    if dtype == "fp32":
        return np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    return np.arange(1 << 8 * ITEM_BYTES[dtype], dtype=f"<u{ITEM_BYTES[dtype]}")


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("codec", ["raw", "window", "cascade"])
def test_one_sender_gives_its_own_bits_and_one_nan(codec: str, dtype: str) -> None:
    """Every pattern goes to FP32 and back unchanged, -0 and subnormals too; every NaN becomes the dtype's quiet one."""
    bits = patterns(dtype)
    expected = np.where(to_torch(bits, dtype).float().isnan().numpy(), np.array(NAN[dtype], bits.dtype), bits)
    assert np.array_equal(reduced(Codec(codec, dtype), [bits]), expected)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("senders", [2, 5])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_round_as_torch_does(dtype: str, senders: int, threads: int) -> None:
    chunks = [sample("random", dtype, 300_000 // ITEM_BYTES[dtype], seed=s) for s in range(senders)]
    total = to_torch(chunks[0], dtype).float()
    for chunk in chunks[1:]:
        total = total + to_torch(chunk, dtype).float()
    rounded = total.to(TORCH[dtype])
    expected = rounded.view(torch.uint8).numpy().view(f"<u{ITEM_BYTES[dtype]}").copy()
    expected[rounded.float().isnan().numpy()] = NAN[dtype]
    assert np.array_equal(reduced(Codec("cascade", dtype), chunks, threads=threads), expected)


def test_the_order_of_senders_counts() -> None:
    """2^24 + 1 + 1 in FP32 depends on the order: the sum starts at sender 0."""
    big, one = (np.full(10, v, np.float32).view(np.uint8) for v in (2.0**24, 1.0))
    assert (reduced(Codec("window", "fp32"), [big, one, one]).view(np.float32) == 2.0**24).all()
    assert (reduced(Codec("window", "fp32"), [one, one, big]).view(np.float32) == 2.0**24 + 2).all()
