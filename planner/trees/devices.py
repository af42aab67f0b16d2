"""The cluster as arrays: devices numbered, directed links between them, which of them are ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipplan.planner.topology import Cluster
from zipplan.planner.topology.model import kind_of
from zipplan.planner.topology.node import PORT

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Devices:
    """src, dst, capacity (bytes/s), link (number in the cluster): one entry per link in use. rank: device by rank.

    node: node by device, −1 for switches of the fabric. Inside one node there is no detour through the network, so
    links to NICs are left out there.
    """

    names: list[str]
    rank: Ints
    node: Ints
    src: Ints
    dst: Ints
    capacity: Ints
    link: Ints


def devices_of(cluster: Cluster) -> Devices:
    """Number the devices: node by node, then the fabric's switches."""
    alone = cluster.nodes == 1
    sizes = np.array([len(t.devices) for t in cluster.templates], dtype=np.int64)[cluster.template_of]
    first = np.concatenate(([0], np.cumsum(sizes)))
    switches = [] if alone else cluster.fabric.names
    number = {name: int(first[-1]) + i for i, name in enumerate(switches)}
    names, rank, ends, used, base = [], [], [], [], 0
    for node in range(cluster.nodes):
        template, start = cluster.templates[int(cluster.template_of[node])], int(first[node])
        place = {device: start + i for i, device in enumerate(template.devices)}
        names += [f"n{node}/{device}" for device in template.devices]
        rank += [place[device] for device in cluster.devices]
        for i, edge in enumerate(template.edges):
            if alone and "nic" in (kind_of(edge.src), kind_of(edge.dst)):
                continue
            if edge.kind == "nic":
                nic = edge.src if edge.dst == PORT else edge.dst
                place[PORT] = number[cluster.fabric.attach[node][template.nics.index(nic)]]
            ends.append((place[edge.src], place[edge.dst]))
            used.append(base + i)
        base += len(template.edges)
    if not alone:
        ends += [(number[edge.src], number[edge.dst]) for edge in cluster.fabric.edges]
        used += range(base, base + len(cluster.fabric.edges))
    src, dst = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    where = np.concatenate((np.repeat(np.arange(cluster.nodes), sizes), np.full(len(switches), -1)))
    link = np.array(used, dtype=np.int64)
    return Devices(names + switches, np.array(rank), where, src, dst, cluster.bandwidths[link], link)
