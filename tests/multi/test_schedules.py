"""Every candidate schedule on real ranks and real frames."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from zipplan.planner.collectives import candidates, studied
from zipplan.planner.schedule import Collective

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]


@pytest.mark.parametrize("nodes", [1, 2], ids=["1x4", "2x2"])
def test_every_candidate_returns_the_right_bits(
    torchrun: Callable[..., subprocess.CompletedProcess[str]], nodes: int
) -> None:
    """Movement equals the native call byte for byte; sums equal FP32 in rank order, on 4 ranks, at seven sizes."""
    done = torchrun("schedules.py", str(nodes))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    grids = [(c, nodes, 4 // nodes, ("raw", "window")) for c in Collective]
    schedules = sum(1 for grid in grids for _ in (*candidates(*grid), *studied(*grid)))
    assert len(found) == 7 * schedules
    assert {name: problem for name, problem in found.items() if problem} == {}
