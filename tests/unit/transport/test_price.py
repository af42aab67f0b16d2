"""What an exchange costs: monotone, exact where there is a closed form, NCCL's picks where they are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.planner.schedule import Exchange
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import Constants, Transport
from zipplan.planner.transport.nccl import CostModel
from zipplan.planner.transport.price import price
from zipplan.planner.transport.rings import ring

MACHINES = {
    "one switch": ("hgx-h100", 1),
    "rails": ("hgx-h100", 3),
    "mesh": ("gh200-quad", 2),
    "PCIe": ("pcie-4090x8", 1),
    "xGMI": ("mi300x-8", 1),
}


def cluster(name: str, nodes: int = 1, *changes: str) -> Cluster:
    return build_cluster(Settings.read(changes).machine(load_machine(name)), nodes=nodes)


def total(on: Cluster, exchange: Exchange, sent: float, algorithm: str = "auto") -> float:
    """ps when nothing else is on the links."""
    transport, everyone = Transport(on, algorithm), range(on.ranks)
    picked, protocol = transport.pick(exchange, everyone, sent)
    way = transport.way(picked, exchange, everyone)
    return transport.price(way, transport.running, protocol, exchange, sent).total


@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("exchange", Exchange)
def test_more_bytes_are_never_quicker(where: str, exchange: Exchange) -> None:
    """At every eighth of a factor of two, from 1 B to 64 GiB, over all switches of algorithm and protocol."""
    on = cluster(*MACHINES[where])
    transport, everyone = Transport(on), range(on.ranks)
    before = 0.0
    for step in range(8 * 36):
        sent = 2.0 ** (step / 8)
        picked, protocol = transport.pick(exchange, everyone, sent)
        way = transport.way(picked, exchange, everyone)
        now = transport.price(way, transport.running, protocol, exchange, sent).total
        assert now >= before, (sent, picked, protocol)
        before = now


@settings(max_examples=20, deadline=None)
@given(
    algorithm=st.sampled_from(["ring", "tree", "nvls"]),
    what=st.sampled_from(
        ["link.nic.bandwidth=0.6x", "link.nvlink.bandwidth=0.6x", "link.nvlink.latency=3x", "transport.step_inter=2x",
         "transport.step_intra=2x", "transport.launch=2x", "transport.efficiency_inter=0.6x"]
    ),
    size=st.integers(1, 2**32),
)  # fmt: skip
def test_worse_machines_are_never_quicker(algorithm: str, what: str, size: int) -> None:
    good, worse = cluster("hgx-h100", 2), cluster("hgx-h100", 2, what)
    assert total(worse, Exchange.ALL_REDUCE, size, algorithm) >= total(good, Exchange.ALL_REDUCE, size, algorithm)


def test_simple_ring_in_a_mesh_is_alpha_beta() -> None:
    """start + steps·(step + latency of the hop) + 2·(n−1)/n·S / rate: no fill where every ring has its own lanes."""
    on = cluster("gh200-quad")
    constants = Constants.of(on)
    simple = constants.protocols[-1]
    way = ring(on, Exchange.ALL_REDUCE, range(4))
    size = 2**28
    wire = 1.5 * size / (450e9 * on.transport.efficiency_intra) * 1e12
    expected = simple.base[0] + 6 * (simple.ring[0] + way.hop[0]) + wire
    assert price(way, constants, simple, size).total == pytest.approx(expected, rel=1e-9)


def test_a_switch_costs_one_chunk_more() -> None:
    """Rings that share the ports of a switch end one chunk apart: S/n at most 2 MiB per channel."""
    on = cluster("hgx-a100")
    constants = Constants.of(on)
    way = ring(on, Exchange.ALL_REDUCE, range(8))
    apart = replace(constants, drifts=False)
    simple = constants.protocols[-1]
    for size, chunk in ((2**24, 2**21), (2**30, 24 * 2**21)):
        fill = price(way, constants, simple, size).total - price(way, apart, simple, size).total
        assert fill == pytest.approx(chunk / (300e9 * on.transport.efficiency_intra) * 1e12, rel=1e-9)


def test_network_steps_hide_behind_large_chunks() -> None:
    """A chunk is two slices: once half a chunk takes longer than the network, its latency is free."""
    on = cluster("hgx-h100", 16)
    constants = Constants.of(on)
    way, simple = ring(on, Exchange.ALL_REDUCE, range(128)), constants.protocols[-1]
    far = replace(simple, ring=(simple.ring[0], simple.ring[1] * 1.2))

    def extra(size: int) -> float:
        return price(way, constants, far, size).total - price(way, constants, simple, size).total

    assert extra(2**20) == pytest.approx(30 * simple.ring[1] * 0.2, rel=0.05)
    assert extra(2**36) == 0


@pytest.mark.parametrize(
    ("machine", "nodes", "picks"),
    [
        ("hgx-h100", 1, {2**15: ("ring", "LL"), 2**30: ("nvls", "Simple")}),
        ("hgx-a100", 1, {2**15: ("ring", "LL"), 2**30: ("ring", "Simple")}),
        ("hgx-h100", 2, {2**30: ("nvlstree", "Simple")}),
        ("gh200-quad", 128, {2**28: ("tree", "Simple"), 2**31: ("ring", "Simple")}),
    ],
)
def test_picks_of_nccl(machine: str, nodes: int, picks: dict[int, tuple[str, str]]) -> None:
    """Known ones: NVLS on Hopper; the ring of 512 GH200 only from 2 GiB (its published table jumps there)."""
    on = cluster(machine, nodes)
    for size, pick in picks.items():
        assert Transport(on).pick(Exchange.ALL_REDUCE, range(on.ranks), size) == pick


def test_four_h200_take_a_ring_and_eight_take_nvls_by_the_table_of_nccl() -> None:
    """Its choices are in order of size, start at 0, and never repeat."""
    on = cluster("hgx-h200")
    choices = CostModel(on, range(8)).choices(Exchange.ALL_REDUCE, ("ring", "tree", "nvls"), 2.0**40)
    starts = [choice.start for choice in choices]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert choices[-1].algorithm == "nvls"
    assert all((a.algorithm, a.protocol) != (b.algorithm, b.protocol) for a, b in pairwise(choices))


def test_a_hundred_ranks_share_one_pick() -> None:
    """Groups of equal shape are priced once: 128 nodes of 8 do not ask 128 times."""
    transport = Transport(cluster("hgx-h100", 128))
    for node in range(128):
        transport.pick(Exchange.ALL_REDUCE, range(8 * node, 8 * node + 8), 2.0**20)
    assert len(transport._picked) == 1


def test_who_calls_and_how_many_channels_count() -> None:
    on = cluster("hgx-a100")

    def carried(**how: object) -> int:
        done = Transport(on, **how).carry(Exchange.ALL_TO_ALL, range(8), 2.0**20)  # type: ignore[arg-type]
        return done.launch

    assert carried() < carried(start="framework") < carried(start="threads")
    b300 = cluster("hgx-b300")
    times = [
        Transport(b300, "ring", channels=c).carry(Exchange.ALL_REDUCE, range(8), 2.0**27).sizes.max()
        for c in (1, 2, 4, 8, 16, 32)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[1] == pytest.approx(2)
