"""Exchanges without a relay: all pairs at once, a shift to the neighbour, and PAT."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.ways import Hops, Steps, Way, build, by_node

MOST_FLOWS = 65_536
"""More flows at once than these (all pairs of 256 ranks) are bundled: work grows with the square of the ranks."""
BUNDLES = 60_000
"""About so many flows to other nodes are left then, but some from each rank to every place of a node."""
MOST_PLACES, PLACES = 16, 8
"""In a node of more than 16 ranks, which a switch joins, 8 places evenly spaced stand for all."""


def direct(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Every rank sends to every other at once; send_recv: to the next rank only, as sendrecv_perf does."""
    members, size = np.array(group), len(group)
    share = 1.0 if exchange in (Exchange.ALL_GATHER, Exchange.SEND_RECV) else 1 / size
    nodes = by_node(cluster, group)
    across = len(nodes) > 1
    if exchange is Exchange.SEND_RECV:
        hops = Hops(members, np.roll(members, -1), np.full(size, share))
    elif size * cluster.ranks <= MOST_FLOWS or not across or len({len(node) for node in nodes}) > 1:
        src, dst = np.repeat(members, size), np.tile(members, size)
        apart = src != dst
        hops = Hops(src[apart], dst[apart], np.full(size * (size - 1), share))
    else:
        hops = _bundled(np.array(nodes), share, BUNDLES // cluster.ranks)
    steps = Steps(
        0 if across else 1, 1 if across else 0, size, share, peers=1 if exchange is Exchange.SEND_RECV else size - 1
    )
    return build(cluster, "direct", hops, steps)


def _bundled(nodes: NDArray[np.int64], share: float, wanted: int) -> Hops:
    """All pairs on a large grid (rank by node and place), those to other nodes bundled onto `wanted` from each rank.

    Every rank still sends and receives what it does with all pairs, to as many of each place, so ports and everything
    inside nodes carry the same bytes; between switches the sample stands for the rest.
    """
    count, places = nodes.shape
    shifts = np.linspace(0, places, places if places <= MOST_PLACES else PLACES, endpoint=False).astype(np.int64)
    each = min(count - 1, max(1, wanted // len(shifts), 4 // len(shifts)))
    src, dst, shares = [], [], []
    for number, shift in enumerate(shifts):
        # Evenly spaced, and elsewhere for every shift, so that together they reach most nodes.
        start = 1 + number * (count - 1) / (each * len(shifts))
        others = np.unique((start + np.arange(each) * (count - 1) / each).astype(np.int64))
        for offset in (0, *others) if shift else others:
            stands_for = (count - 1) / len(others) if offset else 1.0
            if shift:
                stands_for *= (places - 1) / (len(shifts) - 1)
            to = np.roll(np.roll(nodes, -int(offset), axis=0), -int(shift), axis=1)
            src.append(nodes.ravel())
            dst.append(to.ravel())
            shares.append(np.full(nodes.size, share * stands_for))
    return Hops(np.concatenate(src), np.concatenate(dst), np.concatenate(shares))


def pat(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Parallel aggregated trees: ⌈log₂ g⌉ steps, step k to the rank 2ᵏ further on (Bruck et al. 1997)."""
    size, members = len(group), np.array(group)
    parts = []
    distance = 1
    while distance < size:  # no two steps go equally far
        slots = min(distance, size - distance) * (1.0 if exchange is Exchange.ALL_GATHER else 1 / size)
        parts.append(Hops(members, np.roll(members, -distance), np.full(size, slots)))
        distance *= 2
    count = (size - 1).bit_length()
    across = len(by_node(cluster, group)) > 1
    steps = Steps(0 if across else count, count if across else 0, count, 1.0)
    return build(cluster, "pat", Hops.listed(parts), steps)
