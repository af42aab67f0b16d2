"""Size and speed of every codec on this machine, beside a plain copy of the same bytes in the same run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from zipplan.kernels.batch import decode, encode
from zipplan.kernels.codec import ITEM_BYTES, Codec, max_dynamic_size, static_size
from zipplan.kernels.native import library
from zipplan.kernels.sample import sample, update
from zipplan.planner.errors import CodecError


@dataclass(frozen=True)
class Row:
    """One codec on one kind of data. Speeds in 10^9 raw bytes per second, best of all rounds."""

    codec: str
    backend: str
    dtype: str
    profile: str
    threads: int
    bits_per_element: float
    ratio: float
    encode_GBps: float
    decode_GBps: float


@dataclass
class Work:
    """What a row times: two closures over buffers that exist already, and the encoded size in bytes."""

    row: tuple[str, str, str, str, int]
    raw: int
    elements: int
    encode: Callable[[], int]
    decode: Callable[[], None]
    encoded: int = 0
    encode_s: float = float("inf")
    decode_s: float = float("inf")


def bench(size: int = 64 << 20, rounds: int = 15, threads: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """The document of `zipplan codec bench --json`: copy_GBps and rows.

    size: raw bytes of each tensor. Every round times a copy and every row once, in turn, so that all see the same
    machine; the first round warms up and is not counted. Raises CodecError if bytes do not come back.
    """
    size = max(size // 8192 * 8192, 8192)
    works = list(jobs(size, threads))
    source, target = sample("gaussian", "bf16", size // 2), np.empty(size, np.uint8)
    copy_s = float("inf")
    for round_ in range(rounds + 1):
        spent, _ = timed(lambda: np.copyto(target, source))
        copy_s = min(copy_s, spent) if round_ else copy_s
        for work in works:
            if work.row[0] == "zipnn" and round_ > 3:  # an order slower than the rest
                continue
            encode_s, work.encoded = timed(work.encode)
            decode_s, _ = timed(work.decode)
            if round_:
                work.encode_s, work.decode_s = min(work.encode_s, encode_s), min(work.decode_s, decode_s)
    rows = [
        Row(
            *work.row,
            bits_per_element=round(8 * work.encoded / work.elements, 4),
            ratio=round(work.raw / work.encoded, 4),
            encode_GBps=round(work.raw / work.encode_s / 1e9, 3),
            decode_GBps=round(work.raw / work.decode_s / 1e9, 3),
        )
        for work in works
    ]
    return {
        "schema": 1,
        "copy_GBps": round(size / copy_s / 1e9, 3),
        "size_bytes": size,
        "rows": [asdict(r) for r in rows],
    }


def timed(call: Callable) -> tuple[float, int]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def jobs(size: int, threads: tuple[int, ...]) -> Iterator[Work]:
    best = "avx2" if library().zp_has_avx2() else "portable"
    data = {
        # fp8 tensors travel scaled to their range; at the deviation of weights they would be subnormal
        ("gaussian", dtype): sample("gaussian", dtype, size // item, scale=1.0 if item == 1 else 0.02)
        for dtype, item in ITEM_BYTES.items()
        if dtype != "u8"
    }
    data |= {(profile, "bf16"): sample(profile, "bf16", size // 2) for profile in ("laplace", "swiglu", "relu")}
    out = np.empty(size, np.uint8)
    for (profile, dtype), raw in data.items():
        main = (profile, dtype) == ("gaussian", "bf16")
        for codec in ("window", "cascade"):
            for count in threads if main else threads[:1]:
                yield job(Codec(codec, dtype), best, profile, count, raw, out)
            if main and best != "portable":
                yield job(Codec(codec, dtype), "portable", profile, threads[0], raw, out)
        if main:
            yield job(Codec("cascade", dtype, slack=384), best, profile, threads[0], raw, out)
            if find_spec("zipnn"):
                yield zipnn_job(raw, threads[0])
    after, before = update("bf16", size // 2)
    for count in threads:
        yield job(Codec("delta", "bf16"), best, "update", count, after, out, [before])
    if best != "portable":
        yield job(Codec("delta", "bf16"), "portable", "update", threads[0], after, out, [before])


def job(
    codec: Codec,
    backend: str,
    profile: str,
    threads: int,
    raw: np.ndarray,
    out: np.ndarray,
    references: list[np.ndarray] | None = None,
) -> Work:
    n = raw.nbytes // codec.item_bytes
    how: dict[str, Any] = {"references": references, "backend": backend, "threads": threads}
    static, dynamic = np.zeros(static_size(codec, n), np.uint8), np.zeros(max_dynamic_size(codec, n), np.uint8)
    used = int(encode(codec, [raw], static, dynamic, **how).sizes[0])
    out[:] = 0
    decode(codec, static, dynamic[:used], [out], **how)
    if not np.array_equal(raw, out):
        raise CodecError(f"{codec.id} {codec.dtype} on {backend}: decoded bytes differ from the encoded ones")

    def run_encode() -> int:
        return static.nbytes + int(encode(codec, [raw], static, dynamic, **how).sizes[0])

    def run_decode() -> None:
        decode(codec, static, dynamic[:used], [out], **how)

    name = codec.id + (" slotted" if codec.slack else "")
    return Work((name, f"cpu-{backend}", codec.dtype, profile, threads), raw.nbytes, n, run_encode, run_decode)


def zipnn_job(raw: np.ndarray, threads: int) -> Work:
    """The zipnn package on the same bf16 bytes (https://github.com/zipnn/zipnn). It allocates what it returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import calls what torch has deprecated
        coder = import_module("zipnn").ZipNN(
            method="auto", input_format="byte", bytearray_dtype="bfloat16", threads=threads
        )
    data = raw.tobytes()
    packed = coder.compress(bytearray(data))  # it changes its input in place: a fresh copy each time, not timed
    if bytes(coder.decompress(packed)) != data:
        raise CodecError("zipnn: decoded bytes differ from the encoded ones")
    fresh = [bytearray(data) for _ in range(5)]
    return Work(
        ("zipnn", "cpu", "bf16", "gaussian", threads),
        raw.nbytes,
        raw.nbytes // 2,
        lambda: len(coder.compress(fresh.pop())),
        lambda: coder.decompress(packed),
    )
