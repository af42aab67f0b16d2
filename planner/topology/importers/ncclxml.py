"""NCCL and RCCL topology XML: CPUs, the PCIe tree, GPUs with NVLink, xGMI or NVSwitch counts, NICs with speeds."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import GpuFacts, find_gpu, gpu_by_pci_id, pcie_bandwidth
from zipplan.planner.topology.exact import exact_rate
from zipplan.planner.topology.importers.common import Imported, Notes, choose_gpu, finish, numbers, source_of, told_by
from zipplan.planner.topology.importers.rows import host_links, nic_source, pack, pack_ports, rule_out
from zipplan.planner.topology.importers.xmltree import Element, parse_xml

TOOL = "NCCL topology XML"
_GENERATION = {8.0: "3", 16.0: "4", 32.0: "5", 64.0: "6"}
_BY_SM = {"70": "V100"}
_EFA = {"efa0": "100Gb/s", "efa1": "100Gb/s"}
"""Amazon EFA device ids of known rate: https://github.com/aws/aws-ofi-nccl/tree/master/topology (p4d, p5)."""
_INTEL = (
    ((0xCF, 1000), "40GB/s", "Emerald Rapids or later"),
    ((0xAD, 0xAF), "40GB/s", "Granite Rapids"),
    ((0x8F, 1000), "22GB/s", "Sapphire Rapids"),
    ((0x55, 1000), "10GB/s", "Skylake to Ice Lake"),
    ((0, 1000), "6GB/s", "Broadwell or earlier"),
)
_AMD = {
    26: ("32GB/s", "Zen 5"),
    0xBF: ("32GB/s", "Zen 5"),
    25: ("24GB/s", "Zen 3 or 4"),
    0xAF: ("24GB/s", "Zen 3 or 4"),
}
"""NCCL's rates between sockets: Intel by model id (family 6), AMD by family id (older NCCL wrote it as 0x8F, 0xAF,
0xBF), 16 GB/s for AMD otherwise; https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.cc and topo.h"""


@dataclass
class _Found:
    """What the walk over the tree collects."""

    gpus: list[tuple[Element, Element | None, str]] = field(default_factory=list)  # pci, gpu, device above
    nics: list[tuple[Element, Element | None, str]] = field(default_factory=list)  # pci, net, device above
    links: list[tuple[str, str, Element]] = field(default_factory=list)  # below, above, pci element
    lines: dict[tuple[str, str], int] = field(default_factory=dict)  # (host, busid)
    busids: list[tuple[str, str]] = field(default_factory=list)  # (host, busid) of each entry of gpus
    switches: int = 0
    others: Counter[str] = field(default_factory=Counter)


_OPENS = re.compile(r"\s*<(\?xml|!|[a-zA-Z])")


def is_xml(lines: list[str]) -> bool:
    """Starts with a tag, or holds a <system> somewhere below a prompt or a sentence."""
    first = next((line for line in lines if line.strip()), "")
    return _OPENS.match(first) is not None or any(re.match(r"\s*<system\b", line) for line in lines)


def _only_xml(lines: list[str]) -> str:
    """The text from the first tag to the last one; lines before keep their number as empty ones."""
    first = next(n for n, line in enumerate(lines) if _OPENS.match(line))
    lines = ["" if n < first or line.lstrip().startswith("<?xml") else line for n, line in enumerate(lines)]
    end = max((n for n, line in enumerate(lines) if "</system>" in line), default=len(lines) - 1)
    return "\n".join(lines[: end + 1])


def import_xml(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine. A missing required attribute, a doubled bus id or no GPU at all is a TopologyError."""
    root = parse_xml(_only_xml(lines), where, "system")
    root.need("version", where)
    notes, found = Notes(), _Found()
    cpus = [child for child in root.children if child.tag == "cpu"]
    if not cpus:
        raise TopologyError(f"{where}: line {root.line}: <system> without any <cpu>")
    for cpu in cpus:
        _cpu(cpu, where)
    ids = [cpu.whole("numaid", where) for cpu in cpus]
    seen: set[tuple[str, int]] = set()
    for number, cpu in enumerate(cpus):
        host = cpu.attributes.get("host_hash", "")
        if (host, ids[number]) in seen and ids[number] >= 0:
            raise TopologyError(f"{where}: line {cpu.line}: <cpu> numaid={ids[number]} appears twice")
        seen.add((host, ids[number]))
        for child in cpu.children:
            _walk(child, f"cpu{number}", host, found, where)
    hosts = len({host for host, _ in seen})
    if hosts > 1:
        notes.read.append(f"{hosts} hosts in one file; as one NVLink domain they count as one node")
    if not found.gpus:
        raise TopologyError(f"{where}: no GPU in it (no <gpu>, no <pci> of class 0x03 or 0x12)")
    _sort_gpus(found, where)
    facts = _model(found, gpu, where, notes)
    notes.read.append(
        f"{len(cpus)} CPUs, {found.switches} PCIe switches and bridges, {len(found.gpus)} GPUs, {len(found.nics)} NICs"
    )
    rows = _fast_rows(found, facts, where, notes)
    rows += _pcie_rows(found, facts, notes)
    rows += _socket_rows(cpus, notes)
    ports = _ports(found, facts, where, notes)
    data: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "summary": f"{len(found.gpus)} x {facts.name}, imported from {TOOL}",
        "source": source_of(lines, where, TOOL),
        "gpu": {"model": facts.name},
        "node": [{"ranks": len(found.gpus), "source": told_by(TOOL, where), "link": rows, "nic": pack_ports(ports)}],
    }
    if any(p.get("use", True) for p in ports):
        data["fabric"] = {"kind": "switch", "source": "assumed: all NICs on one non-blocking switch"}
        notes.assumed.append("with --nodes: all NICs on one non-blocking switch (edit [fabric], or give a fabric file)")
    else:
        notes.unknown.append("NICs: the file has none, so this describes one node only")
    notes.unknown.append("the fabric beyond the NICs")
    if any(number < 0 for number in ids):
        notes.warnings.append(
            "NUMA node -1: topology looks virtualised, rates are conservative; take the file on the bare host"
        )
    return finish(data, where, TOOL, notes, _labels(found, ports))


def _cpu(cpu: Element, where: str) -> None:
    cpu.whole("numaid", where)
    if cpu.need("arch", where) == "x86_64":
        cpu.need("vendor", where)


def _walk(element: Element, above: str, host: str, found: _Found, where: str) -> None:
    if element.tag == "nic":  # straight below a CPU: a port without PCI path, which NCCL lists below every CPU
        known = {net.attributes.get("name") for _, net, _ in found.nics if net is not None}
        nets = [net for net in element.children if net.tag == "net" and net.attributes.get("name") not in known]
        found.nics += [(element, net, above) for net in nets]
        return
    if element.tag != "pci":
        found.others[element.tag] += 1
        return
    busid = element.need("busid", where)
    if (host, busid) in found.lines:
        raise TopologyError(
            f"{where}: line {element.line}: <pci> busid={busid} is already on line {found.lines[host, busid]}",
            line=element.line,
            element="pci",
            attribute="busid",
        )
    found.lines[host, busid] = element.line
    kind = element.need("class", where).lower()
    gpus = [c for c in element.children if c.tag == "gpu"]
    nic = next((c for c in element.children if c.tag == "nic"), None)
    if gpus or kind.startswith(("0x03", "0x12")):
        found.gpus += [(element, gpu, above) for gpu in gpus] or [(element, None, above)]
        found.busids += [(host, busid.lower())] * max(1, len(gpus))
    elif nic is not None or kind.startswith("0x02"):
        nets = [c for c in nic.children if c.tag == "net"] if nic else []
        found.nics += [(element, net, above) for net in nets] or [(element, None, above)]
    elif kind.startswith("0x0604") or any(c.tag == "pci" for c in element.children):
        here = f"pci{found.switches}"
        found.switches += 1
        found.links.append((here, above, element))
        for child in element.children:
            _walk(child, here, host, found, where)
    else:
        found.others[f"pci class {kind}"] += 1


def _sort_gpus(found: _Found, where: str) -> None:
    """GPUs by `dev`; by `rank` where several hosts or several ranks per GPU repeat a dev; else in file order."""
    for attribute in ("dev", "rank"):
        keys = [g.whole(attribute, where) for _, g, _ in found.gpus if g is not None and attribute in g.attributes]
        if len(set(keys)) == len(found.gpus):
            order = sorted(range(len(keys)), key=keys.__getitem__)
            found.gpus, found.busids = [found.gpus[i] for i in order], [found.busids[i] for i in order]
            return
    if keys and len(keys) == len(found.gpus):
        twice = next(k for k in keys if keys.count(k) > 1)
        lines = [g.line for (_, g, _), k in zip(found.gpus, keys, strict=True) if k == twice and g is not None]
        raise TopologyError(f"{where}: line {lines[1]}: <gpu> rank={twice} is already on line {lines[0]}")


def _model(found: _Found, gpu: str | None, where: str, notes: Notes) -> GpuFacts:
    models = set()
    for pci, element, _ in found.gpus:
        by_id = gpu_by_pci_id(pci.attributes.get("device", ""))
        gcn = element.attributes.get("gcn", "") if element else ""
        sm = element.attributes.get("sm", "") if element and not gcn else ""
        facts = by_id or find_gpu(gcn) or find_gpu(_BY_SM.get(sm, ""))
        models.add(facts.name if facts else f"device {pci.attributes.get('device') or 'unknown'}, sm {sm or 'unknown'}")
    if len(models) > 1:
        notes.warnings.append(f"GPUs differ: {', '.join(sorted(models))}; one model is used for all")
    told = sorted(models)[0]
    return choose_gpu(gpu, told if find_gpu(told) else None, "PCI device id or gcn in the XML", where, notes)


def _fast_rows(found: _Found, facts: GpuFacts, where: str, notes: Notes) -> list[dict[str, Any]]:
    """NVLink, xGMI and NVSwitch rows from the children of <gpu>."""
    number = {ident: i for i, ident in enumerate(found.busids)}
    direct: dict[tuple[int, int], tuple[str, int, int]] = {}
    to_switch: Counter[int] = Counter()
    for index, (_, gpu, _) in enumerate(found.gpus):
        for link in gpu.children if gpu else ():
            if link.tag not in ("nvlink", "xgmi"):
                continue
            busid, count = link.need("target", where).lower(), link.whole("count", where)
            target = (found.busids[index][0], busid)
            if count < 1:
                raise TopologyError(f"{where}: line {link.line}: <{link.tag}> count={count}; expected 1 or more")
            if link.need("tclass", where).lower().startswith("0x0680") or busid.startswith("fffffff"):
                to_switch[index] += count
            elif target not in number:
                raise TopologyError(f"{where}: line {link.line}: <{link.tag}> target={busid} is no GPU of this file")
            else:
                _, before, _ = direct.get((index, number[target]), ("", 0, 0))
                direct[index, number[target]] = (link.tag, before + count, link.line)
    for (a, b), (tag, count, line) in direct.items():
        back = direct.get((b, a), (tag, 0, line))
        if back[1] != count:
            raise TopologyError(
                f"{where}: line {line}: <{tag}> from gpu{a} to gpu{b} has count {count}, the way back {back[1]} "
                f"(line {back[2]})"
            )
    rows: list[dict[str, Any]] = []
    rate: dict[str, Any] = {}
    if facts.lane is None and (direct or to_switch):
        rate = {"bandwidth": "25GB/s", "source": "assumed: the catalogue has no link rate for this GPU"}
    groups: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for (a, b), (tag, count, _) in sorted(direct.items()):
        if a < b:
            groups.setdefault((tag, count), []).append((a, b))
    for (tag, count), pairs in sorted(groups.items()):
        left, right = (numbers([p[i] for p in pairs]) for i in (0, 1))
        rows.append({"a": f"gpu{left}", "b": f"gpu{right}", "kind": tag, "lanes": count, **rate})
    for count in sorted(set(to_switch.values()), reverse=True):
        members = [i for i in sorted(to_switch) if to_switch[i] == count]
        rows.append({"a": f"gpu{numbers(members)}", "b": "nvswitch0", "kind": "nvlink", "lanes": count, **rate})
    if direct:
        notes.read.append(
            f"{len(direct) // 2} GPU pairs joined by {', '.join(sorted({t for t, _, _ in direct.values()}))}"
        )
    if to_switch:
        notes.read.append(
            f"NVSwitch: {len(to_switch)} GPUs with {', '.join(map(str, sorted(set(to_switch.values()))))} links"
        )
    if not rows and facts.lanes:
        notes.unknown.append(
            "NVLink or xGMI: the file has no such elements (NCCL asks the driver for them), so only PCIe is here; "
            "add [[node.link]] rows, or import the matrix of the machine instead"
        )
    return rows


def _pcie_rows(found: _Found, facts: GpuFacts, notes: Notes) -> list[dict[str, Any]]:
    ends: dict[str | None, list[tuple[str, str]]] = {}
    missing = idle = 0
    links = list(found.links)
    links += [(f"gpu{i}", above, pci) for i, (pci, _, above) in enumerate(found.gpus)]
    links += [(f"nic{i}", above, pci) for i, (pci, _, above) in enumerate(found.nics)]
    for below, above, pci in links:
        told = _rate(pci)
        missing += told is None
        if told is not None and _asleep(pci):
            told, idle = None, idle + 1
        default = told is None or told == pcie_bandwidth(facts.pcie)
        ends.setdefault(None if default else exact_rate(told or 0), []).append((below, above))
    if missing:
        notes.assumed.append(f"{missing} PCIe links without speed or width count as PCIe {facts.pcie}.0 x16")
    if idle:
        notes.assumed.append(
            f"{idle} PCIe links report 2.5 or 5 GT/s, as links do that sleep or that a hypervisor made up; they count "
            f"as PCIe {facts.pcie}.0 x16 (NCCL itself believes the file)"
        )
    rows = []
    for rate, pairs in ends.items():
        own = {"bandwidth": rate, "source": "link_speed x link_width in the XML"} if rate else {}
        rows += pack(pairs, {"kind": "pcie", **own})
    home = {device: above for device, above, _ in links}
    for index, (_, gpu, device) in enumerate(found.gpus):
        for link in gpu.children if gpu else ():
            if link.tag == "c2c":
                while device in home:
                    device = home[device]
                each, count = (_number(link.attributes.get(key, "").partition(".")[0]) for key in ("bw", "count"))
                told_by_file = {"bandwidth": f"{each * count}MB/s", "source": "bw x count of c2c in the XML"}
                own = told_by_file if each > 0 and count > 0 else {}
                rows.append({"a": f"gpu{index}", "b": device, "kind": "c2c", **own})
    return rows


def _asleep(pci: Element) -> bool:
    """No GPU of the catalogue sits on PCIe 1 or 2."""
    return re.match(r"\s*(2\.5|5(\.0)?)\s*GT/s", pci.attributes.get("link_speed", "")) is not None


def _rate(pci: Element) -> int | None:
    """Bytes/s from link_speed and link_width; None when either is missing, empty, 0 or 255 (unknown)."""
    speed = re.match(r"\s*([0-9.]+)\s*GT/s", pci.attributes.get("link_speed", ""))
    width = pci.attributes.get("link_width", "").strip()
    if not speed or width not in ("1", "2", "4", "8", "12", "16", "32"):
        return None
    transfer = float(speed[1])
    if transfer in _GENERATION:
        return pcie_bandwidth(_GENERATION[transfer]) * int(width) // 16
    return int(transfer * 1e9 * 0.8 / 8) * int(width) if transfer < 8 else None  # generations 1 and 2: 8 of 10 bits


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _socket_rows(cpus: list[Element], notes: Notes) -> list[dict[str, Any]]:
    rows = host_links(len(cpus))
    if not rows:
        return rows
    first = cpus[0].attributes
    vendor, family, model = first.get("vendor", ""), *(_number(first.get(key, "")) for key in ("familyid", "modelid"))
    known: tuple[str, str] | None = None
    if vendor == "GenuineIntel" and family == 6 and model >= 0:
        known = next((rate, name) for (low, high), rate, name in _INTEL if low <= model <= high)
    elif vendor == "AuthenticAMD" and family >= 0:
        known = _AMD.get(family, ("16GB/s", "Zen 1 or 2"))
    if known:
        source = f"NCCL's rate between {known[1]} sockets, https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h"
        rows[0] |= {"bandwidth": known[0], "source": source}
        notes.read.append(f"CPU {vendor} family {family} model {model}: {known[1]}, {known[0]} between sockets")
    else:
        notes.assumed.append("16 GB/s each way between CPUs (NCCL's figure for AMD Zen 1 and 2)")
    return rows


def _ports(found: _Found, facts: GpuFacts, where: str, notes: Notes) -> list[dict[str, Any]]:
    ports: list[dict[str, Any]] = []
    assumed = 0
    for index, (pci, net, _) in enumerate(found.nics):
        speed = net.whole("speed", where, default=0) if net is not None else 0
        efa = _EFA.get(pci.attributes.get("device", "").removeprefix("0x"))
        if speed > 0:
            rate, source = f"{speed / 1000:g}Gb/s", "net speed in the XML"
        elif efa:
            rate, source = efa, "Amazon EFA by device id, https://github.com/aws/aws-ofi-nccl/tree/master/topology"
        else:
            rate, source, assumed = facts.nic_text, f"assumed: {nic_source(facts)}", assumed + 1
        name = net.attributes.get("name", "") if net is not None else pci.attributes.get("busid", "")
        ports.append({"name": f"nic{index}", "bandwidth": rate, "source": source, "_name": name})
    if assumed:
        notes.assumed.append(f"{assumed} NICs without a speed run at {facts.nic_text} ({facts.name} reference node)")
    if ports:
        notes.read.append("NIC names: " + ", ".join(f"{p['name']} = {p['_name']}" for p in ports))
    rule_out(ports, notes)
    return ports


def _labels(found: _Found, ports: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Path class of each pair as the tree has it (PIX, PXB, PHB, SYS), or NV<count>, XGMI."""
    above: dict[str, str] = {below: up for below, up, _ in found.links}
    above |= {f"gpu{i}": up for i, (_, _, up) in enumerate(found.gpus)}
    above |= {f"nic{i}": up for i, (_, _, up) in enumerate(found.nics)}
    number = {ident: i for i, ident in enumerate(found.busids)}
    fast: dict[tuple[int, int], str] = {}
    for i, (_, gpu, _) in enumerate(found.gpus):
        for link in gpu.children if gpu else ():
            j = number.get((found.busids[i][0], link.attributes.get("target", "").lower()))
            if link.tag in ("nvlink", "xgmi") and j is not None:
                fast[i, j] = f"NV{link.attributes['count']}" if link.tag == "nvlink" else "XGMI"

    def chain(device: str) -> list[str]:
        out = []
        while device in above:
            device = above[device]
            out.append(device)
        return out

    devices = [f"gpu{i}" for i in range(len(found.gpus))] + [p["name"] for p in ports]
    labels = {}
    for i, a in enumerate(devices):
        for b in devices[i + 1 :]:
            if a[:3] == b[:3] == "gpu" and (int(a[3:]), int(b[3:])) in fast:
                labels[a, b] = fast[int(a[3:]), int(b[3:])]
                continue
            up, other = chain(a), chain(b)
            common = next((d for d in up if d in other), None)
            if common is None:
                labels[a, b] = "SYS"
            elif common.startswith("cpu"):
                labels[a, b] = "PHB"
            else:
                labels[a, b] = "PIX" if up.index(common) + other.index(common) == 0 else "PXB"
    return labels
