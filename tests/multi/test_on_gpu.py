"""The executor's way over a GPU's codec, with the kernels' source run by the CPU in the GPU's place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))

from stand_in import emulator

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]


def test_every_coded_schedule_returns_the_right_bits_and_waits_once(
    torchrun: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    emulator()  # built before the ranks start
    done = torchrun("on_gpu.py", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 40
    assert {name: problem for name, problem in found.items() if problem} == {}
