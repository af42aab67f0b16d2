"""Fabrics: which switch each NIC is cabled to, the links between switches, and routes over them.

Every fabric becomes one list of directed links between switches; routing is shortest time (latency, then hops) with
equal-cost paths told apart by the destination port (InfiniBand fat-tree routing) or a hash of both ends (Ethernet).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import link_facts
from zipplan.planner.topology.model import Fabric, Override
from zipplan.planner.topology.node import Edge, link_name, natural

Numbers = npt.NDArray[np.int64]
_HOPS = 2**16  # cost of a way: latency first, then hops
_FAR = 2**62


@dataclass(frozen=True, slots=True)
class Ports:
    """What a fabric needs to know of the nodes: how many, NICs in use on each, bytes/s of one NIC."""

    nodes: int
    nics: int
    bandwidth: int


class Switches:
    """The built fabric. `edges`: directed links between switches; `attach[node][position]`: the switch of a NIC."""

    def __init__(self, fabric: Fabric, ports: Ports, overrides: Sequence[Override] = ()) -> None:
        self.kind = fabric.kind
        self.by_destination = fabric.routing == "modulo"
        """Whether a route depends on the switch where it starts and the NIC where it ends, and on nothing else."""
        self._latency = fabric.latency if fabric.latency is not None else link_facts("fabric").latency
        build = {
            "none": self._none,
            "switch": self._single,
            "direct": self._direct,
            "rail": self._leaf_spine,
            "tree": self._leaf_spine,
            "dragonfly": self._dragonfly,
            "graph": self._graph,
        }[fabric.kind]
        self.attach, merged = build(fabric, ports)
        self.edges = self._overridden(merged, overrides)
        self.names = sorted({*(e.src for e in self.edges), *(s for row in self.attach for s in row)}, key=natural)
        self._to: dict[int, tuple[Numbers, Numbers]] = {}

    # Each builder returns (attach, links); links maps (a, b) of one direction to (bandwidth, latency).

    def _none(self, fabric: Fabric, ports: Ports) -> _Built:
        if ports.nodes > 1:
            raise TopologyError(
                f"{ports.nodes} nodes, but the description has no [fabric] that joins them; add NICs as "
                '[[node.nic]] and a fabric, for example kind = "switch"'
            )
        return [[]], {}

    def _single(self, fabric: Fabric, ports: Ports) -> _Built:
        return [["switch0"] * ports.nics] * ports.nodes, {}

    def _direct(self, fabric: Fabric, ports: Ports) -> _Built:
        if ports.nodes > 2:
            raise TopologyError(f'a direct fabric joins 2 nodes, found {ports.nodes}; use kind = "graph" or a switch')
        return [[f"cable{i}" for i in range(ports.nics)]] * ports.nodes, {}

    def _leaf_spine(self, fabric: Fabric, ports: Ports) -> _Built:
        per_leaf, spines = fabric.nodes_per_leaf or 1, fabric.spines or 1
        rails = ports.nics if fabric.kind == "rail" else 1
        groups = -(-ports.nodes // per_leaf)
        attach = [
            [f"leaf{node // per_leaf * rails + (nic if rails > 1 else 0)}" for nic in range(ports.nics)]
            for node in range(ports.nodes)
        ]
        down = per_leaf * (1 if fabric.kind == "rail" else ports.nics) * ports.bandwidth
        up = max(1, round(down / fabric.oversubscription / spines))
        links: dict[tuple[str, str], tuple[int, int]] = {}
        if groups * rails > 1:
            for leaf in range(groups * rails):
                for spine in range(spines):
                    _both(links, f"leaf{leaf}", f"spine{spine}", up, self._latency)
        return attach, links

    def _dragonfly(self, fabric: Fabric, ports: Ports) -> _Built:
        per_switch, per_group = fabric.nodes_per_switch or 1, fabric.switches_per_group or 1
        count = -(-ports.nodes // per_switch)
        groups = -(-count // per_group)
        attach = [[f"switch{node // per_switch}"] * ports.nics for node in range(ports.nodes)]
        links: dict[tuple[str, str], tuple[int, int]] = {}
        local, distant = fabric.local_bandwidth or 1, fabric.global_bandwidth or 1
        sizes = [min(per_group, count - group * per_group) for group in range(groups)]
        for group, size in enumerate(sizes):
            members = [f"switch{group * per_group + i}" for i in range(size)]
            for i, a in enumerate(members):
                for b in members[i + 1 :]:
                    _both(links, a, b, local, self._latency)
        # One bundle of global cables per pair of groups, spread over the switches of a group in turn.
        for low in range(groups):
            for high in range(low + 1, groups):
                near = low * per_group + (high - 1) % sizes[low]
                far = high * per_group + low % sizes[high]
                _both(links, f"switch{near}", f"switch{far}", distant, self._latency)
        return attach, links

    def _graph(self, fabric: Fabric, ports: Ports) -> _Built:
        found: dict[tuple[int, int], str] = {}
        links: dict[tuple[str, str], tuple[int, int]] = {}
        for cable in fabric.link:
            latency = cable.latency if cable.latency is not None else self._latency
            ends = [_host_port(cable.a), _host_port(cable.b)]
            if ends[0] and ends[1]:
                name = f"cable:{min(cable.a, cable.b)}"
                found[ends[0]] = found[ends[1]] = name
            elif ends[0] or ends[1]:
                port, switch = (ends[0], cable.b) if ends[0] else (ends[1], cable.a)
                assert port is not None
                if port in found:
                    raise TopologyError(f"[[fabric.link]]: node{port[0]}/nic{port[1]} has two cables")
                found[port] = switch
            else:
                _both(links, cable.a, cable.b, cable.bandwidth * cable.lanes, latency)
        attach = []
        for node in range(ports.nodes):
            missing = [nic for nic in range(ports.nics) if (node, nic) not in found]
            if missing:
                known = len({n for n, _ in found})
                raise TopologyError(
                    f"[[fabric.link]] has no cable for node{node}/nic{missing[0]}; the fabric names {known} nodes, "
                    f"the cluster has {ports.nodes} nodes of {ports.nics} NICs"
                )
            attach.append([found[node, nic] for nic in range(ports.nics)])
        return attach, links

    def _overridden(self, links: _Links, overrides: Iterable[Override]) -> list[Edge]:
        for override in overrides:
            for pair in link_name(override.link):
                if pair not in links:
                    raise TopologyError(
                        f"[[override]] link = {override.link!r}: the fabric has no link from {pair[0]} to {pair[1]}"
                    )
                rate, latency = links[pair]
                if override.failed:
                    del links[pair]
                else:
                    links[pair] = (
                        override.bandwidth if override.bandwidth is not None else rate,
                        override.latency if override.latency is not None else latency,
                    )
        return [Edge(a, b, "fabric", rate, latency) for (a, b), (rate, latency) in links.items()]

    @cached_property
    def _sorted(self) -> tuple[dict[str, int], Numbers, Numbers, Numbers, Numbers]:
        """(number of each switch, edges by source, their sources, their destinations, their costs)."""
        number = {name: i for i, name in enumerate(self.names)}
        src = np.array([number[edge.src] for edge in self.edges], dtype=np.int64)
        order = np.argsort(src, kind="stable")
        dst = np.array([number[edge.dst] for edge in self.edges], dtype=np.int64)
        cost = np.array([edge.latency * _HOPS + 1 for edge in self.edges], dtype=np.int64)
        return number, order, src[order], dst[order], cost[order]

    def _towards(self, target: int) -> tuple[Numbers, Numbers]:
        """(equally good edges towards target by switch, where those of each switch begin); Bellman and Ford."""
        if target not in self._to:
            number, edges, src, dst, each = self._sorted
            sources, start = np.unique(src, return_index=True)
            cost = np.full(len(number), _FAR)
            cost[target] = 0
            over = cost[dst] + each
            for _ in number:
                over = cost[dst] + each
                nearer = np.minimum(cost[sources], np.minimum.reduceat(over, start)) if len(start) else cost[sources]
                if (nearer == cost[sources]).all():
                    break
                cost[sources] = nearer
            best = (over == cost[src]) & (over < _FAR)
            begin = np.concatenate(([0], np.cumsum(np.bincount(src[best], minlength=len(number)))))
            self._to[target] = edges[best], begin
        return self._to[target]

    def route(self, src: tuple[int, int], dst: tuple[int, int]) -> tuple[int, ...]:
        """Edge numbers from the switch of NIC (node, position) src to that of dst. Raises TopologyError."""
        edges, _ = self.routes(np.array([src[0]]), src[1], np.array([dst[0]]), dst[1])
        return tuple(edges.tolist())

    def routes(self, a: Numbers, out: int, b: Numbers, into: int) -> tuple[Numbers, Numbers]:
        """Many routes at once, from NIC `out` of node a[k] to NIC `into` of node b[k]: (edges, whose), hop by hop.

        Raises TopologyError where there is none.
        """
        here, there = self._switch[a, out], self._switch[b, into]
        if self.by_destination:
            keys = self._port_number[b, into]
        else:
            keys = np.array(
                [zlib.crc32(repr(((x, out), (y, into))).encode()) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            )
        edges, whose = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        order = np.argsort(there, kind="stable")
        order = order[here[order] != there[order]]
        for at in np.split(order, np.flatnonzero(np.diff(there[order])) + 1) if len(order) else ():
            target = int(there[at[0]])
            best, begin = self._towards(target)
            spot, key = here[at], keys[at]
            lost = begin[spot] == begin[spot + 1]
            if lost.any():
                k = int(at[lost][0])
                near, far = self.names[here[k]], self.names[target]
                raise TopologyError(f"no way from node {a[k]} ({near}) to node {b[k]} ({far}) through the fabric")
            while len(at):
                first, choices = begin[spot], begin[spot + 1] - begin[spot]
                edge = best[first + key % choices]
                edges.append(edge)
                whose.append(at)
                going = self._ends[edge] != target
                at, spot, key = at[going], self._ends[edge][going], (key // choices)[going]
        return np.concatenate(edges), np.concatenate(whose)

    @cached_property
    def _ends(self) -> Numbers:
        """Number of the switch that each edge leads to."""
        number = self._sorted[0]
        return np.array([number[edge.dst] for edge in self.edges], dtype=np.int64)

    @cached_property
    def _switch(self) -> Numbers:
        """Number of the switch that each NIC is on, by node and position; −1 for none."""
        number = self._sorted[0]
        return self._by_port(lambda node, nic: number[self.attach[node][nic]])

    @cached_property
    def _port_number(self) -> Numbers:
        """Place of each NIC among those on its switch, by node and position."""
        seen: dict[str, int] = {}

        def place(node: int, nic: int) -> int:
            name = self.attach[node][nic]
            seen[name] = seen.get(name, -1) + 1
            return seen[name]

        return self._by_port(place)

    def _by_port(self, value: Callable[[int, int], int]) -> Numbers:
        found = np.full((len(self.attach), max(map(len, self.attach))), -1, dtype=np.int64)
        for node, row in enumerate(self.attach):
            for nic in range(len(row)):
                found[node, nic] = value(node, nic)
        return found

    def parts(self) -> list[set[int]]:
        """Groups of nodes that can reach each other through the fabric, largest first."""
        root: dict[object, object] = {}

        def find(item: object) -> object:
            while root.setdefault(item, item) != item:
                root[item] = root[root[item]]
                item = root[item]
            return item

        for edge in self.edges:
            root[find(edge.src)] = find(edge.dst)
        for node, row in enumerate(self.attach):
            for switch in set(row):
                root[find(node)] = find(switch)
        groups: dict[object, set[int]] = {}
        for node in range(len(self.attach)):
            groups.setdefault(find(node), set()).add(node)
        return sorted(groups.values(), key=lambda g: (-len(g), min(g)))


_Links = dict[tuple[str, str], tuple[int, int]]
_Built = tuple[list[list[str]], _Links]


def _both(links: _Links, a: str, b: str, bandwidth: int, latency: int) -> None:
    """A cable, both directions; cables that run in parallel are one link of their summed bandwidth."""
    for pair in ((a, b), (b, a)):
        rate, old = links.get(pair, (0, latency))
        links[pair] = (rate + bandwidth, max(old, latency))


def _host_port(end: str) -> tuple[int, int] | None:
    """'node3/nic0' → (3, 0); None for a switch."""
    node, slash, nic = end.partition("/")
    if not slash:
        return None
    if node[:4] == "node" and node[4:].isdigit() and nic[:3] == "nic" and nic[3:].isdigit():
        return int(node[4:]), int(nic[3:])
    raise TopologyError(f"[[fabric.link]] end {end!r}: expected node0/nic0 or the name of a switch")
