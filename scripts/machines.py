"""Writes docs/machines.md from the files in topologies/: `python scripts/machines.py > docs/machines.md`."""

from __future__ import annotations

from zipplan.planner.topology import Machine, build_cluster, load_machine, shipped
from zipplan.planner.topology.catalogue import gpus, link_facts, pcie_source, transport_facts
from zipplan.planner.topology.describe import path_classes
from zipplan.planner.topology.model import LinkRow
from zipplan.planner.units import format_bandwidth, format_time

HEAD = """\
# Machines

Generated from the files in `topologies/` by `make docs`; edit those.
Rates are of one direction. A number without its own source in a machine file comes from the
[catalogue](#catalogue) at the end, which has one.

```
zipplan topo show NAME -o picture.svg
zipplan topo import topo.txt --gpu H100 -o mine.toml    # nvidia-smi topo -m, rocm-smi --showtopo, NCCL or RCCL XML
zipplan topo import topo.txt --gpu H100 --fabric ibnetdiscover.txt -o mine.toml
zipplan topo check mine.toml --nodes 16
```

A machine file says: `[gpu]`, `[[node]]` with rows of links between devices (`gpu{0-7}` to `pci{0,0,1,1,2,2,3,3}` is
eight links), `[[node.nic]]` ports, `[fabric]`, and `[[override]]` for single links that are degraded or have failed.
Any file below `topologies/` is an example to copy; unknown keys are refused with the nearest valid ones.
"""


def cell(text: str) -> str:
    """Text that cannot break a table row."""
    return text.replace("|", "\\|")


def ends(row: LinkRow) -> str:
    """'gpu{*} – nvswitch0'."""
    arrow = "→" if row.one_way else "–"
    return f"`{row.mesh}` all to all" if row.mesh else f"`{row.a}` {arrow} `{row.b}`"


def where(row: LinkRow) -> str:
    """Source of the numbers of a link row."""
    return cell(row.source) if row.source else "catalogue"


def section(name: str, machine: Machine) -> list[str]:
    """One machine."""
    cluster, node = build_cluster(machine), machine.node[0]
    transport = cluster.transport
    lines = [f"## {name}", "", machine.summary + ".", "", f"- Source: {machine.source}", f"- Node: {node.source}"]
    if machine.gpu:
        gpu = machine.gpu
        memory = format_bandwidth(gpu.hbm_bandwidth)
        lines.append(f"- {node.ranks} × {gpu.model}: {gpu.sms} SMs, {memory} memory ({gpu.source or 'catalogue'})")
    if machine.cpu:
        encode, decode = format_bandwidth(machine.cpu.codec_encode), format_bandwidth(machine.cpu.codec_decode)
        lines.append(f"- Codec on the CPU: encode {encode}, decode {decode} ({machine.cpu.source})")
    classes = ", ".join(f"{n} pairs {label}" for label, n in path_classes(cluster).items())
    lines.append(f"- Paths inside a node: {classes or 'one rank per node'}")
    lines.append(
        f"- Transport {transport.kind}: {format_time(transport.launch)} per call, {format_time(transport.step_intra)} "
        f"per step inside a node, {format_time(transport.step_inter)} across; {transport.efficiency_intra:.0%} of the "
        f"link rate inside, {transport.efficiency_inter:.0%} across ({machine.transport.source or 'catalogue'})"
    )
    if machine.fabric.kind != "none":
        lines.append(f"- Fabric {machine.fabric.kind}: {machine.fabric.source}")
    lines += ["", "| links | kind | rate | latency | source |", "|---|---|---|---|---|"]
    for row in node.link:
        rate, latency = format_bandwidth(machine.link_bandwidth(row)), format_time(machine.link_latency(row))
        lines.append(f"| {ends(row)} | {row.kind} | {rate} | {latency} | {where(row)} |")
    for port in node.nic:
        latency = format_time(port.latency if port.latency is not None else link_facts("nic").latency)
        rate = format_bandwidth(port.bandwidth)
        lines.append(f"| `{port.name}` to the fabric | nic | {rate} | {latency} | {cell(port.source)} |")
    return [*lines, ""]


def catalogue() -> list[str]:
    """Shared parts and their sources."""
    lines = [
        "## Catalogue",
        "",
        "| GPU | SMs | memory | NVLink or xGMI | efficiency | source |",
        "|---|---|---|---|---|---|",
    ]
    for facts in gpus().values():
        lane = f"{facts.lanes} × {format_bandwidth(facts.lane)}" if facts.lane and facts.lanes else "–"
        lines.append(
            f"| {facts.name} | {facts.sms} | {format_bandwidth(facts.hbm_bandwidth)} | {lane} | {facts.efficiency:.0%} "
            f"| {cell(facts.source)} |"
        )
    lines += ["", "Efficiency is the share of the in-node link rate that a large native collective reaches.", ""]
    lines += ["| hop | latency | rate | source |", "|---|---|---|---|"]
    for kind in ("nvlink", "xgmi", "c2c", "pcie", "cpu", "nic", "fabric"):
        hop = link_facts(kind)
        rate = format_bandwidth(hop.bandwidth) if hop.bandwidth else "–"
        lines.append(f"| {kind} | {format_time(hop.latency)} | {rate} | {cell(hop.source)} |")
    lines += ["", f"PCIe rates: {pcie_source()}.", "", "Transports:", ""]
    for name in ("nccl", "gloo"):
        lines.append(f"- {name}: {transport_facts(name).source}")
    return lines


def page() -> str:
    """The whole page."""
    machines = {name: load_machine(name) for name in shipped()}
    lines = [HEAD, "| machine | ranks per node | fabric | what it is |", "|---|---|---|---|"]
    for name, machine in machines.items():
        ranks, fabric = machine.node[0].ranks, machine.fabric.kind
        lines.append(f"| [{name}](#{name}) | {ranks} | {fabric} | {cell(machine.summary)} |")
    lines.append("")
    for name, machine in machines.items():
        lines += section(name, machine)
    return "\n".join([*lines, *catalogue()]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
