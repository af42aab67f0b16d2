"""Overlap is not free (F066): what a collective takes from compute beside it, and a step that knows it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.cli.plan import plan as plan_command
from zipplan.planner.contention import Cost, Shares
from zipplan.planner.errors import ConfigError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective, Exchange
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.transport import Transport
from zipplan.planner.workload import Task, build_step, load_workload, plan_workload, run_step, step_trace
from zipplan.planner.workload.grid import Grid
from zipplan.planner.workload.step import Call, Step

CALL = Call("x", Collective.ALL_GATHER, 1, "bf16", "gaussian", Grid(2, 1))
TOGETHER = Step((Task("compute", (), 1000), Task("x", (), call=CALL)), 1.0)


@pytest.mark.parametrize(
    ("cost", "time", "slowed"),
    [
        (Cost(500), 1000, 0),
        (Cost(500, taken=0.25), 1125, 125),  # 500 at 0.75, the rest at full speed
        (Cost(2000, taken=0.2), 2000, 250),  # 1000 at 0.8 = 1250, hidden behind the call
        (Cost(500, codec=500), 1500, 500),  # all SMs: compute waits
        (Cost(500, codec=500, codec_share=0.5), 1500, 500),  # half each for 1000, then compute alone
        (Cost(500, codec=250, codec_share=0.5), 1250, 250),
    ],
)
def test_two_tasks_at_once(cost: Cost, time: int, slowed: int) -> None:
    """Worked out by hand."""
    step = run_step(TOGETHER, lambda call: cost)
    assert (step.time, step.slowed) == (time, slowed)
    assert step.computing == 1000 + slowed


def test_calls_take_turns_in_the_order_in_which_they_are_ready() -> None:
    """Two groups of ranks, one wire: `early`, ready at 100, goes before `late`, ready at 200, which is free at 400."""
    late, early = (Call(name, *CALL_REST, Grid(2, n)) for n, name in enumerate(("late", "early"), start=1))
    first = Call("first", *CALL_REST, Grid(2, 3))
    tasks = (
        Task("first", (), call=first), Task("a", (), 100), Task("b", (1,), 100), Task("late", (2,), call=late),
        Task("early", (1,), call=early),
    )  # fmt: skip
    step = run_step(Step(tasks, 1.0), lambda call: Cost(300 if call is first else 50))
    assert step.ran == ((0, 300), (0, 100), (100, 200), (350, 400), (300, 350))


def test_the_codec_is_slower_beside_a_gemm() -> None:
    """F066: the codec with 1/16, 1/4 and all of the SMs, a GEMM with the rest: SMs are shared, speeds drop."""
    speeds = [Cost(100, codec=100, codec_share=share).beside_compute() for share in (1 / 16, 1 / 4, 1.0)]
    assert speeds == [pytest.approx((share, 1 - share)) for share in (1 / 16, 1 / 4, 1.0)]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), min_size=1, max_size=20),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.05, 1),
)
def test_more_taken_is_never_quicker(
    parts: list[tuple[bool, int]], less: float, more: float, coding: float, share: float
) -> None:
    """Independent tasks in both queues: neither contention nor its growth speeds up a step."""
    less, more = sorted((less, more))
    tasks = tuple(
        Task("c", (), ps) if computes else Task("x", (), call=Call("x", *CALL_REST, Grid(ps + 1, 1)))
        for computes, ps in parts
    )

    def run(taken: float, coding: float) -> int:
        def cost(call: Call) -> Cost:
            ps = call.grid.nodes - 1
            codec = round(ps * coding)
            return Cost(ps, codec, taken * (1 - codec / ps) if ps else 0.0, share)

        return run_step(Step(tasks, 1.0), cost).time

    alone = max(sum(ps for computes, ps in parts if computes), sum(ps for computes, ps in parts if not computes))
    slack = len(parts)  # ps of rounding
    assert alone - slack <= run(0.0, 0.0) <= run(less, 0.0) + slack
    assert run(less, coding) <= run(more, coding) + slack
    assert run(0.0, 0.0) <= run(more, coding) + slack
    assert run(more, coding) <= sum(ps for _, ps in parts) + slack


CALL_REST = (Collective.ALL_GATHER, 1, "bf16", "gaussian")


@pytest.mark.parametrize(("machine", "nodes", "sms"), [("hgx-h100", 2, 16), ("a6000x8-200g", 2, 2), ("hgx-a100", 1, 24),
                                                       ("pcie-4090x8", 1, 2)])  # fmt: skip
def test_sms_of_a_collective(machine: str, nodes: int, sms: int) -> None:
    """2 for each NIC, all channels over NVLink, 2 over PCIe (NVIDIA/nccl issue 689)."""
    assert Transport(build_cluster(load_machine(machine), nodes=nodes)).sms(range(8 * nodes)) == sms


def test_published_slow_down_of_a_gemm() -> None:
    """NVIDIA/nccl issue 1428: A100, 300 GB/s of NCCL, GEMM at 1.18 / 2.08, attention at 0.18 / 0.33 of its speed."""
    cluster = build_cluster(load_machine("hgx-a100"), nodes=1)
    assert cluster.gpu is not None
    left = 1 - max(24 / cluster.gpu.sms, 3 * 300e9 / cluster.gpu.hbm_bandwidth)
    assert left == pytest.approx(1.18 / 2.08, rel=0.05)
    assert left == pytest.approx(0.18 / 0.33, rel=0.05)


def test_cost_of_a_simulated_collective() -> None:
    """Codec time is that of rank 0's local stages; transfers take their channels for as long as they last."""
    cluster = build_cluster(load_machine("hgx-h100"), nodes=2)
    search = Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"), "window")
    native, zipped = search.schedules[0], next(s for s in search.schedules if s.name == "zipped")
    raw = Shares().cost(native, search.run(native, 1 << 30).timeline, search.transport)
    forced = Shares(transport=0.5).cost(native, search.run(native, 1 << 30).timeline, search.transport)
    assert raw.codec == 0
    assert 16 / 132 <= raw.taken < forced.taken == pytest.approx(0.5)
    timeline = search.run(zipped, 1 << 30).timeline
    codec = sum(s.end - s.start for s in timeline.spans if s.rank == 0 and s.stage.endswith(("encode", "decode")))
    assert Shares().cost(zipped, timeline, search.transport).codec == codec > 0


@pytest.mark.parametrize(("name", "machine"), [("llama3-8b", "hgx-a100"), ("llama3-8b", "a6000x8-200g"),
                                               ("mixtral-8x7b", "hgx-h100")])  # fmt: skip
def test_more_sms_for_transfers_never_speed_up_a_step(name: str, machine: str) -> None:
    """`--set transport.sm_share`, with the planner free to choose anew."""
    cluster = build_cluster(load_machine(machine), nodes=2)
    found = [
        plan_workload(load_workload(name), cluster, Settings.read((f"transport.sm_share={share}",)))
        for share in (0.05, 0.2, 0.5, 0.9)
    ]
    assert all(a.raw.time <= b.raw.time for a, b in pairwise(found))
    assert all(a.planned.time <= b.planned.time for a, b in pairwise(found))
    assert all(f.planned.time <= f.raw.time for f in found)
    assert found[-1].raw.slowed > found[0].raw.slowed


def test_what_is_hidden_stays_raw_when_zipping_would_slow_compute() -> None:
    """Much compute, and a network on which zipping pays: hidden behind compute it does not."""
    data = load_workload("llama3-8b").model_dump(by_alias=True, exclude_unset=True)
    data["compute"] = {"micro_batch_time": "20s", "source": "made up"}
    planned = plan_workload(type(load_workload("llama3-8b")).model_validate(data),
                            build_cluster(load_machine("a6000x8-200g"), nodes=2))  # fmt: skip
    inside = [row for row in planned.rows if row.call.what == "parameters" and row.raw_exposed == 0]
    assert inside
    assert planned.planned.time <= planned.raw.time
    entry = next(iter(planned.plans.values())).entries[0]
    reasons = [r.reason for choice in entry.choices for point in choice.points for r in point.rejected]
    assert {choice.label for choice in entry.choices} == {"native"}
    assert any("hidden behind compute" in reason for reason in reasons)


def test_keys_of_a_step_are_refused_without_one() -> None:
    cluster = build_cluster(load_machine("hgx-h100"), nodes=1)
    with pytest.raises(ConfigError, match="add --workload"):
        Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"),
               settings=Settings.read(["codec.sm_share=0.5"]))  # fmt: skip
    with pytest.raises(ConfigError, match=r"codec\.sm_share.*above 0"):
        Settings.read(["codec.sm_share=0"])


def test_trace_of_a_step(tmp_path: Path) -> None:
    """Raw and planned as two processes; compute and calls add up to the table, and no track overlaps."""
    planned = plan_workload(load_workload("llama3-8b"), build_cluster(load_machine("a6000x8-200g"), nodes=2))
    events = step_trace(planned)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    for pid, step in enumerate((planned.raw, planned.planned)):
        mine = [e for e in slices if e["pid"] == pid]
        assert max(e["ts"] + e["dur"] for e in mine) == pytest.approx(step.time / 1e6, abs=0.01)
        computed = sum(e["dur"] for e in mine if e["tid"] == 0)
        assert computed == pytest.approx(step.computing / 1e6, abs=1e-3 * len(mine))
        sent = sum(e["dur"] for e in mine if e["tid"])
        assert sent == pytest.approx(sum(step.communicating.values()) / 1e6, abs=1e-3 * len(mine))
        for tid in {e["tid"] for e in mine}:
            spans = [(e["ts"], e["ts"] + e["dur"]) for e in mine if e["tid"] == tid]
            assert all(a[1] <= b[0] * (1 + 1e-9) for a, b in pairwise(spans))
    path = tmp_path / "t.json"
    options = ["--topology", "a6000x8-200g", "--nodes", "2", "--workload", "llama3-8b", "--trace", str(path)]
    done = CliRunner().invoke(plan_command, options)
    assert done.exit_code == 0, done.output
    assert json.loads(path.read_text())["traceEvents"] == json.loads(json.dumps(events))
    refused = CliRunner().invoke(plan_command, ["--topology", "lab", "--trace", str(path)])
    assert isinstance(refused.exception, ConfigError)


def test_exchange_of_one_rank_takes_nothing() -> None:
    """A group of one moves nothing, so it holds no SM."""
    cluster = build_cluster(load_machine("hgx-h100"), nodes=1, ranks_per_node=1)
    search = Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"), "raw")
    result = search.run(search.schedules[0], 1 << 20)
    assert Shares().cost(result.schedule, result.timeline, search.transport) == Cost(0)
    assert Exchange.ALL_GATHER in {s.exchange for s in result.schedule.stages}
    assert build_step(load_workload("llama3-8b"), cluster).tasks
