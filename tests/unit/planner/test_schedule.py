"""Schedules and their verifier: what is right passes, what is broken is named by its stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.collectives import all_gather, all_reduce, candidates, chunked, reduce_scatter
from zipplan.planner.errors import ScheduleError
from zipplan.planner.schedule import PART_GRAIN, Axis, Collective, Exchange, Op, Payload, Schedule, Stage
from zipplan.planner.verify import verify

GRIDS = [(1, 1), (1, 2), (1, 3), (1, 8), (2, 1), (2, 2), (3, 2), (5, 3), (2, 8), (33, 1), (128, 8)]


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_candidate_keeps_its_promise(collective: Collective, grid: tuple[int, int]) -> None:
    """F034, F098: any number of nodes and ranks, powers of two or not."""
    for schedule in candidates(collective, *grid, ("window",)):
        verify(schedule)


@pytest.mark.parametrize("collective", Collective)
def test_json_gives_the_same_schedule_back(collective: Collective) -> None:
    for schedule in candidates(collective, 2, 4, ("window",)):
        assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_hierarchical_candidates_need_both_levels() -> None:
    names = {s.name for s in candidates(Collective.ALL_GATHER, 4, 1, ("window",))}
    assert names == {"native", "zipped", "zipped-x4"}
    assert "zipped-across-nodes" in {s.name for s in candidates(Collective.ALL_GATHER, 4, 2, ("window",))}


def mutated(schedule: Schedule, name: str, **changes: object) -> Schedule:
    """The schedule with one stage changed."""
    assert name in {s.name for s in schedule.stages}
    stages = tuple(replace(s, **changes) if s.name == name else s for s in schedule.stages)
    return replace(schedule, stages=stages)


ZIPPED = all_gather.zipped(2, 2, "window")
LEVELS = all_gather.zipped_across_nodes(2, 3, "window")
SCATTER = reduce_scatter.zipped(2, 2, "window")
TWO_LEVEL = all_reduce.zipped_across_nodes(2, 2, "window")


@pytest.mark.parametrize(
    ("schedule", "stage", "changes", "words"),
    [
        (ZIPPED, "all_gather_world_dynamic", {"exchange": Exchange.ALL_TO_ALL}, "does not divide|slots of"),
        (ZIPPED, "all_gather_world_static", {"axis": Axis.RAIL}, "slots of"),
        (ZIPPED, "all_gather_world_static", {"payload": Payload.DYNAMIC}, "writes .* again"),
        (ZIPPED, "all_gather_world_decode", {"after": ("all_gather_world_static",)}, "without waiting"),
        (ZIPPED, "all_gather_world_decode", {"after": ("all_gather_world_decode",)}, "a cycle"),
        (ZIPPED, "all_gather_world_decode", {"op": Op.REDUCE}, "no earlier stage wrote|nobody reads"),
        (ZIPPED, "all_gather_world_encode", {"dst": "elsewhere"}, "no earlier stage wrote"),
        (ZIPPED, "all_gather_world_encode", {"dst": "input"}, "writes the input"),
        (LEVELS, "permute", {"order": (0, 1, 2, 3, 4, 5)}, "permute: output slot 1 on rank 0"),
        (LEVELS, "permute", {"order": (0, 0, 1, 2, 3, 4)}, "not a permutation"),
        (LEVELS, "permute", {"order": (1, 0)}, "orders 2 slots"),
        (SCATTER, "all_to_all_world_decode_reduce", {"axis": Axis.NODE}, "slots|expected"),
        (SCATTER, "all_to_all_world_decode_reduce", {"op": Op.DECODE}, "the output has 4 slots"),
        (TWO_LEVEL, "reduce_scatter_node", {"exchange": Exchange.ALL_TO_ALL}, "output|expected"),
        (TWO_LEVEL, "all_gather_node", {"exchange": Exchange.ALL_REDUCE}, "more than once|unlike|slots"),
        (SCATTER, "all_to_all_world_static", {"exchange": Exchange.REDUCE_SCATTER}, "cannot sum encoded"),
    ],
)
def test_broken_schedules_are_named_by_stage(
    schedule: Schedule, stage: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ScheduleError, match=words) as error:
        verify(mutated(schedule, stage, **changes))
    assert "stage" in str(error.value)


def test_regions_of_unlike_frames_are_not_joined() -> None:
    """Static regions of one block with dynamic regions of another must never be decoded together."""
    stages = (
        Stage("encode", Op.ENCODE, "input", "frames"),
        Stage("static", Op.EXCHANGE, "frames", "arrived", ("encode",), Axis.WORLD, Exchange.ALL_TO_ALL, Payload.STATIC),
        Stage(
            "dynamic",
            Op.EXCHANGE,
            "frames",
            "arrived",
            ("encode", "static"),
            Axis.NODE,
            Exchange.ALL_TO_ALL,
            Payload.DYNAMIC,
        ),
        Stage("decode", Op.DECODE, "arrived", "output", ("static", "dynamic")),
    )
    with pytest.raises(ScheduleError, match=r"stage decode: .* joins the static region"):
        verify(Schedule("mixed", Collective.ALL_TO_ALL, 2, 2, 4, "window", stages))


def test_a_rank_counted_twice_is_found() -> None:
    """Sum in the node, then over the world: every contribution arrives twice."""
    stages = (
        Stage("node", Op.EXCHANGE, "input", "sums", (), Axis.NODE, Exchange.ALL_REDUCE),
        Stage("world", Op.EXCHANGE, "sums", "output", ("node",), Axis.WORLD, Exchange.ALL_REDUCE),
    )
    with pytest.raises(ScheduleError, match=r"counts ranks \[0, 1, 2, 3\] more than once"):
        verify(Schedule("double", Collective.ALL_REDUCE, 2, 2, 1, "raw", stages))


def test_large_worlds_are_sampled_but_still_caught() -> None:
    wrong = mutated(all_gather.zipped_across_nodes(128, 8, "window"), "permute", order=(1, 0, *range(2, 1024)))
    with pytest.raises(ScheduleError, match="permute"):
        verify(wrong)


def test_a_slot_holds_its_share_rounded_up() -> None:
    """Sizes as nccl-tests counts them; a size that does not divide still fits into its slots."""
    assert ZIPPED.slot_bytes(4096) == 1024
    assert ZIPPED.slot_bytes(4097) == 1025
    assert SCATTER.slot_bytes(4097) == 1025
    assert all_reduce.native(2, 2).slot_bytes(4097) == 4097


def test_scratch_counts_frames_at_their_bound() -> None:
    """Zipped all-gather on 4 ranks: one frame out, four in."""
    assert ZIPPED.scratch_bytes(4096, frame_bytes=1100) == 5 * 1100


@pytest.mark.parametrize(
    "broken", [{}, {"stages": [{}]}, {"stages": 3}, [], {**ZIPPED.to_json(), "collective": "gossip"}]
)
def test_what_is_not_a_schedule_is_refused(broken: object) -> None:
    with pytest.raises(ScheduleError):
        Schedule.from_json(broken)  # type: ignore[arg-type]


@given(st.integers(0, 10**9), st.integers(1, 9))
def test_parts_are_whole_grains_that_cover_the_slot(slot: int, chunks: int) -> None:
    parts = chunked(all_gather.zipped(2, 1, "window"), chunks).parts(slot)
    assert sum(parts) == slot
    assert len(parts) <= chunks
    assert all(part % PART_GRAIN == 0 for part in parts[:-1])
    assert max(parts) - min(parts[:-1], default=max(parts)) <= PART_GRAIN
    assert len(parts) == 1 or parts[-1] > 0


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 9))
def test_no_part_of_a_larger_slot_but_the_last_is_smaller(slot: int, more: int, chunks: int) -> None:
    """Else a larger message could be predicted, and be, faster."""
    schedule = chunked(all_gather.zipped(2, 1, "window"), chunks)
    small, large = schedule.parts(slot), schedule.parts(slot + more)
    assert len(small) <= len(large)
    assert all(a <= b for a, b in zip(small[:-1], large, strict=False))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_are_issued_in_an_order_that_waits_for_nothing_ahead(parts: int) -> None:
    """Every stage once per part, after what it waits for; the next part is encoded before this one is waited for."""
    schedule = all_reduce.two_shot(2, 2, "window")
    order = list(schedule.unrolled(parts))
    assert sorted((p, s.name) for p, s in order) == sorted((p, s.name) for p in range(parts) for s in schedule.stages)
    at = {(p, s.name): i for i, (p, s) in enumerate(order)}
    for part, stage in order:
        assert all(at[part, name] < at[part, stage.name] for name in stage.after)
        assert part == 0 or at[part - 1, stage.name] < at[part, stage.name]
    names = [s.name for s in schedule.stages]
    for part in range(parts - 1):
        assert at[part + 1, names[0]] < at[part, names[2]]


def test_only_the_codec_may_touch_the_ends_of_a_schedule_in_chunks() -> None:
    with pytest.raises(ScheduleError, match=r"exchange of the input in 4 chunks; only codec stages and permute"):
        verify(chunked(all_gather.native(2, 2), 4))
    with pytest.raises(ScheduleError, match=r"chunks: expected 1 or more, found 0"):
        verify(chunked(all_gather.zipped(2, 2, "window"), 0))
    again = Schedule.from_json(chunked(all_gather.zipped(2, 2, "window"), 4).to_json())
    assert (again.chunks, again.name) == (4, "zipped-x4")
