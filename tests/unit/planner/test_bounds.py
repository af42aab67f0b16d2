"""What each lower bound says where its resource is the only one that matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zipplan.planner.bounds import Bound, crossing
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective, Exchange
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import Transport

M = 1 << 20
GAUSSIAN = parse_profile("gaussian")


def bounds_of(search: Search, name: str, size: int) -> tuple[dict[str, Bound], int]:
    """Bounds of the first candidate of that name by resource, and its simulated time."""
    schedule = next(s for s in search.schedules if s.name == name)
    codec = schedule.codec
    found = search.shared.bounds.of(schedule, size, search.wires[codec], search.rates[codec], search.skew)
    return {bound.what: bound for bound in found if bound.one}, search.run(schedule, size).time


@pytest.mark.parametrize(
    ("nodes", "ranks", "rates", "collective", "what"),
    [
        (2, 1, {}, Collective.ALL_GATHER, "the NICs of one node"),
        (4, 2, {}, Collective.ALL_TO_ALL, "the NICs of one node"),
        (1, 4, {"inside": "1GB/s"}, Collective.ALL_TO_ALL, "the links of one rank"),
        (1, 4, {"inside": "1GB/s"}, Collective.REDUCE_SCATTER, "the links of one rank"),
    ],
)
def test_a_narrow_link_is_named_and_reached(
    toy: Callable[..., Cluster], nodes: int, ranks: int, rates: dict[str, str], collective: Collective, what: str
) -> None:
    found, time = bounds_of(Search(toy(nodes, ranks, **rates), collective, "bf16", GAUSSIAN), "native", 64 * M)
    assert max(found.values(), key=lambda b: b.time).what == what
    assert 0.99 * time <= found[what].time <= time


@pytest.mark.parametrize("uneven", [[], ["ranks.load=1.5"]])
def test_a_slow_codec_is_named_and_reached(toy: Callable[..., Cluster], uneven: list[str]) -> None:
    """The rank that sends half as much again encodes it, and decodes what all do."""
    settings = Settings.read(uneven)
    collective = Collective.ALL_TO_ALL if uneven else Collective.ALL_GATHER
    search = Search(toy(2, wire="1000GB/s", codec="1MB/s"), collective, "bf16", GAUSSIAN, settings=settings)
    for name in ("zipped", "zipped-x4"):
        found, time = bounds_of(search, name, 64 * M)
        engine = found["the codec and copies of one rank"]
        assert engine == max(found.values(), key=lambda b: b.time)
        assert 0.99 * time <= engine.time <= time


def test_narrow_links_between_leaf_switches_are_named_and_nearly_reached() -> None:
    changed = Settings.read(["fabric.oversubscription=20", "fabric.nodes_per_leaf=2", "fabric.spines=1"])
    cluster = build_cluster(changed.machine(load_machine("hgx-h100")), nodes=4)
    found, time = bounds_of(Search(cluster, Collective.ALL_TO_ALL, "bf16", GAUSSIAN), "native", 1024 * M)
    above = max(found.values(), key=lambda b: b.time)
    assert above.what.startswith("the links above the leaf")
    assert 0.8 * time <= above.time <= time


@pytest.mark.parametrize("name", ["native", "zipped"])
def test_stages_that_share_nothing_take_exactly_their_chain(toy: Callable[..., Cluster], name: str) -> None:
    search = Search(toy(2, latency="30us", launch="10us"), Collective.ALL_GATHER, "bf16", GAUSSIAN)
    schedule = next(s for s in search.schedules if s.name == name)
    assert search.floor(schedule, M) == pytest.approx(search.run(schedule, M).time, rel=1e-8)


def test_crossing_is_what_the_outcome_of_each_exchange_needs() -> None:
    """By counting: `inside` ranks of a group against the rest, every rank putting in one byte."""
    for group in range(2, 9):
        for inside in range(1, group):
            rest = group - inside
            assert crossing(Exchange.ALL_GATHER, inside, group, True) == (inside, rest)
            assert crossing(Exchange.ALL_TO_ALL, inside, group, True) == pytest.approx((inside * rest / group,) * 2)
            assert crossing(Exchange.REDUCE_SCATTER, inside, group, True) == (rest / group, inside / group)
            assert crossing(Exchange.BROADCAST, inside, group, True) == (1, 0)
            assert crossing(Exchange.BROADCAST, inside, group, False) == (0, 1)
        assert all(crossing(e, group, group, True) == (0, 0) for e in Exchange)


@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-b200"])
def test_a_forced_switch_gathers_across_nodes_no_faster_than_nics(machine: str) -> None:
    """NVLS gathers inside a node only; across nodes the library takes what it has instead."""
    cluster = build_cluster(load_machine(machine), nodes=4)
    search = Search(cluster, Collective.ALL_GATHER, "bf16", GAUSSIAN, "raw", "nvls")
    native = search.schedules[0]
    assert search.floor(native, 1024 * M) <= search.run(native, 1024 * M).time
    assert Transport(cluster, "nvls").algorithms(Exchange.ALL_GATHER, range(cluster.ranks)) == ("ring",)
