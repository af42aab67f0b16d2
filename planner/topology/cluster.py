"""A machine × a number of nodes: ranks, directed links, paths, fingerprint. Built from templates, expanded lazily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.canon import fingerprint
from zipplan.planner.topology.fabric import Ports, Switches
from zipplan.planner.topology.graph import to_networkx
from zipplan.planner.topology.model import Gpu, Machine, ResolvedTransport
from zipplan.planner.topology.node import PORT, NodeTemplate

Numbers = npt.NDArray[np.int64]


MOST_NODES = 100_000
"""More than any cluster that exists; beyond it a typing error is likelier than a plan."""


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link. bandwidth: bytes/s in this direction; latency: ps; names are n<node>/<device> or a switch."""

    index: int
    name: str
    src: str
    dst: str
    kind: str
    bandwidth: int
    latency: int


class Cluster:
    """Ranks and links of a whole job. rank = node × ranks_per_node + local; link numbers are indices into `links`.

    gpu: model, sms, hbm_bandwidth (bytes/s), None on CPU hosts. transport: constants, every gap filled.
    """

    def __init__(self, machine: Machine, nodes: int, locals_: tuple[int, ...], device_ranks: int) -> None:
        self.machine, self.nodes = machine, nodes
        self.ranks_per_node = len(locals_)
        self.ranks = nodes * self.ranks_per_node
        self.gpu: Gpu | None = machine.gpu
        self.transport: ResolvedTransport = machine.full_transport()
        self.devices = tuple(f"{machine.endpoint}{i}" for i in locals_)
        self.templates, self.template_of = _templates(machine, nodes, device_ranks, self.devices)
        nic_counts = {len(t.nics) for t in self.templates}
        first = self.templates[0]
        rate = max((first.edges[i].bandwidth for i in first.port_out.values()), default=1)
        self.fabric = Switches(
            machine.fabric,
            Ports(nodes, max(nic_counts), rate),
            [o for o in machine.override if o.node is None],
        )
        sizes = np.array([len(t.edges) for t in self.templates], dtype=np.int64)
        self._first = np.concatenate(([0], np.cumsum(sizes[self.template_of])))
        self._check()

    def _check(self) -> None:
        for number, template in enumerate(self.templates):
            node = int(np.argmax(self.template_of == number))
            for device in self.devices[1:]:
                for pair in ((self.devices[0], device), (device, self.devices[0])):
                    if not template.reaches(*pair):
                        raise TopologyError(
                            f"{self.machine.name}: node {node} falls apart: no path from {pair[0]} to {pair[1]}; "
                            "add the missing [[node.link]] or take these GPUs out with --gpus",
                        )
            if self.nodes > 1:
                lost = [d for d in self.devices if d not in template.nic_of]
                if lost:
                    raise TopologyError(
                        f"{self.machine.name}: node {node}: {', '.join(lost)} reach no NIC in use, so {self.nodes} "
                        "nodes cannot talk; add [[node.nic]] ports and links to them, or plan for one node"
                    )
        parts = self.fabric.parts()
        if self.nodes > 1 and len(parts) > 1:
            shown = "; ".join(_ranges(part) for part in parts[:4]) + ("; ..." if len(parts) > 4 else "")
            raise TopologyError(
                f"{self.machine.name}: the fabric falls into {len(parts)} parts without a link between them: "
                f"nodes {shown}; add the missing cables or plan each part alone",
                parts=[sorted(part) for part in parts],
            )

    def shifts(self, groups: Sequence[range]) -> Numbers | None:
        """By group, how far its links are from those of the first, on equal nodes.

        None unless each group lies inside one node, and there as the others do.
        """
        (first, local), (last, _) = (divmod(groups[0][end], self.ranks_per_node) for end in (0, -1))
        starts, locals_ = np.divmod(np.array([group[0] for group in groups], dtype=np.int64), self.ranks_per_node)
        stops = np.array([group[-1] for group in groups], dtype=np.int64) // self.ranks_per_node
        if first != last or (locals_ != local).any() or (starts != stops).any():
            return None
        shifts: Numbers = self._first[starts] - self._first[first]
        return shifts

    # ---- ranks

    def node_of(self, rank: int) -> int:
        """Node number of a rank."""
        return self._valid(rank) // self.ranks_per_node

    def local_of(self, rank: int) -> int:
        """Number of a rank inside its node."""
        return self._valid(rank) % self.ranks_per_node

    def device_of(self, rank: int) -> str:
        """'gpu5' for the rank that runs on GPU 5 of its node."""
        return self.devices[self.local_of(rank)]

    def rail_of(self, rank: int) -> int | None:
        """Position of the NIC that this rank uses among the NICs in use of its node; None when it has none."""
        template = self._template(self.node_of(rank))
        nic = template.nic_of.get(self.device_of(rank))
        return None if nic is None else template.nics.index(nic)

    def _valid(self, rank: int) -> int:
        if not 0 <= rank < self.ranks:
            raise TopologyError(f"rank {rank} of {self.ranks}: {self.machine.name} has ranks 0 to {self.ranks - 1}")
        return rank

    def _template(self, node: int) -> NodeTemplate:
        return self.templates[int(self.template_of[node])]

    # ---- links

    @cached_property
    def links(self) -> Sequence[Link]:
        """All directed links: node by node, then the fabric's. Objects are made on access."""
        return _Links(self)

    @cached_property
    def bandwidths(self) -> npt.NDArray[np.int64]:
        """Bytes/s by link number."""
        return self._column("bandwidth")

    @cached_property
    def latencies(self) -> npt.NDArray[np.int64]:
        """Picoseconds by link number."""
        return self._column("latency")

    def _column(self, field: str) -> npt.NDArray[np.int64]:
        per_template = [np.array([getattr(e, field) for e in t.edges], dtype=np.int64) for t in self.templates]
        parts = [per_template[number] for number in self.template_of]
        parts.append(np.array([getattr(e, field) for e in self.fabric.edges], dtype=np.int64))
        column = np.concatenate(parts)
        column.setflags(write=False)
        return column

    @cached_property
    def graph(self) -> Any:
        """networkx MultiDiGraph of the whole cluster (see zipplan.planner.topology.graph for the attribute names)."""
        return to_networkx(self)

    # ---- paths

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Link numbers that a message from rank src to rank dst crosses, in order. Raises TopologyError."""
        a, b = self.node_of(src), self.node_of(dst)
        if src == dst:
            raise TopologyError(f"no path from rank {src} to itself")
        from_, to = self.device_of(src), self.device_of(dst)
        if a == b:
            return self._inside(a, from_, to)
        out, into, leave, enter = self._across(a, from_, b, to)
        base = int(self._first[-1])
        return (
            *(int(self._first[a]) + edge for edge in leave),
            *(base + edge for edge in self.fabric.route((a, out), (b, into))),
            *(int(self._first[b]) + edge for edge in enter),
        )

    def paths(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """The links of many paths at once: (links, owner), where path `owner[i]` (src[k] to dst[k]) crosses links[i].

        Pairs that differ only in their nodes share their way inside the nodes, so a million paths take a second.
        """
        (a, from_), (b, to) = np.divmod(src, self.ranks_per_node), np.divmod(dst, self.ranks_per_node)
        shape = (len(self.templates), len(self.templates), self.ranks_per_node, self.ranks_per_node, 2)
        kinds = np.ravel_multi_index((self.template_of[a], self.template_of[b], from_, to, (a == b).astype(int)), shape)
        _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
        links, owner = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        by_kind = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
        for example, pairs in zip(first, by_kind, strict=False):
            names = self.devices[from_[example]], self.devices[to[example]]
            if a[example] == b[example]:
                inside = self._template(a[example]).path(*names).edges
                parts = [(self._first[a[pairs]], inside)]
            else:
                out, into, leave, enter = self._across(a[example], names[0], b[example], names[1])
                parts = [(self._first[a[pairs]], leave), (self._first[b[pairs]], enter)]
                middle, whose = self._routes(a[pairs], out, b[pairs], into)
                links.append(middle)
                owner.append(pairs[whose])
            for base, edges in parts:
                links.append((base[:, None] + np.array(edges, dtype=np.int64)).ravel())
                owner.append(np.repeat(pairs, len(edges)))
        return np.concatenate(links), np.concatenate(owner)

    def _routes(self, a: Numbers, out: int, b: Numbers, into: int) -> tuple[Numbers, Numbers]:
        """(links, owner) through the fabric from NIC `out` of nodes a[k] to NIC `into` of nodes b[k]."""
        edges, whose = self.fabric.routes(a, out, b, into)
        return int(self._first[-1]) + edges, whose

    def _across(self, a: int, from_: str, b: int, to: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """From a device of node a to one of node b: NIC positions (out, into), edges inside a, edges inside b."""
        near, far = self._template(a), self._template(b)
        exit_, entry = near.nic_of[from_], far.nic_of[to]
        out, into = near.nics.index(exit_), far.nics.index(entry)
        before: tuple[int, ...] = ()
        if self.machine.fabric.pxn and out != into and (proxy := self._proxy(a, from_, into)) is not None:
            before, from_, exit_, out = near.path(from_, proxy).edges, proxy, near.nics[into], into
        leave = (*before, *near.path(from_, exit_).edges, near.port_out[exit_])
        return out, into, leave, (far.port_in[entry], *far.path(entry, to).edges)

    def label(self, src: int, dst: int) -> str:
        """Path class as NCCL names it: LOC, NVL, NVB, PIX, PXB, PHB, SYS, PXN or NET."""
        if src == dst:
            return "LOC"
        a, b = self.node_of(src), self.node_of(dst)
        if a == b:
            return self._template(a).path(self.device_of(src), self.device_of(dst)).label
        first = self.links[self.path(src, dst)[0]]
        return "PXN" if self.machine.fabric.pxn and first.kind in ("nvlink", "xgmi") else "NET"

    def _inside(self, node: int, src: str, dst: str) -> tuple[int, ...]:
        base = int(self._first[node])
        return tuple(base + edge for edge in self._template(node).path(src, dst).edges)

    def _proxy(self, node: int, device: str, rail: int) -> str | None:
        """The peer over NVLink whose NIC is on the wanted rail."""
        template = self._template(node)
        for other in self.devices:
            if other != device and template.nic_of[other] == template.nics[rail]:
                return other if template.path(device, other).label == "NVL" else None
        return None

    # ---- identity

    @cached_property
    def fingerprint(self) -> str:
        """'sha256:…' over shape, bandwidths, latencies and constants; names and the order in the file do not count."""
        return fingerprint(self)

    def __repr__(self) -> str:
        return f"<Cluster {self.machine.name}: {self.nodes} nodes x {self.ranks_per_node} ranks>"


class _Links(Sequence[Link]):
    """The links of a cluster, made when asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._total = int(cluster._first[-1]) + len(cluster.fabric.edges)

    def __len__(self) -> int:
        return self._total

    @overload
    def __getitem__(self, index: int) -> Link: ...

    @overload
    def __getitem__(self, index: slice) -> list[Link]: ...

    def __getitem__(self, index: int | slice) -> Link | list[Link]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._total))]
        if index < 0:
            index += self._total
        if not 0 <= index < self._total:
            raise IndexError(f"link {index} of {self._total}")
        cluster = self._cluster
        if index >= cluster._first[-1]:
            edge = cluster.fabric.edges[index - int(cluster._first[-1])]
            src, dst = edge.src, edge.dst
        else:
            node = int(np.searchsorted(cluster._first, index, side="right")) - 1
            template = cluster._template(node)
            edge = template.edges[index - int(cluster._first[node])]
            src, dst = (
                cluster.fabric.attach[node][template.nics.index(other)] if end == PORT else f"n{node}/{end}"
                for end, other in ((edge.src, edge.dst), (edge.dst, edge.src))
            )
        return Link(index, f"{src}>{dst}", src, dst, edge.kind, edge.bandwidth, edge.latency)


def _templates(
    machine: Machine, nodes: int, ranks: int, members: Sequence[str]
) -> tuple[list[NodeTemplate], npt.NDArray[np.int64]]:
    """Distinct templates and, per node, which one: the file's templates plus one for every node with overrides."""
    if len(machine.node) == 1:
        which = np.zeros(nodes, dtype=np.int64)
    else:
        which = np.repeat(np.arange(len(machine.node)), [n.count or 0 for n in machine.node])
        if nodes > len(which):
            raise TopologyError(
                f"{machine.name} describes {len(which)} unlike nodes; {nodes} were asked for (raise a count)"
            )
        which = which[:nodes]
    templates = [NodeTemplate(machine, node, ranks, members=members) for node in machine.node]
    special: dict[int, list[Any]] = {}
    for override in machine.override:
        if override.node is not None:
            special.setdefault(override.node, []).append(override)
    for node, overrides in special.items():
        if node < nodes:
            templates.append(NodeTemplate(machine, machine.node[int(which[node])], ranks, overrides, members))
            which[node] = len(templates) - 1
    return templates, which


def _ranges(numbers: set[int]) -> str:
    """'0-3,7' for {0, 1, 2, 3, 7}."""
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def build_cluster(
    machine: Machine,
    *,
    nodes: int | None = None,
    ranks_per_node: int | None = None,
    gpus: Sequence[int] | None = None,
) -> Cluster:
    """A cluster of `nodes` copies of the machine's node; `ranks_per_node` or `gpus` uses a part of each.

    Defaults: the nodes that the file lists or [fabric] default_nodes, and all ranks of a node. Raises TopologyError.
    """
    if nodes is None:
        listed = sum(node.count or 0 for node in machine.node)
        nodes = listed or machine.fabric.default_nodes
    if not 1 <= nodes <= MOST_NODES:
        raise TopologyError(f"{machine.name}: {nodes} nodes; expected 1 to {MOST_NODES:,}")
    have = machine.node[0].ranks
    elastic = machine.gpu is None and any("{*}" in (row.a or "") + (row.b or "") for row in machine.node[0].link)
    if gpus is not None:
        chosen = tuple(gpus)
        if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= g < have for g in chosen):
            shared = "; NCCL does not allow two ranks on one GPU, gloo does" if len(set(chosen)) < len(chosen) else ""
            raise TopologyError(
                f"{machine.name}: GPUs {list(chosen)}; expected distinct numbers from 0 to {have - 1}{shared}"
            )
        if ranks_per_node not in (None, len(chosen)):
            raise TopologyError(f"{len(chosen)} GPUs chosen, but {ranks_per_node} ranks per node asked for")
    else:
        wanted = have if ranks_per_node is None else ranks_per_node
        if wanted < 1 or (wanted > have and not elastic) or wanted > 4096:
            shared = "; NCCL does not allow two ranks on one GPU, gloo does" if wanted > have and machine.gpu else ""
            raise TopologyError(f"{machine.name}: {wanted} ranks per node; a node has {have}{shared}")
        chosen = tuple(range(wanted))
        have = max(have, wanted) if not elastic else wanted
    return Cluster(machine, nodes, chosen, have)
