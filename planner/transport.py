"""How a transport carries one exchange: flows on links and a latency, by algorithm and protocol.

ring      every rank sends to its neighbour, g−1 steps (2·(g−1) for all-reduce); steps are pipelined, so the bytes that
          cross one edge are summed and the latency of every step is paid once
direct    every rank sends to every other at once

Flow sizes are divided by the measured efficiency of the path (share of the link rate that large messages reach) and
by that of the protocol. An exchange starts when its last rank arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.fold import Ints
from zipplan.planner.network import Paths
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.units import PS_PER_SECOND

ALGORITHMS = {
    Exchange.ALL_GATHER: ("ring", "direct"),
    Exchange.REDUCE_SCATTER: ("ring",),
    Exchange.ALL_REDUCE: ("ring",),
    Exchange.ALL_TO_ALL: ("direct",),
}


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way to move bytes: its latencies as a share of those of the machine file, its share of the bandwidth."""

    name: str
    launch: float
    step_intra: float
    step_inter: float
    efficiency: float


# NCCL's ring constants in µs, LL / LL128 / Simple: base 6.6 / 14 / 8.4, NVLink step 0.6 / 1.9 / 3.4, network step
# 2.7 / 4.0 / 14; LL carries 4 bytes of data in 8, LL128 120 in 128.
# https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc
_SIMPLE = Protocol("Simple", 1.0, 1.0, 1.0, 1.0)
_LL = Protocol("LL", 6.6 / 8.4, 0.6 / 3.4, 2.7 / 14, 0.5)
_LL128 = Protocol("LL128", 14 / 8.4, 1.9 / 3.4, 4.0 / 14, 120 / 128)
PROTOCOLS = {"nccl": (_LL, _LL128, _SIMPLE), "gloo": (Protocol("tcp", 1.0, 1.0, 1.0, 1.0),)}


@dataclass(frozen=True, slots=True)
class Way:
    """One exchange on one group: `share[i]` · (bytes that each rank sends) flow along path i.

    `steps`: (inside a node, across nodes); `hop`: latency of the links of the slowest step of each kind, ps;
    `slowest`: ps per byte that a rank sends, on the busiest link.
    """

    algorithm: str
    paths: Paths
    share: NDArray[np.float64]
    steps: tuple[int, int]
    hop: tuple[int, int]
    slowest: float


@dataclass(frozen=True, slots=True)
class Carried:
    """An exchange of a given size: launch, then flows of `sizes` bytes along `paths`, then `latency`; times in ps."""

    algorithm: str
    protocol: str
    paths: Paths
    sizes: NDArray[np.float64]
    launch: int
    latency: int


class Transport:
    """Lowers exchanges on a cluster; remembers what it lowered."""

    def __init__(self, cluster: Cluster, algorithm: str = "auto") -> None:
        """`algorithm`: "auto", or one that is forced wherever an exchange has it. Raises ConfigError."""
        known = {"auto", *(a for names in ALGORITHMS.values() for a in names)}
        if algorithm not in known:
            raise ConfigError(f"--algorithm: unknown {algorithm!r}; {nearest(algorithm, known)}")
        self.cluster = cluster
        self.constants = cluster.transport
        self.protocols = PROTOCOLS[cluster.transport.kind]
        self.forced = algorithm
        self._memo: dict[tuple[Exchange, range], Way] = {}

    def carry(self, exchange: Exchange, group: range, sent: float) -> Carried:
        """The quickest protocol for `sent` bytes from each rank of `group`."""
        key = (exchange, group)
        if key not in self._memo:
            lower = self._direct if self.is_direct(exchange) else self._ring
            self._memo[key] = lower(exchange, group)
        way = self._memo[key]
        offers = [(self._fixed(way, p), p) for p in self.protocols]
        (launch, latency), best = min(offers, key=lambda o: sum(o[0]) + sent * way.slowest / o[1].efficiency)
        return Carried(way.algorithm, best.name, way.paths, way.share * (sent / best.efficiency), launch, latency)

    def is_direct(self, exchange: Exchange) -> bool:
        """Whether every rank sends to every other at once; flows then stand by sender, then receiver."""
        names = ALGORITHMS[exchange]
        return (self.forced if self.forced in names else names[0]) == "direct"

    def _fixed(self, way: Way, protocol: Protocol) -> tuple[int, int]:
        """Launch and summed latency of all steps, ps; every link of a step's path adds its own (cut-through)."""
        inside = way.steps[0] * (self.constants.step_intra * protocol.step_intra + way.hop[0])
        across = way.steps[1] * (self.constants.step_inter * protocol.step_inter + way.hop[1])
        return round(self.constants.launch * protocol.launch), round(inside + across)

    def _ring(self, exchange: Exchange, group: range) -> Way:
        size = len(group)
        orders = ring_orders(group, self.cluster.ranks_per_node)
        rings = np.array(orders)
        hops = rings.ravel(), np.roll(rings, -1, axis=1).ravel()
        # Bytes that cross each edge of a ring, as a share of what a rank puts in.
        crossing = {
            Exchange.ALL_GATHER: size - 1.0,
            Exchange.REDUCE_SCATTER: (size - 1) / size,
            Exchange.ALL_REDUCE: 2 * (size - 1) / size,
        }[exchange]
        rounds = 2 if exchange is Exchange.ALL_REDUCE else 1
        across = len({r // self.cluster.ranks_per_node for r in group}) - 1
        return self._way("ring", hops, crossing / len(orders), (rounds * (size - 1 - across), rounds * across))

    def _direct(self, exchange: Exchange, group: range) -> Way:
        members = np.array(group)
        pairs = np.stack([np.repeat(members, len(members)), np.tile(members, len(members))])
        hops = pairs[:, pairs[0] != pairs[1]]
        share = 1.0 if exchange is Exchange.ALL_GATHER else 1 / len(group)
        across = len({r // self.cluster.ranks_per_node for r in group}) > 1
        return self._way("direct", (hops[0], hops[1]), share, (0, 1) if across else (1, 0))

    def _way(self, algorithm: str, hops: tuple[Ints, Ints], share: float, steps: tuple[int, int]) -> Way:
        src, dst = hops
        leaves = src // self.cluster.ranks_per_node != dst // self.cluster.ranks_per_node
        paths = Paths(*self.cluster.paths(src, dst), leaves.astype(np.int64))
        shares = share / np.where(leaves, self.constants.efficiency_inter, self.constants.efficiency_intra)
        latencies = np.bincount(paths.owner, self.cluster.latencies[paths.links], paths.count)
        hop = (int(latencies[~leaves].max(initial=0)), int(latencies[leaves].max(initial=0)))
        load = np.bincount(paths.links, shares[paths.owner], len(self.cluster.bandwidths))
        slowest = float((load / self.cluster.bandwidths).max()) * PS_PER_SECOND
        return Way(algorithm, paths, shares, steps, hop, slowest)


def ring_orders(group: range, ranks_per_node: int) -> list[list[int]]:
    """Rings through the group that together use every NIC and both directions of every in-node pair.

    Across nodes: one ring for each local rank, which enters a node where the last one was left, so that it stays on its
    rail (NCCL's alternating rings). Inside one node: one ring each way round.
    """
    by_node: dict[int, list[int]] = {}
    for rank in group:
        by_node.setdefault(rank // ranks_per_node, []).append(rank)
    nodes = list(by_node.values())
    if len(nodes) == 1:
        ring = nodes[0]
        return [ring, ring[::-1]] if len(ring) > 2 else [ring]
    rings = []
    for start in range(len(nodes[0])):
        ring = []
        for turn, members in enumerate(nodes):
            there = members[start % len(members) :] + members[: start % len(members)]
            ring += there if turn % 2 == 0 else there[::-1]
        rings.append(ring)
    return rings
