"""Facts about parts (GPUs, links, transports) from topologies/_catalogue.toml, each with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from zipplan.planner.errors import TopologyError, nearest
from zipplan.planner.units import parse_bandwidth, parse_time


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU model. hbm_bandwidth, lane: bytes/s one direction; pcie: generation; lane is None without NVLink/xGMI."""

    name: str
    sms: int
    hbm_bandwidth: int
    hbm_bandwidth_text: str
    lane: int | None
    lane_text: str | None
    lanes: int | None
    pcie: str
    nic_text: str
    p2p: bool
    efficiency: float
    nvls: bool
    aliases: tuple[str, ...]
    pci_ids: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """Defaults of a link kind: latency in ps, bandwidth in bytes/s or None when there is no sensible default."""

    latency: int
    bandwidth: int | None
    source: str


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """Constants of a communication library; times in ps, step_intra by the link kind that joins the ranks of a node."""

    launch: int
    step_intra: dict[str, int]
    step_inter: int
    efficiency_inter: float
    source: str


@cache
def _catalogue() -> dict[str, Any]:
    return tomllib.loads(resources.files("zipplan.topologies").joinpath("_catalogue.toml").read_text("utf-8"))


@cache
def gpus() -> dict[str, GpuFacts]:
    """All GPU models by catalogue name."""
    return {
        name: GpuFacts(
            name=name,
            sms=row["sms"],
            hbm_bandwidth=parse_bandwidth(row["hbm_bandwidth"]),
            hbm_bandwidth_text=row["hbm_bandwidth"],
            lane=parse_bandwidth(row["lane"]) if "lane" in row else None,
            lane_text=row.get("lane"),
            lanes=row.get("lanes"),
            pcie=row["pcie"],
            nic_text=row["nic"],
            p2p=row.get("p2p", True),
            efficiency=row["efficiency"],
            nvls=row.get("nvls", False),
            aliases=tuple(row.get("aliases", ())),
            pci_ids=tuple(row.get("pci_ids", ())),
            source=row["source"],
        )
        for name, row in _catalogue()["gpu"].items()
    }


@cache
def find_gpu(model: str) -> GpuFacts | None:
    """The entry of a GPU model or alias, upper or lower case; None when there is none."""
    wanted = model.upper().removeprefix("NVIDIA").strip(" -").replace(" ", "-")
    return next((facts for facts in gpus().values() if wanted in (facts.name.upper(), *facts.aliases)), None)


@cache
def gpu_by_pci_id(device: str) -> GpuFacts | None:
    """The entry of a PCI device id such as '20b0' (0x20b0 in XML)."""
    return next((facts for facts in gpus().values() if device.lower().removeprefix("0x") in facts.pci_ids), None)


def gpu_facts(model: str) -> GpuFacts:
    """The entry of a GPU model or alias. Raises TopologyError with the nearest names."""
    facts = find_gpu(model)
    if facts is None:
        raise TopologyError(f"unknown GPU model {model!r}; {nearest(model.upper(), gpus())}", model=model)
    return facts


@cache
def link_facts(kind: str) -> LinkFacts:
    """Defaults of one link kind; a kind without an entry (loopback) has none, so its row must be complete."""
    row = _catalogue()["link"].get(kind)
    if row is None:
        raise ValueError(f"a {kind} link needs its own bandwidth and latency")
    rate = row.get("bandwidth")
    return LinkFacts(parse_time(row["latency"]), parse_bandwidth(rate) if rate else None, row["source"])


@cache
def pcie_bandwidth(generation: str) -> int:
    """Bytes/s of an x16 slot, one direction, for '3', '4', '5' or '6'."""
    return parse_bandwidth(_catalogue()["pcie"][generation])


def pcie_source() -> str:
    """Where the PCIe rates come from."""
    return str(_catalogue()["pcie"]["source"])


@cache
def transport_facts(kind: str) -> TransportFacts:
    """Constants of 'nccl' or 'gloo'."""
    row = _catalogue()["transport"][kind]
    return TransportFacts(
        launch=parse_time(row["launch"]),
        step_intra={link: parse_time(text) for link, text in row["step_intra"].items()},
        step_inter=parse_time(row["step_inter"]),
        efficiency_inter=row["efficiency_inter"],
        source=row["source"],
    )
