"""The wire format in plain numpy: slow, short, and the oracle that every backend must match byte for byte.

It shares no code with the compiled library; docs/wire-format.md says in words what this file does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from zipplan.kernels.codec import ITEM_BYTES, Codec, Params
from zipplan.kernels.native import CODECS, DTYPES

TILE, HEADER = 4096, struct.Struct("<4sBBBBQQQII8sQQ")
# dtype -> exponent bits, rest bytes, rest planes. An element rotated left by one is exponent : rest (mantissa, sign).
FIELDS = {"bf16": (8, 1, 0), "fp16": (5, 1, 3), "fp32": (8, 1, 0), "fp8_e4m3": (4, 0, 4), "fp8_e5m2": (5, 0, 3)}
GAUSSIAN_RANKING = (9, 10, 8, 7, 6, 11, 5, 4, 3, 2, 1, 0, 12, 13, 14, 15)


def encode_frame(codec: Codec, data: bytes, params: Params | None = None) -> bytes:
    """One frame (static region, dynamic region) of raw bytes, as `zipplan.kernels.encode_frame` makes it."""
    params = params or Params()
    item = ITEM_BYTES[codec.dtype]
    n = len(data) // item
    static, dynamic = b"", b""
    ranking: tuple[int, ...] = (0,) * 16
    if codec.id == "raw":
        static = data
    else:
        tiles = [split(codec.dtype, data[at : at + TILE * item]) for at in range(0, len(data), TILE * item)]
        found = [tile_base(codec, exponents, params.base, 0) for exponents, _, _ in tiles]
        samples = (len(tiles) > 0) if len(tiles) < 32 else min(len(tiles) // 16, 16)
        sample = [(tiles[t][0][::8], found[t]) for t in (j * len(tiles) // samples for j in range(samples))]
        shift = 0
        if codec.id == "cascade":
            ranking = params.ranking or measured_ranking(sample)
        elif params.base is None:
            shift = measured_shift(sample) if params.shift is None else params.shift
        bases = [tile_base(codec, exponents, params.base, shift) for exponents, _, _ in tiles]
        for t, ((exponents, rest, low), base) in enumerate(zip(tiles, bases, strict=True)):
            raw = data[t * TILE * item : (t + 1) * TILE * item]
            slot, spill = encode_tile(codec, raw, exponents, rest, low, base, ranking, len(dynamic))
            static, dynamic = static + slot, dynamic + spill
    packed = bytes(a | b << 4 for a, b in zip(ranking[::2], ranking[1::2], strict=True))
    return framed(codec, n, static, dynamic, packed)


def framed(codec: Codec, n: int, static: bytes, dynamic: bytes, packed: bytes) -> bytes:
    """Pads both regions and puts the header in front. `packed`: the 8 bytes at offset 40."""
    static += bytes(-(HEADER.size + len(static)) % 128)
    dynamic += bytes(-len(dynamic) % 128)
    fields = [b"ZPLN", 1, CODECS.index(codec.id), DTYPES.index(codec.dtype), int(codec.checksum), n]
    fields += [HEADER.size + len(static), len(dynamic), codec.slack, 0, packed]
    if codec.checksum:
        words = np.frombuffer(HEADER.pack(*fields, 0, 0) + static + dynamic, "<u4").astype(np.uint64)
        weights = np.arange(words.size, dtype=np.uint64) % np.uint64(1 << 31) * np.uint64(2) + np.uint64(1)
        return HEADER.pack(*fields, int((words * weights).sum(dtype=np.uint64)), 0) + static + dynamic
    return HEADER.pack(*fields, 0, 0) + static + dynamic


def split(dtype: str, raw: bytes) -> tuple[np.ndarray, bytes, bytes]:
    """Exponents, the packed rest (bytes, then planes), and fp32's low halves."""
    bits, rest_bytes, rest_planes = FIELDS[dtype]
    low = b""
    x: np.ndarray = np.frombuffer(raw, f"<u{ITEM_BYTES[dtype]}").astype(np.uint32)
    if dtype == "fp32":
        low, x = (x & 0xFFFF).astype("<u2").tobytes(), x >> 16
    width = 8 if dtype.startswith("fp8") else 16
    y = (x << 1 | x >> (width - 1)) & ((1 << width) - 1)
    rest = y & ((1 << (width - bits)) - 1)
    packed = b"".join(pad((rest >> 8 * k & 255).astype(np.uint8).tobytes(), x.size) for k in range(rest_bytes))
    packed += b"".join(plane(rest >> (8 * rest_bytes + k) & 1, x.size) for k in range(rest_planes))
    return y >> (width - bits), packed, low


def pad(data: bytes, m: int) -> bytes:
    """One byte per element, zeros up to a multiple of 128 elements."""
    return data + bytes(-m % 128)


def plane(bits: np.ndarray, m: int) -> bytes:
    """One bit per element, zeros up to a multiple of 128 elements; element i is bit i % 8 of byte i // 8."""
    return pack(bits) + bytes((m + 127) // 128 * 16 - (m + 7) // 8)


def pack(bits: np.ndarray) -> bytes:
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def tile_base(codec: Codec, exponents: np.ndarray, forced: int | None, shift: int) -> int:
    """Best window for N(0, sigma^2), sigma from the mean of the non-zero exponents (tile.h has the derivation)."""
    window = codec.id == "window"
    lowest = 0 if window else 1
    highest = max(lowest, 2 ** FIELDS[codec.dtype][0] - 1 - (6 if window else 14))
    nonzero = int(np.count_nonzero(exponents))
    if forced is not None:
        base = forced
    elif nonzero == 0 or (window and exponents.size - nonzero > nonzero):
        base = lowest
    else:
        base = -((-1024 * int(exponents.sum()) - 713 * nonzero) // (1024 * nonzero)) - (5 if window else 10) + shift
    return min(max(base, lowest), highest)


def symbols(exponents: np.ndarray, base: int) -> np.ndarray:
    """0-14: base + symbol; 15: exponent 0; 16: any other."""
    distance = exponents.astype(np.int64) - base
    return np.where(exponents == 0, 15, np.where((distance >= 0) & (distance < 15), distance, 16))


def measured_ranking(sample: list[tuple[np.ndarray, int]]) -> tuple[int, ...]:
    """Symbols by how often they occur in a sample of (exponents, base); ties in the Gaussian order."""
    count = np.zeros(17, np.int64)
    for exponents, base in sample:
        count += np.bincount(symbols(exponents, base), minlength=17)
    return tuple(sorted(GAUSSIAN_RANKING, key=lambda s: -count[s]))


def measured_shift(sample: list[tuple[np.ndarray, int]]) -> int:
    """The shift of the window that covers most of a sample of (exponents, base)."""

    def covered(shift: int) -> int:
        distances = [exponents.astype(np.int64) - base - shift for exponents, base in sample]
        return sum(int(((d >= 0) & (d < 7)).sum()) for d in distances)

    return max((0, -1, 1, -2, 2, -3, 3), key=covered)


def encode_tile(
    codec: Codec,
    raw: bytes,
    exponents: np.ndarray,
    rest: bytes,
    low: bytes,
    base: int,
    ranking: tuple[int, ...],
    at: int,
) -> tuple[bytes, bytes]:
    """One tile's slot and its part of the dynamic region, which starts at byte `at` of it."""
    m, mode, counts = exponents.size, 0, []
    planes: list[np.ndarray] = []  # in the slot
    deeper: list[np.ndarray] = []  # levels 2-4, in the variable part
    if codec.dtype == "fp32" and not any(low):
        low, mode = b"", 2
    if codec.id == "window":
        distance = exponents.astype(np.int64) - base
        code = np.where((distance >= 0) & (distance < 7), distance + 1, 0)
        planes, variable, escaped = [code >> k & 1 for k in range(3)], low, exponents[code == 0]
    else:
        rank_of = np.array([ranking.index(s) for s in range(16)] + [15])
        code = np.array([r // 3 * 4 + r % 3 if r < 12 else 15 for r in range(16)])[rank_of[symbols(exponents, base)]]
        for level in range(4):  # digit of those that stop at this level, 3 for those that go on
            digit = np.where(code // 4 == level, code % 4, 3)
            (planes if level == 0 else deeper).extend([digit & 1, digit >> 1])
            if level:
                counts.append(code.size)
            on = digit == 3
            code, exponents = code[on], exponents[on]
        variable, escaped = low + b"".join(pack(p) for p in deeper), exponents
    variable += escaped.astype(np.uint8).tobytes()
    fixed = rest + b"".join(plane(p, m) for p in planes)
    size = len(fixed) + codec.slack
    record = [mode, base, *(counts or [0, 0, 0]), escaped.size]
    if len(variable) <= codec.slack:
        body, spill = fixed + variable, b""
    else:
        body, spill = fixed, variable + bytes(-len(variable) % 4)
        stored = raw[size:] + bytes(-len(raw[size:]) % 4)
        if len(spill) >= len(stored):
            record, body, spill = [1, 0, 0, 0, 0, 0], raw[:size], stored
    slot = struct.pack("<BBHHHHHI", *record, 0, at // 4 if spill else 0) + body
    return slot + bytes(16 + size - len(slot)), spill


def decode_frame(frame: bytes) -> bytes:
    """The raw bytes of a frame that is whole and undamaged."""
    _, _, codec_id, dtype_id, _, n, static_bytes, _, slack, _, packed, _, _ = HEADER.unpack(frame[: HEADER.size])
    codec, dtype = CODECS[codec_id], DTYPES[dtype_id]
    if codec == "raw":
        return frame[HEADER.size : HEADER.size + n * ITEM_BYTES[dtype]]
    ranking = [b >> s & 15 for b in packed for s in (0, 4)]
    bits, rest_bytes, rest_planes = FIELDS[dtype]
    dynamic, at, out = frame[static_bytes:], HEADER.size, b""
    for start in range(0, n, TILE):
        m = min(TILE, n - start)
        stride = (m + 127) // 128 * 16  # bytes of a plane
        sizes = [8 * stride] * rest_bytes + [stride] * (rest_planes + (3 if codec == "window" else 2))
        mode, base, n2, n3, n4, escapes, _, offset = struct.unpack("<BBHHHHHI", frame[at : at + 16])
        body = frame[at + 16 : at + 16 + sum(sizes) + slack]
        at += 16 + len(body)
        if mode == 1:
            raw = m * ITEM_BYTES[dtype]
            out += body[:raw] + dynamic[4 * offset : 4 * offset + max(0, raw - len(body))]
            continue
        low_bytes = 2 * m if dtype == "fp32" and mode == 0 else 0
        length = low_bytes + sum(2 * ((count + 7) // 8) for count in (n2, n3, n4)) + escapes
        tail = body[sum(sizes) :] if length <= slack else dynamic[4 * offset : 4 * offset + length]
        arrays = iter(np.split(np.frombuffer(body, np.uint8), np.cumsum(sizes)))
        rest = sum((next(arrays)[:m].astype(np.uint32) << 8 * k for k in range(rest_bytes)), np.zeros(m, np.uint32))
        for k in range(rest_planes):
            rest |= unpack(next(arrays), m) << (8 * rest_bytes + k)
        escaped = np.frombuffer(tail[length - escapes : length], np.uint8)
        if codec == "window":
            code = sum(unpack(next(arrays), m) << k for k in range(3))
            exponents = code + base - 1
            exponents[code == 0] = escaped
        else:
            pairs = levels(tail[low_bytes:], (n2, n3, n4))
            exponents = cascade(
                unpack(next(arrays), m) | unpack(next(arrays), m) << 1, pairs, base, ranking, escaped, 0
            )
        width = 8 if dtype.startswith("fp8") else 16
        y = (exponents << (width - bits) | rest).astype(np.uint32)
        x = (y >> 1 | y << (width - 1)) & ((1 << width) - 1)
        if dtype == "fp32":
            x = x << 16 | (np.frombuffer(tail[:low_bytes], "<u2") if low_bytes else np.zeros(m, np.uint32))
        out += x.astype(f"<u{ITEM_BYTES[dtype]}").tobytes()
    return out


def unpack(data: np.ndarray | bytes, m: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=m).astype(np.uint32)


def levels(data: bytes, counts: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The digits of levels 2, 3 and 4."""
    for count in counts:
        size = (count + 7) // 8
        yield unpack(data[:size], count) | unpack(data[size : 2 * size], count) << 1
        data = data[2 * size :]


def cascade(
    digits: np.ndarray, deeper: Iterator[np.ndarray], base: int, ranking: list[int], escaped: np.ndarray, level: int
) -> np.ndarray:
    """Exponents of the elements that reached `level`, by their digits there and deeper."""
    exponents = np.zeros(digits.size, np.uint32)
    for digit in range(3):
        symbol = ranking[3 * level + digit]
        exponents[digits == digit] = 0 if symbol == 15 else base + symbol
    on = digits == 3
    exponents[on] = escaped if level == 3 else cascade(next(deeper), deeper, base, ranking, escaped, level + 1)
    return exponents
