"""Clusters: ranks, links, routes over every fabric, fingerprints, scale."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import networkx as nx
import pytest

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology import Cluster, bisection, build_cluster, load_machine, parse_machine, shipped
from zipplan.planner.topology.catalogue import gpus
from zipplan.planner.topology.check import check
from zipplan.planner.topology.graph import LATENCY
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.model import Machine
from zipplan.planner.topology.write import to_toml

CONTRACT = [
    "hgx-a100", "hgx-a100-hdr8", "p4de", "hgx-h100", "p5", "hgx-h200", "hgx-h800", "hgx-b200", "hgx-b300",
    "gb200-nvl72", "gh200-quad", "dgx-1v", "dgx-2", "a6000x8-200g", "pcie-4090x8", "pcie-4090x4-p2p", "mi250-8",
    "mi300x-8", "l40s-8", "lab", "loopback",
]  # fmt: skip


def names(cluster: Cluster, src: int, dst: int) -> list[str]:
    return [cluster.links[i].name for i in cluster.path(src, dst)]


def with_fabric(name: str, **changes: object) -> Machine:
    machine = load_machine(name)
    return machine.model_copy(update={"fabric": machine.fabric.model_copy(update=changes)})


def test_shipped_machines_are_those_of_the_contract() -> None:
    assert set(CONTRACT) <= set(shipped())


@pytest.mark.parametrize("name", CONTRACT)
def test_shipped_machine_is_whole(name: str) -> None:
    machine = load_machine(name)
    cluster = build_cluster(machine)
    assert machine.name == name
    assert [f for f in check(Imported(machine, ""), cluster) if f.level == "error"] == []
    assert all(link.bandwidth > 0 and link.latency >= 0 and link.src != link.dst for link in cluster.links)
    for src in range(cluster.ranks):
        for dst in {0, cluster.ranks - 1} - {src}:
            way = [cluster.links[i] for i in cluster.path(src, dst)]
            assert all(a.dst == b.src for a, b in pairwise(way)), "a path is a chain of links"
            ends = (way[0].src, way[-1].dst)
            assert ends == tuple(f"n{cluster.node_of(r)}/{cluster.device_of(r)}" for r in (src, dst))
    assert build_cluster(parse_machine(to_toml(machine), name)).fingerprint == cluster.fingerprint


def test_fingerprints_of_shipped_machines_differ() -> None:
    nodes = {name: 1 if name == "loopback" else 2 for name in CONTRACT}
    prints = {build_cluster(load_machine(name), nodes=n).fingerprint for name, n in nodes.items()}
    assert len(prints) == len(CONTRACT)


@pytest.mark.parametrize(
    ("name", "inside", "across"),
    [("hgx-h100", 450, 50), ("hgx-h800", 200, 50), ("hgx-b200", 900, 50), ("hgx-b300", 900, 100), ("p4de", 300, 12.5),
     ("a6000x8-200g", 31.5, 25), ("gh200-quad", 150, 25), ("dgx-2", 150, 12.5), ("gb200-nvl72", 900, 50),
     ("mi300x-8", 64, 50), ("hgx-a100-hdr8", 300, 25)],
)  # fmt: skip
def test_published_rates(name: str, inside: float, across: float) -> None:
    cluster = build_cluster(load_machine(name), nodes=2)
    for dst, expected in ((1, inside), (cluster.ranks_per_node, across)):
        assert min(cluster.bandwidths[list(cluster.path(0, dst))]) == expected * 1e9


def test_parts_of_a_node() -> None:
    cluster = build_cluster(load_machine("hgx-h100"), nodes=2, gpus=[0, 2, 5])
    assert (cluster.ranks, cluster.ranks_per_node) == (6, 3)
    assert [cluster.device_of(r) for r in range(6)] == ["gpu0", "gpu2", "gpu5"] * 2
    assert [cluster.rail_of(r) for r in range(3)] == [0, 2, 5]
    assert names(cluster, 1, 4)[-1] == "n1/pci2>n1/gpu2"
    assert build_cluster(load_machine("hgx-h100"), ranks_per_node=4).ranks == 4
    with pytest.raises(TopologyError, match="3 GPUs chosen, but 2"):
        build_cluster(load_machine("hgx-h100"), gpus=[0, 2, 5], ranks_per_node=2)


def test_cpu_hosts_take_any_number_of_ranks() -> None:
    cluster = build_cluster(load_machine("loopback"), ranks_per_node=7)
    assert cluster.ranks == 7
    shared = {i for a in range(7) for b in range(7) if a != b for i in cluster.path(a, b)[1:2]}
    assert len(shared) == 1, "all ranks share one memory"
    assert (cluster.transport.kind, cluster.gpu) == ("gloo", None)
    assert build_cluster(load_machine("lab")).ranks == 4


def test_rail_traffic_stays_on_its_leaf_and_other_traffic_crosses_nvlink_first() -> None:
    cluster = build_cluster(load_machine("hgx-h100"), nodes=64)
    assert [cluster.label(0, 1), cluster.label(0, 8), cluster.label(0, 11)] == ["NVL", "NET", "PXN"]
    assert names(cluster, 0, 11)[:3] == ["n0/gpu0>n0/nvswitch0", "n0/nvswitch0>n0/gpu3", "n0/gpu3>n0/pci3"]
    assert names(cluster, 3, 8 * 31 + 3)[2:4] == ["n0/nic3>leaf3", "leaf3>n31/nic3"]
    assert names(cluster, 3, 8 * 32 + 3)[2:6] == ["n0/nic3>leaf3", "leaf3>spine0", "spine0>leaf11", "leaf11>n32/nic3"]
    without = build_cluster(with_fabric("hgx-h100", pxn=False), nodes=64)
    assert without.label(0, 11) == "NET"
    assert "leaf0" in names(without, 0, 11)[2]


def test_neighbours_of_one_leaf_use_different_spines() -> None:
    cluster = build_cluster(load_machine("hgx-h100"), nodes=64)
    spines = {names(cluster, 0, 8 * node)[3] for node in range(32, 64)}
    assert len(spines) == 16, "equal-cost paths are spread by destination"


def test_hash_routing_is_stable_and_collides() -> None:
    machine = with_fabric("hgx-h100", routing="hash")
    routes = [[names(build_cluster(machine, nodes=64), 8 * a, 8 * (a + 32))[3] for a in range(16)] for _ in range(2)]
    assert routes[0] == routes[1]
    assert 1 < len(set(routes[0])) < 16


def test_oversubscription_thins_the_uplinks() -> None:
    full, thin = (build_cluster(with_fabric("hgx-a100", oversubscription=ratio), nodes=10) for ratio in (1.0, 4.0))
    assert bisection(full) == 4 * bisection(thin)
    assert [f.rule for f in check(Imported(thin.machine, ""), thin)] == ["oversubscribed"]


def test_dragonfly_has_at_most_three_switch_hops() -> None:
    cluster = build_cluster(load_machine("gh200-quad"), nodes=300)
    hops = {sum(cluster.links[i].kind == "fabric" for i in cluster.path(0, r)) for r in range(4, cluster.ranks, 37)}
    assert hops == {0, 1, 2, 3}


def test_direct_cables_join_two_nodes() -> None:
    machine = load_machine("hgx-h100")
    fabric = machine.fabric.model_copy(update={"kind": "direct", "nodes_per_leaf": None, "spines": None, "pxn": False})
    direct = machine.model_copy(update={"fabric": fabric})
    assert names(build_cluster(direct, nodes=2), 2, 10)[2:4] == ["n0/nic2>cable2", "cable2>n1/nic2"]
    with pytest.raises(TopologyError, match="joins 2 nodes, found 3"):
        build_cluster(direct, nodes=3)


def test_failed_links_are_routed_round() -> None:
    text = to_toml(load_machine("hgx-h100"))
    broken = text + '\n[[override]]\nlink = "leaf0-spine0"\nfailed = true\nsource = "test"\n'
    cluster = build_cluster(parse_machine(broken, "x"), nodes=64)
    assert all("spine0" not in step for node in range(32, 64) for step in names(cluster, 0, 8 * node))
    alone = text + '\n[[override]]\nnode = 1\nlink = "gpu3-nvswitch0"\nfailed = true\nsource = "test"\n'
    cluster = build_cluster(parse_machine(alone, "x"), nodes=2)
    assert (cluster.label(0, 3), cluster.label(8, 11)) == ("NVL", "PHB"), "GPU 3 of node 1 falls back to PCIe"
    with pytest.raises(TopologyError, match="no link from gpu3 to nvswitch7"):
        build_cluster(parse_machine(alone.replace("gpu3-nvswitch0", "gpu3-nvswitch7"), "x"), nodes=2)


def test_unlike_nodes() -> None:
    text = to_toml(load_machine("hgx-h100"))
    start = text.index("[[node]]")
    node = text[start : text.index("[fabric]")]
    slow = node.replace('"400Gb/s"', '"200Gb/s"')
    counted = [part.replace("[[node]]", f"[[node]]\ncount = {n}") for part, n in ((node, 2), (slow, 1))]
    mixed = text.replace(node, "".join(counted))
    cluster = build_cluster(parse_machine(mixed, "x"))
    assert cluster.nodes == 3
    assert [min(cluster.bandwidths[list(cluster.path(0, dst))]) for dst in (8, 16)] == [50e9, 25e9]
    with pytest.raises(TopologyError, match="describes 3 unlike nodes; 4 were asked for"):
        build_cluster(parse_machine(mixed, "x"), nodes=4)


def test_without_peer_to_peer_traffic_passes_host_memory() -> None:
    off, on = (build_cluster(load_machine(n)) for n in ("pcie-4090x8", "pcie-4090x4-p2p"))
    assert names(off, 0, 1) == ["n0/gpu0>n0/cpu0", "n0/cpu0>n0/gpu1"]
    assert off.templates[0].p2p is False
    assert on.templates[0].p2p is True
    assert (off.transport.efficiency_intra, on.transport.efficiency_intra) == (0.2, 0.8)


def test_graph_has_every_link_with_its_time() -> None:
    cluster = build_cluster(load_machine("hgx-a100"), nodes=2)
    graph = cluster.graph
    assert graph.number_of_edges() == len(cluster.links)
    time = nx.shortest_path_length(graph, "n0/gpu0", "n0/gpu7", weight=LATENCY)
    assert time == sum(cluster.latencies[list(cluster.path(0, 7))])


def test_links_are_a_sequence() -> None:
    links = build_cluster(load_machine("lab")).links
    assert [link.index for link in links] == list(range(len(links)))
    assert links[-1] == links[len(links) - 1]
    assert links[1:3] == [links[1], links[2]]
    with pytest.raises(IndexError):
        links[len(links)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"400Gb/s"', '"200Gb/s"'),
        ('"22GB/s"', '"10GB/s"'),
        ("spines = 16", "spines = 8"),
        ("nodes_per_leaf = 32", "nodes_per_leaf = 16"),
        ("pxn = true", "pxn = false"),
        ("lanes = 18", "lanes = 12"),
        ('model = "H100"', 'model = "H200"'),
        ("{0,0,0,0,1,1,1,1}", "{0,0,0,0,0,1,1,1}"),
        ("ranks = 8\n", "ranks = 8\np2p = false\n"),
        ('kind = "pcie"\n', 'kind = "pcie"\nlatency = "1us"\nsource = "test"\n'),
        ("[[node]]", '[transport]\nstep_inter = "15us"\nsource = "test"\n\n[[node]]'),
    ],
)
def test_fingerprint_changes_with_any_number_or_shape(old: str, new: str) -> None:
    text = to_toml(load_machine("hgx-h100"))
    assert old in text
    texts = (text, text.replace(old, new, 1))
    before, after = (build_cluster(parse_machine(t, "x"), nodes=4).fingerprint for t in texts)
    assert before != after
    assert before.startswith("sha256:")


def test_fingerprint_changes_with_the_ranks_in_use() -> None:
    machine = load_machine("hgx-h100")
    used = [{"nodes": 2}, {"nodes": 3}, {"ranks_per_node": 4}, {"gpus": [0, 1, 2, 4]}, {"gpus": [0, 1, 4, 2]}]
    assert len({build_cluster(machine, **{"nodes": 2, **u}).fingerprint for u in used}) == len(used)  # type: ignore[arg-type]


def test_fingerprint_ignores_names_and_order() -> None:
    text = to_toml(load_machine("hgx-h100"))
    blocks = text[text.index("[[node.link]]") : text.index("[[node.nic]]")].strip().split("\n\n")
    turned = text.replace("\n\n".join(blocks), "\n\n".join(reversed(blocks)))
    renamed = turned.replace('name = "hgx-h100"', 'name = "mine"').replace("pci{*}", "pci{7,5,3,1,0,2,4,6}")
    renamed = renamed.replace("nvswitch0", "nvswitch9")
    before, after = (build_cluster(parse_machine(t, "x"), nodes=4).fingerprint for t in (text, renamed))
    assert before == after


def test_sixteen_thousand_gpus_are_built_from_templates() -> None:
    tracemalloc.start()
    cluster = build_cluster(load_machine("hgx-h100"), nodes=2048)
    assert cluster.ranks == 16_384
    assert cluster.fingerprint
    assert len(cluster.bandwidths) == len(cluster.links) > 180_000
    assert len(names(cluster, 0, 16_383)) == 10
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_every_gpu_of_the_catalogue_names_its_sources() -> None:
    for name, facts in gpus().items():
        assert "https://" in facts.source, name
        assert facts.hbm_bandwidth > 10**11
