"""What went wrong for other people's codecs, tried on this one; case numbers stand in the docstrings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zipplan.kernels import (
    Codec,
    Frame,
    decode_frame,
    encode_frame,
    max_dynamic_size,
    max_encoded_size,
    reference,
    static_size,
)
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.native import library
from zipplan.kernels.sample import sample, to_bytes
from zipplan.planner.errors import CodecError

FLOATS = [d for d in ITEM_BYTES if d != "u8"]
CODERS = ["window", "cascade"]
BACKENDS = ["portable"] + ["avx2"] * library().zp_has_avx2()
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def round_trip(codec: Codec, raw: np.ndarray) -> float:
    """Encodes and decodes on every backend, compares bytes, returns bits per element."""
    raw = np.ascontiguousarray(raw).view(np.uint8)
    frames = {encode_frame(codec, raw, backend=backend) for backend in BACKENDS}
    assert len(frames) == 1
    (frame,) = frames
    for backend in BACKENDS:
        assert decode_frame(frame, backend=backend).tobytes() == raw.tobytes()
    n = raw.nbytes // codec.item_bytes
    assert len(frame) <= max_encoded_size(codec, n)
    return 8 * len(frame) / max(n, 1)


@pytest.mark.parametrize("codec", ["raw", *CODERS])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_gives_a_valid_frame(codec: str, dtype: str) -> None:
    """F002: no division by zero, no special case for the caller."""
    frame = encode_frame(Codec(codec, dtype), b"")
    assert len(frame) == 128
    assert Frame.parse(frame).elements == 0
    assert decode_frame(frame).size == 0


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("odd", [0, 4095])
def test_decoding_is_driven_by_the_count(codec: str, odd: int) -> None:
    """F004: 4,095 elements of one exponent and one other, first or last."""
    values = (np.arange(4096, dtype=np.uint16) & 0x807F) | 0x3F80
    values[odd] = 0x0001
    round_trip(Codec(codec), values)


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("order", ["in order", "reversed", "shuffled"])
def test_every_16_bit_pattern(codec: str, dtype: str, order: str) -> None:
    """F006, F008: NaN payloads, -0, subnormals, infinities: all 65,536 patterns."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    patterns = {
        "in order": patterns,
        "reversed": patterns[::-1],
        "shuffled": np.random.default_rng(0).permutation(patterns),
    }[order]
    round_trip(Codec(codec, dtype), patterns)


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_every_8_bit_pattern(codec: str, dtype: str) -> None:
    round_trip(Codec(codec, dtype), np.tile(np.random.default_rng(0).permutation(256).astype(np.uint8), 33))


@pytest.mark.parametrize("codec", CODERS)
def test_special_values_do_not_make_a_tile_incompressible(codec: str) -> None:
    """F008: five odd values among ordinary ones cost a few bytes."""
    values = sample("gaussian", "bf16", 8192).view(np.uint16)
    plain = round_trip(Codec(codec), values)
    values[[10, 2000, 4095, 4096, 8000]] = [0x8000, 0x8001, 0x7F81, 0xFF81, 0xFFFF]
    assert round_trip(Codec(codec), values) < plain + 0.3


def test_blocks_in_the_wrong_place_are_seen() -> None:
    """F005: the payloads of these tests have no two equal 4-KiB blocks, so a codec that swaps blocks fails them."""
    for profile in ("gaussian", "relu", "random"):
        blocks = sample(profile, "bf16", 1 << 17).reshape(-1, 4096)
        assert len({block.tobytes() for block in blocks}) == len(blocks)


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 4095, 4096, 4097, 65537])
def test_backends_agree_at_odd_sizes(codec: str, n: int) -> None:
    """F013, F017: frames of the compiled backends and of the oracle are the same bytes."""
    raw = sample("gaussian", "bf16", n, seed=n)
    round_trip(Codec(codec), raw)
    assert encode_frame(Codec(codec), raw) == reference.encode_frame(Codec(codec), raw.tobytes())


@pytest.mark.parametrize("dtype", FLOATS)
def test_frames_know_nothing_of_the_library_that_made_them(dtype: str) -> None:
    """F014, F138: encoded from numpy, decoded to torch and back; scalars keep their shape at the edge."""
    tensor = torch.randn(3, 700).to(TORCH[dtype])
    frame = encode_frame(Codec("cascade", dtype), tensor.view(torch.uint8).numpy())
    back = torch.from_numpy(decode_frame(frame)).view(TORCH[dtype]).reshape(3, 700)
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    scalar = torch.tensor(1.5).to(TORCH[dtype])
    frame = encode_frame(Codec("window", dtype), scalar.reshape(1).view(torch.uint8).numpy())
    back = torch.from_numpy(decode_frame(frame)).view(TORCH[dtype]).reshape(())
    assert back.shape == scalar.shape
    assert torch.equal(back.reshape(1).view(torch.uint8), scalar.reshape(1).view(torch.uint8))


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_random_bytes_grow_by_the_records_only(codec: str, dtype: str) -> None:
    """F016: an incompressible tile is stored; its record, header and padding are all that is added."""
    n = 10 * 4096
    raw = sample("random", dtype, n)
    assert (
        8 * raw.nbytes / n
        <= round_trip(Codec(codec, dtype), raw)
        <= 8 * raw.nbytes / n + 8 * (10 * 16 + 64 + 2 * 128) / n
    )


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("slack", [0, 96, 512])
@pytest.mark.parametrize("n", [1, 129, 4096, 9000])
def test_the_bound_is_reached(codec: str, dtype: str, slack: int, n: int) -> None:
    """F036: `max_encoded_size` is exact: random exponents take every byte of it."""
    made = Codec(codec, dtype, slack)
    assert len(encode_frame(made, sample("random", dtype, n))) == max_encoded_size(made, n)


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 16, 2**32 - 1, 2**32])
def test_sizes_beyond_32_bits(size: int) -> None:
    """F018, F020: bounds are 64-bit; nothing wraps."""
    for codec in (Codec("raw", "u8"), Codec("window", "bf16"), Codec("cascade", "fp32")):
        assert size * codec.item_bytes < max_encoded_size(codec, size) < size * codec.item_bytes * 1.005 + 512
        assert max_encoded_size(codec, size) == static_size(codec, size) + max_dynamic_size(codec, size)
    assert static_size(Codec("raw", "u8"), 2**32 + 2) == 2**32 + 128
    with pytest.raises(CodecError, match=f"expected 0 to {2**32} in one window frame, found {2**32 + 1}; use several"):
        static_size(Codec("window"), 2**32 + 1)
    with pytest.raises(CodecError, match="found -1"):
        static_size(Codec("window"), -1)


@pytest.mark.parametrize("offset", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", FLOATS)
def test_contiguous_but_not_aligned(offset: int, dtype: str) -> None:
    """F021, F022: the address of a chunk may be any byte, on the way in and on the way out."""
    item = ITEM_BYTES[dtype]
    base = sample("gaussian", dtype, 1032)
    for step in (item, 1):
        chunk = base[offset * step : offset * step + 1024 * item]
        frame = encode_frame(Codec("cascade", dtype), chunk)
        assert frame == encode_frame(Codec("cascade", dtype), chunk.copy())
        assert decode_frame(frame).tobytes() == chunk.tobytes()


def test_expected_ratios_of_one_tensor_in_every_dtype() -> None:
    """F029: fp16 and fp8 are not bf16. Entropy floors of N(0, 0.02) (N(0, 1) for fp8), bits: computed from erf."""
    floors = {"bf16": 10.546, "fp16": 13.541, "fp32": 26.546, "fp8_e4m3": 6.521, "fp8_e5m2": 5.546}
    for dtype, floor in floors.items():
        raw = sample("gaussian", dtype, 1 << 18, scale=1.0 if "fp8" in dtype else 0.02)
        assert floor < round_trip(Codec("cascade", dtype), raw) < floor + 0.25


@pytest.mark.parametrize("codec", CODERS)
def test_lengths_round_tile_and_group_edges(codec: str) -> None:
    """F032: 1 to 300 elements, and a tile give or take a few."""
    raw = sample("gaussian", "bf16", 5000).view(np.uint16)
    sizes = []
    for n in [*range(1, 301), *(4096 + d for d in (-17, -16, -15, -2, -1, 0, 1, 2, 15, 16, 17))]:
        round_trip(Codec(codec), raw[:n])
        sizes.append(static_size(Codec(codec), n))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("codec", CODERS)
def test_mixtures_of_scales(codec: str) -> None:
    """F132: interleaved, the cost is bounded; by blocks, it still compresses."""
    rng = np.random.default_rng(0)
    small, large = rng.normal(0, 1e-6, (2, 1 << 16)), rng.normal(0, 1e3, (2, 1 << 16))
    mixed = np.where(rng.random((2, 1 << 16)) < 0.5, small, large).ravel().astype(np.float32)
    assert round_trip(Codec(codec), to_bytes(mixed, "bf16")) < 16.1
    blocks = np.concatenate([x.reshape(-1, 4096) for x in (small, large)])
    assert round_trip(Codec(codec), to_bytes(rng.permutation(blocks).ravel().astype(np.float32), "bf16")) < 11.35


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.999, 1.0])
def test_mostly_zeros(share: float) -> None:
    """F133: cascade ranks zero: never worse than dense data; half zeros cost ≤ 2.7 exponent bits."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.02, 1 << 18).astype(np.float32)
    values[rng.random(values.size) < share] = 0
    values *= rng.choice(np.float32([-1, 1]), values.size)
    got = round_trip(Codec("cascade"), to_bytes(values, "bf16"))
    assert got < round_trip(Codec("cascade"), sample("gaussian", "bf16", 1 << 18)) + 0.02
    assert share != 0.5 or got - 8 <= 2.7
    round_trip(Codec("window"), to_bytes(values, "bf16"))


@pytest.mark.parametrize("codec", CODERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda rng, n: rng.integers(0, 32000, n),
        lambda rng, n: np.eye(512).ravel()[:n],
        lambda rng, n: np.sin(np.arange(n) / 10000 ** (np.arange(n) % 64 / 64)),
        lambda rng, n: rng.uniform(-1, 1, n),
        lambda rng, n: rng.standard_cauchy(n),
        lambda rng, n: rng.normal(0, 1, n) ** 2 * 10.0 ** rng.uniform(-12, 0, n),
    ],
    ids=["token ids", "one hot", "positions", "uniform", "cauchy", "second moments"],
)
def test_shapes_that_are_not_normal(codec: str, make: object) -> None:
    """F134: bytes come back and nothing grows, whatever the data are."""
    values = make(np.random.default_rng(0), 1 << 17).astype(np.float32)  # type: ignore[operator]
    assert round_trip(Codec(codec), to_bytes(values, "bf16")) < 16.05


def test_low_halves_of_upcast_fp32_cost_nothing() -> None:
    raw = np.zeros((1 << 16, 2), np.uint16)
    raw[:, 1] = sample("gaussian", "bf16", 1 << 16).view(np.uint16)
    assert round_trip(Codec("cascade", "fp32"), raw) < 10.8
    raw[5, 0] = 1  # one tile of sixteen has a low half to send
    assert round_trip(Codec("cascade", "fp32"), raw) < 10.8 + 16 / 16 + 0.1


def test_slotted_frames_of_normal_data_need_no_second_message() -> None:
    codec = Codec("cascade", "bf16", slack=384)
    frame = Frame.parse(encode_frame(codec, sample("gaussian", "bf16", 1 << 20)))
    assert frame.dynamic_bytes == 0
    assert 8 * frame.static_bytes / frame.elements < 10.8
    overflow = Frame.parse(encode_frame(codec, sample("laplace", "bf16", 1 << 16)))
    assert overflow.dynamic_bytes > 0
    round_trip(codec, sample("laplace", "bf16", 1 << 16))
