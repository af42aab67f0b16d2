"""Breaks the kernels on purpose: mutant.py FOLDER OLD NEW [--sanitize] replaces OLD by NEW, builds and tries them.

Exit status 0: all was right, so the tests would not have noticed. 3, with a line that says how: they noticed.
A mutant that spoils memory may end the process otherwise, which is why it has one of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from emulator import CHECKED, Emulator, LaunchError, aligned
from samples import on_cpu, sample

from zipplan.kernels import Codec, decode_reduce
from zipplan.kernels.cuda import launch


def flaw(emulator: Emulator, codec: Codec, seed: int) -> str:
    """What goes wrong in encoding, decoding and summing chunks of ragged sizes; nothing if all is right."""
    chunks = [sample("scales", codec.dtype, n, n) for n in (4097, 0, 3 * 4096 + 65, 33, 4096)]
    static, dynamic, encoded = on_cpu(codec, chunks)
    own_static, own_dynamic, sizes = emulator.encode(codec, chunks, seed=seed)
    if own_static.tobytes() != static.tobytes() or own_dynamic.tobytes() != dynamic.tobytes():
        return "other frames"
    if sizes[:, 1].tolist() != encoded.below.tolist():
        return "other counts"
    stores = [aligned(chunk.nbytes + 16, 2) for chunk in chunks]
    if emulator.decode(codec, static, dynamic, [s[:-16] for s in stores], seed=seed) != 2**64 - 1:
        return "sound frames refused"
    if any(s[:-16].tobytes() != c.tobytes() for s, c in zip(stores, chunks, strict=True)):
        return "other data"
    if any(set(s[-16:].tolist()) != {0xEE} for s in stores):
        return "written past the end"
    others = on_cpu(codec, [sample("zeros", codec.dtype, chunk.nbytes // 2) for chunk in chunks])
    twice = [np.concatenate(pair) for pair in zip((static, dynamic), others[:2], strict=True)]
    outs, own = ([aligned(chunk.nbytes) for chunk in chunks] for _ in range(2))
    decode_reduce(codec, *twice, outs, senders=2)
    emulator.decode(codec, *twice, own, senders=2, seed=seed)
    return "" if all(a.tobytes() == b.tobytes() for a, b in zip(outs, own, strict=True)) else "other sums"


def main() -> int:
    folder, old, new = sys.argv[1:4]
    codecs = [Codec("window", "bf16"), Codec("cascade", "bf16", 384)]
    flags = CHECKED if "--sanitize" in sys.argv else ("-O0",)
    emulator = Emulator(Path(folder), [launch.ids(c) for c in codecs], flags, [(old, new)] if old else [])
    for codec in codecs:
        for seed in range(1, 5):
            try:
                found = flaw(emulator, codec, seed)
            except LaunchError as error:
                found = str(error)
            if found:
                print(f"caught: {found}")
                return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
