"""Checks and times the CUDA codec; run.sh starts it. --dry: on the CPU, untimed. --small: few cases (sanitizer)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from emulator import Emulator
from samples import CODECS, FLOATS, SIZES, on_cpu, sample

from zipplan.kernels import Codec, Params, decode, decode_reduce
from zipplan.kernels.cuda import build

DRY, SMALL = "--dry" in sys.argv, "--small" in sys.argv
FINE = 2**64 - 1
KINDS = ("normal", "scales", "zeros", "random")
STARTED = time.monotonic()


class Device:
    """The GPU behind the calls that Emulator has: bytes in, bytes out. `offset` misplaces inputs and outputs."""

    def __init__(self) -> None:
        import torch

        from zipplan.kernels import cuda

        self.torch, self.cuda, self.offset = torch, cuda, 0

    def put(self, data: np.ndarray):  # type: ignore[no-untyped-def]
        store = self.torch.zeros(data.nbytes + 32, dtype=self.torch.uint8, device="cuda")
        store[self.offset : self.offset + data.nbytes] = self.torch.from_numpy(data.copy())
        return store[self.offset : self.offset + data.nbytes]

    def encode(
        self, codec: Codec, chunks: Sequence[np.ndarray], params: Params | None = None, seed: int = 1
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        static, dynamic, _ = self.room(codec, [chunk.nbytes // codec.item_bytes for chunk in chunks])
        done = self.cuda.encode(codec, [self.put(chunk) for chunk in chunks], static, dynamic, params=params)
        sizes = np.stack([t.cpu().numpy() for t in (done.sizes, done.below, done.above, done.stored)], 1)
        return static.cpu().numpy(), dynamic[: int(sizes[:, 0].sum())].cpu().numpy(), sizes

    def decode(
        self,
        codec: Codec,
        static: np.ndarray,
        dynamic: np.ndarray,
        outs: Sequence[np.ndarray],
        senders: int | None = None,
    ) -> int:
        places = [self.put(out) for out in outs]
        regions = [self.torch.from_numpy(region.copy()).cuda() for region in (static, dynamic)]
        if senders is None:
            status = self.cuda.decode(codec, *regions, places)
        else:
            status = self.cuda.decode_reduce(codec, *regions, places, senders=senders)
        for out, place in zip(outs, places, strict=True):
            out[:] = place.cpu().numpy()
        return int(status.word.item()) % 2**64

    def room(self, codec: Codec, counts: Sequence[int]):  # type: ignore[no-untyped-def]
        from zipplan.kernels import max_dynamic_size, static_size

        make = lambda size: self.torch.empty(size, dtype=self.torch.uint8, device="cuda")  # noqa: E731
        static, dynamic = sum(static_size(codec, n) for n in counts), sum(max_dynamic_size(codec, n) for n in counts)
        return make(static), make(dynamic), make(self.cuda.workspace_size(codec, counts, encoding=True))


def same(codec: Codec, device: Device | Emulator, chunks: Sequence[np.ndarray], params: Params | None = None) -> None:
    """GPU frames are CPU frames; each side decodes the other's."""
    static, dynamic, encoded = on_cpu(codec, chunks, params)
    own_static, own_dynamic, sizes = device.encode(codec, chunks, params)
    assert own_static.tobytes() == static.tobytes(), f"{codec}: static regions differ"
    assert own_dynamic.tobytes() == dynamic.tobytes(), f"{codec}: dynamic regions differ"
    assert sizes[:, 1].tolist() == encoded.below.tolist(), f"{codec}: counts differ"
    for way in ("GPU to CPU", "CPU to GPU"):
        outs = [np.zeros(chunk.nbytes, np.uint8) for chunk in chunks]
        if way == "GPU to CPU":
            decode(codec, own_static, own_dynamic, outs)
        else:
            assert device.decode(codec, static, dynamic, outs) == FINE, f"{codec}: sound frames refused"
        for chunk, out in zip(chunks, outs, strict=True):
            assert out.tobytes() == chunk.tobytes(), f"{codec}: {way}: {np.flatnonzero(out != chunk)[:5]} differ"


def bits(device: Device | Emulator) -> int:
    """F006, F013, F017, F021, F032: every 16-bit pattern, sizes round every edge, random sizes, addresses, sums."""
    rng, tried = np.random.default_rng(13), 0
    for codec in CODECS:
        for kind in KINDS[: 1 if SMALL else 4]:
            same(codec, device, [sample(kind, codec.dtype, n, n) for n in (SIZES[:-1] if SMALL else SIZES)])
            tried += len(SIZES)
        if SMALL:
            continue
        sizes = rng.integers(0, 20_000, 5).tolist() + rng.choice(SIZES, 5).tolist()
        same(codec, device, [sample("scales", codec.dtype, n, 7) for n in sizes])
        if codec.item_bytes == 2:
            patterns = np.arange(65536, dtype=np.uint16)
            orders = (patterns, patterns[::-1], rng.permutation(patterns))
            same(codec, device, [order.copy().view(np.uint8) for order in orders])
        if isinstance(device, Device):
            for device.offset in (codec.item_bytes, 3 * codec.item_bytes, 1):
                same(codec, device, [sample("scales", codec.dtype, 9000)])
            device.offset = 0
        tried += len(sizes) + 6
        if codec.dtype != "u8":
            frames = [
                sample(k, codec.dtype, n, i) for i, k in enumerate(("scales", "random", "zeros")) for n in (5000, 77)
            ]
            static, dynamic, _ = on_cpu(codec, frames)
            expected, found = ([np.zeros(n * codec.item_bytes, np.uint8) for n in (5000, 77)] for _ in range(2))
            decode_reduce(codec, static, dynamic, expected, senders=3)
            assert device.decode(codec, static, dynamic, found, senders=3) == FINE
            assert [f.tobytes() for f in found] == [e.tobytes() for e in expected], f"{codec}: sums differ"
            tried += 1
    same(Codec("cascade", "bf16", 0, True), device, [sample("scales", "bf16", n) for n in (9000, 0, 40)])
    return tried


def large(device: Device) -> None:
    """F018: more than 2^32 bytes in one chunk, bit-equal."""
    torch = device.torch
    n = 2**31 + 1 if torch.cuda.mem_get_info()[0] > 24 << 30 else 2**28 + 1
    codec, data = Codec("cascade", "bf16"), torch.randint(-(2**15), 2**15, (n,), dtype=torch.int16, device="cuda")
    data[: n // 2] &= 0x3FFF - 0x40  # exponents in a narrow range: half the tiles compress
    static, dynamic, work = device.room(codec, [n])
    device.cuda.encode(codec, [data], static, dynamic, workspace=work)
    out = torch.empty_like(data)
    device.cuda.decode(codec, static, dynamic, [out]).check()
    assert torch.equal(out, data), "large chunk differs"


def streams(device: Device) -> None:
    """F061: an input freed at once, its memory filled by others. F065: capture in a graph, replay with worse data."""
    torch, codec, n = device.torch, Codec("window", "bf16"), 1 << 20
    source = torch.randn(n, device="cuda").bfloat16()
    static, dynamic, _ = device.room(codec, [n])
    out, side = torch.empty_like(source), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(200):
            data = source.clone()
            device.cuda.encode(codec, [data], static, dynamic)
            del data
            torch.full((n,), 7, dtype=torch.bfloat16, device="cuda")
        device.cuda.decode(codec, static, dynamic, [out]).check()
    assert torch.equal(out.view(torch.int16), source.view(torch.int16)), "a freed input was read late"

    data, graph = source.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device.cuda.encode(codec, [data], static, dynamic)
        status = device.cuda.decode(codec, static, dynamic, [out])
    for scale in (1.0, 1e-3):
        data.copy_(torch.randn(n, device="cuda") * scale ** torch.arange(n, device="cuda").remainder(5))
        graph.replay()
        status.check()
        assert torch.equal(out.view(torch.int16), data.view(torch.int16)), "a replayed graph gives other bits"


def sanitizers() -> list[str]:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return ["compute-sanitizer: not on this machine, memory and races not checked"]
    said = []
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, __file__, "--small"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            said.append(f"{check}: {'clean' if done.returncode == 0 else done.stdout[-600:] + done.stderr[-300:]}")
        except subprocess.TimeoutExpired:
            said.append(f"{check}: not finished in 60 s")
    return said


def milliseconds(device: Device, call: Callable[[], object], budget: float = 60.0) -> float:
    """Median of single calls between CUDA events; three calls before, which also load and compile."""
    torch = device.torch
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 30 and sum(times) < budget:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def rates(device: Device, codec: Codec, plain, out) -> tuple[list[float], float]:  # type: ignore[no-untyped-def]
    """(GB/s of plain data of encode, decode, decode_reduce of four senders with a quarter each; ratio)."""
    n = plain.nbytes // codec.item_bytes
    static, dynamic, work = device.room(codec, [n])
    made = device.cuda.encode(codec, [plain], static, dynamic, workspace=work)
    ratio = plain.nbytes / (static.nbytes + int(made.sizes.sum()))
    times = [
        milliseconds(device, lambda: device.cuda.encode(codec, [plain], static, dynamic, workspace=work)),
        milliseconds(device, lambda: device.cuda.decode(codec, static, dynamic, [out])),
    ]
    device.cuda.decode(codec, static, dynamic, [out]).check()
    assert device.torch.equal(out, plain), f"{codec}: timed data differ"
    quarters = plain.split(plain.nbytes // 4)
    fixed, rest, _ = device.room(codec, [n // 4] * 4)
    device.cuda.encode(codec, quarters, fixed, rest)
    sums = [out[: quarters[0].nbytes]]
    device.cuda.decode_reduce(codec, fixed, rest, sums, senders=4).check()
    times.append(milliseconds(device, lambda: device.cuda.decode_reduce(codec, fixed, rest, sums, senders=4)))
    return [plain.nbytes / time / 1e6 for time in times], ratio


def speed(device: Device) -> list[str]:
    """The table, with a device copy of the same bytes timed beside each row."""
    torch = device.torch
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    types |= {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    rows = ["GB/s of plain data, N(0, 0.02); copy: the same bytes, device to device; a row of its run"]
    rows.append("codec    dtype      MiB   copy  encode  decode  reduce  enc/copy dec/copy   ratio")
    for mib in (1, 16, 256, 1024):
        for dtype in FLOATS:
            plain = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
            for part in plain.split(64 << 20):
                wide = torch.randn(part.nbytes // types[dtype].itemsize, device="cuda") * 0.02
                part.copy_(wide.to(types[dtype]).view(torch.uint8))
            out = torch.empty_like(plain)
            copy = plain.nbytes / milliseconds(device, lambda to=out, of=plain: to.copy_(of)) / 1e6
            for name in ("window", "cascade"):
                if time.monotonic() - STARTED > 240:
                    return [*rows, "stopped after 240 s"]
                (encode, decode, reduce), ratio = rates(device, Codec(name, dtype), plain, out)
                note = "  above the copy: implausible" if mib > 100 and max(encode, decode) > 1.3 * copy else ""
                cells = (
                    f"{copy:6.0f} {encode:7.0f} {decode:7.0f} {reduce:7.0f} {encode / copy:9.2f} {decode / copy:8.2f}"
                )
                rows.append(f"{name:8} {dtype:8} {mib:5d} {cells} {ratio:7.3f}{note}")
    return rows


def main() -> None:
    if DRY:
        device: Device | Emulator = Emulator(Path("build/emulator"))
        print("dry: the kernels' source on the CPU; no GPU is used and nothing is timed")
    else:
        device = Device()
        if not device.torch.cuda.is_available():
            sys.exit("no CUDA device; try --dry")
        made = device.torch.cuda.get_device_properties(0)
        versions = f"torch {device.torch.__version__}, NVRTC {build.compiler()[0]}"
        print(f"{made.name}, compute capability {made.major}.{made.minor}, {versions}")
    print(f"bits: {bits(device)} comparisons, all equal, {time.monotonic() - STARTED:.0f} s")
    if SMALL or not isinstance(device, Device):
        return
    large(device)
    streams(device)
    print(f"large chunks, freed inputs, graphs: all equal, {time.monotonic() - STARTED:.0f} s")
    print("\n".join(sanitizers()))
    print("\n".join(speed(device)))


if __name__ == "__main__":
    main()
