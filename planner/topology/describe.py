"""A cluster in words and numbers for terminal and JSON: counts, class and rate between ranks, the tree of a node."""

from __future__ import annotations

from collections import Counter
from typing import Any

from zipplan.planner.topology.cluster import Cluster
from zipplan.planner.topology.graph import bisection
from zipplan.planner.topology.model import kind_of
from zipplan.planner.topology.node import PORT, NodeTemplate, natural


def counts(cluster: Cluster) -> dict[str, int]:
    """Devices of the whole cluster by kind; 'switch' is of the fabric, 'idle_nic' is kept out of the data path."""
    total: Counter[str] = Counter()
    for number, template in enumerate(cluster.templates):
        copies = int((cluster.template_of == number).sum())
        idle = set(template.idle_nics)
        for device in template.devices:
            total["idle_nic" if device in idle else kind_of(device)] += copies
    total["switch"] = sum(not name.startswith("cable") for name in cluster.fabric.names)
    return dict(sorted(total.items()))


def rate_between(cluster: Cluster, src: int, dst: int) -> int:
    """Bytes/s of the narrowest link on the path."""
    return min(int(cluster.bandwidths[link]) for link in cluster.path(src, dst))


def matrix(cluster: Cluster) -> list[list[tuple[str, int]]]:
    """(class, bytes/s) between the ranks of node 0; the diagonal is ('X', 0)."""
    ranks = range(cluster.ranks_per_node)
    return [[("X", 0) if a == b else (cluster.label(a, b), rate_between(cluster, a, b)) for b in ranks] for a in ranks]


def path_classes(cluster: Cluster) -> dict[str, int]:
    """How many pairs of ranks of node 0 are of each class."""
    pairs = [(a, b) for b in range(cluster.ranks_per_node) for a in range(b)]
    return dict(sorted(Counter(cluster.label(a, b) for a, b in pairs).items()))


def tree(template: NodeTemplate) -> dict[str, Any]:
    """Device → subtree, from the CPUs (or memory) down over PCIe; NVSwitches and what hangs nowhere come last."""
    below: dict[str, set[str]] = {}
    for edge in template.edges:
        if edge.kind in ("pcie", "c2c", "loopback") and edge.dst != PORT:
            below.setdefault(edge.src, set()).add(edge.dst)
            below.setdefault(edge.dst, set()).add(edge.src)
    seen: set[str] = set()

    def grow(device: str) -> dict[str, Any]:
        seen.add(device)
        children = [d for d in sorted(below.get(device, ()), key=natural) if d not in seen and kind_of(d) != "cpu"]
        seen.update(children)
        return {child: grow(child) for child in children}

    roots = [d for d in template.devices if kind_of(d) in ("cpu", "memory")]
    grown = {root: grow(root) for root in roots if root not in seen}
    grown |= {d: {} for d in template.devices if d not in seen and kind_of(d) != "nvswitch"}
    return grown | {d: {} for d in template.devices if kind_of(d) == "nvswitch"}


def summary(cluster: Cluster) -> dict[str, Any]:
    """Everything `topo show --json` prints; rates in bytes/s, times in ps."""
    machine, gpu, cpu = cluster.machine, cluster.gpu, cluster.machine.cpu
    template = cluster.templates[int(cluster.template_of[0])]
    edges = [(e, "node") for e in template.edges] + [(e, "fabric") for e in cluster.fabric.edges]
    return {
        "schema": 1,
        "name": machine.name,
        "summary": machine.summary,
        "source": machine.source,
        "fingerprint": cluster.fingerprint,
        "nodes": cluster.nodes,
        "ranks_per_node": cluster.ranks_per_node,
        "ranks": cluster.ranks,
        "gpu": gpu and {"model": gpu.model, "sms": gpu.sms, "hbm_bandwidth": gpu.hbm_bandwidth},
        "cpu": cpu and {"codec_encode": cpu.codec_encode, "codec_decode": cpu.codec_decode},
        "transport": cluster.transport.model_dump(),
        "fabric": machine.fabric.kind,
        "counts": counts(cluster),
        "link_count": len(cluster.links),
        "path_classes": path_classes(cluster),
        "bisection": bisection(cluster) if cluster.ranks <= 64 else None,
        "matrix": [[{"class": label, "bandwidth": rate} for label, rate in row] for row in matrix(cluster)],
        "nics": {device: template.nic_of.get(device) for device in cluster.devices},
        "idle_nics": template.idle_nics,
        "links": [
            {
                "in": where,
                "src": e.src,
                "dst": e.dst,
                "kind": e.kind,
                "bandwidth": e.bandwidth,
                "latency": e.latency,
            }
            for e, where in edges[:20_000]
        ],
    }
