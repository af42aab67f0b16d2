"""Frames written once and kept: the wire format cannot drift unseen.

`python tests/golden/test_frames.py` writes missing files; an existing one is only ever replaced by deleting it by hand,
together with a new version number in the header.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from zipplan.kernels import Codec, decode_frame, encode_frame, reference, reference_delta

FRAMES = Path(__file__).parent / "frames"
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")


def integers(n: int) -> np.ndarray:
    """A fixed stream of 32-bit integers that needs no library to make again (Knuth's 64-bit LCG, upper half)."""
    state, out = 1, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(state >> 32)
    return np.array(out, np.uint32)


def payload(dtype: str, n: int) -> bytes:
    """Sums of four uniform numbers (near normal), a few zeros, infinities and NaNs; raw bytes of dtype."""
    raw = integers(4 * n).astype(np.int64).reshape(n, 4).sum(axis=1) - 2 * (2**32 - 1)
    bits = (raw.astype(np.float32) * np.float32(2.0**-36)).view(np.uint32).copy()
    bits[::97], bits[50::501], bits[51::997] = 0, 0xFF800000, 0x7FC12345
    if dtype == "fp32":
        return bits.astype("<u4").tobytes()
    if dtype == "bf16":
        return (bits >> 16).astype("<u2").tobytes()
    sign, magnitude = bits >> 31, np.maximum((bits & 0x7FFFFFFF).astype(np.int64) - (112 << 23), 0)
    if dtype == "fp16":
        return (sign << 15 | np.minimum(magnitude >> 13, 0x7FFF)).astype("<u2").tobytes()
    drop, most = (21, 0x7F) if dtype == "fp8_e5m2" else (20, 0x7F)
    magnitude = np.maximum(magnitude - ((8 << 23) if dtype == "fp8_e4m3" else 0), 0)
    return (sign << 7 | np.minimum(magnitude >> drop, most)).astype(np.uint8).tobytes()


CASES = {
    **{f"{codec}-{dtype}": (Codec(codec, dtype), 4500) for codec in ("window", "cascade") for dtype in DTYPES},
    "raw-u8": (Codec("raw", "u8"), 100),
    "cascade-bf16-slotted": (Codec("cascade", "bf16", slack=384), 4500),
    "window-bf16-checksum": (Codec("window", "bf16", checksum=True), 130),
    "cascade-bf16-empty": (Codec("cascade", "bf16"), 0),
    "window-bf16-one": (Codec("window", "bf16"), 1),
    "delta-u8": (Codec("delta", "u8"), 100),
    "delta-bf16": (Codec("delta", "bf16", checksum=True), 4500),
    "delta-fp32": (Codec("delta", "fp32"), 4500),
}


def raw_of(codec: Codec, n: int) -> bytes:
    return bytes(range(100)) if codec.dtype == "u8" else payload(codec.dtype, n)


def earlier(raw: bytes) -> bytes:
    """The reference of the delta frames: some low bytes and some high ones were otherwise, most of it was the same."""
    old = bytearray(raw)
    old[::62] = bytes(b ^ 5 for b in old[::62])
    old[401::501] = bytes(b ^ 0x81 for b in old[401::501])
    return bytes(old)


@pytest.mark.parametrize("name", sorted(CASES))
def test_frames_are_what_they_were(name: str) -> None:
    codec, n = CASES[name]
    raw, frame = raw_of(codec, n), (FRAMES / f"{name}.bin").read_bytes()
    if codec.id == "delta":
        assert encode_frame(codec, raw, reference=earlier(raw)) == frame
        assert reference_delta.encode_frame(codec, raw, earlier(raw)) == frame
        assert decode_frame(frame, reference=earlier(raw)).tobytes() == raw
        return
    assert encode_frame(codec, raw) == frame
    assert reference.encode_frame(codec, raw) == frame
    assert decode_frame(frame).tobytes() == raw


def test_no_frame_changed_in_place() -> None:
    """The files' digests stand in the list, so that a rewritten file shows up in review as a changed line."""
    listed = dict(line.split()[::-1] for line in (FRAMES / "SHA256SUMS").read_text().splitlines())
    assert {f"{n}.bin": hashlib.sha256((FRAMES / f"{n}.bin").read_bytes()).hexdigest() for n in CASES} == listed


if __name__ == "__main__":
    FRAMES.mkdir(exist_ok=True)
    for name, (codec, n) in CASES.items():
        path = FRAMES / f"{name}.bin"
        if not path.exists():
            raw = raw_of(codec, n)
            path.write_bytes(encode_frame(codec, raw, reference=earlier(raw) if codec.id == "delta" else None))
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(FRAMES.glob("*.bin"))}
    (FRAMES / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
