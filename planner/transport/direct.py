"""Exchanges without a relay: all pairs at once, a shift to the neighbour, and PAT."""

from __future__ import annotations

import numpy as np

from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.ways import Hops, Steps, Way, build, by_node


def direct(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Every rank sends to every other at once; send_recv: to the next rank only, as sendrecv_perf does."""
    members, size = np.array(group), len(group)
    if exchange is Exchange.SEND_RECV:
        src, dst, share = members, np.roll(members, -1), 1.0
    else:
        src, dst = np.repeat(members, len(members)), np.tile(members, len(members))
        src, dst = src[src != dst], dst[src != dst]
        share = 1.0 if exchange is Exchange.ALL_GATHER else 1 / size
    across = len(by_node(cluster, group)) > 1
    steps = Steps(
        0 if across else 1, 1 if across else 0, size, share, peers=1 if exchange is Exchange.SEND_RECV else size - 1
    )
    return build(cluster, "direct", Hops(src, dst, np.full(len(src), share)), steps)


def pat(cluster: Cluster, exchange: Exchange, group: range) -> Way:
    """Parallel aggregated trees: ⌈log₂ g⌉ steps, step k to the rank 2ᵏ further on (Bruck et al. 1997)."""
    size, members = len(group), np.array(group)
    hops: dict[tuple[int, int], float] = {}
    distance = 1
    while distance < size:
        slots = min(distance, size - distance) * (1.0 if exchange is Exchange.ALL_GATHER else 1 / size)
        for i, rank in enumerate(members):
            pair = int(rank), int(members[(i + distance) % size])
            hops[pair] = hops.get(pair, 0.0) + slots
        distance *= 2
    count = (size - 1).bit_length()
    across = len(by_node(cluster, group)) > 1
    steps = Steps(0 if across else count, count if across else 0, count, 1.0)
    return build(cluster, "pat", Hops.of(hops), steps)
