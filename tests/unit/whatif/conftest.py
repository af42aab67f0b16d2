"""A small study: four hosts on 1 Gb/s links, where codec speed and size decide."""

from __future__ import annotations

import pytest

from zipplan.planner.schedule import Collective
from zipplan.planner.topology import load_machine
from zipplan.planner.whatif import Case, Study, read_sweep

SWEEPS = ("codec.speed=0.005x,0.01x,0.05x,1x", "size=4K,64K,1M")


@pytest.fixture
def study() -> Study:
    """4 × 3 cases of all_gather on the lab machine."""
    base = Case(load_machine("lab"), Collective.ALL_GATHER, 1 << 20, nodes=4)
    return Study(base, tuple(read_sweep(text) for text in SWEEPS))
