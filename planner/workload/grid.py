"""Which ranks meet in one collective, and the part of the cluster that they run on."""

from __future__ import annotations

from dataclasses import dataclass

from zipplan.planner.errors import ConfigError
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster


@dataclass(frozen=True, slots=True)
class Grid:
    """`nodes` × `per_node` ranks; inside a node every `stride`-th."""

    nodes: int
    per_node: int
    stride: int = 1

    @property
    def ranks(self) -> int:
        """Ranks that meet."""
        return self.nodes * self.per_node

    @property
    def text(self) -> str:
        """'8 × 4'."""
        return f"{self.nodes} × {self.per_node}"


def grid(size: int, stride: int, cluster: Cluster, what: str) -> Grid:
    """The grid of `size` ranks, `stride` apart, counted from rank 0. Raises ConfigError when it cuts nodes unevenly."""
    per_node = cluster.ranks_per_node
    if stride >= per_node and stride % per_node == 0:
        return Grid(size, 1)
    if per_node % stride == 0 and size * stride <= per_node and per_node % (size * stride) == 0:
        return Grid(1, size, stride)
    if per_node % stride == 0 and size * stride % per_node == 0:
        return Grid(size * stride // per_node, per_node // stride, stride)
    raise ConfigError(
        f"{what}: groups of {size} ranks, {stride} apart, do not divide nodes of {per_node} ranks; "
        "choose sizes that divide a node or are whole nodes"
    )


def part(cluster: Cluster, wanted: Grid) -> Cluster:
    """The sub-cluster of one group, NICs slowed by what the other groups of its nodes take of them.

    Groups run at once: where one NIC serves several GPUs, a group gets the share of its own. Links inside a node are
    taken as its own.
    """
    if (wanted.nodes, wanted.per_node) == (cluster.nodes, cluster.ranks_per_node):
        return cluster
    chosen = [
        int(cluster.devices[i * wanted.stride].lstrip("abcdefghijklmnopqrstuvwxyz")) for i in range(wanted.per_node)
    ]
    machine = cluster.machine
    if wanted.nodes > 1:
        mine = {cluster.rail_of(i * wanted.stride) for i in range(wanted.per_node)}
        there = sum(cluster.rail_of(local) in mine for local in range(cluster.ranks_per_node))
        if there > wanted.per_node:
            machine = Settings((("link.nic.bandwidth", f"{wanted.per_node / there}x"),)).machine(machine)
    return build_cluster(machine, nodes=wanted.nodes, gpus=chosen)
