"""A session in a world of one rank, in this process: no wire, the same code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from zipplan.executor import check, init
from zipplan.executor.codec import SlotCodec
from zipplan.executor.coders import CpuCoder
from zipplan.executor.decide import rehearsal
from zipplan.executor.interpreter import Scratch, sum_by_sender
from zipplan.executor.measure import Bench
from zipplan.executor.report import text
from zipplan.planner.collectives import ZIPPED
from zipplan.planner.errors import ConfigError, PlanError
from zipplan.planner.plan import CodecUse, Entry, Plan, PlanTopology, Point, Range
from zipplan.planner.schedule import Collective


@pytest.fixture
def world_of_one() -> Iterator[None]:
    """A gloo group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plan_of_zipped() -> Plan:
    """Every collective zipped, for one rank."""
    point = Point(size_bytes=1024, predicted_ps=1, low_ps=1, high_ps=1, scratch_bytes=0, rejected=())
    entries = []
    for collective, builders in ZIPPED.items():
        schedule = builders[0](1, 1, "window")
        use = CodecUse(id="window")
        row = Range(start=0, stop=None, schedule=schedule, codec=use, expected_ratio=1.4, points=(point,))
        entries.append(Entry(collective=collective, dtype="bf16", tensor_class="gaussian", choices=(row,)))
    topology = PlanTopology(name="one", fingerprint="f" * 64, nodes=1, ranks_per_node=1, transport="gloo")
    return Plan(made_by="tests", calibration="none", topology=topology, entries=tuple(entries))


@pytest.mark.usefixtures("world_of_one")
def test_times_are_compared_only_where_the_plan_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another transport, or ranks placed otherwise, is a rehearsal and says why."""
    plan = plan_of_zipped()
    assert init(plan).rehearsal is None
    fast = plan.model_copy(update={"topology": plan.topology.model_copy(update={"transport": "nccl"})})
    assert init(fast).rehearsal == "the plan was made for nccl and runs on gloo here"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert rehearsal(plan, 4, "gloo") == "the plan was made for 1 × 1 ranks, here 4 of 4 share a host"


@pytest.mark.usefixtures("world_of_one")
def test_one_rank_gets_its_own_values_back() -> None:
    """All four collectives return the input; report and scratch say what happened."""
    session = init(plan_of_zipped())
    given = torch.normal(0.0, 0.02, (5001,), generator=torch.Generator().manual_seed(1)).bfloat16()
    for call in (session.all_gather, session.reduce_scatter, session.all_to_all):
        out = torch.empty_like(given)
        call(out, given)
        assert check.differences(out, given) is None
    reduced = given.clone()
    session.all_reduce(reduced)
    assert check.differences(reduced, given) is None
    report = session.report()
    assert [row["collective"] for row in report["used"]] == [
        "all_gather", "reduce_scatter", "all_to_all", "all_reduce",
    ]  # fmt: skip
    assert all(row["calls"] == 1 and row["wire_bytes"] == 0 and row["ratio"] > 1.3 for row in report["used"])
    assert report["fallbacks"] == []


@pytest.mark.usefixtures("world_of_one")
def test_scratch_is_reused() -> None:
    """The second call of a size allocates nothing."""
    session = init(plan_of_zipped())
    tensor = torch.ones(3000, dtype=torch.bfloat16)
    session.all_reduce(tensor)
    scratch = session._scratch[tensor.device]
    held = {name: memory.data_ptr() for name, memory in scratch._held.items()}
    session.all_reduce(tensor[:2000])
    session.all_reduce(tensor)
    assert {name: memory.data_ptr() for name, memory in scratch._held.items()} == held


@pytest.mark.usefixtures("world_of_one")
def test_nothing_is_made_inside_the_timed_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """F070: one iteration, no warm-up asked for: scratch and codec were made by a call before, which is told of."""
    session = init(plan_of_zipped(), adaptive=False)
    bench = Bench(session, torch.device("cpu"), 1, 0, False)
    grown, time_one = [], bench._time

    def watched(case: Any, call: Any) -> int:
        before = session.scratch_bytes, len(session._codecs)
        taken = time_one(case, call)
        grown.append((session.scratch_bytes, len(session._codecs)) != before)
        return taken

    monkeypatch.setattr(bench, "_time", watched)
    bench.row(Collective.ALL_GATHER, "bf16", 1 << 16)
    assert grown == [False, True, False, False]  # native, planned; then those that count
    assert bench.untimed == 1


@pytest.mark.usefixtures("world_of_one")
def test_switches_that_change_what_runs_are_in_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """F081: who reads the report of a job sees at once that compression was switched off."""
    monkeypatch.setenv("ZIPPLAN_DISABLE", "1")
    session = init(plan_of_zipped())
    session.all_reduce(torch.ones(3))
    assert session.report()["switches"] == {"disabled": True, "check": "off"}
    assert text(session).splitlines()[1] == "  ZIPPLAN_DISABLE is on: nothing was compressed"


def test_sums_of_many_ranks_are_rounded_once() -> None:
    """F049: 64 ranks of N(0, 1) in bf16. Adding in bf16 at every hop errs several times as much as rounding once."""
    rows = torch.normal(0.0, 1.0, (64, 4096), generator=torch.Generator().manual_seed(1)).bfloat16()
    exact, hops, once = rows.double().sum(0), rows[0].clone(), torch.zeros(4096, dtype=torch.bfloat16)
    for row in rows[1:]:
        hops += row
    sum_by_sender(check.bytes_of(rows), 64, torch.bfloat16, once.view(torch.uint8))
    wide, total = rows.float() * 1.1, torch.empty(4096)
    before = wide.clone()
    sum_by_sender(check.bytes_of(wide), 64, torch.float32, total.view(torch.uint8))
    assert check.differences(wide, before) is None
    assert check.differences(total, check.summed(wide)) is None  # in the order of ranks
    assert check.differences(total, check.summed(wide.flip(0))) is not None
    assert ((once - exact).abs() <= exact.abs() * 2**-8 + 2**-15).all()  # half a unit in the last place, and FP32's own
    assert float((hops - exact).abs().mean()) > 4 * float((once - exact).abs().mean())


def test_scratch_grows() -> None:
    """A larger request replaces the buffer; held bytes are counted."""
    scratch = Scratch(torch.device("cpu"))
    assert scratch.take("a", 10).numel() == 10
    assert scratch.take("a", 30).numel() == 30
    assert scratch.take("a", 5).numel() == 5
    assert scratch.held_bytes == 30


@pytest.mark.usefixtures("world_of_one")
def test_mixed_tensors_are_refused() -> None:
    """Unlike dtypes: both are named."""
    session = init()
    with pytest.raises(ConfigError, match=r"all_gather: input is torch\.float32 on cpu, output is torch\.bfloat16"):
        session.all_gather(torch.empty(2, dtype=torch.bfloat16), torch.empty(2))


@pytest.mark.usefixtures("world_of_one")
def test_plan_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    """ZIPPLAN_PLAN names the file when the caller gives none; the argument wins."""
    monkeypatch.setenv("ZIPPLAN_PLAN", f"{tmp_path}/absent.json")
    with pytest.raises(PlanError, match=r"absent\.json"):
        init()
    assert init(plan_of_zipped()).plan is not None


def test_without_a_process_group() -> None:
    """init says what to call first."""
    with pytest.raises(ConfigError, match="init_process_group"):
        init(plan_of_zipped())


def test_unknown_codec_parameters_are_refused() -> None:
    """A plan of a newer version may hold parameters that this one does not know."""
    with pytest.raises(PlanError, match="parameter 'slak' in the plan is unknown; did you mean slack"):
        SlotCodec(CpuCoder(), "window", {"slak": 16}, "bf16", 64)


@pytest.mark.parametrize("collective", Collective)
def test_every_collective_has_a_zipped_schedule(collective: Collective) -> None:
    """The plan above covers what the session offers."""
    assert collective in {entry.collective for entry in plan_of_zipped().entries}
