"""Plan tables: total, gap-free, refused when they are not (field cases F034, F074, F077)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.collectives import all_gather
from zipplan.planner.errors import PlanError
from zipplan.planner.plan import CodecUse, Entry, Plan, PlanTopology, Point, Range
from zipplan.planner.schedule import Collective, Schedule

NATIVE = all_gather.native(1, 4)
ZIPPED = all_gather.zipped(1, 4, "window")


def row(start: int, stop: int | None, schedule: Schedule = NATIVE, at: int | None = None) -> Range:
    """A range with one planned point."""
    size = start if at is None else at
    point = Point(size_bytes=size, predicted_ps=1000 + size, low_ps=500 + size, high_ps=2000 + size,
                  scratch_bytes=size, rejected=())  # fmt: skip
    return Range(start=start, stop=stop, schedule=schedule, codec=CodecUse(id=schedule.codec),
                 expected_ratio=1.4, points=(point,))  # fmt: skip


def plan_of(*rows: Range) -> Plan:
    """A plan with one table."""
    entry = Entry(collective=Collective.ALL_GATHER, dtype="bf16", tensor_class="gaussian", choices=rows)
    where = PlanTopology(name="m", fingerprint="sha256:0", nodes=1, ranks_per_node=4, transport="gloo")
    return Plan(made_by="test", calibration="none", topology=where, entries=(entry,))


@given(borders=st.lists(st.integers(1, 2**40), min_size=1, max_size=6, unique=True), size=st.integers(0, 2**42))
def test_every_size_has_exactly_one_choice(borders: list[int], size: int) -> None:
    edges = [0, *sorted(borders)]
    stops: list[int | None] = [*edges[1:], None]
    plan = plan_of(*(row(a, b) for a, b in zip(edges, stops, strict=True)))
    choice = plan.choose(Collective.ALL_GATHER, "bf16", size)
    assert choice is not None
    assert choice.start <= size
    assert choice.stop is None or size < choice.stop
    assert plan.choose(Collective.ALL_REDUCE, "bf16", size) is None
    assert plan.choose(Collective.ALL_GATHER, "fp32", size) is None


@given(st.integers(0, 2**20), st.integers(1, 2**20), st.integers(0, 1000), st.integers(0, 10**6))
def test_times_between_planned_sizes_lie_on_the_line(size: int, apart: int, per_mille: int, more: int) -> None:
    """Exactly those of the points at the points."""
    points = tuple(
        Point(size_bytes=at, predicted_ps=ps, low_ps=ps, high_ps=ps, scratch_bytes=0, rejected=())
        for at, ps in ((size, 10**6), (size + apart, 10**6 + more))
    )
    plan = plan_of(row(0, None).model_copy(update={"points": points}))
    at = size + apart * per_mille // 1000
    choice = plan.choose(Collective.ALL_GATHER, "bf16", at)
    assert choice is not None
    assert choice.predicted_ps == pytest.approx(10**6 + more * (at - size) / apart, abs=1)


@given(st.lists(st.integers(0, 2**36), min_size=2, max_size=8, unique=True))
def test_predicted_time_never_falls_with_size(sizes: list[int]) -> None:
    plan = plan_of(row(0, 4096, at=64), row(4096, None, ZIPPED, at=2**20))
    for low, high in [(0, 4096), (4096, 2**37)]:
        inside = sorted(s for s in sizes if low <= s < high)
        times = [plan.choose(Collective.ALL_GATHER, "bf16", s).predicted_ps for s in inside]  # type: ignore[union-attr]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([(0, 1024), (2048, None)], "a gap before size 2048"),
        ([(0, 1024), (512, None)], "an overlap before size 512"),
        ([(0, 2**32 - 1)], "a gap: no range from size 4294967295 on"),
        ([(1, None)], "a gap before size 1"),
        ([(0, None), (10, None)], "an overlap before size 10"),
        ([(0, 0), (0, None)], "stops at 0"),
    ],
)
def test_holes_and_overlaps_are_named(rows: list[tuple[int, int | None]], words: str) -> None:
    """F074: the byte interval is in the message."""
    with pytest.raises(ValueError, match=words):
        plan_of(*(row(a, b) for a, b in rows))


def test_a_saved_plan_loads_the_same_and_has_the_same_bytes(tmp_path: Path) -> None:
    plan = plan_of(row(0, 4096), row(4096, None, ZIPPED))
    plan.save(tmp_path / "a.json")
    loaded = Plan.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert loaded.hash == plan.hash
    assert loaded.entries[0].choices[1].schedule == ZIPPED
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_broken_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    """Missing, empty, a folder, cut off at any byte, edited, another schema: one PlanError that names the file."""
    good = plan_of(row(0, None)).to_json()
    edited = good.replace('"ranks_per_node": 4', '"ranks_per_node": 8', 1)
    newer = json.dumps({**json.loads(good), "schema": 99})
    cases = {
        "empty": ("", "not a whole JSON file"),
        "cut": (good[: len(good) // 2], "cut off"),
        "almost": (good[:-4], "cut off"),
        "edited": (edited, "hash does not fit"),
        "newer": (newer, "schema 99"),
        "list": ("[]", "not a zipplan plan"),
        "binary": ("\0", "not a whole JSON file"),
    }
    for name, (text, words) in cases.items():
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(PlanError, match=words) as error:
            Plan.load(path)
        assert str(path) in str(error.value)
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(PlanError, match="cannot read"):
            Plan.load(path)


def test_a_plan_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot write"):
        plan_of(row(0, None)).save(tmp_path / "no" / "plan.json")
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(PlanError, match="cannot write"):
        plan_of(row(0, None)).save(tmp_path / "plan.json")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
