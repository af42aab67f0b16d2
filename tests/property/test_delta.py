"""`delta` against the numpy oracle, and back: dtype x length x offset x relation of the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.kernels import (
    Codec,
    decode,
    decode_frame,
    encode,
    encode_frame,
    max_dynamic_size,
    max_encoded_size,
    reference_delta,
    static_size,
)
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.native import library

BACKENDS = ["portable"] + ["avx2"] * library().zp_has_avx2()
Array = np.ndarray


def few_changed(rng: np.random.Generator, x: Array) -> Array:
    near = rng.integers(0, 3, x.size).astype(x.dtype) * (rng.random(x.size) < 0.02)
    return (x + near - (near >> 1)).astype(x.dtype)


RELATIONS: dict[str, Callable[[np.random.Generator, Array], Array]] = {
    "equal": lambda rng, x: x,
    "few changed": few_changed,
    "exponents equal": lambda rng, x: (x ^ rng.integers(0, 4, x.size).astype(x.dtype)).astype(x.dtype),
    "unrelated": lambda rng, x: rng.integers(0, 1 << 8 * x.itemsize, x.size, dtype=np.uint64).astype(x.dtype),
    "opposite": lambda rng, x: (x + (1 << 8 * x.itemsize - 1)).astype(x.dtype),  # all planes in use
}
SEGMENT = 65536  # bytes
LENGTHS = st.one_of(
    st.integers(0, 300), st.builds(lambda k, off: k * SEGMENT + off, st.integers(1, 2), st.integers(-70, 70))
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Codec, bytes, bytes]:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    item = ITEM_BYTES[dtype]
    length = draw(LENGTHS)
    n = length if length < SEGMENT // 2 else length // item
    x = RELATIONS["unrelated"](rng, np.zeros(n, f"<u{item}"))
    old = RELATIONS[draw(st.sampled_from(sorted(RELATIONS)))](rng, x)
    return Codec("delta", dtype, checksum=draw(st.booleans())), x.tobytes(), old.tobytes()


@given(cases(), st.sampled_from(BACKENDS), st.integers(0, 17), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_backends_equal_the_oracle_and_bytes_come_back(
    case: tuple[Codec, bytes, bytes], backend: str, offset: int, threads: int
) -> None:
    """Byte-equal frames, byte-equal data, within the bound, whatever the address and the number of threads."""
    codec, data, old = case
    x, ref = (np.frombuffer(bytes(offset) + part, np.uint8)[offset:] for part in (data, old))
    frame = encode_frame(codec, x, reference=ref, backend=backend, threads=threads)
    assert frame == reference_delta.encode_frame(codec, data, old)
    n = len(data) // codec.item_bytes
    assert len(frame) <= max_encoded_size(codec, n)
    assert int.from_bytes(frame[16:24], "little") == static_size(codec, n)
    assert decode_frame(frame, reference=ref, backend=backend, threads=threads).tobytes() == data
    assert reference_delta.decode_frame(frame, old) == data


@given(st.lists(cases(), min_size=0, max_size=4), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_chunks_in_one_call_restored_in_place(batch: list[tuple[Codec, bytes, bytes]], threads: int) -> None:
    """Uneven chunks, empty ones too; the receiver's copy of the earlier version becomes the new one."""
    codec = Codec("delta", "u8")
    chunks, copies = ([np.frombuffer(case[k], np.uint8).copy() for case in batch] for k in (1, 2))
    static = np.empty(sum(static_size(codec, c.size) for c in chunks), np.uint8)
    dynamic = np.empty(sum(max_dynamic_size(codec, c.size) for c in chunks), np.uint8)
    sizes = encode(codec, chunks, static, dynamic, references=copies, threads=threads).sizes
    decode(codec, static, dynamic[: sizes.sum()], copies, references=copies, threads=threads)
    for chunk, copy in zip(chunks, copies, strict=True):
        assert chunk.tobytes() == copy.tobytes()


@given(st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 300))
@settings(max_examples=50, deadline=None)
def test_the_bound_is_reached(dtype: str, n: int) -> None:
    codec = Codec("delta", dtype)
    x = np.zeros(n, f"<u{codec.item_bytes}")
    frame = encode_frame(codec, x.tobytes(), reference=RELATIONS["opposite"](np.random.default_rng(), x).tobytes())
    assert len(frame) == max_encoded_size(codec, n)
