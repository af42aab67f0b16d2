"""A lowered exchange: the flows of one algorithm on one group of ranks, independent of size and protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.fold import Ints
from zipplan.planner.network import Paths
from zipplan.planner.topology import Cluster
from zipplan.planner.units import PS_PER_SECOND

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """What happens one after the other: steps (inside a node, across nodes), each as long as its slowest link.

    pieces: equal parts of a rank's traffic that follow each other where chunks do not cut it finer. message: bytes of
    one such part (ring) or of the whole (tree, switch), per byte put in. rails: ranks of a node that talk to other
    nodes at once, 0 when none does. peers: ranks that a rank sends to at once, where that counts.
    """

    inside: int
    across: int
    pieces: float
    message: float
    rails: int = 0
    peers: int = 0


@dataclass(frozen=True, slots=True)
class Way:
    """One exchange on one group: `share[i]` × (bytes that each rank puts in) flow along path i.

    across: whether a flow leaves its node. hop: latency of the links of the slowest step (inside, across), ps.
    load: ps per byte on the links in use, (from flows inside, from flows across), each pair once. moved: bytes that the
    busiest rank sends, (inside, across), per byte put in.
    """

    algorithm: str
    paths: Paths
    share: Floats
    across: NDArray[np.bool_]
    steps: Steps
    hop: tuple[int, int]
    load: tuple[Floats, Floats]
    moved: tuple[float, float]

    def wire(self, inside: float, across: float) -> float:
        """ps per byte put in on the busiest link when flows reach these shares of the link rate."""
        return float((self.load[0] / inside + self.load[1] / across).max())

    def costs_like(self, other: Way) -> bool:
        """Whether another way takes as long at every size, flow by flow of the same size."""
        mine, its = ((*way.load, way.share, way.across) for way in (self, other))
        same = (self.steps, self.hop, self.moved) == (other.steps, other.hop, other.moved)
        return same and all(np.array_equal(a, b) for a, b in zip(mine, its, strict=True))


@dataclass(frozen=True, slots=True)
class Hops:
    """Flows from rank src[i] to rank dst[i], each of `share[i]` × the bytes that a rank puts in."""

    src: Ints
    dst: Ints
    share: Floats

    @classmethod
    def listed(cls, parts: list[Hops]) -> Hops:
        """The flows of several sets."""
        src, dst, share = (np.concatenate([getattr(p, field) for p in parts]) for field in ("src", "dst", "share"))
        return cls(src, dst, share)

    @classmethod
    def joined(cls, parts: list[Hops]) -> Hops:
        """Flows of several sets with the same ends become one."""
        every = cls.listed(parts)
        width = int(every.dst.max(initial=0)) + 1
        ends, which = np.unique(every.src * width + every.dst, return_inverse=True)
        return cls(*np.divmod(ends, width), np.bincount(which, every.share).astype(np.float64))


def build(cluster: Cluster, algorithm: str, hops: Hops, steps: Steps) -> Way:
    """Route the hops and sum what is the same at every size."""
    across = hops.src // cluster.ranks_per_node != hops.dst // cluster.ranks_per_node
    even = bool((hops.share == hops.share[0]).all())
    kind = across if even else 2 * np.unique(hops.share, return_inverse=True)[1] + across
    paths = Paths(*cluster.paths(hops.src, hops.dst), kind.astype(np.int64))
    latency = np.bincount(paths.owner, cluster.latencies[paths.links], paths.count)
    rate = cluster.bandwidths / PS_PER_SECOND
    used = np.flatnonzero(np.bincount(paths.links, minlength=len(rate)))
    load, moved = [], []
    for chosen in (~across, across):
        bytes_ = np.bincount(paths.links, (hops.share * chosen)[paths.owner], len(rate))
        load.append(bytes_[used] / rate[used])
        moved.append(float(np.bincount(hops.src, hops.share * chosen).max(initial=0)))
    inside, beyond = np.unique(np.stack(load), axis=1)
    hop = int(latency[~across].max(initial=0)), int(latency[across].max(initial=0))
    return Way(algorithm, paths, hops.share, across, steps, hop, (inside, beyond), (moved[0], moved[1]))


def by_node(cluster: Cluster, group: range) -> list[list[int]]:
    """The ranks of a group, node by node."""
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(rank // cluster.ranks_per_node, []).append(rank)
    return list(nodes.values())


def heads(cluster: Cluster, members: list[int]) -> list[int]:
    """The ranks of a node through which its traffic leaves: for every NIC in use, those nearest to it.

    On most machines these are all ranks; where NICs are missing, NCCL leaves through GPUs beside the others.
    """
    template = cluster.templates[int(cluster.template_of[members[0] // cluster.ranks_per_node])]
    far: dict[str, dict[int, int]] = {}
    for rank in members:
        device = cluster.device_of(rank)
        nic = template.nic_of[device]
        far.setdefault(nic, {})[rank] = len(template.path(device, nic).edges)
    nearest = {rank for ranks in far.values() for rank, way in ranks.items() if way == min(ranks.values())}
    return [rank for rank in members if rank in nearest]
