"""Runs the CUDA kernels' own source on the CPU: built with shim.h and a C++ compiler, driven by lists of launches."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from zipplan.kernels.codec import Codec, Params, max_dynamic_size, static_size
from zipplan.kernels.cuda import build, launch
from zipplan.kernels.native import DTYPES

SHIM = Path(__file__).with_name("shim.h")
LIBC = ctypes.CDLL(None)
EVERY = tuple((c, d) for c in range(len(launch.WITH_KERNELS)) for d in range(len(DTYPES)) if d or not c)
FAST = ("-O1",)
CHECKED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=alignment")


class LaunchError(Exception):
    """What the shim found wrong in a kernel."""


class Emulator:
    """The kernels of some (codec, dtype) pairs, built with some flags; `edit` changes their source first."""

    def __init__(
        self,
        folder: Path,
        pairs: Sequence[tuple[int, int]] = EVERY,
        flags: Sequence[str] = FAST,
        edit: Sequence[tuple[str, str]] = (),
    ) -> None:
        library, entries = build.source()
        for old, new in edit:
            assert library.count(old) == 1, f"expected once in the kernels' source: {old}"
            library = library.replace(old, new)
        unit = f'#include "{SHIM}"\n{library}\n' + "".join(
            f"#define ZP_C {c}\n#define ZP_D {d}\n{entries}\n#undef ZP_C\n#undef ZP_D\n" for c, d in pairs
        )
        names = re.findall(r"ZP_KERNEL\(\d+, [^()]*, (zp_\w+)\)\(", entries)
        unit += (
            'extern "C" const char* zp_launch(const char* name, int c, int d, unsigned x, unsigned y,\n'
            "        unsigned threads, const zp::Args* a, const zp::Upload* u, unsigned long long seed) {\n"
            "    shim::failure.clear();\n    shim::seed = seed;\n    std::string n = name;\n"
        )
        for c, d in pairs:
            for name in names:
                arguments = "*a, *u" if name == "zp_upload" else "*a"
                unit += (
                    f'    if (c == {c} && d == {d} && n == "{name}")'
                    f" shim::launch(x, y, threads, [&] {{ {name}_{c}_{d}({arguments}); }});\n"
                )
        unit += "    return shim::failure.c_str();\n}\n"
        self.path = compiled(unit, folder, flags)
        self.library = ctypes.CDLL(str(self.path))
        self.library.zp_launch.restype = ctypes.c_char_p

    def run(self, codec: Codec, launches: Iterable[launch.Launch], seed: int = 1) -> None:
        """LaunchError if the shim stopped a kernel."""
        c, d = launch.ids(codec)
        for step in launches:
            parameters = [ctypes.byref(p) for p in step.parameters] + [None] * (2 - len(step.parameters))
            found = self.library.zp_launch(
                step.kernel.encode(), c, d, *step.grid, step.block, *parameters, ctypes.c_uint64(seed or 1)
            )
            if found:
                raise LaunchError(f"{step.kernel}: {found.decode()}")

    def encode(
        self,
        codec: Codec,
        chunks: Sequence[np.ndarray],
        params: Params | None = None,
        seed: int = 1,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(static regions, dynamic regions, int64[P, 4] sizes), from uint8 arrays at any address."""
        counts = [chunk.nbytes // codec.item_bytes for chunk in chunks]
        static = aligned(sum(static_size(codec, n) for n in counts))
        dynamic = aligned(sum(max_dynamic_size(codec, n) for n in counts))
        sizes, status = np.full((len(chunks), 4), -1, np.int64), np.zeros(1, np.uint64)
        work = aligned(launch.workspace(codec, counts, encoding=True).size)
        launches = launch.encode_launches(
            codec,
            [address(chunk) for chunk in chunks],
            counts,
            static=address(static),
            dynamic=address(dynamic),
            work=address(work),
            sizes=address(sizes),
            status=address(status),
            params=params,
        )
        self.run(codec, launches, seed)
        return static, dynamic[: sizes[:, 0].sum()], sizes

    def decode(
        self,
        codec: Codec,
        static: np.ndarray,
        dynamic: np.ndarray,
        outs: Sequence[np.ndarray],
        senders: int | None = None,
        offsets: Sequence[int] | None = None,
        seed: int = 1,
    ) -> int:
        """Fills `outs`; returns the status word, all ones if nothing was wrong."""
        counts = [out.nbytes // codec.item_bytes for out in outs]
        status = np.zeros(1, np.uint64)
        work = aligned(launch.workspace(codec, counts, senders=senders or 1, encoding=False).size)
        launches = launch.decode_launches(
            codec,
            [address(out) for out in outs],
            counts,
            static=address(static),
            dynamic=address(dynamic),
            dynamic_bytes=dynamic.nbytes,
            work=address(work),
            status=address(status),
            senders=senders,
            offsets=offsets,
        )
        self.run(codec, launches, seed)
        return int(status[0])


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def aligned(size: int, offset: int = 0) -> np.ndarray:
    """`size` bytes, `offset` after a multiple of 128; they end with their allocation, so that ASan sees overruns."""
    place = ctypes.c_void_p()
    assert LIBC.posix_memalign(ctypes.byref(place), ctypes.c_size_t(128), ctypes.c_size_t(max(1, size + offset))) == 0
    store = (ctypes.c_uint8 * (size + offset)).from_address(place.value or 0)
    weakref.finalize(store, LIBC.free, place)
    array = np.ctypeslib.as_array(store)
    array[:] = 0xEE
    return array[offset:]


def compiled(unit: str, folder: Path, flags: Sequence[str]) -> Path:
    """The shared library of one translation unit, kept under a name that its text gives."""
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256("\0".join((unit, SHIM.read_text(), *flags)).encode()).hexdigest()[:16]
    library = folder / f"kernels-{key}.so"
    if library.exists():
        return library
    source, part = folder / f"{key}-{os.getpid()}.cpp", folder / f"{key}-{os.getpid()}.part"
    source.write_text(unit)
    command = [
        "g++",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-fno-strict-aliasing",
        "-w",
        *flags,
        str(source),
        "-o",
        str(part),
    ]
    subprocess.run(command, check=True, timeout=300)
    source.unlink()
    part.rename(library)
    return library
