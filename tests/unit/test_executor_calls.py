"""What the executor works out without ranks: pieces of huge tensors, environment variables, break-even ratios."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipplan.executor import environment
from zipplan.executor.adaptive import FIRST_LOOK, LOOK_EVERY, TRY_AGAIN, Class, break_even
from zipplan.executor.calls import Call, piece_bounds, split_elements
from zipplan.executor.decide import Decider
from zipplan.executor.interpreter import Traffic
from zipplan.executor.session import MOST_ELEMENTS
from zipplan.executor.uneven import _Runs
from zipplan.planner.collectives import all_gather, all_to_all
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import CodecUse, Entry, Plan, PlanTopology, Point, Range, Rejected
from zipplan.planner.schedule import Collective

ROOT = Path(__file__).parents[2]


@given(st.integers(0, 1 << 45), st.integers(1 << 20, 1 << 40))
def test_pieces_cover_a_tensor_once(elements: int, most: int) -> None:
    """Bounds only, so tensors far beyond 2³¹ elements cost nothing."""
    bounds = list(piece_bounds(elements, max(most, elements // 1000 + 1)))
    assert [a for a, _ in bounds] == [0, *(b for _, b in bounds)][: len(bounds)]
    assert (bounds[-1][1] if bounds else 0) == elements
    assert all(0 < b - a <= max(most, elements // 1000 + 1) for a, b in bounds)


@pytest.mark.parametrize("collective", list(Collective)[:4])
def test_calls_beyond_two_to_the_31(collective: Collective) -> None:
    """Meta tensors have no memory: the pieces of a 3 · 2³¹-element call, parts whole, below the limit."""
    parts_in, parts_out = {"all_gather": (1, 4), "reduce_scatter": (4, 1), "all_reduce": (1, 1)}.get(collective, (4, 4))
    part = (3 << 31) // max(parts_in, parts_out) + 1
    input = torch.empty(part * parts_in, dtype=torch.bfloat16, device="meta")
    same = collective is Collective.ALL_REDUCE
    output = input if same else torch.empty(part * parts_out, dtype=torch.bfloat16, device="meta")
    pieces = list(Call(collective, output, input).pieces(4, MOST_ELEMENTS))
    assert len(pieces) >= 4
    assert all(piece.elements <= MOST_ELEMENTS for piece in pieces)
    assert sum(piece.input.numel() for piece in pieces) == input.numel()
    assert sum(piece.output.numel() for piece in pieces) == output.numel()


def test_splits_count_rows() -> None:
    """Elements per rank; sums, signs and lengths are checked."""
    rows = torch.empty((6, 5))
    assert split_elements(rows, [1, 0, 5], 3, "input") == [5, 0, 25]
    assert split_elements(rows, None, 3, "input") == [10, 10, 10]
    assert split_elements(torch.empty((0, 5)), [0, 0], 2, "input") == [0, 0]
    for wrong in ([1, 5], [2, 2, 3], [-1, 2, 5]):
        with pytest.raises(ConfigError, match=r"expected 3 numbers ≥ 0 .* sum to 6"):
            split_elements(rows, wrong, 3, "input")
    with pytest.raises(ConfigError, match="6 rows of the output do not divide by 4 ranks"):
        split_elements(rows, None, 4, "output")


def test_every_frame_of_an_uneven_call_starts_where_frames_may() -> None:
    """docs/wire-format.md: at multiples of 128 bytes, whatever raw parts stand between."""

    def choose(elements: int) -> tuple[str, tuple[tuple[str, int], ...]] | None:
        return ("window", ()) if elements > 1000 else None

    runs = _Runs([3, 5000, 0, 77, 1, 4097], 2, "bf16", choose)
    assert [size % 128 for size in runs.static] == [0] * 6
    assert runs.static[0] == runs.static[3] // 2 == 128  # 6 and 154 bytes
    assert [bool(bound) for bound in runs.bound] == [False, True, False, False, False, True]


def test_uneven_calls_are_one_class_from_the_first_size_that_is_zipped() -> None:
    """Sizes differ between ranks, so all look up the same one."""
    point = Point(size_bytes=1024, predicted_ps=1, low_ps=1, high_ps=1, scratch_bytes=0, rejected=())
    starts = {0: all_to_all.native(1, 4), 1024: all_to_all.zipped(1, 4, "window"), 1 << 20: all_to_all.native(1, 4)}
    starts[1 << 24] = all_to_all.sizes_first(1, 4, "window")
    stops = [*list(starts)[1:], None]
    rows = [
        Range(start=start, stop=stop, schedule=s, codec=CodecUse(id=s.codec), expected_ratio=1.4, points=(point,))
        for (start, s), stop in zip(starts.items(), stops, strict=True)
    ]
    entry = Entry(collective=Collective.ALL_TO_ALL, dtype="bf16", tensor_class="gaussian", choices=tuple(rows))
    topology = PlanTopology(name="test", fingerprint="f" * 64, nodes=1, ranks_per_node=4, transport="gloo")
    plan = Plan(made_by="tests", calibration="none", topology=topology, entries=(entry,))
    given = torch.empty(40, dtype=torch.bfloat16)
    call = Call(Collective.ALL_TO_ALL, given, given.clone(), splits=([10] * 4, [10] * 4))
    assert Decider(plan, 4, disabled=False, comparable=True).decide(call).tally.start == 1024


def test_environment_refuses_what_it_does_not_know() -> None:
    """F025: unknown values and names, with the nearest valid ones."""
    assert environment.read(environment.CHECK, {}) == "off"
    assert environment.read(environment.DISABLE, {"ZIPPLAN_DISABLE": "ON"}) == "1"
    assert environment.read(environment.PLAN, {"ZIPPLAN_PLAN": "a b"}) == "a b"
    with pytest.raises(ConfigError, match=r"ZIPPLAN_CHECK='bit' is unknown; did you mean bits\?"):
        environment.read(environment.CHECK, {"ZIPPLAN_CHECK": "bit"})
    with pytest.raises(ConfigError, match="ZIPPLAN_PLANS is unknown; did you mean ZIPPLAN_PLAN"):
        environment.check_names({"ZIPPLAN_PLANS": "x", "PATH": "y"})


def test_docs_show_the_variables() -> None:
    """The tables in the documents are the one in the code."""
    for document in ("README.md", "docs/executor.md"):
        assert environment.table() in (ROOT / document).read_text(encoding="utf-8"), document


def judged(ratio: float, breaks_even: float) -> Class:
    tally = Class("all_gather", "bf16", "", "zipped", "window", 0, None, 1.4, breaks_even)
    for _ in range(FIRST_LOOK):
        assert not tally.due
        tally.count(1000, Traffic(1000, 700, 700))
    assert tally.due
    tally.judge(round(1000 * ratio), 1000)
    return tally


def test_a_class_stops_and_tries_again() -> None:
    """Below break-even: native for TRY_AGAIN calls, then compressed again; above: looked at now and then."""
    assert judged(1.3, 1.2).compressing
    assert judged(1.3, 1.2).left == LOOK_EVERY
    tally = judged(1.1, 1.2)
    assert not tally.compressing
    assert tally.reason == "compression does not pay: ratio 1.100 of all ranks, break-even 1.200"
    for _ in range(TRY_AGAIN):
        assert not tally.due
        tally.count(1000, Traffic(wire_bytes=1000))
    assert tally.due
    tally.judge(0, 0)
    assert tally.compressing
    assert tally.left == FIRST_LOOK
    assert tally.native_calls == TRY_AGAIN


def test_a_class_breaks_even_where_the_dearest_planned_size_does() -> None:
    """c + n/r = n: with n native and c + n/2 planned, worked out by hand; never above the ratio that is expected."""

    def at(size: int, planned_ps: int, native_ps: int | None) -> Point:
        lost = () if native_ps is None else (Rejected(name="native", codec="raw", predicted_ps=native_ps, reason="-"),)
        times = {"predicted_ps": planned_ps, "low_ps": planned_ps, "high_ps": planned_ps}
        return Point(size_bytes=size, scratch_bytes=0, rejected=lost, **times)

    def breaks_even(*points: Point) -> float:
        schedule, use = all_gather.zipped(1, 4, "window"), CodecUse(id="window")
        row = Range(start=0, stop=None, schedule=schedule, codec=use, expected_ratio=2.0, points=points)
        kind = {"collective": Collective.ALL_GATHER, "dtype": "bf16", "tensor_class": "gaussian"}
        entry = Entry(choices=(row,), **kind)
        return break_even(entry, entry.choose(1))

    small, large = at(1, 90, 100), at(2, 600, 1000)  # c = 40 and 100
    assert breaks_even(small) == pytest.approx(100 / 60)
    assert breaks_even(large) == pytest.approx(1000 / 900)
    assert breaks_even(small, large, at(3, 700, None)) == breaks_even(large, small) == pytest.approx(100 / 60)
    assert breaks_even(at(1, 149, 100)) == 2.0  # 1 / (1 - 0.99), were it not for what is expected
    assert breaks_even(at(1, 49, 100)) == breaks_even(at(1, 7, None)) == 1.0
