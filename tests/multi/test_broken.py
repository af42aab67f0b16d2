"""The check must see what it is for: results with two blocks exchanged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from zipplan.planner.collectives import candidates
from zipplan.planner.schedule import Collective

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]


def test_swapped_blocks_are_noticed(torchrun: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """F005: a codec that swaps two 4-KiB blocks, or a schedule that swaps two slots, fails the bench's check."""
    done = torchrun("broken.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    schedules = [s for c in Collective for s in candidates(c, 2, 2, ("window",))]
    assert len(found) == 2 * len(schedules) + sum(s.codec != "raw" for s in schedules)
    assert {name: problem for name, problem in found.items() if problem} == {}
