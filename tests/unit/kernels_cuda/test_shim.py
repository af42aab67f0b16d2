"""The shim notices broken kernels: each way to break them that has a name here must be caught, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulator import SHIM, Emulator, LaunchError
from samples import sample

from zipplan.kernels import Codec

BARRIER = "    __syncthreads();\n"
ENCODED = "body = slot + RECORD;\n    const u32 valid = first >= m ? 0 : m - first >= 32 ? ~0u : below_bit(m - first"
DECODED = "s, raw)) return;\n    store<D>((u8*)k.address + (u64)t"
ADDED = "own.nonzero = __reduce_add_sync(WHOLE, own.nonzero);\n    if"
LOADED = "first + PER <= m) {\n        for (u32 w = 0; w < words_of(D); w += 4) {\n            uint4 v"
MUTANTS = {
    "encode, barrier after the sums": (BARRIER + "\n    Sums sum = {0, 0};", "\n    Sums sum = {0, 0};"),
    "encode, barrier after the counts": (BARRIER + "    for (int i = C == WINDOW", "    for (int i = C == WINDOW"),
    "encode, barrier after the bits": ("below);\n" + BARRIER, "below);\n"),
    "layout, barrier": (BARRIER + "    u64 before", "    u64 before"),
    "decode, barrier after the counts": ("    " + BARRIER + "        for (u32 w = 0; w", "        for (u32 w = 0; w"),
    "decode, barrier after the levels": ("count_digits(r, s);\n        " + BARRIER, "count_digits(r, s);\n"),
    "reduce, barrier between senders": ("        __syncthreads();  // the next", "        // the next"),
    "running sum, lane off by one": ("if (lane() >= d) v += u", "if (lane() > d) v += u"),
    "vote, mask off by one": ("__ballot_sync(WHOLE, from + lane()", "__ballot_sync(WHOLE >> 1, from + lane()"),
    "sum by the lanes that have data": (ADDED, "if (first < m) " + ADDED),
    "padding counted as an element": (ENCODED, ENCODED + " + 1"),
    "bits of the next word lost": ("if (high) atomicOr", "if (high && at < 64) atomicOr"),
    "store past the end": ("if (halves && at < bytes)", "if (halves && at <= bytes)"),
    "tiles swapped": (DECODED, DECODED.replace("(u64)t", "(u64)(t ^ (k.n > 3 * TILE && t < 2))")),
}
UNSEEN_BY_BYTES = {
    "load past the end": (LOADED, LOADED.replace("first + PER <= m", "first < m")),
    "shared memory past its end": ("[stream & 1][w] = ", "[stream & 1][w + (l == 2) * 4096] = "),
}


def run(script: str, folder: Path, *arguments: str, sanitize: bool = False) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if sanitize:
        found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment["LD_PRELOAD"] = found.stdout.strip()
        environment["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
    command = [sys.executable, str(SHIM.with_name(script)), str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_is_caught(built: Path, name: str) -> None:
    done = run("mutant.py", built, *MUTANTS[name])
    assert done.returncode == 3 or done.returncode < 0, f"not caught: {done.stdout}{done.stderr}"  # or a crash


@pytest.mark.timeout(180)
def test_sound_kernels_are_not_blamed(built: Path) -> None:
    done = run("mutant.py", built, "", "")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", UNSEEN_BY_BYTES)
def test_an_access_outside_is_caught_under_asan(built: Path, name: str) -> None:
    done = run("mutant.py", built, *UNSEEN_BY_BYTES[name], "--sanitize", sanitize=True)
    assert "AddressSanitizer" in done.stderr or "runtime error: index" in done.stderr


@pytest.mark.timeout(180)
def test_kernels_stay_inside_their_buffers(built: Path) -> None:
    """F017: every dtype, ragged sizes, odd addresses, damaged frames, under ASan and UBSan."""
    done = run("sanitized.py", built, sanitize=True)
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stderr[-3000:]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("if (threadIdx.x < 7) __syncthreads(); else { __syncthreads(); }", "different barriers"),
        ("if (threadIdx.x == 3) return; __ballot_sync(~0u, 1);", "left or never were"),
        ("if (threadIdx.x % 2) __ballot_sync(~0u, 1); else __reduce_add_sync(~0u, 1u);", "divergent warp"),
        ("__ballot_sync(0xffff, 1);", "not in its own mask"),
        ("if (threadIdx.x % 32) __syncthreads(); else __ballot_sync(~0u, 1);", "deadlock"),
    ],
)
def test_what_the_shim_stops(built: Path, body: str, complaint: str) -> None:
    """Each in place of the kernel that uploads the table, on lines of their own."""
    body = body.replace(" else ", "\nelse ")
    edit = (
        "    const u32 i = threadIdx.x;\n    if (u.first == 0",
        body + "\n    const u32 i = threadIdx.x;\n    if (u.first == 0",
    )
    emulator = Emulator(built, [(0, 0)], ("-O0",), [edit])
    with pytest.raises(LaunchError, match=complaint):
        emulator.encode(Codec("raw", "u8"), [sample("random", "u8", 5)])
