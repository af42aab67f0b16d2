"""`delta`: what it saves, and what it says when reference or frame are not what they should be."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.kernels import (
    Codec,
    Frame,
    decode,
    decode_frame,
    decode_reduce,
    dynamic_sizes,
    encode,
    encode_frame,
    reference_delta,
    static_size,
)
from zipplan.kernels.sample import sample, update
from zipplan.planner.errors import CodecError

CODEC = Codec("delta", "bf16")
NEW, OLD = update("bf16", 5000)
FRAME = encode_frame(CODEC, NEW, reference=OLD)


def changed(offset: int, value: bytes, frame: bytes = FRAME) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


@pytest.mark.parametrize(
    ("data", "seed", "digest"),
    [  # as the xxhash package (PyPI, 4.1.0) prints them
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (bytes(range(101)), 0, 0xE99038495F85381E),
        (bytes(range(101)), 3, 0xCECE9DFB78343AAF),
    ],
)
def test_the_hash_is_xxh64(data: bytes, seed: int, digest: int) -> None:
    assert reference_delta.xxh64(data, seed) == digest


@pytest.mark.parametrize("size", [1, 3, 31, 101, 65536, 65537, 200_000])
def test_the_digest_is_the_same_in_every_backend(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    frame = encode_frame(Codec("delta", "u8"), data, reference=data)
    assert Frame.parse(frame).reference == reference_delta.digest(data)


def test_an_unchanged_tensor_sends_masks_only() -> None:
    frame = encode_frame(CODEC, OLD, reference=OLD)
    assert len(frame) == static_size(CODEC, 5000) <= OLD.nbytes / 64 + 192
    assert Frame.parse(frame).dynamic_bytes == 0


def test_equal_exponents_send_no_exponent_planes() -> None:
    """CIERA's case (arXiv 2609.04609): signs and exponents stay, all mantissas change: 8 planes of 16 at most."""
    old = np.frombuffer(sample("gaussian", "bf16", 64 * 100), np.uint16)
    new = old & 0xFF80 | np.random.default_rng(1).integers(0, 128, old.size).astype(np.uint16)
    frame = encode_frame(CODEC, new.tobytes(), reference=old.tobytes())
    assert Frame.parse(frame).dynamic_bytes <= old.nbytes // 2
    assert decode_frame(frame, reference=old.tobytes()).tobytes() == new.tobytes()


def test_a_small_step_is_worth_a_multiple() -> None:
    assert NEW.nbytes / len(FRAME) > 4
    assert 0.01 < np.mean(NEW.view(np.uint16) != OLD.view(np.uint16)) < 0.2


@pytest.mark.parametrize("at", [0, 1, 4999, 9998])
def test_another_reference_is_refused_with_both_digests(at: int) -> None:
    """One bit anywhere in the reference is seen, and nothing is written."""
    stale = OLD.copy()
    stale[at] ^= 1
    sent, held = Frame.parse(FRAME).reference, reference_delta.digest(stale.tobytes())
    size = Frame.parse(FRAME).static_bytes
    view, before = np.frombuffer(FRAME, np.uint8), stale.copy()
    with pytest.raises(CodecError, match=rf"frame 0: reference: .*{sent:#018x}, found digest {held:#018x}; .*versions"):
        decode(CODEC, view[:size], view[size:], [stale], references=[stale])
    assert np.array_equal(stale, before)


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (4, b"\2", "version"),
        (6, b"\x09", "dtype"),
        (7, b"\x02", "flags"),
        (8, struct.pack("<Q", 2**63), "element count"),
        (8, struct.pack("<Q", 50_000), "static region size"),
        (24, struct.pack("<Q", 2**40), "dynamic region size"),
        (32, b"\x10", "slack"),
        (36, b"\1", "reserved field"),
        (40, b"\0\0\0\0\0\0\0\0", "reference"),
        (48, b"\1", "checksum"),
        (56, b"\1", "reserved field"),
        (64, b"\xff" * 64, "planes"),
        (64, b"\0" * 64, "planes"),
    ],
)
def test_every_field_is_checked(offset: int, value: bytes, field: str) -> None:
    with pytest.raises(CodecError, match=rf"{field}.*expected .*found "):
        decode_frame(changed(offset, value), reference=OLD)


@pytest.mark.parametrize("at", range(64, len(FRAME), 331))
def test_a_checksum_sees_a_flipped_bit(at: int) -> None:
    frame = encode_frame(Codec("delta", "bf16", checksum=True), NEW, reference=OLD)
    with pytest.raises(CodecError, match="checksum"):
        decode_frame(changed(at, bytes([frame[at] ^ 4]), frame), reference=OLD)


def test_references_are_asked_for_and_measured() -> None:
    static, dynamic = np.zeros(static_size(CODEC, 2), np.uint8), np.zeros(128, np.uint8)
    x = np.zeros(2, np.uint16)
    for references, text in [
        (None, "codec 'delta': expected one per chunk, found none"),
        ([], "references: expected 1, one per chunk, found 0"),
        ([x[:1]], r"references\[0\]: expected exactly 4 bytes, found 2"),
    ]:
        with pytest.raises(CodecError, match=text):
            encode(CODEC, [x], static, dynamic, references=references)
        with pytest.raises(CodecError, match=text):
            decode(CODEC, static, dynamic, [x], references=references)
    with pytest.raises(CodecError, match="codec 'raw': expected none, they are for 'delta'"):
        encode_frame(Codec("raw", "bf16"), NEW, reference=OLD)
    with pytest.raises(CodecError, match="references: codec 'delta'"):
        decode_frame(FRAME)
    with pytest.raises(CodecError, match=r"decode_reduce: codec 'delta' .*cannot sum"):
        decode_reduce(CODEC, static, dynamic, [x], senders=1)
    with pytest.raises(CodecError, match="slack of delta bf16: expected a multiple of 16 from 0 to 0"):
        Codec("delta", "bf16", slack=16)


def test_a_frame_of_another_codec_is_refused_by_name() -> None:
    size = Frame.parse(FRAME).static_bytes
    view = np.frombuffer(FRAME, np.uint8)
    assert dynamic_sizes(CODEC, view[:size], [5000]).tolist() == [len(FRAME) - size]
    with pytest.raises(CodecError, match="frame 0: codec: expected 'cascade', found 'delta'"):
        decode(Codec("cascade", "bf16"), view[:size], view[size:], [np.zeros(5000, np.uint16)])


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damage_gives_an_error_or_bytes_of_the_right_length(data: st.DataObject) -> None:
    frame = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 5))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        assert decode_frame(bytes(frame), reference=OLD).size == OLD.size
