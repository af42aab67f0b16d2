"""A node file and a fabric file together; and two descriptions of one machine compared pair by pair."""

from __future__ import annotations

from dataclasses import replace

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.cluster import build_cluster
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.node import NodeTemplate
from zipplan.planner.units import format_bandwidth


def with_fabric(node: Imported, fabric: Imported) -> Imported:
    """The node of one description on the fabric of another. Raises TopologyError when their NIC counts differ."""
    if fabric.machine.fabric.kind == "none":
        raise TopologyError(
            f"{fabric.machine.name}: no fabric in it; expected ibnetdiscover or iblinkinfo text, or TOML"
        )
    spec = fabric.machine.fabric
    inside = node.machine.model_copy(update={"fabric": spec})
    ports = {len(NodeTemplate(inside, n, n.ranks).nics) for n in inside.node}
    if spec.kind == "graph":
        cabled = {end.partition("/")[2] for cable in spec.link for end in (cable.a, cable.b) if "/" in end}
        if ports != {len(cabled)}:
            raise TopologyError(
                f"{node.machine.name} uses {', '.join(map(str, sorted(ports)))} NICs per node, the hosts of "
                f"{fabric.machine.name} have {len(cabled)} cabled adapters; set use = false on NICs without a cable, "
                "or add the missing ones to the node file"
            )
    degraded = tuple(o for o in fabric.machine.override if o.node is None or o.link.endswith("fabric"))
    machine = inside.model_copy(update={"override": (*node.machine.override, *degraded)})
    assumed = [s for s in node.assumed if "one non-blocking switch" not in s]
    assumed.append("NICs of a node are in the order of the adapter names of the fabric file")
    return replace(
        node,
        machine=machine,
        format=f"{node.format} + {fabric.format}" if node.format and fabric.format else node.format or fabric.format,
        read=(*node.read, *fabric.read),
        assumed=tuple(assumed),
        unknown=tuple(s for s in node.unknown if "fabric" not in s),
        warnings=(*node.warnings, *fabric.warnings),
    )


def compare(one: Imported, other: Imported) -> list[dict[str, str]]:
    """Pairs of devices whose class differs, both said; none wins.

    By their raw labels where both texts have them, else by the computed path class and rate of every pair of ranks.
    """
    raw = bool(one.labels and other.labels)
    left, right = (d.labels if raw else _classes(d) for d in (one, other))
    rows = []
    for pair in sorted(set(left) | set(right)):
        a, b = left.get(pair, "absent"), right.get(pair, "absent")
        if a != b:
            rows.append({"pair": "-".join(pair), "a": f"{a} ({one.format})", "b": f"{b} ({other.format})"})
    return rows


def _classes(described: Imported) -> dict[tuple[str, str], str]:
    cluster = build_cluster(described.machine, nodes=1)
    pairs = [(a, b) for b in range(cluster.ranks) for a in range(b)]
    rates = {pair: min(int(cluster.bandwidths[link]) for link in cluster.path(*pair)) for pair in pairs}
    return {
        (cluster.device_of(a), cluster.device_of(b)): f"{cluster.label(a, b)} {format_bandwidth(rates[a, b])}"
        for a, b in pairs
    }
