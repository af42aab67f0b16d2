"""Every kernel compiles for every architecture, without spills; the page of what the compiler says is up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "benchmarks" / "cuda-static.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_is_what_the_compiler_says_now() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "cuda_static.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, f"{done.stderr}\nmake it anew: python scripts/cuda_static.py"


def test_no_kernel_spills_and_all_fit_in_registers_and_shared_memory() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    kernels = [row for row in rows if len(row) == 15 and row[2].isdigit()]
    assert len(kernels) == 3 * 11
    for row in kernels:
        shared, registers, spills = int(row[2]), [int(row[i]) for i in (3, 7, 11)], [row[i] for i in (4, 8, 12)]
        assert spills == ["0", "0", "0"], row
        assert max(registers) * 128 <= 65536 // 3, row  # three blocks on a multiprocessor at least
        assert shared <= 16 << 10, row


def test_the_page_claims_no_measurement() -> None:
    assert re.search(r"Nothing here was measured on a\s+GPU", PAGE.read_text())
