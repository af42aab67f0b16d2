"""What the compiler says of the CUDA kernels, for every architecture: writes docs/benchmarks/cuda-static.md.

    python scripts/cuda_static.py            # writes the page
    python scripts/cuda_static.py --check    # exit status 1 if the page is not what this would write

Needs NVRTC and nvdisasm from PyPI, no GPU. Compiled code is kept in build/cuda-static, by the hash of what made it.
"""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import nvidia

from zipplan.kernels import Codec, encode, max_dynamic_size, static_size
from zipplan.kernels.codec import ITEM_BYTES
from zipplan.kernels.cuda import build, launch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "cuda-static.md"
KEPT = ROOT / "build" / "cuda-static"
ARCHES = (80, 90, 100)
FLOATS = tuple(dtype for dtype in ITEM_BYTES if dtype != "u8")
CODECS = [Codec(codec, dtype) for codec in ("window", "cascade") for dtype in FLOATS] + [Codec("raw", "bf16")]
COUNTED = ("zp_encode", "zp_decode", "zp_decode_reduce")
PER = launch.TILE // launch.THREADS  # elements of a thread

# Multiprocessors, clock, HBM bandwidth. Clock: what the data sheet's dense bf16 peak implies, 312 and 989 TFLOP/s by
# 2,048 and 4,096 per multiprocessor and clock (https://www.nvidia.com/en-us/data-center/a100/, .../h100/, .../h200/).
DEVICES = {"A100 80 GB": (80, 108, 1.41e9, 2.039e12), "H100 SXM": (90, 132, 1.83e9, 3.35e12),
           "H200": (90, 132, 1.83e9, 4.8e12)}  # fmt: skip
# Lanes per multiprocessor and clock, compute capabilities 8.0 and 9.0: the table of arithmetic instructions in
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions; four schedulers issue 32 lanes each.
LANES = {"all": 128, "integer": 64, "multiply-add": 64, "shuffle": 32, "memory": 32, "bit count": 16}
PIPES = {"IMAD": "multiply-add", "FFMA": "multiply-add", "FADD": "multiply-add", "FMUL": "multiply-add",
         "SHFL": "shuffle", "REDUX": "bit count", "POPC": "bit count", "FLO": "bit count", "BREV": "bit count",
         "I2F": "bit count", "F2I": "bit count", "MUFU": "bit count", "S2R": "bit count"} | dict.fromkeys(
         ("LD", "LDG", "LDS", "LDC", "ST", "STG", "STS", "ATOM", "ATOMS", "RED", "REDG"), "memory")  # fmt: skip
OTHER = ("BRA", "BSSY", "BSYNC", "EXIT", "BAR", "NOP", "CALL", "RET", "WARPSYNC", "YIELD", "MOV", "CS2R", "VOTE")

# Lines of the kernels' text that an ordinary tile, whole and aligned and coded, does not reach.
COLD = (
    ("u32 word_at(", "    return word;\n}"),
    ("        for (u32 w = 0; w < words_of(D); w++) raw[w] = word_at(tile", "\n"),
    ("    u32 bytes = first < m ? (m - first", "\n}"),
    ("        for (u32 i = threadIdx.x; i < size / 4; i += THREADS) ((u32*)body)", "\n"),
    ("        if (r.mode == STORED) {\n", "            return true;\n"),
    ("void report(", "\n}"),
)
# Lines that run as often as the data say, in the average warp: (from, to, what it counts).
LOOPS = (
    ("void pack_few(", "    x = a, y = b;", "deep"),
    ("void unpack_few(", "    x = a, y = b;", "deep"),
    ("    for (u32 left = escapes; left; left &= left - 1, at += 8) {", "    if (below)", "escapes"),
    ("    for (u32 left = escapes; left; left &= left - 1) flip", "\n", "escapes"),
    ("u32 pick_byte(", "\n}", "escapes"),
    ("void flip_byte(", "\n}", "escapes"),
    ("    for (u32 stream = warp(); stream", "\n}", "streams"),
    ("    if (warp() >= 3) return;", "\n}", "levels"),
)


@dataclass(frozen=True)
class Kernel:
    """Registers of a thread, spilled and shared bytes; instructions per element by pipe, the sum under "all"."""

    registers: int
    spilled: int
    shared: int
    per_element: dict[str, float]


def normal(dtype: str) -> np.ndarray:
    """1 Mi values of N(0, 0.02), cut to the dtype, as bytes."""
    wide = np.random.default_rng(1).normal(0, 0.02, 1 << 20).astype(np.float32)
    bits, half = wide.view(np.uint32), wide.astype(np.float16).view(np.uint16)
    if dtype == "fp8_e4m3":  # exponent and mantissa cut from FP32, biased so that they fit
        low = np.clip((bits >> 20 & 0x7FF).astype(np.int64) - 8 * 114, 0, 126).astype(np.uint8)
        return low | (bits >> 24 & 0x80).astype(np.uint8)
    made = {
        "bf16": (bits >> 16).astype(np.uint16),
        "fp16": half,
        "fp32": bits,
        "fp8_e5m2": (half >> 8).astype(np.uint8),
    }
    return made[dtype].view(np.uint8)


def measured(codec: Codec) -> tuple[dict[str, float], float, float]:
    """How often the loops run in the average warp, and bytes per element: of both regions, of the dynamic one."""
    data = normal(codec.dtype)
    n = data.nbytes // codec.item_bytes
    static, dynamic = np.empty(static_size(codec, n), np.uint8), np.empty(max_dynamic_size(codec, n), np.uint8)
    encoded = encode(codec, [data], static, dynamic)
    size = int(encoded.sizes[0])
    if codec.id == "raw":
        return dict.fromkeys(("deep", "escapes", "streams", "levels"), 0.0), static.nbytes / n, 0.0
    slot = (static_size(codec, 129 * 4096) - static_size(codec, 4096)) // 128
    records = np.stack([static[64 + t * slot :][:16].view(np.uint16) for t in range(n // 4096)]).astype(float)
    _, two, three, four, escapes = records[records[:, 0].astype(int) & 255 != 1].mean(0)[:5] / 4096
    del two
    trips = {"deep": (largest(three) + largest(four)) / 2, "escapes": largest(escapes)}
    trips |= {"streams": 6 / 4, "levels": 3 / 4}  # streams and levels that a warp takes, of four
    return trips, (static.nbytes + size) / n, size / n


def largest(p: float) -> float:
    """Mean of the largest of 32 lanes' counts among 32 elements each, each counted with probability p."""
    at_most = np.cumsum([math.comb(32, k) * p**k * (1 - p) ** (32 - k) for k in range(33)])
    return float((1 - np.minimum(at_most, 1) ** 32)[:-1].sum())


def compiled(codec: Codec, arch: int) -> dict[str, Kernel]:
    """Every counted kernel of one codec and dtype on one architecture."""
    c, d = launch.ids(codec)
    text = "".join(build.source())
    options = (f"--gpu-architecture=sm_{arch}", "--std=c++17", "--ptxas-options=-v", "--generate-line-info")
    options += (f"-DZP_C={c}", f"-DZP_D={d}")
    key = hashlib.sha256("\0".join((text, *options, build.compiler()[0])).encode()).hexdigest()[:20]
    code, log, listing = (KEPT / f"{key}.{end}" for end in ("cubin", "log", "sass"))
    if not listing.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        made, said = build.compiled(text, options)
        code.write_bytes(made)
        log.write_text(said)
        tool = Path(next(iter(nvidia.__path__))) / "cu13" / "bin" / "nvdisasm"
        shown = subprocess.run([tool, "-g", "-c", code], capture_output=True, text=True, check=True).stdout
        listing.with_suffix(".part").write_text(shown)
        listing.with_suffix(".part").rename(listing)
        code.unlink()
    trips, _, _ = measured(codec)
    weights = line_weights(text, trips)
    found = {}
    for name, rest in re.findall(r"entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", log.read_text(), re.DOTALL):
        if name in COUNTED:
            spilled = sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill)", rest)))
            shared = re.search(r"(\d+) bytes smem", rest)
            registers = re.search(r"Used (\d+) registers", rest)
            assert registers
            section = listing.read_text().split(f".text.{name}:", 1)[1].split("//-----", 1)[0]
            counts = hot(section, weights)
            found[name] = Kernel(int(registers[1]), spilled, int(shared[1]) if shared else 0, counts)
    return found


def line_weights(text: str, trips: dict[str, float]) -> dict[int, float]:
    """Source line -> how often a warp runs it for an ordinary tile, where that is not once."""
    weights: dict[int, float] = {}
    for start, end, weight in [(a, b, 0.0) for a, b in COLD] + [(a, b, trips[what]) for a, b, what in LOOPS]:
        for match in re.finditer(re.escape(start), text):
            stop = text.index(end, match.end())
            for line in range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, stop) + 2):
                weights.setdefault(line, weight)
        assert start in text, f"not in the kernels' text: {start}"
    return weights


def hot(section: str, weights: dict[int, float]) -> dict[str, float]:
    """Instructions per element by pipe: those that can be reached without divergence, times their line's weight.

    Predicated instructions count in full; the code behind BRA.DIV, for warps that are not together, does not.
    """
    code: list[tuple[str, str, int]] = []  # opcode, operands, source line
    labels: dict[str, int] = {}
    line = 0
    for row in section.splitlines():
        if match := re.match(r"\s*//## File .*, line (\d+)", row):
            line = int(match[1])
        elif match := re.match(r"(\.L_x_\d+):", row):
            labels[match[1]] = len(code)
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?) ;", row):
            code.append((match[1].split(" ", 1)[0] if match[1][0] != "@" else match[1], match[1], line))
    seen, todo = set(), [0]
    while todo:
        at = todo.pop()
        if at in seen or at >= len(code):
            continue
        seen.add(at)
        opcode, whole, _ = code[at]
        target = re.search(r"`\((\.L_x_\d+)\)", whole)
        if opcode.startswith(("EXIT", "RET")) or (opcode.startswith("BRA") and not opcode.startswith("BRA.DIV")):
            todo += [labels[target[1]]] if target and opcode.startswith("BRA") and ", " not in whole else []
            if opcode.startswith("BRA") and ", " in whole and target:
                todo += [labels[target[1]], at + 1]
            continue
        if target and " BRA " in f" {whole} " and "BRA.DIV" not in whole:
            todo.append(labels[target[1]])
        if target and opcode == "BSSY":
            todo.append(labels[target[1]])
        todo.append(at + 1)
    counts: Counter[str] = Counter()
    for at in seen:
        whole, source = code[at][1:]
        base = re.sub(r"^@\S+ ", "", whole).split(" ", 1)[0].split(".", 1)[0]
        weight = weights.get(source, 1.0) / PER
        counts["all"] += weight  # type: ignore[assignment]
        uniform = base.startswith("U") or base == "R2UR"
        pipe = PIPES.get(base, "other" if uniform or base in OTHER else "integer")
        counts[pipe] += weight  # type: ignore[assignment]
    return dict(counts)


def bound(kernel: Kernel, processors: int, clock: float) -> tuple[float, str]:
    """Most elements per second by instructions, and the pipe that says so."""
    clocks = {pipe: kernel.per_element.get(pipe, 0) / lanes for pipe, lanes in LANES.items()}
    slowest = max(clocks, key=lambda pipe: clocks[pipe])
    return processors * clock / clocks[slowest], "issue" if slowest == "all" else slowest


def page() -> str:
    with ThreadPoolExecutor(2) as pool:
        jobs = {(c, arch): pool.submit(compiled, c, arch) for c in CODECS for arch in ARCHES}
        kernels = {key: job.result() for key, job in jobs.items()}
    rows = []
    for codec in CODECS:
        for name in COUNTED:
            cells = []
            for arch in ARCHES:
                k = kernels[codec, arch][name]
                cells += [
                    str(k.registers),
                    str(k.spilled),
                    f"{k.per_element['all']:.1f}",
                    f"{k.per_element['integer']:.1f}",
                ]
            shared = kernels[codec, 90][name].shared
            rows.append(f"| {codec.id} {codec.dtype} | {name[3:]} | {shared} | " + " | ".join(cells) + " |")
    roofs = []
    for codec in (c for c in CODECS if c.id != "raw"):
        _, whole, dynamic = measured(codec)
        for direction, traffic in (
            ("encode", codec.item_bytes + whole + 2 * dynamic),
            ("decode", codec.item_bytes + whole),
        ):
            cells = []
            for arch, processors, clock, bandwidth in DEVICES.values():
                memory = bandwidth / traffic
                most, pipe = bound(kernels[codec, arch]["zp_" + direction], processors, clock)
                low = min(memory, most) * codec.item_bytes / 1e9
                what = "HBM" if memory <= most else pipe
                hbm, instructions = memory * codec.item_bytes / 1e9, most * codec.item_bytes / 1e9
                cells.append(f"{hbm:,.0f} | {instructions:,.0f} ({pipe}) | **{low:,.0f}** {what}")
            roofs.append(f"| {codec.id} {codec.dtype} | {direction} | {traffic:.2f} | " + " | ".join(cells) + " |")
    heads = "".join(f" sm_{a} regs | spills | instr/elem | integer |" for a in ARCHES)
    columns = "".join(f" {name}: HBM | instructions | lower |" for name in DEVICES)
    return TEXT.format(
        version=build.compiler()[0],
        kernels="| codec | kernel | shared |"
        + heads
        + "\n|"
        + " --- |" * (3 + 4 * len(ARCHES))
        + "\n"
        + "\n".join(rows),
        roofs="| codec | way | bytes/elem |"
        + columns
        + "\n|"
        + " --- |" * (3 + 3 * len(DEVICES))
        + "\n"
        + "\n".join(roofs),
    )


TEXT = """# CUDA kernels: what the compiler says

Generated by `python scripts/cuda_static.py` with NVRTC {version}; a test compares. **Nothing here was measured on a
GPU**: registers, spills and instructions are read from the compiler's output, the speeds are arithmetic on them.

## Kernels

Bytes of shared memory per block of 128 threads, and for each architecture: registers of a thread, bytes spilled (stack
included), instructions that a warp issues per element, and how many of them the integer units do. A thread has 32
elements. `decode_reduce` counts one sender.

Counted are the instructions (SASS) that an ordinary tile reaches: whole, aligned, coded, warps together. Loops that
depend on data count as often as the average warp runs them on N(0, 0.02): as often as its busiest lane.

{kernels}

## What they imply

GB/s of plain data. HBM: bandwidth over the bytes that an element moves (read once, written once, and in `encode` the
dynamic region twice more, through scratch). Instructions: multiprocessors × clock ÷ the most clocks that any unit of a
multiprocessor needs per element, at 128 lanes issued, 64 integer, 64 multiply-add, 32 shuffle, 32 memory and 16
bit-count lanes per clock. Lower: the lesser of the two, which no run should pass; latency, bank conflicts and the small
kernels around the large one (upload, measure, layout, place) come on top.

{roofs}
"""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
