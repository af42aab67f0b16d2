"""How a transport carries one exchange: flows on links and a latency, by algorithm.

ring      every rank sends to its neighbour, g−1 steps (2·(g−1) for all-reduce); steps are pipelined, so the bytes that
          cross one edge are summed and the latency of every step is paid once
direct    every rank sends to every other at once

Flow sizes are divided by the measured efficiency of the path (share of the link rate that large messages reach).
An exchange starts when its last rank arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.network import Paths
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster

ALGORITHMS = {
    Exchange.ALL_GATHER: ("ring", "direct"),
    Exchange.REDUCE_SCATTER: ("ring",),
    Exchange.ALL_REDUCE: ("ring",),
    Exchange.ALL_TO_ALL: ("direct",),
}


@dataclass(frozen=True, slots=True)
class Carried:
    """One exchange on one group: `share[i]` · (bytes that each rank sends) flow along path i, then `latency` ps."""

    algorithm: str
    paths: Paths
    share: NDArray[np.float64]
    latency: int


class Transport:
    """Lowers exchanges on a cluster; remembers what it lowered."""

    def __init__(self, cluster: Cluster, algorithm: str = "auto") -> None:
        """`algorithm`: "auto", or one that is forced wherever an exchange has it. Raises ConfigError."""
        known = {"auto", *(a for names in ALGORITHMS.values() for a in names)}
        if algorithm not in known:
            raise ConfigError(f"--algorithm: unknown {algorithm!r}; {nearest(algorithm, known)}")
        self.cluster = cluster
        self.launch = cluster.transport.launch
        self.forced = algorithm
        self._memo: dict[tuple[Exchange, range], Carried] = {}

    def carry(self, exchange: Exchange, group: range) -> Carried:
        """Flows and latency of `exchange` among the ranks of `group`."""
        key = (exchange, group)
        if key not in self._memo:
            names = ALGORITHMS[exchange]
            algorithm = self.forced if self.forced in names else names[0]
            lower = self._ring if algorithm == "ring" else self._direct
            self._memo[key] = lower(exchange, group)
        return self._memo[key]

    def _ring(self, exchange: Exchange, group: range) -> Carried:
        size = len(group)
        orders = ring_orders(group, self.cluster.ranks_per_node)
        hops = [(a, b) for order in orders for a, b in zip(order, order[1:] + order[:1], strict=True) if size > 1]
        # Bytes that cross each edge of a ring, as a share of what a rank puts in.
        crossing = {
            Exchange.ALL_GATHER: size - 1.0,
            Exchange.REDUCE_SCATTER: (size - 1) / size,
            Exchange.ALL_REDUCE: 2 * (size - 1) / size,
        }[exchange]
        paths, efficiency = self._ways(hops)
        rounds = 2 if exchange is Exchange.ALL_REDUCE else 1
        across = len({r // self.cluster.ranks_per_node for r in group}) - 1
        latency = rounds * (across * self._step(hops, True) + (size - 1 - across) * self._step(hops, False))
        return Carried("ring", paths, crossing / len(orders) / efficiency, latency)

    def _direct(self, exchange: Exchange, group: range) -> Carried:
        hops = [(a, b) for a in group for b in group if a != b]
        paths, efficiency = self._ways(hops)
        share = 1.0 if exchange is Exchange.ALL_GATHER else 1 / len(group)
        latency = max(self._step(hops, True), self._step(hops, False))
        return Carried("direct", paths, share / efficiency, latency)

    def _ways(self, hops: Sequence[tuple[int, int]]) -> tuple[Paths, NDArray[np.float64]]:
        transport = self.cluster.transport
        efficiency = [transport.efficiency_inter if self._leaves(h) else transport.efficiency_intra for h in hops]
        return Paths.of([self.cluster.path(a, b) for a, b in hops]), np.array(efficiency, dtype=np.float64)

    def _leaves(self, hop: tuple[int, int]) -> bool:
        return hop[0] // self.cluster.ranks_per_node != hop[1] // self.cluster.ranks_per_node

    def _step(self, hops: Sequence[tuple[int, int]], across: bool) -> int:
        """Latency of the slowest step of one kind: the protocol's, plus that of every link on the way (cut-through)."""
        ways = [self.cluster.path(a, b) for a, b in hops if self._leaves((a, b)) is across]
        if not ways:
            return 0
        constant = self.cluster.transport.step_inter if across else self.cluster.transport.step_intra
        return constant + max(int(self.cluster.latencies[list(way)].sum()) for way in ways)


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
        ring: list[int] = []
        for turn, members in enumerate(nodes):
            there = members[start % len(members) :] + members[: start % len(members)]
            ring += there if turn % 2 == 0 else there[::-1]
        rings.append(ring)
    return rings
