"""Trees: a chain inside each node, NCCL's double binary tree across nodes. NVLS: the switch takes the chain's place.

SHARP: the network's switches take the tree's place.
"""

from __future__ import annotations

import numpy as np

from zipplan.planner.fold import Ints
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.ways import Hops, Steps, Way, build, by_node, heads


def tree(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """All-reduce: up the chain of each node to its head, up the tree, and all the way down again.

    One chain per rank beside a NIC, each with its own head, so that every NIC is used; half of the bytes on each of two
    trees.
    """
    nodes = by_node(cluster, group)
    tops = _heads(cluster, nodes)
    parts = _chains(nodes, tops)
    for top in tops:
        parts += _across(np.array(top), 1 / len(tops))
    rails = len(tops) if len(nodes) > 1 else 0
    steps = Steps(2 * (len(nodes[0]) - 1), 2 * levels(len(nodes)), 1.0, 1.0, rails)
    return build(cluster, "tree", Hops.joined(parts), steps)


def _chains(nodes: list[list[int]], tops: list[list[int]]) -> list[Hops]:
    """Up the chain of each node to each of its heads, and down again."""
    parts = []
    for top in tops:
        for members, head in zip(nodes, top, strict=True):
            at = members.index(head)
            chain = np.array(members[at:] + members[:at])
            parts += _both_ways(chain[1:], chain[:-1], 1 / len(tops))
    return parts


def collnet(cluster: Cluster, exchange: Exchange, group: range, chain: bool) -> Way:
    """All-reduce with SHARP: sums of each node to its heads, from every NIC into the switches, the total back.

    CollNetChain goes along a chain inside the node; CollNetDirect sends from every rank straight to every head
    (NVIDIA/nccl issues 320, 919).
    """
    nodes = by_node(cluster, group)
    tops = _heads(cluster, nodes)
    if chain:
        parts = _chains(nodes, tops)
    else:
        parts = []
        for top in tops:
            for members, head in zip(nodes, top, strict=True):
                others = np.array([rank for rank in members if rank != head], dtype=np.int64)
                parts += _both_ways(others, np.full(len(others), head), 1 / len(tops))
    parts += [_sharp(np.array(top), 1 / len(tops)) for top in tops]
    depth = len(nodes[0]) - 1 if chain else min(1, len(nodes[0]) - 1)
    steps = Steps(2 * depth, 1, 1.0, 1.0, len(tops))
    return build(cluster, "collnetchain" if chain else "collnetdirect", Hops.joined(parts), steps)


def _sharp(top: Ints, share: float) -> Hops:
    """Each NIC sends its part into the switches and receives the sum: as much as a flow to the next node loads."""
    return Hops(top, np.roll(top, -1), np.full(len(top), share))


def _heads(cluster: Cluster, nodes: list[list[int]]) -> list[list[int]]:
    """One list of heads, a rank of every node, for each tree; inside one node every rank is a head."""
    if len(nodes) == 1:
        return [[rank] for rank in nodes[0]]
    leaving = [heads(cluster, members) for members in nodes]
    return [[each[i] for each in leaving] for i in range(min(map(len, leaving)))]


def nvls(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """The switch adds what all GPUs of the node hold and multicasts the sum; trees join the nodes.

    Each GPU sends its bytes into the switch and the part that it owns once more, and receives as much: (k+1)/k of the
    message each way (NVIDIA/nccl-tests issue 239). A flow from a GPU to its neighbour loads just these two links.
    Across nodes SHARP joins them.
    """
    nodes = by_node(cluster, group)
    parts = [_switched(members, exchange) for members in nodes]
    tops = _heads(cluster, nodes) if len(nodes) > 1 else []
    parts += [_sharp(np.array(top), 1 / len(tops)) for top in tops]
    steps = Steps(1, min(1, len(tops)), 1.0, len(group) if exchange is Exchange.ALL_GATHER else 1.0)
    return build(cluster, "nvls", Hops.joined(parts), steps)


def nvlstree(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """The same inside the nodes, double binary trees across."""
    nodes = by_node(cluster, group)
    parts = [_switched(members, exchange) for members in nodes]
    tops = _heads(cluster, nodes)
    for top in tops:
        parts += _across(np.array(top), 1 / len(tops))
    return build(cluster, "nvlstree", Hops.joined(parts), Steps(1, 2 * levels(len(nodes)), 1.0, 1.0))


def _switched(members: list[int], exchange: Exchange) -> Hops:
    k = len(members)
    share = {Exchange.ALL_REDUCE: (k + 1) / k, Exchange.ALL_GATHER: float(k), Exchange.REDUCE_SCATTER: 1.0}[exchange]
    return Hops(np.array(members), np.roll(members, -1), np.full(k, share))


def _across(top: Ints, share: float) -> list[Hops]:
    parts = []
    for parent in double_tree(len(top)):
        child = np.flatnonzero(parent >= 0)
        parts += _both_ways(top[child], top[parent[child]], share / 2)
    return parts


def _both_ways(a: Ints, b: Ints, share: float) -> list[Hops]:
    each = np.full(len(a), share)
    return [Hops(a, b, each), Hops(b, a, each)]


def levels(nodes: int) -> int:
    """Network steps from a leaf to the root as NCCL counts them: ⌊log₂ nodes⌋."""
    return nodes.bit_length() - 1


def double_tree(nodes: int) -> tuple[Ints, Ints]:
    """Parents by node, −1 for the root, of two binary trees in which every node but one is a leaf of one of them.

    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. The second
    tree is the first one mirrored, or shifted by one when the number of nodes is odd.
    """
    first = np.full(nodes, -1)
    for rank in range(1, nodes):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        first[rank] = up if up < nodes else rank ^ bit
    place = (np.arange(nodes) + 1) % nodes if nodes % 2 else nodes - 1 - np.arange(nodes)
    second = np.full(nodes, -1)
    second[place] = np.where(first >= 0, place[first], -1)
    return first, second
