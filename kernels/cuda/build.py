"""Kernel text to machine code: NVRTC at first use, then a cache on disk. Needs no driver and no GPU, nor nvcc."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from pathlib import Path

from zipplan.planner.errors import DeviceError

# In order; none includes another, and none includes anything of CUDA.
FORMAT = ("tile.h", "number.h", "header.h")
KERNELS = ("args.cuh", "bits.cuh", "elements.cuh", "encode.cuh", "decode.cuh", "frames.cuh")
ENTRIES = "kernels.cu"
LOWEST_ARCH = 80  # __reduce_add_sync
INSTALL = (
    "install what compiles kernels: pip install 'zipplan[cuda]', and nvidia-cuda-nvrtc where PyTorch's CUDA wheels did "
    "not bring it; the codec on the CPU works without"
)


@functools.cache
def source() -> tuple[str, str]:
    """(library, entry points): one text each, without includes."""
    here = Path(__file__).parent
    files = [here.parent / "csrc" / name for name in FORMAT] + [here / name for name in KERNELS]
    return "".join(map(text, files)), text(here / ENTRIES)


def text(file: Path) -> str:
    return re.sub(r'^#(?:include ".*"|pragma once)\n', "", file.read_text(), flags=re.MULTILINE)


def module(codec: int, dtype: int, arch: int) -> tuple[bytes, str]:
    """(code, its kind) of the kernels for one codec and dtype, numbered as in tile.h.

    `arch`: compute capability, 90 for 9.0. The code is a cubin, or PTX if the device is newer than the compiler; then
    the driver translates it. From the cache if it is there. Raises DeviceError if the device is too old, or no
    compiler is installed.
    """
    if arch < LOWEST_ARCH:
        raise DeviceError(
            f"the codec's CUDA kernels: expected compute capability {LOWEST_ARCH // 10}.{LOWEST_ARCH % 10} or newer, "
            f"found {arch // 10}.{arch % 10}; use the codec on the CPU"
        )
    version, arches = compiler()
    kind = "cubin" if arch in arches else "ptx"
    if kind == "ptx" and arch < max(arches):
        raise DeviceError(
            f"NVRTC {version} knows compute capabilities {', '.join(map(str, arches))} but not {arch}, which is older "
            "than its newest; install an NVRTC that does, or use the codec on the CPU"
        )
    target = f"sm_{arch}" if kind == "cubin" else f"compute_{max(a for a in arches)}"
    options = (
        f"--gpu-architecture={target}",
        "--std=c++17",
        "--ptxas-options=-v",
        f"-DZP_C={codec}",
        f"-DZP_D={dtype}",
    )
    key = hashlib.sha256("\0".join((*source(), *options, version)).encode()).hexdigest()
    found = read(cache() / f"{key}.{kind}")
    if found is None:
        found = compiled("".join(source()), options, kind)[0]
        write(cache() / f"{key}.{kind}", found)
    return found, kind


def cache() -> Path:
    if chosen := os.environ.get("ZIPPLAN_CACHE_DIR"):
        return Path(chosen) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zipplan" / "kernels"


def read(file: Path) -> bytes | None:
    """What `write` left, whole; else nothing."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def write(file: Path, code: bytes) -> None:
    """Under a name of its own, then renamed: readers see a whole file or none, and a killed writer leaves no lock.

    A cache that cannot be written costs a second at every start, and is no error.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(hashlib.sha256(code).digest() + code)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)


@functools.cache
def compiler() -> tuple[str, tuple[int, ...]]:
    """NVRTC's version, and the compute capabilities it can compile for."""
    major, minor = checked(nvrtc().nvrtcVersion())
    return f"{major}.{minor}", tuple(sorted(checked(nvrtc().nvrtcGetSupportedArchs())))


@functools.cache
def nvrtc():  # type: ignore[no-untyped-def]
    try:
        from cuda.bindings import nvrtc as bindings  # type: ignore[import-untyped]

        bindings.nvrtcVersion()
    except Exception as error:  # an ImportError, or whatever cuda-bindings raises for a library that is not there
        raise DeviceError(f"NVRTC cannot be loaded ({type(error).__name__}: {error}); {INSTALL}") from error
    return bindings


def checked(result):  # type: ignore[no-untyped-def]
    status, *values = result
    if int(status):
        raise DeviceError(f"NVRTC: {checked(nvrtc().nvrtcGetErrorString(status)).decode()}")
    return values[0] if len(values) == 1 else values


def compiled(program_text: str, options: tuple[str, ...], kind: str = "cubin") -> tuple[bytes, str]:
    """(code, compiler's log). DeviceError with the log if the text does not compile."""
    api = nvrtc()
    program = checked(api.nvrtcCreateProgram(program_text.encode(), b"zipplan.cu", 0, [], []))
    try:
        (status,) = api.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = filled(program, api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog)
        if int(status):
            raise DeviceError(
                f"the codec's kernels do not compile with NVRTC {compiler()[0]} {' '.join(options)}:\n{log.decode()}"
            )
        if kind == "cubin":
            return filled(program, api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN), log.decode()
        return filled(program, api.nvrtcGetPTXSize, api.nvrtcGetPTX), log.decode()
    finally:
        api.nvrtcDestroyProgram(program)


def filled(program, size_of, fill) -> bytes:  # type: ignore[no-untyped-def]
    data = bytes(checked(size_of(program)))
    fill(program, data)
    return data.rstrip(b"\0") if fill is nvrtc().nvrtcGetProgramLog else data
