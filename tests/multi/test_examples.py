"""The examples that need ranks, as their own first lines say to run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_planned_collectives(torchrun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Plans, moves compressed bytes, reports ratio and fallback."""
    words = ["--topology", "loopback", "--size", "1M,16M", "-o", "plan.json"]
    zipplan = [sys.executable, "-c", "from zipplan.planner.cli import main; main()"]
    subprocess.run([*zipplan, "plan", *words], cwd=tmp_path, check=True, timeout=60, capture_output=True)
    done = torchrun(str(EXAMPLES / "planned_collectives.py"), str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    first, second, third, last = done.stdout.splitlines()
    assert first.startswith("all_gather of bf16: zipped, ratio 1.")
    assert second.startswith("all_reduce of bf16: two-shot, ratio 1.")
    assert third.startswith("all_reduce of int64: native, ratio 1.00")
    assert last == "all_reduce of int64 ran natively: the plan has no table for all_reduce of int64"
