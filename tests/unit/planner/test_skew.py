"""Ranks that arrive late or send more than others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zipplan.planner.collectives import studied
from zipplan.planner.errors import ScheduleError, SimulationError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Axis, Collective, Payload, Schedule
from zipplan.planner.search import Search
from zipplan.planner.simulate import Skew, Timeline, simulate
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.verify import verify

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


@pytest.mark.parametrize("skew", [None, Skew((0,) * RANKS, EVEN)])
def test_the_host_reads_sizes_that_came_ahead(skew: Skew | None) -> None:
    """A copy that it waits for, as long as a launch: what comes before any frame costs more than its bytes."""
    *_, design_1 = studied(Collective.ALL_TO_ALL, SEARCH.cluster.nodes, SEARCH.cluster.ranks_per_node, ["window"])
    (sizes,) = (s.name for s in design_1.stages if s.payload is Payload.SIZES)
    taken = []
    for launch in (0, 7_000_000):
        rates = replace(SEARCH.rates["window"], launch=launch)
        done = simulate(design_1, SEARCH.cluster, SIZE, SEARCH.wires["window"], SEARCH.transport, rates, skew)
        taken.append(done.stage_times()[sizes])
    assert taken[1] - taken[0] == pytest.approx(7_000_000, abs=RANKS)


def test_sizes_first_waits_for_the_last_rank() -> None:
    """ZipCCL §3.2, §6.5: with one rank late, design 1 (sizes first) is slower than raw, design 2 quicker than both.

    Together, the two designs move the same bytes and take the same time but for the sizes. A rank that comes when the
    others are through leaves nothing to hide behind: then raw and design 2 differ only by what the late rank sends.
    """
    raw, static_first = (next(s for s in SEARCH.schedules if s.name == n) for n in ("native", "zipped"))
    *_, design_1 = studied(Collective.ALL_TO_ALL, SEARCH.cluster.nodes, SEARCH.cluster.ranks_per_node, ["window"])
    verify(design_1)
    wires, rates = SEARCH.wires, SEARCH.rates

    def time(schedule: Schedule, skew: Skew | None) -> int:
        codec = schedule.codec
        return simulate(schedule, SEARCH.cluster, SIZE, wires[codec], SEARCH.transport, rates[codec], skew).time

    together = time(raw, None)
    assert time(design_1, None) == pytest.approx(time(static_first, None), rel=0.05)
    for share in (0.4, 0.6, 1, 4):
        late = round(share * together)
        skew = Skew((*(0,) * (RANKS - 1), late), EVEN)
        if share < 1:
            assert time(static_first, skew) < 0.9 * time(raw, skew)
        assert time(static_first, skew) < 1.02 * time(raw, skew) < time(design_1, skew)
        assert time(design_1, skew) >= late + 0.9 * time(design_1, None)
    loaded = Skew.busiest(RANKS, 2.0, together)
    assert time(static_first, loaded) < time(raw, loaded) < time(design_1, loaded)


def test_sizes_before_frames_or_in_their_headers() -> None:
    """A dynamic region is received only once its sizes are known, and they must be those of its own exchange."""
    *_, design_1 = studied(Collective.ALL_TO_ALL, 2, 2, ["window"])
    broken: dict[str, dict[str, dict[str, object]]] = {
        "waits for no exchange": {"all_to_all_world_dynamic": {"after": ("all_to_all_world_encode",)}},
        "are those of another exchange": {"all_to_all_world_sizes": {"axis": Axis.NODE}},
        "nobody reads its .*sizes": {"all_to_all_world_sizes": {"dst": "elsewhere"}},
    }
    for says, changes in broken.items():
        stages = tuple(replace(s, **changes.get(s.name, {})) for s in design_1.stages)  # type: ignore[arg-type]
        with pytest.raises(ScheduleError, match=says):
            verify(replace(design_1, stages=stages))


def test_a_skew_for_other_ranks_is_refused() -> None:
    with pytest.raises(SimulationError, match="16 ranks"):
        run(0, Skew((0,), (1.0,)))
