"""Trees: a chain inside each node, NCCL's double binary tree across nodes. NVLS: the switch takes the chain's place."""

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
    parts, share = [], 1 / len(tops)
    for top in tops:
        for members, head in zip(nodes, top, strict=True):
            at = members.index(head)
            chain = np.array(members[at:] + members[:at])
            parts += _both_ways(chain[1:], chain[:-1], share)
        parts += _across(np.array(top), share)
    rails = len(tops) if len(nodes) > 1 else 0
    steps = Steps(2 * (len(nodes[0]) - 1), 2 * levels(len(nodes)), 1.0, 1.0, rails)
    return build(cluster, "tree", Hops.joined(parts), steps)


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
    """
    nodes = by_node(cluster, group)
    parts = [_switched(members, exchange) for members in nodes]
    if len(nodes) > 1:
        tops = _heads(cluster, nodes)
        for top in tops:
            parts += _across(np.array(top), 1 / len(tops))
    steps = Steps(1, 2 * levels(len(nodes)), 1.0, len(group) if exchange is Exchange.ALL_GATHER else 1.0)
    return build(cluster, "nvls" if len(nodes) == 1 else "nvlstree", Hops.joined(parts), steps)


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
