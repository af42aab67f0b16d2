"""The compiled library behind the codec, through its plain C ABI (kernels/csrc/frame.h, delta.h)."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import NoReturn

from zipplan.planner.errors import CodecError, DeviceError

CODECS = ("raw", "window", "cascade", "delta")
DTYPES = ("u8", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
BACKENDS = ("auto", "portable", "avx2")


class Spec(ctypes.Structure):
    _fields_ = [
        ("codec", c_uint8),
        ("dtype", c_uint8),
        ("checksum", c_uint8),
        ("measure", c_uint8),
        ("slack", c_uint32),
        ("base", c_int),
        ("shift", c_int),
        ("ranking", c_uint8 * 16),
    ]


class Header(ctypes.Structure):
    _fields_ = [
        ("magic", c_uint8 * 4),
        ("version", c_uint8),
        ("codec", c_uint8),
        ("dtype", c_uint8),
        ("flags", c_uint8),
        ("elements", c_uint64),
        ("static_bytes", c_uint64),
        ("dynamic_bytes", c_uint64),
        ("slack", c_uint32),
        ("zero0", c_uint32),
        ("ranking", c_uint8 * 8),
        ("checksum", c_uint64),
        ("zero1", c_uint64),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("field", c_int),
        ("zero", c_int),
        ("chunk", c_int64),
        ("tile", c_int64),
        ("expected", c_uint64),
        ("found", c_uint64),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("fixed", c_void_p),
        ("fixed_bytes", c_uint64),
        ("dynamic", c_void_p),
        ("dynamic_bytes", c_uint64),
        ("offsets", c_void_p),
    ]


# Field numbers of header.h, then delta.h -> name, and how its expected value reads.
FIELDS = (
    ("", ""),
    ("magic", "the four bytes ZPLN"),
    ("version", "{}"),
    ("codec", "{}"),
    ("dtype", "{}"),
    ("flags", "at most {}"),
    ("element count", "{}"),
    ("static region size", "{}"),
    ("dynamic region size", "a multiple of 128, at most {}"),
    ("slack", "{}, or any multiple of 16 up to the tile's raw size"),
    ("reserved field", "{}"),
    ("ranking", "symbol set {:#x}"),
    ("checksum", "{:#018x}"),
    ("tile mode", "at most {}"),
    ("tile base", "at most {}"),
    ("tile counts", "at most {}"),
    ("tile offset", "at most {}"),
    ("tile codes", "{} by the tile's record"),
    ("length", "{} bytes"),
    ("planes", "{} bytes by the masks of the groups"),
    ("reference", "digest {:#018x}"),
)


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once. DeviceError if it was not built."""
    found = sorted(Path(__file__).parent.glob("_cpu*.so"))
    if not found:
        raise DeviceError(
            f"the compiled codec is missing: expected {Path(__file__).parent}/_cpu*.so, found none; "
            "install a C++17 compiler and reinstall zipplan (in a checkout: make -B setup)"
        )
    lib = ctypes.CDLL(str(found[0]))
    sizes = [c_int, c_int, c_uint32, c_uint64]
    work = [POINTER(c_void_p), c_int, c_int, POINTER(Error)]
    signatures = {
        "zp_static_size": (sizes, c_uint64),
        "zp_max_dynamic_size": (sizes, c_uint64),
        "zp_max_slack": ([c_int, c_int], c_uint32),
        "zp_has_avx2": ([], c_int),
        "zp_header": ([c_void_p, c_uint64, POINTER(Header), POINTER(Error)], c_int),
        "zp_encode": (
            [POINTER(Spec), c_uint64, POINTER(c_void_p), POINTER(c_uint64), c_void_p, c_void_p, c_void_p, c_int, c_int],
            c_int,
        ),
        "zp_decode": ([POINTER(Spec), c_uint64, POINTER(c_uint64), POINTER(Batch), *work], c_int),
        "zp_delta_encode": (
            [POINTER(Spec), c_uint64, *[POINTER(c_void_p)] * 2, POINTER(c_uint64), *[c_void_p] * 3, c_int, c_int],
            c_int,
        ),
        "zp_delta_decode": (
            [POINTER(Spec), c_uint64, POINTER(c_uint64), POINTER(Batch), POINTER(c_void_p), *work],
            c_int,
        ),
        "zp_decode_reduce": ([POINTER(Spec), c_uint64, c_uint64, POINTER(c_uint64), POINTER(Batch), *work], c_int),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib


def read_header(address: int, size: int, where: str = "frame") -> Header:
    """The checked header of the frame whose static region starts at `address`; CodecError names the field."""
    header, error = Header(), Error(chunk=-1, tile=-1)
    if not library().zp_header(address, size, byref(header), byref(error)):
        fail(error, where)
    return header


def fail(error: Error, where: str = "frame") -> NoReturn:
    """Raises what the library reported as CodecError: place, field, expected, found."""
    field, wording = FIELDS[error.field]
    expected, found = wording.format(error.expected), f"{error.found:#x}" if field == "magic" else str(error.found)
    advice = "the data are damaged, cut off or written with other settings: encode again with the codec that decodes"
    if field == "reference":
        found = wording.format(error.found)
        advice = (
            "sender and receiver hold different versions of the tensor: send it once with another codec, then use that "
            "as reference on both sides"
        )
    if field in ("codec", "dtype"):
        names = CODECS if field == "codec" else DTYPES
        found = repr(names[error.found]) if error.found < len(names) else f"code {error.found}"
        expected = repr(names[error.expected]) if error.expected < len(names) else f"code {error.expected}"
    place = (
        where + (f" {error.chunk}" if error.chunk >= 0 else "") + (f", tile {error.tile}" if error.tile >= 0 else "")
    )
    raise CodecError(
        f"{place}: {field}: expected {expected}, found {found}; {advice}",
        field=field,
        expected=error.expected,
        found=error.found,
        chunk=error.chunk,
        tile=error.tile,
    )
