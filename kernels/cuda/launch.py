"""Which kernels a call launches, with what; where the parts of its workspace lie. Knows no GPU and no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_uint8, c_uint32, c_uint64
from dataclasses import dataclass, field

from zipplan.kernels.codec import Codec, Params, max_dynamic_size, static_size
from zipplan.kernels.native import CODECS, DTYPES
from zipplan.planner.errors import CodecError

# As in args.cuh.
TILE, THREADS, SEGMENT, UPLOAD = 4096, 128, 32, 100
WITH_KERNELS = ("raw", "window", "cascade")


class Chunk(ctypes.Structure):
    _fields_ = [
        ("address", c_uint64),
        ("n", c_uint64),
        ("static_at", c_uint64),
        ("first_tile", c_uint32),
        ("first_segment", c_uint32),
    ]


class Args(ctypes.Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("chunks", "tiles", "senders", "slack")),
        ("base", c_int32),
        ("shift", c_int32),
        *((name, c_uint32) for name in ("checksummed", "measured", "packed", "unused")),
        ("ranking", c_uint8 * 16),
        *((name, c_uint64) for name in ("fixed", "dynamic", "stride", "dynamic_bytes")),
        *((name, c_uint64) for name in ("table", "offsets", "frames", "rankings", "shifts")),
        *((name, c_uint64) for name in ("spills", "tallies", "segment_at", "totals", "scratch")),
        *((name, c_uint64) for name in ("sizes", "sums", "status")),
    ]


class Upload(ctypes.Structure):
    _fields_ = [("first", c_uint32), ("count", c_uint32), ("chunks", Chunk * UPLOAD), ("offsets", c_uint64 * UPLOAD)]


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its name, blocks (x, y), threads of a block, and parameters."""

    kernel: str
    grid: tuple[int, int]
    block: int
    parameters: tuple[ctypes.Structure, ...]


@dataclass
class Workspace:
    """Byte offsets of named parts, each on 256 bytes."""

    size: int = 0
    at: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, size: int) -> None:
        self.at[name] = self.size
        self.size += -(-size // 256) * 256


def workspace(codec: Codec, counts: Sequence[int], *, senders: int = 1, encoding: bool) -> Workspace:
    """What a call needs beside its arguments: the table, and for encoding a tile's worst case for each tile."""
    ids(codec)
    tiles, frames, parts = sum(map(tiles_of, counts)), senders * len(counts), Workspace()
    sizes = {"table": 32 * len(counts), "offsets": 8 * frames, "frames": 32 * frames, "rankings": 16 * frames}
    sizes |= {"shifts": 4 * len(counts), "sums": 8 * frames}
    if encoding:
        room = max_dynamic_size(codec, TILE)  # of one tile, rounded up more than args.cuh does
        sizes |= {"spills": 4 * tiles, "tallies": 4 * tiles, "totals": 8 * len(counts), "scratch": room * tiles}
        sizes |= {"segment_at": 8 * sum(map(segments_of, counts))}
    for name, size in sizes.items():
        parts.add(name, size)
    return parts


def encode_launches(
    codec: Codec,
    addresses: Sequence[int],
    counts: Sequence[int],
    *,
    static: int,
    dynamic: int,
    work: int,
    sizes: int,
    status: int,
    params: Params | None = None,
) -> list[Launch]:
    """Launches that encode chunks at `addresses`; all other places are device addresses too, `sizes` of int64[P, 4]."""
    spec = codec.spec(params)
    args = arguments(codec, counts, workspace(codec, counts, encoding=True), work)
    args.base, args.shift, args.measured, args.ranking[:] = spec.base, spec.shift, spec.measure, spec.ranking[:]
    args.fixed, args.dynamic, args.sizes, args.status, args.packed = static, dynamic, sizes, status, 1
    if not counts:
        return []
    launches = uploads(args, codec, addresses, counts, [0] * len(counts))
    if args.measured and codec.id != "raw":
        launches.append(Launch("zp_measure", (len(counts), 1), 512, (args,)))
    if args.tiles:
        launches.append(Launch("zp_encode", (args.tiles, 1), THREADS, (args,)))
    launches.append(Launch("zp_layout", (len(counts), 1), 1024, (args,)))
    launches.append(Launch("zp_place", (sum(map(segments_of, counts)), 1), 256, (args,)))
    if codec.checksum:
        launches.append(checksum("zp_checksum_write", codec, counts, args))
    return launches


def decode_launches(
    codec: Codec,
    addresses: Sequence[int],
    counts: Sequence[int],
    *,
    static: int,
    dynamic: int,
    dynamic_bytes: int,
    work: int,
    status: int,
    senders: int | None = None,
    offsets: Sequence[int] | None = None,
) -> list[Launch]:
    """Launches that decode to `addresses`, or with `senders` decode and sum."""
    frames = (senders or 1) * len(counts)
    args = arguments(codec, counts, workspace(codec, counts, senders=senders or 1, encoding=False), work)
    args.senders, args.stride = senders or 1, sum(static_size(codec, n) for n in counts)
    args.fixed, args.dynamic, args.dynamic_bytes, args.status = static, dynamic, dynamic_bytes, status
    args.packed = offsets is None
    if not counts:
        return []
    launches = uploads(args, codec, addresses, counts, offsets or [0] * frames)
    launches.append(Launch("zp_open", (1, 1), 32, (args,)))
    if codec.checksum:
        launches.append(checksum("zp_checksum_read", codec, counts, args))
    if args.tiles:
        kernel = "zp_decode" if senders is None else "zp_decode_reduce"
        launches.append(Launch(kernel, (args.tiles, 1), THREADS, (args,)))
    return launches


def arguments(codec: Codec, counts: Sequence[int], parts: Workspace, work: int) -> Args:
    args = Args(chunks=len(counts), tiles=sum(map(tiles_of, counts)), senders=1, slack=codec.slack, base=-1)
    args.checksummed = codec.checksum
    for name, at in parts.at.items():
        setattr(args, name, work + at)
    return args


def uploads(
    args: Args, codec: Codec, addresses: Sequence[int], counts: Sequence[int], offsets: Sequence[int]
) -> list[Launch]:
    chunks, at, tile, segment = [], 0, 0, 0
    for address, n in zip(addresses, counts, strict=True):
        chunks.append(Chunk(address, n, at, tile, segment))
        at, tile, segment = at + static_size(codec, n), tile + tiles_of(n), segment + segments_of(n)
    launches = []
    for first in range(0, len(offsets), UPLOAD):
        upload = Upload(first=first, count=min(UPLOAD, len(offsets) - first))
        for i, chunk in enumerate(chunks[first : first + UPLOAD]):
            upload.chunks[i] = chunk
        for i, offset in enumerate(offsets[first : first + UPLOAD]):
            upload.offsets[i] = offset
        launches.append(Launch("zp_upload", (1, 1), 128, (args, upload)))
    return launches


def checksum(kernel: str, codec: Codec, counts: Sequence[int], args: Args) -> Launch:
    largest = max(static_size(codec, n) for n in counts)
    return Launch(kernel, (min(1024, 1 + largest // 16384), args.senders * len(counts)), 256, (args,))


def tiles_of(n: int) -> int:
    return -(-n // TILE)


def segments_of(n: int) -> int:
    return max(1, -(-n // (TILE * SEGMENT)))


def ids(codec: Codec) -> tuple[int, int]:
    """What ZP_C and ZP_D are for a codec: kernels are compiled for one codec and dtype. CodecError if it has none."""
    if codec.id not in WITH_KERNELS:
        raise CodecError(f"codec {codec.id!r}: expected one with CUDA kernels ({', '.join(WITH_KERNELS)}); use the CPU")
    return CODECS.index(codec.id), DTYPES.index(codec.dtype)
