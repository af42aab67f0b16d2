"""The batch interface that the executor builds on: regions, strides, sizes, sums."""

from __future__ import annotations

import numpy as np
import pytest

from zipplan.kernels import (
    Codec,
    decode,
    decode_reduce,
    dynamic_sizes,
    encode,
    max_dynamic_size,
    static_size,
)


def gaussian(seed: int, n: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 0.02, n).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def encoded(codec: Codec, chunks: list[np.ndarray], **kw: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    counts = [c.nbytes // codec.item_bytes for c in chunks]
    static = np.full(sum(static_size(codec, n) for n in counts), 0xA5, np.uint8)
    dynamic = np.full(sum(max_dynamic_size(codec, n) for n in counts), 0xA5, np.uint8)
    sizes = encode(codec, chunks, static, dynamic, **kw).sizes
    return static, dynamic[: sizes.sum()], sizes


@pytest.mark.parametrize(
    "codec", [Codec(i, slack=s) for i, s in [("raw", 0), ("window", 0), ("cascade", 0), ("cascade", 512)]]
)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_batch_equals_its_frames_one_by_one(codec: Codec, threads: int) -> None:
    """F001: uneven chunks, zeros among them, in one call: each frame is what it would be alone, in its place."""
    chunks = [gaussian(i, n) for i, n in enumerate([1024, 0, 300_001, 3072, 0, 4096, 1])]
    static, dynamic, sizes = encoded(codec, chunks, threads=threads)
    assert list(dynamic_sizes(codec, static, [c.size for c in chunks])) == list(sizes)
    alone = [encoded(codec, [c]) for c in chunks]
    assert static.tobytes() == b"".join(s.tobytes() for s, _, _ in alone)
    assert dynamic.tobytes() == b"".join(d.tobytes() for _, d, _ in alone)
    assert all(size % 128 == 0 for size in sizes)
    outs = [np.full(c.size, 0xBEEF, np.uint16) for c in chunks]
    decode(codec, static, dynamic, outs, threads=threads)
    assert all(np.array_equal(a, b) for a, b in zip(chunks, outs, strict=True))


def test_dynamic_regions_at_given_offsets() -> None:
    codec = Codec("window")
    chunks = [gaussian(i, 10_000) for i in range(3)]
    static, dynamic, sizes = encoded(codec, chunks)
    starts = np.cumsum(sizes) - sizes
    moved, offsets = np.zeros(dynamic.size + 4096, np.uint8), [4000, 0, 2000]
    for start, size, offset in zip(starts, sizes, offsets, strict=True):
        moved[offset : offset + size] = dynamic[start : start + size]
    outs = [np.zeros(10_000, np.uint16) for _ in chunks]
    decode(codec, static, moved, outs, offsets=offsets)
    assert all(np.array_equal(a, b) for a, b in zip(chunks, outs, strict=True))


@pytest.mark.parametrize("codec", ["raw", "window", "cascade"])
def test_decode_reduce_sums_in_sender_order(codec: str) -> None:
    """Bit-equal to an FP32 sum in sender order, rounded once to bf16 (ties to even), for several chunks per sender."""
    senders, counts = 5, [4097, 0, 777]
    sent = [[gaussian(10 * s + j, n) for j, n in enumerate(counts)] for s in range(senders)]
    static, dynamic, _ = encoded(Codec(codec), [c for row in sent for c in row])
    outs = [np.zeros(n, np.uint16) for n in counts]
    decode_reduce(Codec(codec), static, dynamic, outs, senders=senders)
    for j, out in enumerate(outs):
        total = (sent[0][j].astype(np.uint32) << 16).view(np.float32)
        for row in sent[1:]:
            total = total + (row[j].astype(np.uint32) << 16).view(np.float32)
        bits = total.view(np.uint32).astype(np.uint64)
        assert np.array_equal(out, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
