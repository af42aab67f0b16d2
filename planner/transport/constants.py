"""Constants of NCCL and RCCL for one cluster: protocols, chunks, NVLS, from topologies/transport_nccl.toml.

A machine file may override what a Simple transfer costs (launch, step_intra, step_inter, efficiency_*); the other
protocols follow in proportion.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.topology import Cluster
from zipplan.planner.topology.catalogue import find_gpu
from zipplan.planner.topology.model import Transport as OwnConstants
from zipplan.planner.units import parse_time

Tables = Mapping[str, Any]
Pair = tuple[float, float]
STARTS = ("process", "threads", "framework")
"""Who calls NCCL: one process per GPU, one process for all GPUs of a node, a framework such as PyTorch."""
_UNKNOWN_GPU = "hopper"
_ANY = float("inf")
_HEADS = 8  # GPUs of the NVLink domains that the constants of NVLS were fitted on


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to move bytes; pairs are (inside a node, across nodes).

    whole: GPUs hand on whole chunks, not single lines. base: start of one call in ps, (ring, tree). ring, tree: one
    step in ps. share: of the link rate. peak: bytes/s that a rank sends whatever the links could do; channel: the same
    for one channel, inside a node.
    """

    name: str
    whole: bool
    base: Pair
    ring: Pair
    tree: Pair
    share: Pair
    peak: Pair
    channel: float


@dataclass(frozen=True, slots=True)
class Switch:
    """NVLS: the switch reduces and multicasts. latency in ps; share of the link rate.

    depth: chunks that are on their way besides the one on the wire. sync: ps to end one chunk and begin the next.
    largest: bytes of the largest chunk, over all channels and heads. tree_share: of the rate, when the bytes also
    cross the network (NVLSTree).
    """

    latency: float
    share: float
    depth: float
    sync: float
    largest: float
    tree_share: float

    def chunk(self, message: float) -> float:
        """Bytes of one chunk. NCCL halves it when a message has fewer than 64, 8 and 2 of them (src/enqueue.cc).

        Here it shrinks evenly, to an eighth at a 128th of that message, so that time never falls as bytes grow.
        """
        size: float = self.largest * min(1.0, max(0.125, (message / (64 * self.largest)) ** (3 / 7)))
        return size


@dataclass(frozen=True, slots=True)
class Sharp:
    """Reduction in the network's switches: ps of one step inside a node and of the trip to the switches and back, by
    algorithm; share of the NIC's rate.
    """

    inside: dict[str, float]
    network: dict[str, float]
    share: float


@dataclass(frozen=True, slots=True)
class Constants:
    """Everything that pricing needs.

    ring_chunk, tree_chunk: bytes that one channel hands on at a time; 0: no pipeline. tree_share, one_peer: of the rate
    of a ring, for chains inside a node and for a single send; tree_across: for trees over more than two nodes.
    start: ps that the calling program adds; peer: ps to enqueue one send and one receive. drifts: rings share the ports
    of a switch, so that their channels end one chunk apart. overlaps: a network step hides behind the next slice.
    """

    protocols: tuple[Protocol, ...]
    channels: int
    ring_chunk: float
    tree_chunk: float
    tree_share: float
    tree_across: float
    one_peer: float
    switch: Switch | None
    sharp: Sharp | None
    start: float
    peer: float
    drifts: bool
    overlaps: bool

    @classmethod
    def of(cls, cluster: Cluster, start: str = "process", tables: Tables | None = None) -> Constants:
        """For one cluster; `tables` replaces the shipped file. Raises ConfigError for an unknown `start`."""
        if start not in STARTS:
            raise ConfigError(f"start: unknown {start!r}; {nearest(start, STARTS)}")
        return _gloo(cluster) if cluster.transport.kind == "gloo" else _nccl(cluster, start, tables or shipped_tables())

    def limited(self, channels: int) -> Constants:
        """With fewer channels (NCCL_MAX_NCHANNELS), each with its own peak."""
        protocols = (
            replace(p, peak=(min(p.peak[0], channels * p.channel), min(p.peak[1], channels * p.channel)))
            for p in self.protocols
        )
        return replace(self, protocols=tuple(protocols), channels=channels)


@cache
def shipped_tables() -> Tables:
    """The parsed data file."""
    return tomllib.loads(resources.files("zipplan.topologies").joinpath("transport_nccl.toml").read_text("utf-8"))


def link_kind(cluster: Cluster) -> str:
    """What joins the ranks of a node: nvlink (xGMI too) when every pair has it, else pcie."""
    devices, template = cluster.devices, cluster.templates[0]
    pairs = ((a, b) for a in devices for b in devices if a != b)
    return "nvlink" if all(template.path(*pair).label in ("NVL", "NVB") for pair in pairs) else "pcie"


def has_switch(cluster: Cluster) -> bool:
    """Whether a switch joins the GPUs of a node."""
    return any(device.startswith("nvswitch") for device in cluster.templates[0].devices)


def generation_of(cluster: Cluster) -> str:
    """Name of the GPU generation; a GPU that no generation lists counts as Hopper."""
    facts = find_gpu(cluster.gpu.model) if cluster.gpu else None
    groups = shipped_tables()["generation"]
    return next((g for g, row in groups.items() if facts and facts.name in row["gpus"]), _UNKNOWN_GPU)


def _gloo(cluster: Cluster) -> Constants:
    own = cluster.transport
    launch, step = float(own.launch), (float(own.step_intra), float(own.step_inter))
    rates = own.efficiency_intra, own.efficiency_inter
    tcp = Protocol("tcp", True, (launch, launch), step, step, rates, (_ANY, _ANY), _ANY)
    return Constants((tcp,), 1, 0.0, 0.0, 1.0, 1.0, 1.0, None, None, 0.0, 0.0, drifts=False, overlaps=False)


def _nccl(cluster: Cluster, start: str, tables: Tables) -> Constants:
    own, kind = cluster.transport, link_kind(cluster)
    usual = cluster.machine.model_copy(update={"transport": OwnConstants()}).full_transport()
    inside, across = tables["generation"][generation_of(cluster)], tables["network"][own.network]
    scale = own.step_intra / usual.step_intra, own.step_inter / usual.step_inter
    launch = own.launch / usual.launch

    def protocol(name: str) -> Protocol:
        here, there = inside.get(name, {}), across.get(name, {})

        def step(algorithm: str) -> Pair:
            near, far = (parse_time(tables["step"][k][algorithm][name]) for k in (kind, "network"))
            return near * scale[0] * here.get("step", 1.0), far * scale[1] * there.get("step", 1.0)

        return Protocol(
            name,
            whole=name == "Simple",
            base=(
                parse_time(tables["base"]["ring"][name]) * launch,
                parse_time(tables["base"]["tree"][name]) * launch,
            ),
            ring=step("ring"),
            tree=step("tree"),
            share=(own.efficiency_intra * here.get("share", 1.0), own.efficiency_inter * there.get("share", 1.0)),
            peak=(here.get("peak", _ANY) * 1e9, there.get("peak", _ANY) * 1e9),
            channel=here.get("channel", _ANY) * 1e9,
        )

    nvls = inside.get("nvls") if own.nvls else None
    wide = max(1.0, cluster.ranks_per_node / _HEADS)
    return Constants(
        protocols=tuple(map(protocol, ("LL", "LL128", "Simple") if kind == "nvlink" else ("LL", "Simple"))),
        channels=inside["channels"],
        ring_chunk=tables["chunk"]["ring"],
        tree_chunk=tables["chunk"]["tree"],
        tree_share=tables["tree_share"],
        tree_across=across["tree"],
        one_peer=tables["one_peer"],
        switch=nvls
        and Switch(
            latency=parse_time(nvls["latency"]) * launch,
            share=nvls["share"] * wide ** -nvls["wide"],
            depth=nvls["depth"],
            sync=parse_time(nvls["sync"]) * wide,
            largest=tables["chunk"]["nvls"] * nvls["channels"] * _HEADS * wide,
            tree_share=nvls["tree"],
        ),
        sharp=_sharp(tables["collnet"]) if cluster.machine.fabric.sharp else None,
        start=parse_time(tables["start"][start]),
        # One process enqueues for all its GPUs, one after the other.
        peer=parse_time(tables["start"]["peer"]) * (cluster.ranks_per_node if start == "threads" else 1),
        drifts=has_switch(cluster),
        overlaps=True,
    )


def _sharp(table: Mapping[str, Any]) -> Sharp:
    ways = {name: row for name, row in table.items() if isinstance(row, dict)}
    return Sharp(
        inside={name: float(parse_time(row["inside"])) for name, row in ways.items() if "inside" in row},
        network={name: float(parse_time(row["network"])) for name, row in ways.items()},
        share=table["share"],
    )
