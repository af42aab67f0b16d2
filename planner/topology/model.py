"""The machine description: what a topology TOML file may say, checked strictly.

A machine is one or more node templates, a fabric that joins their NICs, and a transport. Everything inside a node is a
row of links between named devices; the prefix of a name says what the device is (gpu, rank, nic, cpu, pci, nvswitch,
memory; hub is what joins more than two CPU groups). Unknown keys are refused, numbers with a unit are strings, and
every table that brings a number names a source.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from zipplan.planner.topology.catalogue import (
    GpuFacts,
    find_gpu,
    gpu_facts,
    link_facts,
    pcie_bandwidth,
    transport_facts,
)
from zipplan.planner.units import parse_bandwidth, parse_time

DEVICES = ("gpu", "rank", "nic", "cpu", "pci", "nvswitch", "memory", "hub")
LINK_KINDS = ("nvlink", "xgmi", "c2c", "pcie", "cpu", "loopback")

LinkKind = Literal["nvlink", "xgmi", "c2c", "pcie", "cpu", "loopback"]
Network = Literal["infiniband", "efa", "slingshot"]
"""What NCCL's network plugin drives; RoCE counts as infiniband (both are ibverbs)."""


def _rate(value: object) -> int:
    if isinstance(value, str):
        return _valued(parse_bandwidth, value)
    raise ValueError(f'{value!r} has no unit; write text such as "400Gb/s" or "50GB/s"')


def _time(value: object) -> int:
    if isinstance(value, str):
        return _valued(parse_time, value)
    raise ValueError(f'{value!r} has no unit; write text such as "1.5us"')


def _valued(parse: Any, value: str) -> int:
    from zipplan.planner.errors import ConfigError

    try:
        return int(parse(value, what="value"))
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None


Bandwidth = Annotated[int, BeforeValidator(_rate)]
"""Bytes per second, one direction; written as a unit string."""
Latency = Annotated[int, BeforeValidator(_time)]
"""Picoseconds; written as a unit string."""
Fraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=4096)]
"""How many of something one node or switch has."""
Many = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
"""How many nodes."""
Source = Annotated[str, Field(min_length=3)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(_Strict):
    """GPU model; `sms` and `hbm_bandwidth` (bytes/s) come from the catalogue unless the file gives them."""

    model: str
    sms: Count
    hbm_bandwidth: Bandwidth
    source: Source | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("model"), str):
            own = {"sms", "hbm_bandwidth"} & set(data)
            if own and "source" not in data:
                raise ValueError("[gpu] gives its own numbers, so it needs a source")
            if len(own) < 2:
                facts = gpu_facts(data["model"])
                data = {"sms": facts.sms, "hbm_bandwidth": facts.hbm_bandwidth_text, **data}
        return data

    @property
    def facts(self) -> GpuFacts | None:
        """Catalogue entry (NVLink lane rate, PCIe generation, efficiency, source); None for a model of one's own."""
        return find_gpu(self.model)


class Cpu(_Strict):
    """Speed of the codec on this host, bytes/s of raw data, one core; `cascade_*` where it differs from `window`.

    cores: how many all ranks of the cluster share, where one machine plays all of them; else every rank has its own.
    """

    codec_encode: Bandwidth
    codec_decode: Bandwidth
    cascade_encode: Bandwidth | None = None
    cascade_decode: Bandwidth | None = None
    cores: Count | None = None
    source: Source

    def rates(self, codec: str) -> tuple[float, float]:
        """(encode, decode) of a codec."""
        own = codec == "cascade"
        encode, decode = (self.cascade_encode, self.cascade_decode) if own else (None, None)
        return float(encode or self.codec_encode), float(decode or self.codec_decode)


class Transport(_Strict):
    """Constants of the communication library on this machine; what the file leaves out comes from the catalogue.

    network: which protocol constants hold across nodes. launch: fixed cost of one collective call (ps). step_intra,
    step_inter: one step of a ring or tree, Simple protocol,
    inside a node and across nodes (ps), on top of the latencies of the links on the path. efficiency_intra,
    efficiency_inter: share of the link rate that large messages reach. nvls: the NVSwitch reduces and multicasts.
    """

    kind: Literal["nccl", "gloo"] = "nccl"
    network: Network = "infiniband"
    launch: Latency | None = None
    step_intra: Latency | None = None
    step_inter: Latency | None = None
    efficiency_intra: Fraction | None = None
    efficiency_inter: Fraction | None = None
    nvls: StrictBool | None = None
    source: Source | None = None


class LinkRow(_Strict):
    """Links between devices of one node. `a` and `b` take lists: gpu{0-7} to pci{0,0,1,1,2,2,3,3} is eight links.

    A row is `lanes` × `bandwidth` in each direction (one_way: only a to b). `mesh` joins every pair of one list.
    """

    a: str | None = None
    b: str | None = None
    mesh: str | None = None
    kind: LinkKind
    lanes: Count = 1
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    one_way: StrictBool = False
    source: Source | None = None

    @model_validator(mode="after")
    def _ends(self) -> LinkRow:
        if (self.mesh is None) == (self.a is None) or (self.a is None) != (self.b is None):
            raise ValueError("a link needs either a and b, or mesh")
        if (self.bandwidth is not None or self.latency is not None) and self.source is None:
            raise ValueError("a link with its own bandwidth or latency needs a source")
        return self


class NicRow(_Strict):
    """Ports to the fabric; `use = false` keeps a port out of the data path (storage, management) and `why` says so."""

    name: str
    bandwidth: Bandwidth
    latency: Latency | None = None
    use: StrictBool = True
    why: str | None = None
    source: Source


class Node(_Strict):
    """One node template. `ranks` GPUs (or CPU ranks); `p2p = false`: PCIe peers must go through host memory
    (default: what the stock driver of the GPU does).

    `count` is only for clusters of unlike nodes: how many nodes in a row follow this template.
    """

    ranks: Count
    p2p: StrictBool | None = None
    count: Many | None = None
    source: Source
    link: tuple[LinkRow, ...] = ()
    nic: tuple[NicRow, ...] = ()


class FabricLink(_Strict):
    """One cable of an explicit fabric: ends are `node3/nic0` or a switch name."""

    a: str
    b: str
    lanes: Count = 1
    bandwidth: Bandwidth
    latency: Latency | None = None


class Fabric(_Strict):
    """How the NICs of the nodes are joined.

    kind: `none` (one node), `switch` (one switch), `direct` (two nodes, NIC i to NIC i), `rail` (leaf per NIC number
    and group of nodes, all leaves to all spines), `tree` (leaf per group of nodes), `dragonfly` (groups of switches,
    all to all inside and between groups), `graph` (the cables are listed). oversubscription: leaf downlinks / uplinks.
    pxn: traffic to another rail first crosses NVLink to the GPU of that rail. routing: `modulo` picks the equal-cost
    path by destination as InfiniBand fat-tree routing does, `hash` by a hash of both ends as Ethernet ECMP does.
    sharp: the switches reduce (InfiniBand SHARP) and the NCCL plugin that uses them is installed and on.
    """

    kind: Literal["none", "switch", "direct", "rail", "tree", "dragonfly", "graph"] = "none"
    default_nodes: Many = 1
    nodes_per_leaf: Many | None = None
    spines: Count | None = None
    oversubscription: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] = 1.0
    pxn: StrictBool = False
    sharp: StrictBool = False
    routing: Literal["modulo", "hash"] = "modulo"
    nodes_per_switch: Count | None = None
    switches_per_group: Count | None = None
    local_bandwidth: Bandwidth | None = None
    global_bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    link: tuple[FabricLink, ...] = ()
    source: Source | None = None

    @model_validator(mode="after")
    def _complete(self) -> Fabric:
        need = {
            "rail": {"nodes_per_leaf", "spines"},
            "tree": {"nodes_per_leaf", "spines"},
            "dragonfly": {"nodes_per_switch", "switches_per_group", "local_bandwidth", "global_bandwidth"},
            "graph": {"link"},
        }.get(self.kind, set())
        missing = sorted(key for key in need if not getattr(self, key))
        if missing:
            raise ValueError(f"a {self.kind} fabric needs {', '.join(missing)}")
        own = {
            key
            for key in ("nodes_per_leaf", "spines", "nodes_per_switch", "switches_per_group", "local_bandwidth",
                        "global_bandwidth", "link")
            if getattr(self, key)
        }  # fmt: skip
        if own - need:
            raise ValueError(f"a {self.kind} fabric has no {', '.join(sorted(own - need))}")
        if self.sharp and self.kind not in ("switch", "rail", "tree", "graph"):
            raise ValueError(f"a {self.kind} fabric has no switches that reduce (sharp)")
        if self.kind != "none" and self.source is None:
            raise ValueError("a fabric needs a source")
        return self


class Override(_Strict):
    """One link that is not as the template says: `link = "gpu5>nvswitch0"`, or `gpu5-nvswitch0` for both directions.

    `node` is the node it belongs to; without it the name is a fabric link (`leaf3-spine0`).
    """

    node: Annotated[int, Field(strict=True, ge=0)] | None = None
    link: str
    failed: StrictBool = False
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    source: Source

    @model_validator(mode="after")
    def _one(self) -> Override:
        if self.failed == (self.bandwidth is not None or self.latency is not None):
            raise ValueError("say either failed = true, or a bandwidth or latency")
        return self


class Machine(_Strict):
    """A whole description; `schema` is the version of this format."""

    schema_version: Literal[1] = Field(alias="schema", default=1)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
    summary: str = ""
    source: Source
    gpu: Gpu | None = None
    cpu: Cpu | None = None
    transport: Transport = Transport()
    node: Annotated[tuple[Node, ...], Field(min_length=1)]
    fabric: Fabric = Fabric()
    override: tuple[Override, ...] = ()

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _together(self) -> Machine:
        if len(self.node) > 1 and any(template.count is None for template in self.node):
            raise ValueError("with several [[node]] templates each needs its count")
        if len({template.ranks for template in self.node}) > 1:
            raise ValueError("all [[node]] templates need the same number of ranks (use --gpus or leave GPUs out)")
        if self.transport.kind == "nccl" and self.gpu is None:
            raise ValueError('no [gpu]: give one, or [transport] kind = "gloo" for a CPU host')
        if self.fabric.sharp and (self.transport.kind, self.transport.network) != ("nccl", "infiniband"):
            raise ValueError("fabric.sharp: only NCCL on InfiniBand reduces in the switches")
        return self

    def peer_to_peer(self, node: Node) -> bool:
        """Whether GPUs of this node may read and write each other over PCIe."""
        facts = self.gpu.facts if self.gpu else None
        return node.p2p if node.p2p is not None else facts is None or facts.p2p

    @property
    def endpoint(self) -> str:
        """Prefix of the devices that are ranks: 'gpu', or 'rank' on a CPU host."""
        return "gpu" if self.gpu else "rank"

    def link_bandwidth(self, row: LinkRow) -> int:
        """Bytes/s of one direction of a row, all lanes; from the row, the GPU or the catalogue."""
        if row.bandwidth is not None:
            return row.bandwidth * row.lanes
        facts = self.gpu.facts if self.gpu else None
        if row.kind in ("nvlink", "xgmi") and facts and facts.lane is not None:
            return facts.lane * row.lanes
        if row.kind == "pcie" and facts:
            return pcie_bandwidth(facts.pcie) * row.lanes
        default = link_facts(row.kind).bandwidth
        if default is None:
            raise ValueError(f"a {row.kind} link of this machine needs a bandwidth")
        return default * row.lanes

    def link_latency(self, row: LinkRow) -> int:
        """Picoseconds of one hop; from the row or the catalogue."""
        return row.latency if row.latency is not None else link_facts(row.kind).latency

    def full_transport(self) -> ResolvedTransport:
        """Transport with every constant filled in; what comes from where is in `sources`."""
        facts, own = transport_facts(self.transport.kind), self.transport
        kinds = {row.kind for row in self.node[0].link}
        inside = next((k for k in ("nvlink", "xgmi", "pcie", "loopback") if k in kinds), "pcie")
        step = facts.step_intra.get(inside, facts.step_inter)
        gpu = self.gpu.facts if self.gpu else None
        switched = any("nvswitch" in (row.b or "") + (row.a or "") for row in self.node[0].link)

        def first(mine: Any, other: Any) -> Any:
            return other if mine is None else mine

        return ResolvedTransport(
            kind=own.kind,
            network=own.network,
            launch=first(own.launch, facts.launch),
            step_intra=first(own.step_intra, step),
            step_inter=first(own.step_inter, facts.step_inter),
            efficiency_intra=first(own.efficiency_intra, gpu.efficiency if gpu else 1.0),
            efficiency_inter=first(own.efficiency_inter, facts.efficiency_inter),
            nvls=first(own.nvls, bool(gpu and gpu.nvls and switched)),
            sources=tuple(s for s in (own.source, facts.source, gpu.source if gpu else None) if s),
        )


class ResolvedTransport(_Strict):
    """A Transport without gaps; same fields and units."""

    kind: Literal["nccl", "gloo"]
    network: Network
    launch: int
    step_intra: int
    step_inter: int
    efficiency_intra: float
    efficiency_inter: float
    nvls: bool
    sources: tuple[str, ...]


_PATTERN = re.compile(r"([a-z]+)(?:([0-9]+)|\{([0-9,*\- ]+)\})")


def expand(pattern: str, ranks: int) -> list[str]:
    """'pci{0-2,2}' → pci0, pci1, pci2, pci2; 'gpu{*}' → one per rank. Raises ValueError."""
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        raise ValueError(f"{pattern!r} is no device; expected a name such as gpu0, or a list such as gpu{{0-7}}")
    prefix, single, listed = match.groups()
    if prefix not in DEVICES:
        raise ValueError(f"{pattern!r}: no device kind {prefix!r}; valid: {', '.join(DEVICES)}")
    if single is not None:
        return [f"{prefix}{int(single)}"]
    numbers: list[int] = []
    for part in listed.replace(" ", "").split(","):
        low, dash, high = part.partition("-")
        if part == "*":
            numbers += range(ranks)
        elif dash and low.isdigit() and high.isdigit() and int(low) <= int(high) < 100_000:
            numbers += range(int(low), int(high) + 1)
        elif not dash and low.isdigit():
            numbers.append(int(low))
        else:
            raise ValueError(f"{pattern!r}: cannot read {part!r} in the list")
    return [f"{prefix}{number}" for number in numbers]


def kind_of(device: str) -> str:
    """'gpu' for 'gpu7'."""
    return device.rstrip("0123456789")
