"""NCCL's own cost model, as its tuner computes it: time = latency + bytes / bandwidth, by algorithm and protocol.

It is built to rank, not to predict; `zipplan validate` shows it beside ours. Source: ncclTopoTuneModel and
ncclTopoGetAlgoTime in https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc, version 2.27; the rate of all
channels together, which NCCL takes from its graph search, is here the rate of a node's links.
"""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster
from zipplan.planner.transport.constants import generation_of, has_switch, link_kind
from zipplan.planner.transport.trees import levels
from zipplan.planner.transport.ways import by_node

PROTOCOLS = ("LL", "LL128", "Simple")
_BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4), "pat": (8.0, 8.0, 8.0)}
_STEP = {
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7),
    ("net", "tree"): (5.0, 8.5, 14.0),
    ("net", "ring"): (2.7, 4.0, 14.0),
}
_NVLS_INSIDE, _NVLS_NET, _NVLSTREE_NET, _PAT_NET = 25.0, 18.0, 20.9, 14.0
_NET_OVERHEAD = (1.0, 1.0, 3.0)
# Across nodes LL depends on the CPU: AMD beside most A100, Intel or Arm beside the others; on 2, on more nodes.
_LL_ACROSS = {"ampere": (22.5, 19.0), "hopper": (39.0, 20.4)}
# By generation, on 1, 2, more nodes: GB/s of LL in all (here for one node only), and of one channel for LL128 in rings,
# LL128 in trees, trees, NVLSTree.
_CAPS = {
    "volta": ((39.0, 39.0, 20.4), (20.0,) * 3, (20.0,) * 3, (26.5, 18.5, 10.0), (0.0,) * 3),
    "ampere": ((87.7, 22.5, 19.0), (20.0,) * 3, (20.0,) * 3, (24.0, 23.6, 17.8), (0.0,) * 3),
    "hopper": ((141.0, 45.0, 35.0), (36.7,) * 3, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0), (0.0, 57.7, 45.5)),
    "blackwell": ((282.0, 90.0, 70.0), (40.0,) * 3, (55.6, 31.67, 20.0), (70.0, 42.8, 24.0), (0.0, 96.0, 80.0)),
}
# Algorithm bandwidth of NVLS in one node over its bus bandwidth, before 2.27. With it rings give way at 5 GPUs, as
# measured on H100: https://github.com/NVIDIA/nccl/issues/1455. Blackwell came with the newer rule.
_NVLS_SHARE = {"hopper": 5 / 6}
_NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
# Share of the link rate that NCCL counts: 20 of 25 GB/s for an NVLink, 40 of 50 on Blackwell, 24 of 31.5 for PCIe 4.0.
_LANE = {"volta": 0.8, "ampere": 0.8, "hopper": 0.8, "blackwell": 0.8}
_PCIE = 24 / 31.5
_CHANNELS = {"volta": 12, "ampere": 24, "hopper": 24, "blackwell": 32}
_TREE_CORRECTION = (
    (1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)


Line = tuple[str, str, float, float]
"""(algorithm, protocol, µs, GB/s) of one offer at sizes between two powers of two."""


@dataclass(frozen=True, slots=True)
class Choice:
    """NCCL's pick for messages of `start` bytes and more, up to the next choice."""

    start: float
    algorithm: str
    protocol: str


class CostModel:
    """NCCL's table for one group of ranks of a cluster."""

    def __init__(self, cluster: Cluster, group: range) -> None:
        nodes = by_node(cluster, group)
        self.nodes, self.ranks = len(nodes), len(group)
        self.kind = link_kind(cluster)
        known = generation_of(cluster)
        self.generation = known if known in _CAPS else "ampere" if known == "ada" else "hopper"
        self.channels = _CHANNELS[self.generation]
        self.nvls, self.switched = cluster.transport.nvls, has_switch(cluster)
        self.inside = _rate_inside(cluster, nodes[0], self.kind, self.generation)
        self.across = _rate_across(cluster, nodes[0])

    def time(self, exchange: Exchange, size: float, algorithms: tuple[str, ...]) -> float:
        """µs of the quickest offer, for a message of `size` bytes as nccl-tests counts it."""
        return min(
            latency + size / (1000 * bandwidth) for _, _, latency, bandwidth in self._lines(exchange, size, algorithms)
        )

    def choices(self, exchange: Exchange, algorithms: tuple[str, ...], size: float) -> list[Choice]:
        """What NCCL picks from 0 up to `size` bytes, in order.

        Between two powers of two every offer is a line over the size, so the picks are the lower envelope of lines.
        """
        made: list[Choice] = []
        low = 0.0
        while low < size:
            high = 2 * low if low else 64.0
            lines = self._lines(exchange, low, algorithms)
            while low < high:
                algorithm, protocol, latency, bandwidth = min(lines, key=lambda r: (r[2] + low / r[3] / 1e3, -r[3]))
                if not made or (made[-1].algorithm, made[-1].protocol) != (algorithm, protocol):
                    made.append(Choice(low, algorithm, protocol))
                quicker = [r for r in lines if r[3] > bandwidth]
                crossings = [1e3 * (r[2] - latency) / (1 / bandwidth - 1 / r[3]) for r in quicker]
                low = min([c for c in crossings if c > low * (1 + 1e-9)] + [high])
        return [choice for choice in made if choice.start <= size]

    def _lines(self, exchange: Exchange, size: float, algorithms: tuple[str, ...]) -> list[Line]:
        """(algorithm, protocol, µs, GB/s) of every offer."""
        lines = []
        for algorithm in algorithms:
            for index, protocol in enumerate(PROTOCOLS):
                bandwidth = self._bandwidth(exchange, algorithm, index)
                if bandwidth:
                    step = int(size).bit_length() - 7
                    if algorithm == "tree" and 0 <= step < 23:
                        bandwidth *= _TREE_CORRECTION[index][step]
                    lines.append((algorithm, protocol, self._latency(exchange, algorithm, index, size), bandwidth))
        return lines

    def _bandwidth(self, exchange: Exchange, algorithm: str, protocol: int) -> float:
        """GB/s of algorithm bandwidth; 0 where not offered."""
        caps, at = _CAPS[self.generation], min(self.nodes, 3) - 1
        simple = protocol == 2
        if (protocol == 1 and self.kind != "nvlink") or (algorithm not in ("ring", "tree") and not simple):
            return 0.0
        channels, ranks = self.channels, self.ranks
        low = caps[0][0] if self.nodes == 1 else _LL_ACROSS.get(self.generation, _LL_ACROSS["hopper"])[at - 1]
        bus = self.inside if self.nodes == 1 else min(self.inside, self.across)
        if algorithm.startswith("collnet"):  # half of the rate inside, the NICs once
            newer = self.generation in ("hopper", "blackwell") and algorithm == "collnetdirect"
            return min(self.inside * (0.425 if newer else 0.5), self.across)
        if algorithm in ("tree", "nvlstree") and self.nodes == 2:
            bus = min(self.inside, 2 * self.across)
        if algorithm in ("nvls", "nvlstree"):
            if not self.nvls:
                return 0.0
            inside = self.inside * _NVLS_EFFICIENCY.get(self.generation, 0.0) * 15 / 16
            if self.nodes == 1 and exchange is Exchange.ALL_REDUCE and self.generation in _NVLS_SHARE:
                return inside * _NVLS_SHARE[self.generation]
            inside *= 2 if exchange is Exchange.ALL_REDUCE else (ranks / self.nodes - 1) / (ranks / self.nodes)
            if algorithm == "nvls":
                bus = inside if self.nodes == 1 else min(inside, 2 * self.across)
            else:
                bus = min(inside, bus, 16 * caps[4][at])
        if algorithm == "ring" and protocol == 0:
            bus = min(low, bus * 0.5)
        if algorithm == "ring" and protocol == 1:
            bus = min(bus * 0.92, channels * caps[1][at])
        if algorithm == "tree":
            bus = min(bus * 0.92, channels * caps[3][at])
            bus = min(bus / 3.8, low) if protocol == 0 else bus
            bus = min(bus * (7 / 9 if self.nodes == 1 else 15 / 16), channels * caps[2][at]) if protocol == 1 else bus
            bus *= 1.0 if self.switched or self.nodes == 1 else 0.85  # one chain per tree, not a balanced one
        if algorithm == "pat":
            bus *= 0.75
        if algorithm in ("ring", "nvls", "nvlstree"):
            return bus * ranks / _steps(exchange, ranks)
        return bus * 0.5 if algorithm == "tree" else bus

    def _latency(self, exchange: Exchange, algorithm: str, protocol: int, size: float) -> float:
        """µs."""
        base = _BASE.get(algorithm, (0.0,) * 3)[protocol]
        nodes, per_node = self.nodes, self.ranks // self.nodes
        if algorithm == "nvls":
            return _NVLS_INSIDE + (_NVLS_NET if nodes > 1 else 0.0)
        if algorithm == "nvlstree":
            return _NVLS_INSIDE + 2 * levels(nodes) * _NVLSTREE_NET
        if algorithm == "collnetdirect":
            return 2 * (min(1, per_node - 1) * 3.7 + (per_node - 1) * 0.4) + 31.0
        if algorithm == "collnetchain":
            return 2 * (per_node - 1) * 2.8 + 30.0
        if algorithm == "pat":
            return base + levels(nodes) * _PAT_NET / 3.5 + self.ranks * 2.8
        near = _STEP[self.kind, algorithm][protocol]
        far = _STEP["net", "tree" if per_node == 1 else algorithm][protocol]
        if algorithm == "tree":
            return base + 2 * ((per_node - 1) * near + levels(nodes) * far)
        steps = _steps(exchange, self.ranks)
        if exchange in (Exchange.BROADCAST, Exchange.REDUCE):
            return base + (near if nodes == 1 else far)
        across = 0 if nodes == 1 else (2 if exchange is Exchange.ALL_REDUCE else 1) * (nodes - 1)
        if nodes > 1:
            near = max(near, _NET_OVERHEAD[protocol])
        latency = base + (steps - across) * near + across * far
        if nodes > 1 and exchange is Exchange.ALL_REDUCE and protocol == 2 and size >= 64 * self.channels * self.ranks:
            latency *= 1.9 if self.generation == "volta" else 1.4  # "plateau effect of ring"
        return latency


def _rate_inside(cluster: Cluster, members: list[int], kind: str, generation: str) -> float:
    """GB/s that the first rank can send to the others, counted as NCCL counts links."""
    if len(members) < 2:
        return float("inf")
    used = {cluster.path(members[0], other)[0] for other in members[1:]}
    rate = sum(cluster.bandwidths[link] for link in used) / 1e9
    return float(rate) * (_LANE[generation] if kind == "nvlink" else _PCIE)


def _rate_across(cluster: Cluster, members: list[int]) -> float:
    """GB/s of the NICs of these ranks."""
    template = cluster.templates[int(cluster.template_of[members[0] // cluster.ranks_per_node])]
    nics = {template.nic_of[d] for d in map(cluster.device_of, members) if d in template.nic_of}
    return sum(template.edges[template.port_out[nic]].bandwidth for nic in nics if nic in template.port_out) / 1e9


def _steps(exchange: Exchange, ranks: int) -> int:
    """Ring steps as NCCL counts them."""
    if exchange is Exchange.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks - 1 if exchange in (Exchange.ALL_GATHER, Exchange.REDUCE_SCATTER) else ranks
