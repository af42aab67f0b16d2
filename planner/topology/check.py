"""`topo check`: what is wrong or odd about a description that can be loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from zipplan.planner.topology.cluster import Cluster
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.model import kind_of
from zipplan.planner.topology.node import NodeTemplate
from zipplan.planner.units import format_bandwidth

FASTEST = 4_000_000_000_000
"""No single link of a node is faster than 4 TB/s each way today (NVLink6: 1.8 TB/s)."""
SLOWEST = 1_000_000
"""Below 1 MB/s no collective is planned; likely a unit slip."""
LONGEST = 10**11
"""A hop of more than 0.1 s is a unit slip."""


@dataclass(frozen=True, slots=True)
class Finding:
    """level 'error' fails the check, 'warning' does not; `rule` is a stable short name."""

    level: Literal["error", "warning"]
    rule: str
    text: str


def check(described: Imported, cluster: Cluster) -> list[Finding]:
    """All findings, errors first."""
    found = [Finding("warning", "import", text) for text in described.warnings]
    for number, template in enumerate(cluster.templates):
        where = f"node {int((cluster.template_of == number).argmax())}"
        for rule in (_asymmetric, _outliers, _missing_nvlink, _far_nic, _impossible):
            found += rule(template, where)
    found += _fabric(cluster)
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda f: f.level)


def _asymmetric(template: NodeTemplate, where: str) -> list[Finding]:
    """A link that is faster one way than the other, or exists one way only (shared memory is one-way by nature)."""
    rate: dict[tuple[str, str], int] = {}
    for edge in template.edges:
        if edge.kind != "loopback":
            rate[edge.src, edge.dst] = rate.get((edge.src, edge.dst), 0) + edge.bandwidth
    found = []
    for (a, b), one in rate.items():
        other = rate.get((b, a))
        if other is None or (one != other and a < b):
            back = "nothing" if other is None else format_bandwidth(other)
            found.append(
                Finding(
                    "error",
                    "asymmetric-link",
                    f"{where}: {a} to {b} has {format_bandwidth(one)}, the way back {back}; is one direction degraded?",
                )
            )
    return found


def _outliers(template: NodeTemplate, where: str) -> list[Finding]:
    """Devices of one kind whose links differ: NVLinks down, a slot at half width, a NIC at half rate."""
    families: dict[tuple[str, str, str], dict[str, int]] = {}
    idle = set(template.idle_nics)
    for edge in template.edges:
        key = (kind_of(edge.src), kind_of(edge.dst), edge.kind)
        if edge.src not in idle and key[0] in ("gpu", "nic") and key[0] != key[1]:
            total = families.setdefault(key, {})
            total[edge.src] = total.get(edge.src, 0) + edge.bandwidth
    found = []
    for (kind, to, link), total in families.items():
        usual, count = Counter(total.values()).most_common(1)[0]
        if count == len(total) or count < len(total) / 2:
            continue
        for device, rate in total.items():
            if rate != usual:
                found.append(
                    Finding(
                        "error" if rate < usual else "warning",
                        "degraded-link" if rate < usual else "uneven-link",
                        f"{where}: {device} has {format_bandwidth(rate)} of {link} towards {to}, the other "
                        f"{kind}s have {format_bandwidth(usual)} ({rate / usual:.2f} of it)",
                    )
                )
    return found


def _missing_nvlink(template: NodeTemplate, where: str) -> list[Finding]:
    gpus = [d for d in template.ranks if kind_of(d) == "gpu"]
    fast = {d for e in template.edges if e.kind in ("nvlink", "xgmi") for d in (e.src, e.dst)}
    bare = [g for g in gpus if g not in fast]
    if not bare or len(bare) == len(gpus):
        return []
    text = f"{where}: {', '.join(bare)} without NVLink or xGMI, though {len(gpus) - len(bare)} peers have it"
    return [Finding("error", "gpu-without-nvlink", text)]


def _far_nic(template: NodeTemplate, where: str) -> list[Finding]:
    gpus = [d for d in template.ranks if kind_of(d) == "gpu"]
    labels = {}
    for gpu in gpus:
        nic = template.nic_of.get(gpu)
        if nic is not None:
            labels[gpu] = (nic, template.path(gpu, nic).label)
    far = [f"{gpu} to {nic}" for gpu, (nic, label) in labels.items() if label == "SYS"]
    if not far:
        return []
    text = f"{where}: nearest NIC is on another socket for {', '.join(far)}"
    return [Finding("warning", "far-nic", text)]


def _impossible(template: NodeTemplate, where: str) -> list[Finding]:
    found = []
    for edge in template.edges:
        if not SLOWEST <= edge.bandwidth <= FASTEST:
            rate = format_bandwidth(edge.bandwidth)
            text = f"{where}: {edge.src} to {edge.dst}: {rate} is no rate of a {edge.kind} link"
            found.append(Finding("error", "impossible-number", text))
        if edge.latency > LONGEST:
            text = f"{where}: {edge.src} to {edge.dst}: a hop of {edge.latency / 1e12:g} s is no latency of a link"
            found.append(Finding("error", "impossible-number", text))
    return found


def _fabric(cluster: Cluster) -> list[Finding]:
    """Oversubscription: rate of the ports on a switch against the rate of its links to other switches."""
    below: dict[str, int] = {}
    for node, row in enumerate(cluster.fabric.attach):
        template = cluster.templates[int(cluster.template_of[node])]
        for nic, switch in zip(template.nics, row, strict=False):
            if nic in template.port_out:
                below[switch] = below.get(switch, 0) + template.edges[template.port_out[nic]].bandwidth
    above: dict[str, int] = {}
    pairs: dict[tuple[str, str], int] = {}
    for edge in cluster.fabric.edges:
        above[edge.src] = above.get(edge.src, 0) + edge.bandwidth
        pairs[edge.src, edge.dst] = edge.bandwidth
    found = []
    ratios: dict[float, list[str]] = {}
    for switch, down in below.items():
        if switch in above and down > above[switch]:
            ratios.setdefault(round(down / above[switch], 2), []).append(switch)
    for ratio, switches in sorted(ratios.items(), reverse=True):
        shown = ", ".join(switches[:4]) + (f" and {len(switches) - 4} more" if len(switches) > 4 else "")
        found.append(Finding("warning", "oversubscribed", f"fabric: {shown}: {ratio:g} times more below than above"))
    for (a, b), one in pairs.items():
        other = pairs.get((b, a))
        if other is None or (one != other and a < b):
            back = "nothing" if other is None else format_bandwidth(other)
            text = f"fabric: {a} to {b} has {format_bandwidth(one)}, the way back {back}"
            found.append(Finding("error", "asymmetric-link", text))
    return found
