"""Cut bounds: what no schedule on these links can beat, as exact rationals.

A cut splits the devices (ranks, switches, NICs, CPUs) in two sides; whatever one side needs of the other crosses the
links between them. With N ranks, a message of M bytes as nccl-tests counts it, and B the bytes/s across a cut:

    all_gather       M/N · (ranks on the sending side) / B
    reduce_scatter   M/N · (ranks on the receiving side) / B
    broadcast        M / B, the root on the sending side
    all_reduce       M / B; and where no switch sums, 2·(k−1)·M / (bytes/s out of all k parts of the machine)

The largest over all cuts holds for every algorithm, multicast and sums in switches included. The first two are
ForestColl's optimality (Zhao et al., arXiv 2402.06787: max over S of |S ∩ ranks| / exit bandwidth of S), found here by
its auxiliary network: a source feeds every rank at rate x; x is right when every rank can receive N·x. Newton steps
on x, from one violated cut to the next, end on the exact ratio. The last one counts messages: an element takes
2·(k−1) of them among k parties (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.topology import Cluster
from zipplan.planner.topology.graph import CAPACITY
from zipplan.planner.trees.devices import Ints, devices_of
from zipplan.planner.units import PS_PER_SECOND

BOUNDED = ("all_gather", "reduce_scatter", "broadcast", "all_reduce")
EXACT_RANKS = 128
"""Up to here all cuts count; above, those around each rank, each node and the nodes under each leaf."""
Mask = NDArray[np.bool_]
_FEED = -1  # the source of the auxiliary network, beside the device numbers


@dataclass(frozen=True, slots=True)
class Cut:
    """The ranks on one side, the bytes/s that can go `into` it or out of it, and the links that they cross."""

    ranks: tuple[int, ...]
    into: bool
    bandwidth: int
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutBound:
    """No schedule moves a byte of the message (as nccl-tests counts it) in less than `ps_per_byte`.

    cut: the tightest one; None for one rank, and where an all-reduce is bound by the exits of `parts` parts together.
    exact: whether all cuts were weighed.
    """

    collective: str
    ps_per_byte: Fraction
    cut: Cut | None
    parts: int = 0
    exact: bool = True

    def time_ps(self, size: int) -> int:
        """The least time for `size` bytes, rounded down."""
        return int(self.ps_per_byte * size)

    @property
    def rate(self) -> float:
        """Bytes of the message per second at most; infinite for one rank."""
        return float(PS_PER_SECOND / self.ps_per_byte) if self.ps_per_byte else float("inf")


def cut_bound(cluster: Cluster, collective: str, root: int = 0) -> CutBound:
    """The cut bound of a collective (module docstring). Raises ConfigError for another name or a root out of range."""
    if not 0 <= root < cluster.ranks:
        raise ConfigError(f"root {root}: expected a rank from 0 to {cluster.ranks - 1}")
    if collective not in BOUNDED:
        raise ConfigError(f"no cut bound for {collective!r}; {nearest(collective, BOUNDED)}")
    if cluster.ranks == 1:
        return CutBound(collective, Fraction(0), None)
    network = Network(cluster, reverse=collective == "reduce_scatter")
    if collective in ("all_gather", "reduce_scatter"):
        return network.shared(collective)
    return network.whole(collective, root)


def two_phase_bound(cluster: Cluster) -> Fraction:
    """ps per byte of an all-reduce that is a reduce-scatter and then an all-gather: the sum of their bounds.

    The yardstick for these (ForestColl's all-reduce), but no bound for others: where one rank sits behind a thin link,
    a tree needs only half.
    """
    return cut_bound(cluster, "reduce_scatter").ps_per_byte + cut_bound(cluster, "all_gather").ps_per_byte


@dataclass(frozen=True, slots=True)
class Parts:
    """The machine taken apart: part of each device (−1: none), ranks in each part, bytes/s out of and into each."""

    of: Ints
    ranks: Ints
    out: Ints
    into: Ints


class Network:
    """Capacities between numbered devices; `reverse` turns every link round."""

    def __init__(self, cluster: Cluster, reverse: bool) -> None:
        self.cluster, self.reverse = cluster, reverse
        self.devices = devices_of(cluster)
        ends = (self.devices.src, self.devices.dst)
        self.src, self.dst = ends[::-1] if reverse else ends
        self.exact = cluster.ranks <= EXACT_RANKS

    @cached_property
    def merged(self) -> list[tuple[int, int, int]]:
        """(from, to, bytes/s), parallel links summed."""
        total: dict[tuple[int, int], int] = {}
        for a, b, rate in zip(self.src.tolist(), self.dst.tolist(), self.devices.capacity.tolist(), strict=True):
            total[a, b] = total.get((a, b), 0) + rate
        return [(a, b, rate) for (a, b), rate in total.items()]

    def shared(self, collective: str) -> CutBound:
        """Every rank holds an equal part that all others need: least bytes/s out of a side per rank in it."""
        count = self.cluster.ranks
        per_rank, side = min(
            ((Fraction(rate, ranks if out else count - ranks), (parts, part, out))
             for parts, part, out, rate, ranks in self.plain()),
            key=lambda pair: pair[0],
        )  # fmt: skip
        inside = self._side(*side)
        for sink in self.sinks() if self.exact else ():
            while (found := self._violated(sink, per_rank)) is not None:
                per_rank, inside = found
        return CutBound(collective, PS_PER_SECOND / (per_rank * count), self._cut(inside), exact=self.exact)

    def _violated(self, sink: int, per_rank: Fraction) -> tuple[Fraction, Mask] | None:
        """A side from which `sink` gets less than `per_rank` bytes/s of each rank in it: what it gets, the devices."""
        import networkx as nx

        feed, scale = per_rank.numerator, per_rank.denominator
        graph: Any = nx.DiGraph()
        graph.add_weighted_edges_from(((a, b, rate * scale) for a, b, rate in self.merged), CAPACITY)
        graph.add_weighted_edges_from(((_FEED, int(device), feed) for device in self.devices.rank), CAPACITY)
        flow, (side, _) = nx.minimum_cut(graph, _FEED, int(self.devices.rank[sink]), CAPACITY)
        if flow >= self.cluster.ranks * feed:
            return None
        inside = self._mask(side - {_FEED})
        return Fraction(self._leaving(inside), int(inside[self.devices.rank].sum())), inside

    def whole(self, collective: str, root: int) -> CutBound:
        """All bytes go from the root to every rank; in an all-reduce from every rank, too."""
        import networkx as nx

        both, home = collective == "all_reduce", int(self.devices.rank[root])
        sides = [
            (rate, self._side(parts, part, out))
            for parts, part, out, rate, _ in self.plain()
            if both or (parts.of[home] == part) == out
        ]
        if self.exact:
            graph: Any = nx.DiGraph()
            graph.add_weighted_edges_from(self.merged, CAPACITY)
            for sink in self.sinks(apart=root):
                ends = (home, int(self.devices.rank[sink]))
                for a, b in (ends, ends[::-1])[: 1 + both]:
                    rate, (side, _) = nx.minimum_cut(graph, a, b, CAPACITY)
                    sides.append((int(rate), self._mask(side)))
        rate, inside = min(sides, key=lambda pair: pair[0])
        best = CutBound(collective, Fraction(PS_PER_SECOND, rate), self._cut(inside), exact=self.exact)
        sums = self.cluster.transport.nvls or self.cluster.machine.fabric.sharp
        for parts in self.partitions if both and not sums else ():
            count, exits = len(parts.out), int(min(parts.out.sum(), parts.into.sum()))
            cost = Fraction(2 * (count - 1) * PS_PER_SECOND, exits)
            if cost > best.ps_per_byte:
                best = CutBound(collective, cost, None, count, self.exact)
        return best

    def sinks(self, apart: int | None = None) -> Iterator[int]:
        """One rank of every kind: nodes with the same links under the same switches can change places.

        `apart`: a rank that is told from all others, so that its node is a kind of its own; it is left out.
        """
        each, seen = self.cluster.ranks_per_node, set()
        for node in range(self.cluster.nodes):
            home = apart is not None and node == apart // each
            under = tuple(self.cluster.fabric.attach[node]) if self.cluster.nodes > 1 else ()
            kind = (home, int(self.cluster.template_of[node]), under)
            if kind not in seen:
                seen.add(kind)
                yield from (rank for rank in range(node * each, (node + 1) * each) if rank != apart)

    # ---- plain cuts, from arrays alone

    def plain(self) -> Iterator[tuple[Parts, int, bool, int, int]]:
        """(partition, part, whether out of it, bytes/s, ranks in it), each different one once."""
        for parts in self.partitions:
            for out, rates in ((True, parts.out), (False, parts.into)):
                _, first = np.unique(np.stack((rates, parts.ranks)), axis=1, return_index=True)
                for part in first.tolist():
                    yield parts, part, out, int(rates[part]), int(parts.ranks[part])

    @cached_property
    def partitions(self) -> list[Parts]:
        """Into ranks; into nodes; into groups of nodes under the same leaves, with leaves that only they use."""
        by_rank = np.full(len(self.devices.names), -1)
        by_rank[self.devices.rank] = np.arange(self.cluster.ranks)
        found = [by_rank]
        if self.cluster.nodes > 1:
            attach = [tuple(row) for row in self.cluster.fabric.attach]
            group = {leaves: number for number, leaves in enumerate(dict.fromkeys(attach))}
            by_leaf = np.array([group[attach[node]] if node >= 0 else -1 for node in self.devices.node.tolist()])
            number = {name: at for at, name in enumerate(self.devices.names)}
            users: dict[str, set[int]] = {}
            for leaves, which in group.items():
                for leaf in leaves:
                    users.setdefault(leaf, set()).add(which)
            for leaf, groups in users.items():
                if len(groups) == 1:
                    by_leaf[number[leaf]] = min(groups)
            found += [self.devices.node, by_leaf] if len(group) > 1 else [self.devices.node]
        return [self._parts(of) for of in found]

    def _parts(self, of: Ints) -> Parts:
        count = int(of.max()) + 1
        a, b = of[self.src], of[self.dst]
        rates = []
        for mine in (a, b):
            total = np.zeros(count, dtype=np.int64)
            crossing = (a != b) & (mine >= 0)
            np.add.at(total, mine[crossing], self.devices.capacity[crossing])
            rates.append(total)
        return Parts(of, np.bincount(of[self.devices.rank], minlength=count), rates[0], rates[1])

    def _side(self, parts: Parts, part: int, out: bool) -> Mask:
        """The devices on the sending side."""
        inside: Mask = (parts.of == part) == out
        return inside

    def _mask(self, side: set[int]) -> Mask:
        mask = np.zeros(len(self.devices.names), dtype=np.bool_)
        mask[list(side)] = True
        return mask

    def _leaving(self, inside: Mask) -> int:
        return int(self.devices.capacity[inside[self.src] & ~inside[self.dst]].sum())

    def _cut(self, inside: Mask) -> Cut:
        """What leaves a side, as the links really run, and told from the side with fewer ranks."""
        crossing = inside[self.src] & ~inside[self.dst]
        mine = inside[self.devices.rank]
        few = mine.sum() * 2 <= len(mine)
        ranks = np.flatnonzero(mine if few else ~mine)
        links = tuple(self.devices.link[crossing].tolist())
        return Cut(tuple(ranks.tolist()), bool(few) == self.reverse, self._leaving(inside), links)
