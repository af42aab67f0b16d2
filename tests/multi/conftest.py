"""Starts several ranks as child processes, with a time limit, and hands back what they said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORKERS = Path(__file__).parent / "workers"
LIMIT = 150  # seconds; a start with four ranks takes about five on two cores, a hang is what this ends


def clean() -> dict[str, str]:
    """The environment without zipplan's own switches, one thread per rank."""
    return {k: v for k, v in os.environ.items() if not k.startswith("ZIPPLAN_")} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def forked() -> Callable[..., Any]:
    """forked("worker.py", *words): what a worker that forks its own ranks prints as JSON."""

    def run(worker: str, *words: object) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "error::FutureWarning", str(WORKERS / worker), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=LIMIT + 10,
            env=clean(),
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def torchrun() -> Launch:
    """torchrun("worker.py" or "-m module …", ranks=4, env={…}) → finished process; output as text."""

    def launch(*command: str, ranks: int = 4, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [str(WORKERS / command[0]) if command[0].endswith(".py") else command[0], *command[1:]]
        return subprocess.run(
            [*start, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**clean(), "PYTHONWARNINGS": "error::FutureWarning", **(env or {})},
        )

    return launch
