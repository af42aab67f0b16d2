"""A short tour of every kernel on buffers that end where their allocation ends, for a build with ASan and UBSan.

Run by test_shim.py as a process of its own, since ASan must be loaded first: sanitized.py LIBRARY_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from emulator import CHECKED, Emulator, aligned
from samples import CODECS, on_cpu, sample

from zipplan.kernels.cuda import launch


def tight(data: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy that starts `offset` after a 16-byte boundary, and ends with its allocation."""
    copy = aligned(data.nbytes, offset)
    copy[:] = data
    return copy


def main() -> None:
    pairs = sorted({launch.ids(codec) for codec in CODECS if codec.dtype in ("u8", "bf16", "fp16", "fp32", "fp8_e4m3")})
    emulator = Emulator(Path(sys.argv[1]), pairs, CHECKED)
    rng = np.random.default_rng(5)
    for codec in (c for c in CODECS if launch.ids(c) in pairs and c.slack in (0, 384)):
        for kind, sizes, offset in (("scales", (0, 1, 33, 4097), 0), ("random", (4095, 31), 2), ("normal", (8200,), 7)):
            chunks = [tight(sample(kind, codec.dtype, n), offset) for n in sizes]
            static, dynamic, _ = on_cpu(codec, chunks)
            own = emulator.encode(codec, chunks, seed=offset + 1)
            assert own[0].tobytes() + own[1].tobytes() == static.tobytes() + dynamic.tobytes()
            static, dynamic = tight(static), tight(dynamic)
            outs = [aligned(chunk.nbytes, offset) for chunk in chunks]
            assert emulator.decode(codec, static, dynamic, outs) == 2**64 - 1
            assert [out.tobytes() for out in outs] == [chunk.tobytes() for chunk in chunks]
            if codec.dtype != "u8":
                assert emulator.decode(codec, static, dynamic, outs, senders=1) == 2**64 - 1
            for _ in range(6):  # damage: any verdict, no access outside
                for region in (static, dynamic):
                    if region.nbytes > 64:
                        region[rng.integers(64 if region is static else 0, region.nbytes)] ^= 1 << rng.integers(8)
                emulator.decode(codec, static, dynamic, outs)
    print("sound")


if __name__ == "__main__":
    main()
