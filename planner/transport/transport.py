"""How a transport carries one exchange: the quickest algorithm and protocol that it has for the size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.network import Apart, Folds, Paths
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.constants import Constants, Tables, link_kind
from zipplan.planner.transport.direct import direct, pat
from zipplan.planner.transport.nccl import CostModel
from zipplan.planner.transport.price import Price, price
from zipplan.planner.transport.rings import ring
from zipplan.planner.transport.trees import collnet, nvls, nvlstree, tree
from zipplan.planner.transport.ways import Floats, Way, by_node

Lowering = Callable[[Cluster, Exchange, range], Way]

LOWERINGS: dict[str, Lowering] = {
    "ring": ring,
    "tree": tree,
    "nvls": nvls,
    "nvlstree": nvlstree,
    "collnetdirect": partial(collnet, chain=False),
    "collnetchain": partial(collnet, chain=True),
    "direct": direct,
    "pat": pat,
}
ALGORITHMS = {
    Exchange.ALL_GATHER: ("ring", "pat", "direct", "nvls"),
    Exchange.REDUCE_SCATTER: ("ring", "pat", "nvls"),
    Exchange.ALL_REDUCE: ("ring", "tree", "nvls", "nvlstree", "collnetdirect", "collnetchain"),
    Exchange.ALL_TO_ALL: ("direct",),
    Exchange.BROADCAST: ("ring",),
    Exchange.REDUCE: ("ring",),
    Exchange.SEND_RECV: ("direct",),
}
"""Algorithms of each exchange that can be forced."""
P2P_LL_BELOW = 16384
"""Bytes to one peer below which send and receive use LL (NCCL_P2P_LL_THRESHOLD)."""
NVLS_FROM = 3
"""GPUs of a node from which NCCL uses NVLS (ncclNvlsInit, src/transport/nvls.cc); with two, NCCL_ALGO=NVLS measures
what a ring does: https://github.com/NVIDIA/nccl/issues/1455."""
_LARGEST = 2.0**46
Pick = tuple[str, str]
"""(algorithm, protocol)"""
Shape = tuple[Exchange, range | tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Carried:
    """An exchange of a given size: launch, then flows of `sizes` bytes along `paths`, then `latency`; times in ps."""

    algorithm: str
    protocol: str
    paths: Paths
    sizes: Floats
    launch: int
    latency: int


@dataclass(frozen=True, slots=True)
class Alone:
    """What an exchange takes when nothing else is on the links, ps: before its flows, while they flow, after them."""

    launch: int
    wire: float
    latency: int


class Transport:
    """Lowers exchanges on a cluster; remembers what it lowered."""

    beyond = 1.0
    """How far beyond the rates of the links its exchanges may go."""

    def __init__(
        self,
        cluster: Cluster,
        algorithm: str = "auto",
        *,
        start: str = "process",
        channels: int | None = None,
        tables: Tables | None = None,
    ) -> None:
        """`algorithm`: "auto", or one that is forced wherever an exchange has it. Raises ConfigError.

        start: who calls the library (STARTS). channels: at most so many, which its choices do not know
        (NCCL_MAX_NCHANNELS). tables: constants instead of the shipped ones.
        """
        if algorithm not in ("auto", *LOWERINGS):
            raise ConfigError(f"--algorithm: unknown {algorithm!r}; {nearest(algorithm, ('auto', *LOWERINGS))}")
        self.cluster, self.forced = cluster, algorithm
        self.constants = Constants.of(cluster, start, tables)
        self.running = self.constants if channels is None else self.constants.limited(channels)
        if algorithm.startswith("nvls") and self.constants.switch is None:
            raise ConfigError(
                f"--algorithm {algorithm}: {cluster.machine.name} has no switch that reduces (NVLink SHARP), or it is "
                "off; use ring or tree"
            )
        if algorithm.startswith("collnet") and self.constants.sharp is None:
            raise ConfigError(
                f"--algorithm {algorithm}: the switches of {cluster.machine.name} do not reduce, or it is not said; "
                "set fabric.sharp on an InfiniBand fabric"
            )
        self._later: dict[Shape, list[tuple[float, Pick]]] = {}
        self._picked: dict[tuple[Shape, float], Pick] = {}
        self._ways: dict[tuple[str, Exchange, range], Way] = {}
        self._alike: dict[tuple[str, Exchange, tuple[range, ...]], Paths | None] = {}
        self.folds: Folds = {}

    def carry(self, exchange: Exchange, group: range, sent: float) -> Carried:
        """The algorithm and protocol that the library picks for `sent` bytes from each rank of `group`."""
        algorithm, protocol = self.pick(exchange, group, sent)
        way = self.way(algorithm, exchange, group)
        best = self.price(way, self.running, protocol, exchange, sent)
        sizes = way.share * sent * np.where(way.across, best.stretch[1], best.stretch[0])
        return Carried(algorithm, best.protocol, way.paths, sizes, round(best.launch), round(best.latency))

    def carry_alike(self, exchange: Exchange, groups: tuple[range, ...], first: Carried) -> Carried:
        """The same exchange on several groups at once, `first` on the first of them. Raises Apart where they differ."""
        key = first.algorithm, exchange, groups
        if key not in self._alike:
            self._alike[key] = self._paths_alike(*key)
        paths = self._alike[key]
        if paths is None:
            raise Apart
        return replace(first, paths=paths, sizes=np.tile(first.sizes, len(groups)))

    def _paths_alike(self, algorithm: str, exchange: Exchange, groups: tuple[range, ...]) -> Paths | None:
        """The flows of all groups where the library does the same on each; on equal nodes, inside a node, it does."""
        if len(self.cluster.templates) > 1:
            return None
        first = self.way(algorithm, exchange, groups[0])
        shifts = self.cluster.shifts(groups)
        if shifts is not None:
            flows, count = first.paths, len(groups)
            links = (flows.links[None, :] + shifts[:, None]).ravel()
            owner = (flows.owner[None, :] + flows.count * np.arange(count)[:, None]).ravel()
            return Paths(links, owner, np.tile(flows.kind, count))
        ways = [self.way(algorithm, exchange, group) for group in groups]
        if not all(first.costs_like(way) for way in ways):
            return None
        owner = np.concatenate([way.paths.owner + i * first.paths.count for i, way in enumerate(ways)])
        return Paths(np.concatenate([way.paths.links for way in ways]), owner, np.tile(first.paths.kind, len(ways)))

    def alone(self, exchange: Exchange, group: range, sent: float) -> Alone:
        """The times of `carry` on the links that it loads most, without its flows."""
        algorithm, protocol = self.pick(exchange, group, sent)
        best = self.price(self.way(algorithm, exchange, group), self.running, protocol, exchange, sent)
        return Alone(round(best.launch), best.wire, round(best.latency))

    def price(self, way: Way, constants: Constants, protocol: str, exchange: Exchange, sent: float) -> Price:
        """One way with one protocol."""
        extra = constants.peer * way.steps.peers if exchange is Exchange.ALL_TO_ALL else 0.0
        chosen = next(p for p in constants.protocols if p.name == protocol)
        return price(way, constants, chosen, sent, extra)

    def pick(self, exchange: Exchange, group: range, sent: float) -> Pick:
        """NCCL's pick by its cost table, or one that it only makes for larger messages if that is quicker here.

        NCCL's table is built to rank and differs between versions, so it may switch too late. With this rule a larger
        message is never predicted to be quicker than a smaller one: growing bytes only take candidates away.
        """
        shape = self._shape(exchange, group)
        key = shape, sent
        if key not in self._picked:
            if shape not in self._later:
                self._later[shape] = self._picks(exchange, group)
            starts = [start for start, _ in self._later[shape]]
            first = max(i for i, start in enumerate(starts) if start <= sent)
            candidates = dict.fromkeys(pick for _, pick in self._later[shape][first:])
            self._picked[key] = min(
                candidates,
                key=lambda p: self.price(self.way(p[0], exchange, group), self.constants, p[1], exchange, sent).total,
            )
        return self._picked[key]

    def _shape(self, exchange: Exchange, group: range) -> Shape:
        """What decides a pick: on equal nodes, groups of as many ranks on as many nodes get the same."""
        if len(self.cluster.templates) > 1:
            return exchange, group
        first, last = (rank // self.cluster.ranks_per_node for rank in (group[0], group[-1]))
        return exchange, (min(len(group), last - first + 1), len(group))

    def _picks(self, exchange: Exchange, group: range) -> list[tuple[float, Pick]]:
        """(bytes that a rank puts in from which it holds, pick), for all sizes."""
        algorithms = self.algorithms(exchange, group)
        if self.cluster.transport.kind == "gloo":
            return [(0.0, (algorithms[0], self.constants.protocols[0].name))]
        if algorithms == ("direct",):
            below = P2P_LL_BELOW * (len(group) if exchange is Exchange.ALL_TO_ALL else 1)
            return [(0.0, ("direct", "LL")), (float(below), ("direct", "Simple"))]
        scale = 1 / len(group) if exchange is Exchange.ALL_GATHER else 1.0
        choices = CostModel(self.cluster, group).choices(exchange, algorithms, _LARGEST)
        return [(c.start * scale, (c.algorithm, c.protocol)) for c in choices]

    def nccl_time(self, exchange: Exchange, group: range, size: float) -> float | None:
        """µs by NCCL's own cost model for a message as nccl-tests counts it; None where it has none."""
        algorithms = self.algorithms(exchange, group)
        if self.cluster.transport.kind == "gloo" or algorithms == ("direct",):
            return None
        return CostModel(self.cluster, group).time(exchange, size, algorithms)

    def sms(self, group: range) -> int:
        """SMs that a collective's kernel holds on one GPU: one for each channel.

        NCCL takes as few as reach the platform's rate: 2 for each NIC of a node (2 with one NIC, 16 with 8), 2 over
        PCIe: https://github.com/NVIDIA/nccl/issues/689.
        """
        nodes = by_node(self.cluster, group)
        if len(nodes) > 1:
            nics = {self.cluster.rail_of(rank) for rank in nodes[0]}
            return min(self.running.channels, 2 * len(nics))
        return self.running.channels if link_kind(self.cluster) == "nvlink" else min(self.running.channels, 2)

    def is_direct(self, exchange: Exchange) -> bool:
        """Whether every rank sends to every other at once; flows then stand by sender, then receiver."""
        names = ALGORITHMS[exchange]
        if self.forced not in names and self.cluster.transport.kind == "gloo":
            return "direct" in names
        return (self.forced if self.forced in names else names[0]) == "direct"

    def algorithms(self, exchange: Exchange, group: range) -> tuple[str, ...]:
        """What the library considers here, or the one that is forced."""
        names = ALGORITHMS[exchange]
        nodes = by_node(self.cluster, group)
        if self.forced in names:
            # Without SHARP in the network, NVLS across nodes is NVLSTree, and NVLSTree inside one is NVLS.
            # NVLSTree only sums: a gather across nodes is left to the ring.
            alone = len(nodes) == 1 or exchange is Exchange.ALL_REDUCE
            if self.forced.startswith("nvls") and not (alone and len(nodes[0]) >= NVLS_FROM):
                return self._usual(exchange, nodes)
            if self.forced.startswith("nvls"):
                trees = len(nodes) > 1 and not (self.forced == "nvls" and self._reduces(exchange))
                return ("nvlstree" if trees else "nvls",)
            if self.forced.startswith("collnet") and len(nodes) == 1:
                return self._usual(exchange, nodes)
            return (self.forced,)
        if self.cluster.transport.kind == "gloo":  # where it can, the executor sends to all peers at once
            return ("direct",) if "direct" in names else names[:1]
        return self._usual(exchange, nodes)

    def _reduces(self, exchange: Exchange) -> bool:
        """Whether the network's switches may do it."""
        return self.constants.sharp is not None and exchange is Exchange.ALL_REDUCE

    def _usual(self, exchange: Exchange, nodes: list[list[int]]) -> tuple[str, ...]:
        """What NCCL weighs when nothing is forced; CollNetDirect up to 8 GPUs in a node."""
        names = ALGORITHMS[exchange]
        if exchange is Exchange.ALL_REDUCE:
            switched = self.constants.switch is not None and len(nodes[0]) >= NVLS_FROM
            many = len(nodes) > 1
            found = ["ring", "tree", *(["nvlstree" if many else "nvls"] if switched else [])]
            if many and self._reduces(exchange):
                found += ["collnetdirect"] if len(nodes[0]) <= 8 else []
                found += ["collnetchain", *(["nvls"] if switched else [])]
            return tuple(found)
        return ("ring", "pat") if "pat" in names and len(nodes[0]) == 1 else names[:1]

    def way(self, algorithm: str, exchange: Exchange, group: range) -> Way:
        """One algorithm on one group."""
        key = (algorithm, exchange, group)
        if key not in self._ways:
            self._ways[key] = LOWERINGS[algorithm](self.cluster, exchange, group)
        return self._ways[key]
