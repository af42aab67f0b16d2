"""Starts several ranks as child processes, with a time limit, and hands back what they said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
LIMIT = 150  # seconds; a start with four ranks takes about five on two cores, a hang is what this ends

Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def torchrun() -> Launch:
    """torchrun("worker.py" or "-m module …", ranks=4, env={…}) → finished process; output as text."""

    def launch(*command: str, ranks: int = 4, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [str(WORKERS / command[0]) if command[0].endswith(".py") else command[0], *command[1:]]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ZIPPLAN_")}
        return subprocess.run(
            [*start, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::FutureWarning", **(env or {})},
        )

    return launch
