"""`delta` in plain numpy: slow, short, and the oracle for the compiled one. docs/wire-format.md says it in words."""

from __future__ import annotations

import numpy as np

from zipplan.kernels.codec import ITEM_BYTES, Codec
from zipplan.kernels.native import DTYPES
from zipplan.kernels.reference import HEADER, framed

GROUP, SEGMENT = 64, 65536
WORD = 2**64 - 1
PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def encode_frame(codec: Codec, data: bytes, reference: bytes) -> bytes:
    """One frame of `data` against `reference`, of the same length, as `zipplan.kernels.encode_frame` makes it."""
    item = ITEM_BYTES[codec.dtype]
    n = len(data) // item
    x, old = (np.zeros(-(-n // GROUP) * GROUP, f"<u{item}") for _ in range(2))
    x[:n], old[:n] = np.frombuffer(data, x.dtype), np.frombuffer(reference, x.dtype)
    difference = (x - old).view(f"<i{item}")
    codes = ((difference << 1) ^ (difference >> (8 * item - 1))).view(x.dtype).reshape(-1, GROUP)
    masks = np.bitwise_or.reduce(codes, axis=1)
    planes = [
        np.packbits(group >> bit & 1, bitorder="little").tobytes()
        for group, mask in zip(codes, masks, strict=True)
        for bit in range(8 * item)
        if int(mask) >> bit & 1
    ]
    return framed(codec, n, masks.tobytes(), b"".join(planes), digest(reference).to_bytes(8, "little"))


def decode_frame(frame: bytes, reference: bytes) -> bytes:
    """The raw bytes of a frame that is whole and undamaged, given the reference that it was made with."""
    fields = HEADER.unpack(frame[: HEADER.size])
    n, at, item = fields[5], fields[6], ITEM_BYTES[DTYPES[fields[3]]]
    masks = np.frombuffer(frame, f"<u{item}", -(-n // GROUP), HEADER.size)
    codes = np.zeros((masks.size, GROUP), masks.dtype)
    for group, mask in zip(codes, masks, strict=True):
        for bit in range(8 * item):
            if int(mask) >> bit & 1:
                plane = np.frombuffer(frame, np.uint8, GROUP // 8, at)
                group |= np.unpackbits(plane, bitorder="little").astype(masks.dtype) << bit
                at += GROUP // 8
    codes = codes.reshape(-1)[:n]
    difference = codes >> 1 ^ (0 - (codes & 1)).astype(codes.dtype)
    return (np.frombuffer(reference, codes.dtype) + difference).astype(codes.dtype).tobytes()


def digest(data: bytes) -> int:
    """The sum of the XXH64 of every 64 KiB, each with its index as seed."""
    starts = range(0, len(data), SEGMENT)
    return sum(xxh64(data[at : at + SEGMENT], seed) for seed, at in enumerate(starts)) & WORD


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md)."""
    p1, p2, p3, p4, p5 = PRIMES

    def rotate(x: int, by: int) -> int:
        return (x << by | (x & WORD) >> (64 - by)) & WORD

    def mix(lane: int, word: int) -> int:
        return rotate((lane + word * p2) & WORD, 31) * p1 & WORD

    h, whole = seed + p5, len(data) // 32 * 32
    if whole:
        lanes = [seed + p1 + p2, seed + p2, seed, seed - p1]
        for stripe in np.frombuffer(data[:whole], "<u8").reshape(-1, 4).tolist():
            lanes = [mix(lane, word) for lane, word in zip(lanes, stripe, strict=True)]
        h = sum(rotate(lane & WORD, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            h = ((h & WORD) ^ mix(0, lane)) * p1 + p4
    h, at = h + len(data), whole
    for size, by, factor, plus in ((8, 27, p1, p4), (4, 23, p2, p3), (1, 11, p1, 0)):
        while len(data) - at >= size:
            word = int.from_bytes(data[at : at + size], "little")
            word = mix(0, word) if size == 8 else word * (p1 if size == 4 else p5)
            h, at = rotate((h ^ word) & WORD, by) * factor + plus, at + size
    h &= WORD
    h = (h ^ h >> 33) * p2 & WORD
    h = (h ^ h >> 29) * p3 & WORD
    return h ^ h >> 32
