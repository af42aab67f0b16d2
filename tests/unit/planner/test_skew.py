"""Ranks that arrive late or send more than others."""

from __future__ import annotations

import pytest

from zipplan.planner.errors import SimulationError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.simulate import Skew, Timeline, simulate
from zipplan.planner.topology import build_cluster, load_machine

SIZE = 8 << 20
SEARCH = Search(
    build_cluster(load_machine("a6000x8-200g"), nodes=2), Collective.ALL_TO_ALL, "bf16", parse_profile("gaussian")
)
RANKS = SEARCH.cluster.ranks
EVEN = (1.0,) * RANKS


def run(schedule: int, skew: Skew | None) -> Timeline:
    chosen = SEARCH.schedules[schedule]
    wire = SEARCH.wires[chosen.codec]
    return simulate(chosen, SEARCH.cluster, SIZE, wire, SEARCH.transport, SEARCH.rates[chosen.codec], skew)


@pytest.mark.parametrize("schedule", range(len(SEARCH.schedules)))
def test_no_skew_is_the_common_start(schedule: int) -> None:
    together = run(schedule, None).time
    assert run(schedule, Skew((0,) * RANKS, EVEN)).time == pytest.approx(together, abs=RANKS)


@pytest.mark.parametrize("schedule", range(len(SEARCH.schedules)))
def test_one_late_rank_costs_its_delay_at_most(schedule: int) -> None:
    together = run(schedule, None).time
    late = together // 2
    skewed = run(schedule, Skew((*(0,) * (RANKS - 1), late), EVEN)).time
    assert max(together, late) <= skewed <= together + late + RANKS


def test_early_ranks_use_the_wait() -> None:
    """What the others have exchanged before the late rank comes is time won (ZipCCL §5.1)."""
    together = run(0, None).time
    skewed = run(0, Skew((*(0,) * (RANKS - 1), together), EVEN)).time
    assert skewed < 1.5 * together


def test_a_heavy_sender_takes_longer() -> None:
    heavy = Skew((0,) * RANKS, (3.0, *((RANKS - 3) / (RANKS - 1),) * (RANKS - 1)))
    even, loaded = run(0, None), run(0, heavy)
    assert loaded.time > even.time
    assert loaded.link_bytes.sum() == pytest.approx(even.link_bytes.sum(), rel=0.15)


def test_a_skew_for_other_ranks_is_refused() -> None:
    with pytest.raises(SimulationError, match="16 ranks"):
        run(0, Skew((0,), (1.0,)))
