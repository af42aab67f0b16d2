"""Encode and decode the chunks of a collective in one call."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np

from zipplan.kernels.codec import Codec, Params, elements, max_dynamic_size, max_encoded_size, static_size
from zipplan.kernels.native import BACKENDS, CODECS, DTYPES, Batch, Error, fail, library, read_header
from zipplan.planner.errors import CodecError, DeviceError, nearest

HEADER = 64  # bytes (docs/wire-format.md)

Bytes = np.ndarray  # contiguous; sizes are counted in bytes whatever the dtype


@dataclass(frozen=True)
class Frame:
    """A parsed frame header. Sizes in bytes; the frame is its static region, then its dynamic region."""

    codec: Codec
    elements: int
    static_bytes: int
    dynamic_bytes: int
    ranking: tuple[int, ...]
    checksum: int
    reference: int | None = None  # delta: digest of the reference

    @staticmethod
    def parse(data: bytes | bytearray | memoryview | Bytes) -> Frame:
        """Reads and checks the header at the start of `data`, which holds at least the static region."""
        view = np.frombuffer(data, np.uint8)
        header = read_header(view.ctypes.data, view.nbytes)
        codec = Codec(CODECS[header.codec], DTYPES[header.dtype], header.slack, bool(header.flags & 1))
        ranking = tuple(b >> s & 15 for b in header.ranking for s in (0, 4)) if codec.id == "cascade" else ()
        sizes = header.elements, header.static_bytes, header.dynamic_bytes
        reference = int.from_bytes(header.ranking, "little") if codec.id == "delta" else None
        return Frame(codec, *sizes, ranking, header.checksum, reference)


@dataclass(frozen=True)
class Encoded:
    """What `encode` wrote. Arrays have one int64 per chunk.

    `sizes`: bytes of each dynamic region (multiples of 128; packed back to back). `below`, `above`: escapes under and
    over the window. `stored`: tiles that did not compress and were stored. delta has neither: 0.
    """

    sizes: np.ndarray
    below: np.ndarray
    above: np.ndarray
    stored: np.ndarray


def encode(
    codec: Codec,
    chunks: Sequence[Bytes],
    static_out: Bytes,
    dynamic_out: Bytes,
    *,
    references: Sequence[Bytes] | None = None,
    params: Params | None = None,
    threads: int = 1,
    backend: str = "auto",
) -> Encoded:
    """Encodes each chunk to a frame.

    chunks: contiguous arrays of whole elements, any dtype, any alignment, any length (0 too).
    static_out: exactly the sum of `static_size(codec, n)`, one after another, so equal
    chunks have a constant stride. dynamic_out: at least the sum of `max_dynamic_size(codec, n)`; packed from its start.
    references: for delta, and for no other codec: one array per chunk, of its size, that every receiver holds too.
    Raises CodecError on a buffer that does not fit, DeviceError on a backend that this machine lacks.
    """
    counts = [count(codec, chunk, f"chunk {i}") for i, chunk in enumerate(chunks)]
    room(static_out, sum(static_size(codec, n) for n in counts), "static_out", exact=True, written=True)
    room(dynamic_out, sum(max_dynamic_size(codec, n) for n in counts), "dynamic_out", written=True)
    held = checked(references, codec, counts)
    result = np.zeros((len(counts), 4), np.int64)
    status = getattr(library(), "zp_delta_encode" if held else "zp_encode")(
        byref(codec.spec(params)),
        len(counts),
        pointers(chunks),
        *held,
        (c_uint64 * len(counts))(*counts),
        static_out.ctypes.data,
        dynamic_out.ctypes.data,
        result.ctypes.data,
        threads,
        chosen(backend),
    )
    finish(status, backend)
    return Encoded(*np.ascontiguousarray(result.T))


def dynamic_sizes(codec: Codec, static: Bytes, counts: Sequence[int], *, headers_only: bool = False) -> np.ndarray:
    """Bytes of the dynamic region of each frame (int64), read from the static regions alone.

    static: the static regions of frames of `counts` elements, back to back; or only their headers, 64 bytes each.
    """
    strides = [HEADER if headers_only else static_size(codec, n) for n in counts]
    room(static, sum(strides), "static", exact=True)
    at, sizes = 0, np.zeros(len(counts), np.int64)
    for i, n in enumerate(counts):
        header = read_header(static.ctypes.data + at, static_size(codec, n), f"frame {i}")
        if (header.codec, header.dtype, header.slack) != codec.key or header.elements != n:
            found = f"{CODECS[header.codec]} {DTYPES[header.dtype]}, slack {header.slack}, {header.elements} elements"
            raise CodecError(
                f"frame {i}: expected {codec.id} {codec.dtype}, slack {codec.slack}, {n} elements, found {found}; "
                "sender and receiver hold different plans"
            )
        sizes[i] = header.dynamic_bytes
        at += strides[i]
    return sizes


def decode(
    codec: Codec,
    static: Bytes,
    dynamic: Bytes,
    outs: Sequence[Bytes],
    *,
    references: Sequence[Bytes] | None = None,
    offsets: Sequence[int] | np.ndarray | None = None,
    threads: int = 1,
    backend: str = "auto",
) -> None:
    """Decodes frame i into outs[i], a writable contiguous array of as many elements as were encoded.

    static: the static regions back to back. dynamic: the dynamic regions, back to back, or each at its byte `offsets`.
    references: for delta, and for no other codec: what the sender encoded against. outs[i] may be references[i]
    itself, which is then brought up to date in place; or memory apart from every reference.
    Raises CodecError naming frame, tile and field when the frames are damaged or not what `codec` and `outs` expect,
    or when a reference is not the sender's; then what `outs` hold is undefined (delta: unchanged).
    """
    run("zp_decode", codec, 1, static, dynamic, outs, offsets, threads, backend, references)


def decode_reduce(
    codec: Codec,
    static: Bytes,
    dynamic: Bytes,
    outs: Sequence[Bytes],
    *,
    senders: int,
    offsets: Sequence[int] | np.ndarray | None = None,
    threads: int = 1,
    backend: str = "auto",
) -> None:
    """Decodes and sums: outs[j] = the sum over senders s of frame s * len(outs) + j.

    Accumulates in FP32 in the order of senders and rounds once to the dtype, ties to even; a NaN comes out as the one
    positive quiet NaN of the dtype, and e4m3 saturates (it has no infinity). One pass: no decoded copy is kept.
    Arguments and errors as in `decode`.
    """
    if codec.id == "delta":
        raise CodecError("decode_reduce: codec 'delta' restores versions and cannot sum; use decode, or another codec")
    if codec.dtype == "u8" or senders < 1:
        raise CodecError(f"decode_reduce: expected a float dtype and ≥ 1 senders, found {codec.dtype!r} and {senders}")
    run("zp_decode_reduce", codec, senders, static, dynamic, outs, offsets, threads, backend)


def encode_frame(
    codec: Codec,
    data: bytes | Bytes,
    *,
    reference: bytes | Bytes | None = None,
    params: Params | None = None,
    threads: int = 1,
    backend: str = "auto",
) -> bytes:
    """One frame as one string: static region, then dynamic region. `reference`: for delta."""
    chunk = np.frombuffer(data, np.uint8)
    size = static_size(codec, count(codec, chunk, "data"))
    out = np.empty(max_encoded_size(codec, chunk.nbytes // codec.item_bytes), np.uint8)
    held = None if reference is None else [np.frombuffer(reference, np.uint8)]
    encoded = encode(
        codec, [chunk], out[:size], out[size:], references=held, params=params, threads=threads, backend=backend
    )
    return out[: size + int(encoded.sizes[0])].tobytes()


def decode_frame(
    data: bytes | Bytes,
    *,
    reference: bytes | Bytes | None = None,
    dtype: str | None = None,
    threads: int = 1,
    backend: str = "auto",
) -> np.ndarray:
    """The raw bytes (uint8) of one whole frame. `reference`: for delta. `dtype`: refuse a frame of any other."""
    view = np.frombuffer(data, np.uint8)
    frame = Frame.parse(view)
    if dtype is not None and dtype != frame.codec.dtype:
        raise CodecError(f"frame: dtype: expected {dtype!r}, found {frame.codec.dtype!r}; decode as what was encoded")
    if view.nbytes != frame.static_bytes + frame.dynamic_bytes:
        raise CodecError(
            f"frame: length: expected {frame.static_bytes + frame.dynamic_bytes} bytes, found {view.nbytes}; cut off?"
        )
    held = None if reference is None else [np.frombuffer(reference, np.uint8)]
    out = np.empty(frame.elements * frame.codec.item_bytes, np.uint8)
    static, dynamic = np.split(view, [frame.static_bytes])
    decode(frame.codec, static, dynamic, [out], references=held, threads=threads, backend=backend)
    return out


def run(  # type: ignore[no-untyped-def]
    name, codec, senders, static, dynamic, outs, offsets, threads, backend, references=None
) -> None:
    counts = [count(codec, out, f"outs[{i}]", written=True) for i, out in enumerate(outs)]
    held = checked(references, codec, counts)
    room(static, 0, "static")
    room(dynamic, 0, "dynamic")
    batch = Batch(static.ctypes.data, static.nbytes, dynamic.ctypes.data, dynamic.nbytes)
    if offsets is not None:
        starts = np.ascontiguousarray(offsets, np.int64)
        if starts.shape != (senders * len(outs),) or (starts.size and starts.min() < 0):
            raise CodecError(f"offsets: expected {senders * len(outs)} of them, ≥ 0, found {starts.tolist()}")
        batch.offsets = starts.ctypes.data
    error = Error(chunk=-1, tile=-1)
    shape = (senders, len(outs)) if name == "zp_decode_reduce" else (len(outs),)
    status = getattr(library(), "zp_delta_decode" if held else name)(
        byref(codec.spec()),
        *shape,
        (c_uint64 * len(outs))(*counts),
        byref(batch),
        *held,
        pointers(outs),
        threads,
        chosen(backend),
        byref(error),
    )
    finish(status, backend, error)


def pointers(arrays: Sequence[Bytes]):  # type: ignore[no-untyped-def]
    return (c_void_p * len(arrays))(*(a.__array_interface__["data"][0] for a in arrays))


def checked(references: Sequence[Bytes] | None, codec: Codec, counts: Sequence[int]):  # type: ignore[no-untyped-def]
    """The references as one more argument of the library, or no argument if the codec takes none."""
    if (references is not None) != (codec.id == "delta"):
        wants = "expected one per chunk, found none" if codec.id == "delta" else "expected none, they are for 'delta'"
        raise CodecError(f"references: codec {codec.id!r}: {wants}")
    if references is None:
        return []
    if len(references) != len(counts):
        raise CodecError(f"references: expected {len(counts)}, one per chunk, found {len(references)}")
    for i, (reference, n) in enumerate(zip(references, counts, strict=True)):
        room(reference, n * codec.item_bytes, f"references[{i}]", exact=True)
    return [pointers(references)]


def chosen(backend: str) -> int:
    if backend not in BACKENDS:
        raise CodecError(f"codec backend {backend!r} is unknown; {nearest(backend, BACKENDS)}")
    return BACKENDS.index(backend)


def finish(status: int, backend: str, error: Error | None = None) -> None:
    if status == 0:
        return
    if error is not None and error.field:
        fail(error)
    raise DeviceError(f"codec backend {backend!r} needs a processor with AVX2 and BMI2; use 'auto' or 'portable'")


def count(codec: Codec, array: Bytes, what: str, *, written: bool = False) -> int:
    room(array, 0, what, written=written)
    if array.nbytes % codec.item_bytes:
        raise CodecError(
            f"{what}: expected whole {codec.dtype} elements of {codec.item_bytes} bytes, found {array.nbytes} bytes"
        )
    return elements(codec, array.nbytes // codec.item_bytes)


def room(array: Bytes, size: int, what: str, *, exact: bool = False, written: bool = False) -> None:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or (written and not array.flags.writeable):
        kind = "writable contiguous" if written else "contiguous"
        raise CodecError(f"{what}: expected a {kind} numpy array, found {type(array).__name__} that is not")
    if array.nbytes < size or (exact and array.nbytes != size):
        raise CodecError(f"{what}: expected {'exactly' if exact else 'at least'} {size} bytes, found {array.nbytes}")
