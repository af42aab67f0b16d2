"""Every backend against the numpy oracle, and every frame back to its bytes: dtype x length x offset x distribution."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.kernels import Codec, Params, decode_frame, encode_frame, max_encoded_size, reference, static_size
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.native import library

FLOATS = [d for d in ITEM_BYTES if d != "u8"]
BACKENDS = ["portable"] + ["avx2"] * library().zp_has_avx2()


def gaussian(rng: np.random.Generator, n: int, dtype: str, scale: float = 0.02) -> bytes:
    return as_dtype(rng.normal(0, scale, n), dtype)


def as_dtype(values: np.ndarray, dtype: str) -> bytes:
    """Bytes of values in a dtype; the narrow ones cut off instead of rounding, which is all a codec test needs."""
    if dtype in ("fp16", "fp8_e5m2"):
        half = values.astype(np.float16)
        return half.tobytes() if dtype == "fp16" else (half.view(np.uint16) >> 8).astype(np.uint8).tobytes()
    wide = values.astype(np.float32)
    if dtype == "fp32":
        return wide.tobytes()
    bits = wide.view(np.uint32)
    if dtype == "bf16":
        return (bits >> 16).astype(np.uint16).tobytes()
    magnitude = np.clip((bits >> 20 & 0x7FF).astype(np.int64) - 8 * 120, 0, 126)
    return (bits >> 24 & 0x80 | magnitude.astype(np.uint32)).astype(np.uint8).tobytes()


DISTRIBUTIONS = {
    "gaussian": gaussian,
    "wide": lambda rng, n, dtype: as_dtype(rng.normal(0, 1, n) * 10.0 ** rng.integers(-4, 4, n), dtype),
    "half zero": lambda rng, n, dtype: as_dtype(np.maximum(rng.normal(0, 1, n), 0), dtype),
    "upcast": lambda rng, n, dtype: as_dtype(
        (rng.normal(0, 1, n).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32), dtype
    ),
    "random": lambda rng, n, dtype: rng.bytes(n * ITEM_BYTES[dtype]),
    "constant": lambda rng, n, dtype: rng.bytes(ITEM_BYTES[dtype]) * n,
    "one odd": lambda rng, n, dtype: b"\x40" * (n * ITEM_BYTES[dtype] - min(n, 1)) + rng.bytes(min(n, 1)),
}
LENGTHS = st.one_of(
    st.integers(0, 300),
    st.builds(lambda tiles, off: max(0, tiles * 4096 + off), st.integers(1, 3), st.integers(-130, 130)),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Codec, bytes, Params]:
    dtype = draw(st.sampled_from(FLOATS))
    codec = draw(st.sampled_from(["raw", "window", "cascade"]))
    slack = 0 if codec == "raw" else draw(st.sampled_from([0, 16, 112, 384, 512]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    data = DISTRIBUTIONS[draw(st.sampled_from(sorted(DISTRIBUTIONS)))](rng, draw(LENGTHS), dtype)
    base = draw(st.none() | st.integers(0, 255))
    shift = draw(st.none() | st.integers(-3, 3))
    ranking = draw(st.none() | st.permutations(range(16)).map(tuple))
    return Codec(codec, dtype, slack, draw(st.booleans())), data, Params(base, shift, ranking)


@given(cases(), st.sampled_from(BACKENDS), st.integers(0, 17))
@settings(max_examples=400, deadline=None)
def test_backends_equal_the_oracle_and_bytes_come_back(
    case: tuple[Codec, bytes, Params], backend: str, offset: int
) -> None:
    """F006, F021, F032: byte-equal frames, byte-equal data, within the bound, whatever the address."""
    codec, data, params = case
    placed = np.frombuffer(bytes(offset) + data, np.uint8)[offset:]
    frame = encode_frame(codec, placed, params=params, backend=backend)
    assert frame == reference.encode_frame(codec, data, params)
    assert len(frame) <= max_encoded_size(codec, len(data) // codec.item_bytes)
    assert decode_frame(frame, backend=backend).tobytes() == data
    assert reference.decode_frame(frame) == data


@given(cases())
@settings(max_examples=100, deadline=None)
def test_static_size_depends_on_codec_and_count_only(case: tuple[Codec, bytes, Params]) -> None:
    codec, data, params = case
    frame = reference.encode_frame(codec, data, params)
    size = static_size(codec, len(data) // codec.item_bytes)
    assert size % 128 == 0
    assert int.from_bytes(frame[16:24], "little") == size
    assert int.from_bytes(frame[24:32], "little") == len(frame) - size
