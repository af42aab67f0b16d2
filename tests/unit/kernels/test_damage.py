"""Damaged, cut or foreign frames: always a CodecError that names the field, never a read or write outside a buffer."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.kernels import Codec, Frame, Params, decode, decode_frame, decode_reduce, encode, encode_frame
from zipplan.kernels.sample import sample
from zipplan.planner.errors import CodecError

ROOT = Path(__file__).parents[3]
DATA = sample("gaussian", "bf16", 5000)
FRAME = encode_frame(Codec("cascade"), DATA)


def changed(offset: int, value: bytes, frame: bytes = FRAME) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


@pytest.mark.parametrize(
    ("frame", "field", "found"),
    [
        (b"\0" + FRAME, "magic", "0x"),  # one byte put in front
        (changed(0, b"ZIPP"), "magic", "0x"),
        (changed(4, b"\2"), "version", "2"),
        (changed(5, b"\7"), "codec", "code 7"),
        (changed(6, b"\x09"), "dtype", "code 9"),
        (changed(6, b"\x00"), "dtype", "'u8'"),
        (changed(7, b"\x82"), "flags", "130"),
        (changed(8, struct.pack("<Q", 2**63)), "element count", str(2**63)),
        (changed(8, struct.pack("<Q", 50_000)), "static region size", ""),
        (changed(16, struct.pack("<Q", 64)), "static region size", "64"),
        (changed(24, struct.pack("<Q", 2**40)), "dynamic region size", str(2**40)),
        (changed(24, struct.pack("<Q", 100)), "dynamic region size", "100"),
        (changed(32, struct.pack("<I", 8)), "slack", "8"),
        (changed(36, b"\1"), "reserved field", "1"),
        (changed(56, b"\1"), "reserved field", "1"),
        (changed(40, b"\0"), "ranking", ""),
        (changed(48, b"\1"), "checksum", "1"),
        (FRAME[:40], "length", "40"),
        (FRAME[:-1], "length", str(len(FRAME) - 1)),
        (FRAME + b"\0", "length", str(len(FRAME) + 1)),
        (b"", "length", "0"),
    ],
)
def test_every_field_of_the_header_is_checked(frame: bytes, field: str, found: str) -> None:
    """F012, F130: the text names the field, what was expected and what was found."""
    with pytest.raises(CodecError, match=rf"{field}.*expected .*found .*{found}"):
        decode_frame(frame)


RECORD = 64  # offset of the first tile's record


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, b"\3", "tile mode"),
        (0, b"\2", "tile mode"),  # fp32 only
        (1, b"\xff", "tile base"),
        (2, b"\xff\xff", "tile counts"),
        (4, b"\xff\x0f", "tile counts"),
        (8, b"\xff\xff", "tile counts"),
        (10, b"\1", "reserved field"),
        (12, b"\xff\xff\xff\xff", "tile offset"),
        (2, b"\0\0\0\0\0\0\0\0", "tile codes"),
    ],
)
def test_every_field_of_a_tile_is_checked(offset: int, value: bytes, field: str) -> None:
    with pytest.raises(CodecError, match=rf"frame 0, tile 0: {field}.*expected .*found"):
        decode_frame(changed(RECORD + offset, value))


@pytest.mark.parametrize("codec", ["raw", "window", "cascade"])
def test_a_checksum_sees_every_flipped_byte(codec: str) -> None:
    frame = encode_frame(Codec(codec, checksum=True), DATA)
    for at in range(64, len(frame), 97):
        with pytest.raises(CodecError, match=r"checksum: expected 0x[0-9a-f]{16}, found"):
            decode_frame(changed(at, bytes([frame[at] ^ 0x10]), frame))
    swapped = frame[:128] + frame[256:384] + frame[128:256] + frame[384:]
    with pytest.raises(CodecError, match="checksum"):
        decode_frame(swapped)


@pytest.mark.parametrize(("wrote", "reads"), [("bf16", "fp16"), ("fp16", "bf16"), ("fp32", "u8")])
def test_another_dtype_is_refused_by_name(wrote: str, reads: str) -> None:
    """F010: never a silent reinterpretation."""
    frame = encode_frame(Codec("raw", wrote), sample("gaussian", wrote, 100))
    with pytest.raises(CodecError, match=f"expected '{reads}', found '{wrote}'"):
        decode_frame(frame, dtype=reads)
    size = Frame.parse(frame).static_bytes
    view = np.frombuffer(frame, np.uint8)
    out = np.zeros(100 * {"bf16": 2, "fp16": 2, "u8": 1}[reads], np.uint8)
    with pytest.raises(CodecError, match=f"frame 0: dtype: expected '{reads}', found '{wrote}'"):
        decode(Codec("raw", reads), view[:size], view[size:], [out])


def test_settings_that_differ_between_sender_and_receiver() -> None:
    view, size = np.frombuffer(FRAME, np.uint8), Frame.parse(FRAME).static_bytes
    for codec, n, field in [
        (Codec("window"), 5000, "codec"),
        (Codec("cascade", slack=16), 5000, "slack"),
        (Codec("cascade"), 4999, "element count"),
    ]:
        with pytest.raises(CodecError, match=f"frame 0: {field}"):
            decode(codec, view[:size], view[size:], [np.zeros(n, np.uint16)])


def test_buffers_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    codec, data = Codec("window"), sample("gaussian", "bf16", 100)
    good, little = np.zeros(512, np.uint8), np.zeros(4, np.uint8)
    for static, dynamic, text in [
        (good[:384], np.zeros(256, np.uint8), "static_out: expected exactly 256 bytes, found 384"),
        (good[:256], little, "dynamic_out: expected at least 128 bytes, found 4"),
        (good[::2], np.zeros(256, np.uint8), "static_out: expected a writable contiguous numpy array"),
    ]:
        with pytest.raises(CodecError, match=text):
            encode(codec, [data], static, dynamic)
    assert not good.any()
    with pytest.raises(CodecError, match=r"chunk 0: expected whole bf16 elements of 2 bytes, found 3 bytes"):
        encode(codec, [np.zeros(3, np.uint8)], good, good)
    with pytest.raises(CodecError, match="writable"):
        decode(codec, good, good, [np.frombuffer(b"ab", np.uint8)])
    with pytest.raises(CodecError, match="offsets: expected 1 of them"):
        decode(codec, good, good, [np.zeros(1, np.uint16)], offsets=[0, -1])
    with pytest.raises(CodecError, match="expected a float dtype"):
        decode_reduce(Codec("raw", "u8"), good, good, [good], senders=1)
    with pytest.raises(CodecError, match="backend 'avx9' is unknown"):
        encode_frame(codec, data, backend="avx9")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Codec("windw"), r"codec 'windw' is unknown; did you mean window"),
        (lambda: Codec("window", "bf61"), "dtype 'bf61' is unknown; did you mean bf16"),
        (lambda: Codec("window", "u8"), "needs a float dtype"),
        (lambda: Codec("window", slack=8), "multiple of 16 from 0 to 2560, found 8"),
        (lambda: Codec("window", slack=4096), "from 0 to 2560, found 4096"),
        (lambda: Params(base=256), "window base: expected 0 to 255, found 256"),
        (lambda: Params(shift=4), "window shift: expected -3 to 3, found 4"),
        (lambda: Params(ranking=(0,) * 16), "permutation of 0 to 15"),
    ],
)
def test_settings_are_checked_when_made(make: Callable[[], object], text: str) -> None:
    with pytest.raises(CodecError, match=text):
        make()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damage_gives_an_error_or_bytes_of_the_right_length(data: st.DataObject) -> None:
    frame = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 5))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CodecError):
        assert decode_frame(bytes(frame)).size % 5000 == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="builds the decoder with checks: needs g++")
@pytest.mark.timeout(180)
def test_fuzzing_with_address_and_behaviour_checks(tmp_path: Path) -> None:
    """20,000 damaged frames of every codec, dtype and size through a build that stops at any access out of bounds."""
    sources = sorted(map(str, (ROOT / "kernels/csrc").glob("*.cpp")))
    flags = [
        "-O1",
        "-g",
        "-std=c++17",
        "-fno-strict-aliasing",
        "-pthread",
        "-Wno-psabi",
        "-fsanitize=address,undefined",
    ]
    binary = tmp_path / "fuzz"
    driver = str(Path(__file__).with_name("fuzz_decode.cpp"))
    checks = ["-fno-sanitize-recover=all", f"-I{ROOT / 'kernels/csrc'}"]
    subprocess.run(["g++", *flags, *checks, driver, *sources, "-o", str(binary)], check=True)
    done = subprocess.run([str(binary), "20000", "1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
