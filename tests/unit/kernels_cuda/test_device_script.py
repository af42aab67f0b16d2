"""The script for a GPU machine keeps running where there is none: its checks of bits, on the kernels' source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", str(ROOT / "tests" / "device" / "run.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_dry() -> None:
    done = run("--dry")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU is used and nothing is timed" in done.stdout
    assert "all equal" in done.stdout
    assert re.findall(r"executor, (\d) ranks on the CPU, dry: (\d+) calls in \d+ s\n", done.stdout) == [
        ("3", "64"),
        ("1", "64"),
    ]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU driver")
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 1
    assert done.stderr == "no CUDA device; try --dry\n"
