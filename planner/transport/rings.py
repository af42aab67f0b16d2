"""Rings: all-gather, reduce-scatter, all-reduce, and the chains of broadcast and reduce."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.ways import Hops, Steps, Way, build, by_node, heads

_CYCLES_UP_TO = 8  # GPUs of a mesh whose 7! rings are all weighed
_ROUNDS = 168  # divisible by the 7 rings that cover a mesh of 8 and the 6 of a mesh of 4


def ring(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Every rank sends to its neighbour; g−1 steps, twice that for an all-reduce.

    Steps are pipelined, so the bytes that cross one edge are summed. Rings together use every NIC and every NVLink.
    """
    size = len(group)
    # Bytes that cross each edge of a ring as a share of what a rank puts in; steps; bytes of one step.
    crossing, steps, message = {
        Exchange.ALL_GATHER: (size - 1.0, size - 1, 1.0),
        Exchange.REDUCE_SCATTER: ((size - 1) / size, size - 1, 1 / size),
        Exchange.ALL_REDUCE: (2 * (size - 1) / size, 2 * (size - 1), 1 / size),
        Exchange.BROADCAST: (1.0, size - 1, 1 / size),
        Exchange.REDUCE: (1.0, size - 1, 1 / size),
    }[exchange]
    chain = exchange in (Exchange.BROADCAST, Exchange.REDUCE)
    parts = []
    nodes = by_node(cluster, group)
    used = rings(cluster, nodes)
    for order, weight in used:
        first = order.index(group[0])
        order = order[first:] + order[:first]
        src = np.array(order[:-1] if chain else order)
        dst = np.roll(order, -1)[: len(src)]
        src, dst = (dst, src) if exchange is Exchange.REDUCE else (src, dst)
        parts.append(Hops(src, dst, np.full(len(src), crossing * weight)))
    rounds = 2 if exchange is Exchange.ALL_REDUCE else 1
    across = 0 if len(nodes) == 1 else rounds * (len(nodes) - 1)
    rails = len(used) if across else 0
    cut = Steps(steps - across, across, size if chain else steps, message, rails)
    return build(cluster, "ring", Hops.joined(parts), cut)


def rings(cluster: Cluster, nodes: list[list[int]]) -> list[tuple[list[int], float]]:
    """Rings and the share of the bytes that each carries.

    Across nodes: one ring for each rank beside a NIC, which enters a node where the last one was left, so that it stays
    on its rail (NCCL's alternating rings). Inside one node: one each way round a switch, or the rings that fill a mesh
    best.
    """
    if len(nodes) == 1:
        return node_rings(cluster, nodes[0])
    leaving = [heads(cluster, members) for members in nodes]
    count = min(map(len, leaving))
    made = []
    for start in range(count):
        order = []
        for turn, members in enumerate(nodes):
            there = _through(members, leaving[turn][start], leaving[turn][start - 1])
            order += there if turn % 2 == 0 else there[::-1]
        made.append((order, 1 / count))
    return made


def _through(members: list[int], first: int, last: int) -> list[int]:
    """All ranks of a node, from `first` to `last`; where these are one, to the rank before it."""
    at = members.index(first)
    order = members[at:] + members[:at]
    if last != first:
        order.remove(last)
        order.append(last)
    return order


def node_rings(cluster: Cluster, members: list[int]) -> list[tuple[list[int], float]]:
    """Rings inside a node."""
    if len(members) <= 2:
        return [(members, 1.0)]
    if len(members) > _CYCLES_UP_TO or not any(
        len(cluster.path(a, b)) == 1 for a in members for b in members if a != b
    ):
        return [(members, 0.5), (members[::-1], 0.5)]
    return _mesh_rings(cluster, members)


def _mesh_rings(cluster: Cluster, members: list[int]) -> list[tuple[list[int], float]]:
    """Multiplicative weights (Arora, Hazan, Kale 2012) over all rings: a mix that loads the links evenly."""
    paths = {(a, b): cluster.path(a, b) for a in members for b in members if a != b}
    links = sorted({link for path in paths.values() for link in path})
    column = {link: i for i, link in enumerate(links)}
    cycles = [(members[0], *rest) for rest in permutations(members[1:])]
    ends = np.array(cycles)
    place = {rank: i for i, rank in enumerate(members)}
    cost = np.zeros((len(members), len(members), len(links)))
    for (a, b), path in paths.items():
        for link in path:
            cost[place[a], place[b], column[link]] += 1e9 / cluster.bandwidths[link]
    index = np.searchsorted(members, ends)
    loads = cost[index, np.roll(index, -1, axis=1)].sum(axis=1)  # cycle × link
    total, order = np.zeros(len(links)), []
    evenness = []
    for _ in range(_ROUNDS):
        price = np.exp(4 * (total - total.max()) / loads.max())
        order.append(int((loads @ price).argmin()))
        total += loads[order[-1]]
        evenness.append(total.max() / len(order))
    chosen = np.bincount(order[: int(np.argmin(np.round(evenness, 9))) + 1])
    return [(list(cycles[i]), chosen[i] / chosen.sum()) for i in np.flatnonzero(chosen)]
