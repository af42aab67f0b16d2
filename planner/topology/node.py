"""One node template, expanded: directed links between devices, paths between ranks, the NIC of each rank."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import link_facts
from zipplan.planner.topology.model import LinkRow, Machine, Node, Override, expand, kind_of

PORT = "fabric"
"""Far end of a NIC's cable inside a template; the fabric says which switch that is for each node."""


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """A directed link of a template or of a fabric; bandwidth in bytes/s, latency in ps."""

    src: str
    dst: str
    kind: str
    bandwidth: int
    latency: int


@dataclass(frozen=True, slots=True)
class Path:
    """Edge numbers from one device to another, and the path class as NCCL names it (NVL, NVB, PIX, PXB, PHB, SYS);
    SHM when the ranks share the memory of a CPU host."""

    edges: tuple[int, ...]
    label: str


def natural(name: str) -> tuple[object, ...]:
    """Sort key that puts gpu2 before gpu10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


class NodeTemplate:
    """The links of one kind of node. `ranks`: devices that are ranks, in order; `nics`: ports in use, in order."""

    def __init__(
        self,
        machine: Machine,
        node: Node,
        ranks: int,
        overrides: Iterable[Override] = (),
        members: Collection[str] | None = None,
    ) -> None:
        """`members`: ranks that take part (default all); only they may pass NVLink traffic on, as NCCL has it."""
        self.p2p = machine.peer_to_peer(node)
        self.ranks = [f"{machine.endpoint}{i}" for i in range(ranks)]
        edges, self.nics, self.idle_nics = _expand_all(machine, node, ranks)
        self._members = set(self.ranks if members is None else members)
        self.edges = sorted(_overridden(edges, overrides), key=lambda e: (natural(e.src), natural(e.dst), e))
        self.devices = sorted({*self.ranks, *(d for e in self.edges for d in (e.src, e.dst) if d != PORT)}, key=natural)
        self._paths: dict[tuple[str, str], Path] = {}

    @cached_property
    def _out(self) -> Mapping[str, list[int]]:
        out: dict[str, list[int]] = {device: [] for device in (*self.devices, PORT)}
        for index, edge in enumerate(self.edges):
            out[edge.src].append(index)
        return out

    def path(self, src: str, dst: str) -> Path:
        """The path between two devices that NCCL would take: best class first, then latency. Raises TopologyError."""
        found = self._paths.get((src, dst))
        if found is None:
            found = self._paths[src, dst] = self._search(src, dst)
        return found

    def reaches(self, src: str, dst: str) -> bool:
        """Whether there is any path inside the node."""
        try:
            self.path(src, dst)
        except TopologyError:
            return False
        return True

    def _search(self, src: str, dst: str) -> Path:
        fast = {"nvlink", "xgmi", "loopback"}
        if (direct := self._shortest(src, dst, fast, {"nvswitch", "memory"})) is not None:
            return Path(direct, "SHM" if self.edges[direct[0]].kind == "loopback" else "NVL")
        if (hop := self._through_one_gpu(src, dst)) is not None:
            return Path(hop, "NVB")
        peers = kind_of(src) == kind_of(dst) == "gpu"
        if peers and not self.p2p:
            staged = self._staged(src, dst)
            if staged is not None:
                return Path(staged, self._host_label(staged))
        elif (below := self._shortest(src, dst, {"pcie"}, {"pci"})) is not None:
            return Path(below, "PIX" if len(below) <= 2 else "PXB")
        else:
            for kinds in ({"pcie", "c2c", "loopback"}, {"pcie", "c2c", "loopback", "cpu"}):
                host = self._shortest(src, dst, kinds, {"pci", "cpu", "hub", "memory"})
                if host is not None:
                    return Path(host, self._host_label(host))
        raise TopologyError(
            f"no path from {src} to {dst} inside the node; every rank must reach every other rank and a NIC in use",
            src=src,
            dst=dst,
        )

    def _host_label(self, edges: tuple[int, ...]) -> str:
        return "SYS" if any(self.edges[e].kind == "cpu" for e in edges) else "PHB"

    def _staged(self, src: str, dst: str) -> tuple[int, ...] | None:
        """Without peer-to-peer every byte is written to host memory near the sender and read from there."""
        kinds, transit = {"pcie", "c2c", "cpu"}, {"pci", "cpu", "hub"}
        best: tuple[int, str, tuple[int, ...], tuple[int, ...]] | None = None
        for cpu in (d for d in self.devices if kind_of(d) == "cpu"):
            up, down = self._shortest(src, cpu, kinds, transit), self._shortest(cpu, dst, kinds, transit)
            if up is not None and down is not None:
                cost = (sum(self.edges[e].latency for e in up), cpu, up, down)
                best = cost if best is None else min(best, cost)
        return best and best[2] + best[3]

    def _through_one_gpu(self, src: str, dst: str) -> tuple[int, ...] | None:
        if kind_of(src) != "gpu" or kind_of(dst) != "gpu":
            return None
        best: tuple[int, int, int, tuple[int, int]] | None = None
        for first in self._out[src]:
            middle = self.edges[first]
            if middle.kind not in ("nvlink", "xgmi") or middle.dst not in self._members:
                continue
            for second in self._out[middle.dst]:
                last = self.edges[second]
                if last.kind in ("nvlink", "xgmi") and last.dst == dst:
                    narrow = -min(middle.bandwidth, last.bandwidth)
                    cost = (narrow, middle.latency + last.latency, first, (first, second))
                    best = cost if best is None else min(best, cost)
        return best and best[3]

    def _shortest(self, src: str, dst: str, kinds: set[str], transit: set[str]) -> tuple[int, ...] | None:
        """Dijkstra by (latency, hops) over the allowed link kinds and intermediate device kinds."""
        queue: list[tuple[int, int, int, str, tuple[int, ...]]] = [(0, 0, 0, src, ())]
        done: set[str] = set()
        while queue:
            latency, hops, narrow, device, edges = heappop(queue)
            if device == dst:
                return edges
            if device in done or (device != src and kind_of(device) not in transit):
                continue
            done.add(device)
            for index in self._out[device]:
                edge = self.edges[index]
                if edge.kind in kinds and edge.dst not in done:
                    step = (latency + edge.latency, hops + 1, min(narrow, -edge.bandwidth), edge.dst, (*edges, index))
                    heappush(queue, step)
        return None

    @cached_property
    def nic_of(self) -> dict[str, str]:
        """Rank device → NIC that its traffic to other nodes uses: the nearest, neighbours take turns on equal ones."""
        order = {"PIX": 0, "PXB": 1, "PHB": 2, "SYS": 3}
        users: dict[tuple[str, ...], int] = {}
        chosen: dict[str, str] = {}
        for rank in self.ranks:
            cost = {}
            for nic in (n for n in self.nics if n in self.port_out and n in self.port_in):
                try:
                    path = self.path(rank, nic)
                except TopologyError:
                    continue
                latency = sum(self.edges[e].latency for e in path.edges)
                cost[nic] = (order.get(path.label, 0), latency, len(path.edges))
            if cost:
                nearest = min(cost.values())
                group = tuple(nic for nic in self.nics if cost.get(nic) == nearest)
                turn = users[group] = users.get(group, -1) + 1
                chosen[rank] = group[turn % len(group)]
        return chosen

    @cached_property
    def port_out(self) -> dict[str, int]:
        """NIC → edge number of its cable towards the fabric."""
        return {edge.src: index for index, edge in enumerate(self.edges) if edge.dst == PORT}

    @cached_property
    def port_in(self) -> dict[str, int]:
        """NIC → edge number of its cable from the fabric."""
        return {edge.dst: index for index, edge in enumerate(self.edges) if edge.src == PORT}


def _rows(row: LinkRow, ranks: int) -> list[tuple[str, str]]:
    if row.mesh is not None:
        names = expand(row.mesh, ranks)
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    left, right = expand(row.a or "", ranks), expand(row.b or "", ranks)
    if len(left) == 1:
        left *= len(right)
    if len(right) == 1:
        right *= len(left)
    if len(left) != len(right):
        raise ValueError(f"a = {row.a!r} names {len(left)} devices, b = {row.b!r} names {len(right)}")
    return list(zip(left, right, strict=True))


def _expand_all(machine: Machine, node: Node, ranks: int) -> tuple[list[Edge], list[str], list[str]]:
    """Edges (parallel ones of one kind and latency merged), NICs in use, NICs kept out."""
    merged: dict[tuple[str, str, str, int], int] = {}
    known = {f"{machine.endpoint}{i}" for i in range(ranks)}

    def add(src: str, dst: str, kind: str, bandwidth: int, latency: int) -> None:
        for end in (src, dst):
            if kind_of(end) in ("gpu", "rank") and end not in known:
                raise ValueError(
                    f"link {src} to {dst}: the node has ranks {machine.endpoint}0 to {ranks - 1}, no {end}"
                )
        if src == dst:
            raise ValueError(f"link from {src} to itself")
        key = (src, dst, kind, latency)
        merged[key] = merged.get(key, 0) + bandwidth

    try:
        for row in node.link:
            bandwidth, latency = machine.link_bandwidth(row), machine.link_latency(row)
            for a, b in _rows(row, ranks):
                add(a, b, row.kind, bandwidth, latency)
                if not row.one_way:
                    add(b, a, row.kind, bandwidth, latency)
        nics: dict[str, bool] = {}
        for port in node.nic:
            for name in expand(port.name, ranks):
                if kind_of(name) != "nic":
                    raise ValueError(f"[[node.nic]] name = {port.name!r}: a port is called nic0, nic1, ...")
                if name in nics:
                    raise ValueError(f"{name} is described twice")
                nics[name] = port.use
                if port.use and machine.fabric.kind != "none":
                    latency = port.latency if port.latency is not None else link_facts("nic").latency
                    add(name, PORT, "nic", port.bandwidth, latency)
                    add(PORT, name, "nic", port.bandwidth, latency)
    except ValueError as error:
        raise TopologyError(f"{machine.name}: {error}") from None
    edges = [Edge(src, dst, kind, rate, latency) for (src, dst, kind, latency), rate in merged.items()]
    ordered = sorted(nics, key=natural)
    return edges, [n for n in ordered if nics[n]], [n for n in ordered if not nics[n]]


def link_name(text: str) -> list[tuple[str, str]]:
    """'gpu5>nvswitch0' → that direction; 'gpu5-nvswitch0' → both. Raises TopologyError."""
    for mark in (">", "-"):
        a, found, b = text.partition(mark)
        if found and a and b:
            return [(a, b)] if mark == ">" else [(a, b), (b, a)]
    raise TopologyError(f'link = {text!r}: expected "gpu5>nvswitch0" (one direction) or "gpu5-nvswitch0" (both)')


def _overridden(edges: list[Edge], overrides: Iterable[Override]) -> list[Edge]:
    for override in overrides:
        for src, dst in link_name(override.link):
            hit = [e for e in edges if (e.src, e.dst) == (src, dst)]
            if not hit:
                raise TopologyError(f"[[override]] link = {override.link!r}: the node has no link from {src} to {dst}")
            edges = [e for e in edges if e not in hit]
            if not override.failed:
                first = hit[0]
                edges.append(
                    Edge(
                        src,
                        dst,
                        first.kind,
                        override.bandwidth if override.bandwidth is not None else sum(e.bandwidth for e in hit),
                        override.latency if override.latency is not None else first.latency,
                    )
                )
    return edges
