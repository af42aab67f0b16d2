"""Each algorithm against what it must move: closed forms of bytes, steps and links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import LOWERINGS, Transport
from zipplan.planner.transport.rings import node_rings
from zipplan.planner.transport.trees import double_tree, levels
from zipplan.planner.transport.ways import Way


def cluster(name: str, nodes: int = 1, ranks: int | None = None) -> Cluster:
    return build_cluster(load_machine(name), nodes=nodes, ranks_per_node=ranks)


def lower(algorithm: str, exchange: Exchange, on: Cluster) -> Way:
    return LOWERINGS[algorithm](on, exchange, range(on.ranks))


def link_bytes(way: Way, on: Cluster) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Bytes on each link per byte that a rank puts in."""
    return np.bincount(way.paths.links, way.share[way.paths.owner], len(on.bandwidths))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("exchange", "per_port", "steps"),
    [
        (Exchange.ALL_REDUCE, lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
        (Exchange.ALL_GATHER, lambda n: n - 1, lambda n: n - 1),
        (Exchange.REDUCE_SCATTER, lambda n: (n - 1) / n, lambda n: n - 1),
        (Exchange.BROADCAST, lambda n: 1, lambda n: n - 1),
    ],
)
def test_ring_on_a_switch(ranks: int, exchange: Exchange, per_port: object, steps: object) -> None:
    """The busiest port carries what the textbook says, and nothing carries more."""
    on = cluster("hgx-a100", ranks=ranks)
    way = lower("ring", exchange, on)
    assert link_bytes(way, on).max() == pytest.approx(per_port(ranks))  # type: ignore[operator]
    assert (way.steps.inside, way.steps.across) == (steps(ranks), 0)  # type: ignore[operator]
    assert way.wire(1.0, 1.0) == pytest.approx(per_port(ranks) / 300e9 * 1e12)  # type: ignore[operator]


def test_ring_across_nodes_stays_on_its_rail() -> None:
    """8 rings, one per NIC; each NIC carries an eighth of 2·(n−1)/n and no flow crosses rails."""
    on = cluster("hgx-h100", 4)
    way = lower("ring", Exchange.ALL_REDUCE, on)
    assert (way.steps.inside, way.steps.across) == (2 * 31 - 6, 6)
    moved = link_bytes(way, on)
    nics = [link for link in on.links if link.kind == "nic"]
    assert {round(moved[link.index] * 32 / 31 * 4, 9) for link in nics} == {1.0}
    assert not any(link.kind == "fabric" and moved[link.index] for link in on.links)


@pytest.mark.parametrize(
    ("machine", "ranks", "lanes"),
    [("gh200-quad", 4, 450), ("mi300x-8", 8, 448), ("dgx-1v", 8, 150), ("dgx-1v", 4, 100), ("mi300x-8", 2, 64)],
)
def test_rings_fill_a_mesh(machine: str, ranks: int, lanes: int) -> None:
    """All NVLinks that can be part of a ring are: bus bandwidth in GB/s at full link rate."""
    on = cluster(machine, ranks=ranks)
    way = lower("ring", Exchange.ALL_REDUCE, on)
    assert 2 * (ranks - 1) / ranks / way.wire(1.0, 1.0) * 1000 == pytest.approx(lanes, rel=1e-6)
    for order, weight in node_rings(on, list(range(ranks))):
        assert sorted(order) == list(range(ranks))
        assert weight > 0


@given(st.integers(2, 300))
def test_double_tree_is_two_trees(nodes: int) -> None:
    """Each is one tree of log depth; a node with children in one is a leaf of the other, except one (Sanders 2009)."""
    inner = []
    for parent in double_tree(nodes):
        assert (parent < 0).sum() == 1
        for node in range(nodes):
            at, hops = node, 0
            while parent[at] >= 0:
                at, hops = int(parent[at]), hops + 1
                assert hops <= levels(nodes) + 1
        assert np.bincount(parent[parent >= 0]).max() <= 2
        inner.append(set(parent[parent >= 0].tolist()))
    assert len(inner[0] & inner[1]) <= 1


def test_tree_on_two_nodes_sends_the_message_once_each_way() -> None:
    """Half up one tree and down the other: a NIC carries S/8 each way, so bus bandwidth may pass the NIC's rate."""
    on = cluster("hgx-h100", 2)
    way = lower("tree", Exchange.ALL_REDUCE, on)
    moved = link_bytes(way, on)
    assert {round(moved[link.index], 9) for link in on.links if link.kind == "nic"} == {1 / 8}
    assert (way.steps.inside, way.steps.across) == (14, 2)


@pytest.mark.parametrize("ranks", [4, 8])
def test_nvls_loads_every_port_by_one_message_and_a_part(ranks: int) -> None:
    """(n+1)/n each way (NVIDIA/nccl-tests issue 239)."""
    on = cluster("hgx-h100", ranks=ranks)
    moved = link_bytes(lower("nvls", Exchange.ALL_REDUCE, on), on)
    ports = [link for link in on.links if "nvswitch" in link.name and moved[link.index]]
    assert len(ports) == 2 * ranks
    assert {round(moved[link.index], 9) for link in ports} == {round((ranks + 1) / ranks, 9)}


@pytest.mark.parametrize("nodes", [2, 3, 4, 7])
def test_pat_moves_what_a_ring_moves_in_fewer_steps(nodes: int) -> None:
    on = cluster("hgx-h100", nodes, 1)
    ring, pat = (lower(a, Exchange.ALL_GATHER, on) for a in ("ring", "pat"))
    assert pat.moved[1] == pytest.approx(ring.moved[1]) == pytest.approx(nodes - 1)
    assert pat.steps.across == (nodes - 1).bit_length() <= ring.steps.across


def test_direct_sends_to_every_peer_and_send_recv_to_one() -> None:
    on = cluster("hgx-a100")
    assert lower("direct", Exchange.ALL_TO_ALL, on).moved == pytest.approx((7 / 8, 0))
    assert lower("direct", Exchange.SEND_RECV, on).moved == pytest.approx((1, 0))


@pytest.mark.parametrize("exchange", Exchange)
@pytest.mark.parametrize(
    ("machine", "nodes"), [("hgx-h100", 2), ("gh200-quad", 3), ("pcie-4090x8", 1), ("mi300x-8", 1)]
)
def test_carried_flows_are_never_faster_than_the_wire(exchange: Exchange, machine: str, nodes: int) -> None:
    """What a carried exchange puts on each link is at least the true bytes."""
    on = cluster(machine, nodes)
    transport = Transport(on)
    for size in (1e3, 1e6, 1e9):
        carried = transport.carry(exchange, range(on.ranks), size)
        way = transport.way(carried.algorithm, exchange, range(on.ranks))
        assert (carried.sizes >= way.share * size * (1 - 1e-12)).all()
        assert min(carried.launch, carried.latency) > 0


def test_forced_algorithms() -> None:
    on = cluster("hgx-h100", 2)
    for name, found in (("ring", "ring"), ("tree", "tree"), ("nvls", "nvlstree"), ("nvlstree", "nvlstree")):
        assert Transport(on, name).carry(Exchange.ALL_REDUCE, range(16), 1e6).algorithm == found
    assert Transport(on, "tree").carry(Exchange.ALL_GATHER, range(16), 1e6).algorithm == "ring"
    with pytest.raises(ConfigError, match="unknown 'nvl'; did you mean nvls"):
        Transport(on, "nvl")
    with pytest.raises(ConfigError, match="hgx-a100 has no switch that reduces"):
        Transport(cluster("hgx-a100"), "nvls")


@pytest.mark.parametrize("algorithm", ["auto", "nvls", "nvlstree"])
def test_nvls_needs_three_gpus_in_a_node(algorithm: str) -> None:
    """With two, NCCL has none (ncclNvlsInit): H100 measures a ring's ~367 GB/s (NVIDIA/nccl issue 1455), not 208."""
    for nodes in (1, 2):
        pair = Transport(build_cluster(load_machine("hgx-h100"), nodes=nodes, ranks_per_node=2), algorithm)
        assert pair.algorithms(Exchange.ALL_REDUCE, range(2 * nodes)) == ("ring", "tree")
    three = Transport(build_cluster(load_machine("hgx-h100"), nodes=1, ranks_per_node=3), algorithm)
    assert "nvls" in three.algorithms(Exchange.ALL_REDUCE, range(3))


@pytest.mark.parametrize(("gpus", "published"), [(2, 367), (3, 367), (4, 367), (5, 420), (6, 440), (7, 460), (8, 480)])
def test_all_reduce_by_gpus_of_an_h100_node(gpus: int, published: float) -> None:
    """Bus bandwidth of 4 GiB in GB/s, NVIDIA/nccl issue 1455: a ring's up to 4 GPUs, then that of NVLS, which rises."""
    transport = Transport(build_cluster(load_machine("hgx-h100"), nodes=1, ranks_per_node=gpus))
    size, group = 4 << 30, range(gpus)
    algorithm, protocol = transport.pick(Exchange.ALL_REDUCE, group, size)
    way = transport.way(algorithm, Exchange.ALL_REDUCE, group)
    time = transport.price(way, transport.running, protocol, Exchange.ALL_REDUCE, size).total
    assert algorithm == ("ring" if gpus < 5 else "nvls")
    assert size / time * 1e3 * 2 * (gpus - 1) / gpus == pytest.approx(published, rel=0.04)
