"""`ibnetdiscover` and `iblinkinfo`: switches, hosts and cables of an InfiniBand fabric with their rates."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from zipplan.planner.errors import TopologyError, nearest
from zipplan.planner.topology.exact import exact_rate
from zipplan.planner.topology.importers.common import Imported, Notes, choose_gpu, finish, source_of, told_by
from zipplan.planner.topology.node import natural

_LANE = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
"""Data rate of one lane in Gb/s: https://en.wikipedia.org/wiki/InfiniBand#Performance"""
_SIGNAL = {
    2.5: "SDR", 5.0: "DDR", 10.0: "QDR", 10.3125: "FDR10", 14.0625: "FDR", 25.78125: "EDR", 53.125: "HDR",
    106.25: "NDR", 212.5: "XDR",
}  # fmt: skip
"""Signalling rate per lane that iblinkinfo prints → name."""

End = tuple[str, int]
"""(device id, port)"""


@dataclass
class Net:
    """Devices by id (a GUID, or a LID in iblinkinfo) and cables by one of their ends; rates in bytes/s."""

    names: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    cables: dict[End, tuple[End, int]] = field(default_factory=dict)

    def device(self, ident: str, name: str, switch: bool, where: str) -> None:
        """Add a device; a second description under the same id must agree. Raises TopologyError."""
        if ident in self.names and (ident in self.switches) != switch:
            raise TopologyError(f"{where}: {ident} ({name}) is a switch in one place and an adapter in another")
        self.names[ident] = self.names.get(ident) or name
        if switch:
            self.switches.add(ident)

    def cable(self, a: End, b: End, rate: int, where: str, line: int) -> None:
        """Add one end of a cable; the other end, when it is listed, must say the same. Raises TopologyError."""
        for end, other in ((a, b), (b, a)):
            known = self.cables.get(end)
            if known is not None and known != (other, rate):
                here, there, before = (self.names.get(e[0]) or e[0] for e in (end, other, known[0]))
                raise TopologyError(
                    f"{where}: line {line}: port {end[1]} of {here} goes to {there} port {other[1]} at "
                    f"{exact_rate(rate)} here, and to {before} port {known[0][1]} at {exact_rate(known[1])} elsewhere"
                )
        self.cables[a] = (b, rate)
        self.cables[b] = (a, rate)


def is_ibnetdiscover(lines: list[str]) -> bool:
    """Switch or Ca blocks with quoted GUIDs."""
    return any(re.match(r'\s*(Switch|Ca)\s+\d+\s+"[SH]-', line) for line in lines)


def is_iblinkinfo(lines: list[str]) -> bool:
    """Arrows between ports."""
    return any(re.search(r"==\(.*\)==>", line) for line in lines)


_BLOCK = re.compile(r'\s*(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"(?:.*?#\s*"([^"]*)")?')
_NUMBER = r"\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?"
_PORT = re.compile(rf'\s*{_NUMBER}\s+"([SHR]-[0-9a-fA-F]+)"{_NUMBER}(.*)')
_SPEED = re.compile(r"\b(\d+)x([A-Z]DR(?:10)?)\b")


def import_ibnetdiscover(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine whose nodes are the hosts. Raises TopologyError."""
    net = Net()
    current: str | None = None
    for number, line in enumerate(lines, 1):
        block = _BLOCK.match(line)
        port = _PORT.match(line) if not block else None
        if block:
            current = block[3]
            net.device(current, block[4] or current, block[1] == "Switch", where)
        elif port:
            if current is None:
                raise TopologyError(
                    f"{where}: line {number}: a port before any Switch or Ca line; was the top cut off?"
                )
            peer = port[2]
            named = re.search(r'"([^"]*)"', port[4])
            net.device(peer, named[1] if named else peer, peer.startswith("S"), where)
            net.cable((current, int(port[1])), (peer, int(port[3])), _rate(port[4], where, number), where, number)
        elif re.match(r"\s*\[\d+\]", line):
            raise TopologyError(f"{where}: line {number}: cannot read the port line {line.strip()[:80]!r}")
    return _machine(net, "ibnetdiscover", lines, name, where, gpu)


def _rate(text: str, where: str, number: int) -> int:
    speed = _SPEED.search(text)
    if speed is None or speed[2] not in _LANE:
        found, word = (repr(speed[0]), speed[2]) if speed else ("no rate", "")
        raise TopologyError(f"{where}: line {number}: {found}; expected a rate such as 4xHDR ({nearest(word, _LANE)})")
    return round(int(speed[1]) * _LANE[speed[2]] * 1e9 / 8)


_OWNER = re.compile(r"\s*(CA|Switch):\s*(?:(0x[0-9a-fA-F]+)\s+)?(.*?):?\s*$")
_ARROW = re.compile(
    r'\s*(?:0x[0-9a-fA-F]+\s+)?(?:"[^"]*"\s+)?(\d+)\s+(\d+)\[[^\]]*\]\s+==\(\s*(.*?)\)==>\s+(?:0x[0-9a-fA-F]+\s+)?(\d+)\s+(\d+)\[[^\]]*\]\s+"([^"]*)"'
)


def import_iblinkinfo(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine whose nodes are the hosts; ports that are down are left out. Raises TopologyError."""
    net = Net()
    kind, owner = "", ""
    named: dict[str, str] = {}
    pending: list[tuple[End, End, str, str, int]] = []
    for number, line in enumerate(lines, 1):
        if "==(" not in line:
            header = _OWNER.match(line)
            if header:
                kind, owner = header[1], header[3].strip().rstrip(":")
            continue
        arrow = _ARROW.match(line)
        if arrow is None:
            if re.search(r"Down/|Disabled|Polling", line) or '""' in line:
                continue
            raise TopologyError(f"{where}: line {number}: cannot read {line.strip()[:80]!r}")
        single = re.match(r'\s*0x[0-9a-fA-F]+\s+"\s*([^"]*)"', line)  # iblinkinfo -l: each line names its owner
        if single:
            named.setdefault(arrow[1], single[1].strip())
        elif not kind:
            raise TopologyError(f"{where}: line {number}: a link before any CA: or Switch: line; was the top cut off?")
        else:
            net.device(arrow[1], owner, kind == "Switch", where)
        pending.append(((arrow[1], int(arrow[2])), (arrow[4], int(arrow[5])), arrow[3], arrow[6], number))
    for ident, called in named.items():  # no line says what a device is, but adapters end in the name of the device
        net.device(ident, called, re.search(r"\s(mlx|HCA|ib|hfi|qib|roce|rdma)\S*$", called) is None, where)
    for here, there, state, peer, number in pending:
        if there[0] not in net.names:
            net.device(there[0], peer, False, where)
        net.cable(here, there, _signalled(state, where, number), where, number)
    return _machine(net, "iblinkinfo", lines, name, where, gpu)


def _signalled(state: str, where: str, number: int) -> int:
    told = re.match(r"(\d+)X\s+([0-9.]+)\s*Gbps(?: \((FDR10)\))?", state)
    speed = told and (told[3] or next((n for f, n in _SIGNAL.items() if abs(f / float(told[2]) - 1) < 0.01), None))
    if told is None or speed is None:
        raise TopologyError(
            f"{where}: line {number}: no link rate in {state.strip()!r}; expected such as 4X 25.78125 Gbps"
        )
    return round(int(told[1]) * _LANE[speed] * 1e9 / 8)


def _machine(net: Net, tool: str, lines: list[str], name: str, where: str, gpu: str | None) -> Imported:
    notes = Notes()
    hosts, aggregation = _hosts(net)
    if not hosts:
        raise TopologyError(f"{where}: no host adapter in it, only {len(net.switches)} switches")
    facts = choose_gpu(gpu, None, "a fabric names no GPU", where, notes)
    size, many = Counter(len(ports) for ports in hosts.values()).most_common(1)[0]
    for host, adapters in hosts.items():
        twice = [name for name, n in Counter(adapter for adapter, _, _ in adapters).items() if n > 1]
        if twice:
            raise TopologyError(
                f"{where}: host {host!r} has adapter {twice[0]} twice, so several hosts have this name; give each its "
                "own node description (rdma-ndd, or /sys/class/infiniband/*/node_desc) and run the tool again"
            )
    if unnamed := [h for h in hosts if h.startswith(("H-", "0x")) or h.isdigit()]:
        notes.warnings.append(
            f"{len(unnamed)} adapters have no host name, so each counts as a host of its own; set node descriptions"
        )
    kept = sorted((h for h in hosts if len(hosts[h]) == size), key=natural)
    others = sorted(set(hosts) - set(kept), key=natural)
    notes.read.append(
        f"{len(net.switches)} switches, {len(hosts)} hosts, {sum(map(len, hosts.values()))} adapter ports, "
        f"{len({frozenset((a, b)) for a, (b, _) in net.cables.items()})} cables"
    )
    if aggregation:
        notes.read.append(f"{aggregation} SHARP aggregation nodes; they are no hosts and are left out")
    if others:
        notes.warnings.append(
            f"{len(others)} hosts with another number of adapters than {size} are left out (service nodes?): "
            + ", ".join(others[:8])
            + (" ..." if len(others) > 8 else "")
        )
    called = _switch_names(net)
    rates = Counter(rate for host in kept for _, _, rate in hosts[host])
    usual = rates.most_common(1)[0][0]
    cables: list[dict[str, Any]] = []
    overrides: list[dict[str, Any]] = []
    for node, host in enumerate(kept):
        for position, (_, peer, rate) in enumerate(hosts[host]):
            end = called[peer] if peer in net.switches else None
            if end is None:
                end = _peer_port(net, hosts, kept, host, position)
            if end:
                cables.append({"a": f"node{node}/nic{position}", "b": end, "bandwidth": exact_rate(rate)})
            if rate != usual:
                source = f"{tool}: {host}"
                link = f"nic{position}-fabric"
                overrides.append({"node": node, "link": link, "bandwidth": exact_rate(rate), "source": source})
    between: Counter[tuple[str, str, int]] = Counter()
    for (a, _), ((b, _), rate) in net.cables.items():
        if a in net.switches and b in net.switches and called[a] < called[b]:
            between[called[a], called[b], rate] += 1
    for (a, b, rate), lanes in sorted(between.items(), key=lambda item: (natural(item[0][0]), natural(item[0][1]))):
        cables.append({"a": a, "b": b, "lanes": lanes, "bandwidth": exact_rate(rate)})
    if overrides:
        notes.warnings.append(f"{len(overrides)} adapter ports do not run at {exact_rate(usual)}: degraded links?")
    if many > 1:
        shown = ", ".join(f"node{i} = {h}" for i, h in enumerate(kept[:4])) + (" ..." if len(kept) > 4 else "")
        notes.read.append(f"hosts in order of their names: {shown}")
    rails = size > 1 and all(len({peer for _, peer, _ in hosts[host]}) == size for host in kept)
    if rails:
        notes.read.append("rails: every adapter of a host is on a switch of its own")
        notes.assumed.append("traffic to another rail crosses NVLink first where there is any (PXN, NCCL's default)")
    notes.assumed.append(f"{size} GPUs per host, one for each adapter, each pair below its own PCIe switch")
    notes.unknown.append("what is inside the hosts (give the node's own file and this one with --fabric)")
    data: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "summary": f"{len(kept)} hosts with {size} adapters, imported from {tool}",
        "source": source_of(lines, where, tool),
        "gpu": {"model": facts.name},
        "node": [
            {
                "ranks": size,
                "source": "assumed: one GPU per adapter; a fabric file does not show the inside of a host",
                "link": [
                    {"a": "gpu{*}", "b": "pci{*}", "kind": "pcie"},
                    {"a": "nic{*}", "b": "pci{*}", "kind": "pcie"},
                    {"a": "pci{*}", "b": "cpu0", "kind": "pcie"},
                ],
                "nic": [{"name": "nic{*}", "bandwidth": exact_rate(usual), "source": told_by(tool, where)}],
            }
        ],
        "fabric": {
            "kind": "graph",
            "default_nodes": len(kept),
            "pxn": rails,
            "link": cables,
            "source": told_by(tool, where),
        },
        "override": overrides,
    }
    return finish(data, where, tool, notes, {})


def _hosts(net: Net) -> tuple[dict[str, list[tuple[str, str, int]]], int]:
    """(host → its ports as (adapter name, peer id, rate), in order of adapter names, number of SHARP nodes)."""
    hosts: dict[str, list[tuple[str, str, int]]] = {}
    aggregation = 0
    ports: dict[str, list[tuple[int, str, int]]] = {}
    for (owner, port), ((peer, _), rate) in net.cables.items():
        ports.setdefault(owner, []).append((port, peer, rate))
    for ident, name in net.names.items():
        if ident in net.switches or ident.startswith("R-"):
            continue
        if "Aggregation Node" in name:
            aggregation += 1
            continue
        host, _, adapter = name.partition(" ")
        if not host or re.fullmatch(r"MT\d+", host):  # the adapter's factory name: nobody named this host
            host, adapter = ident, name
        for port, peer, rate in ports.get(ident, ()):
            hosts.setdefault(host, []).append((f"{adapter or ident}/{port}", peer, rate))
    return {h: sorted(ports, key=lambda p: natural(p[0])) for h, ports in hosts.items()}, aggregation


def _switch_names(net: Net) -> dict[str, str]:
    """Switch id → a name without spaces, unique."""
    plain = {s: re.sub(r"[^A-Za-z0-9_.:;/]+", "_", net.names[s]).replace("/", ".") or s for s in net.switches}
    often = Counter(plain.values())
    return {s: n if often[n] == 1 else f"{n}.{s.replace('S-', '')}" for s, n in plain.items()}


def _peer_port(
    net: Net, hosts: dict[str, list[tuple[str, str, int]]], kept: list[str], host: str, position: int
) -> str | None:
    """The other end of a cable that goes from host to host without a switch, once per cable."""
    peer = hosts[host][position][1]
    other = net.names[peer].partition(" ")[0]
    if other not in kept or (kept.index(other), 0) < (kept.index(host), 0):
        return None
    adapter = net.names[peer].partition(" ")[2] or peer
    for at, (called, _, _) in enumerate(hosts[other]):
        if called.rpartition("/")[0] == adapter:
            return f"node{kept.index(other)}/nic{at}"
    return None
