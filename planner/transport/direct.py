"""Exchanges without a relay: all pairs at once, a shift to the neighbour, and PAT."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.ways import Hops, Steps, Way, build, by_node

MOST_FLOWS = 2_000_000
"""More flows than these (all pairs of 1,414 ranks) are bundled: lowering them takes minutes and gigabytes."""
BUNDLES = 300_000
"""About so many flows are left then: a few seconds of work."""


def direct(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Every rank sends to every other at once; send_recv: to the next rank only, as sendrecv_perf does."""
    members, size = np.array(group), len(group)
    share = 1.0 if exchange in (Exchange.ALL_GATHER, Exchange.SEND_RECV) else 1 / size
    nodes = by_node(cluster, group)
    across = len(nodes) > 1
    if exchange is Exchange.SEND_RECV:
        hops = Hops(members, np.roll(members, -1), np.full(size, share))
    elif size * (size - 1) <= MOST_FLOWS or len({len(node) for node in nodes}) > 1:
        src, dst = np.repeat(members, size), np.tile(members, size)
        apart = src != dst
        hops = Hops(src[apart], dst[apart], np.full(size * (size - 1), share))
    else:
        hops = _bundled(np.array(nodes), share)
    steps = Steps(
        0 if across else 1, 1 if across else 0, size, share, peers=1 if exchange is Exchange.SEND_RECV else size - 1
    )
    return build(cluster, "direct", hops, steps)


def _bundled(nodes: NDArray[np.int64], share: float) -> Hops:
    """All pairs on a large grid (rank by node and place): flows to other nodes bundled onto a few, evenly spaced.

    Every rank still sends and receives what it does with all pairs, so ports and everything inside nodes carry the same
    bytes; between switches the sample stands for the rest.
    """
    count, places = nodes.shape
    wanted = max(4, BUNDLES // (count * places * places))
    offsets = np.unique(np.linspace(0, count, min(wanted, count - 1) + 1, endpoint=False).round().astype(np.int64))
    src, dst, shares = [], [], []
    for offset in offsets:
        a = np.repeat(nodes, places, axis=1).ravel()
        b = np.tile(np.roll(nodes, -int(offset), axis=0), (1, places)).ravel()
        apart = a != b
        src.append(a[apart])
        dst.append(b[apart])
        shares.append(np.full(int(apart.sum()), share * ((count - 1) / (len(offsets) - 1) if offset else 1.0)))
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
