"""The one place that knows networkx attribute names: a name typed wrongly elsewhere would silently mean hop count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipplan.planner.topology.cluster import Cluster

LATENCY = "latency"
CAPACITY = "capacity"
INDEX = "index"
KIND = "kind"


def to_networkx(cluster: Cluster) -> Any:
    """MultiDiGraph: nodes are device names, edges carry INDEX, KIND, LATENCY (ps) and CAPACITY (bytes/s)."""
    import networkx as nx

    graph: Any = nx.MultiDiGraph()
    for link in cluster.links:
        graph.add_edge(
            link.src,
            link.dst,
            key=link.index,
            **{INDEX: link.index, KIND: link.kind, LATENCY: link.latency, CAPACITY: link.bandwidth},
        )
    graph.add_nodes_from(f"n{node}/{device}" for node in range(cluster.nodes) for device in cluster.devices)
    return graph


def min_cut(cluster: Cluster, left: set[int], right: set[int]) -> int:
    """Largest total rate, bytes/s, from the ranks `left` to the ranks `right` (max-flow = min-cut).

    In a cluster of one node only links inside the node count.
    """
    import networkx as nx

    simple: Any = nx.DiGraph()
    for link in cluster.links:
        if link.kind == "nic" and cluster.nodes == 1:
            continue  # inside one node: no detour through the network
        if simple.has_edge(link.src, link.dst):
            simple[link.src][link.dst][CAPACITY] += link.bandwidth
        else:
            simple.add_edge(link.src, link.dst, **{CAPACITY: link.bandwidth})
    for name, ranks, outward in (("source", left, True), ("sink", right, False)):
        for rank in ranks:
            device = f"n{cluster.node_of(rank)}/{cluster.device_of(rank)}"
            simple.add_edge(*((name, device) if outward else (device, name)))  # no capacity: unbounded
    return int(nx.maximum_flow_value(simple, "source", "sink", capacity=CAPACITY))


def bisection(cluster: Cluster) -> int:
    """Bytes/s, one direction, from the first half of the ranks to the second half."""
    half = cluster.ranks // 2
    if half == 0:
        return 0
    return min_cut(cluster, set(range(half)), set(range(half, cluster.ranks)))
