"""Fingerprint of a cluster: equal for equal shapes and numbers, whatever the devices are called or listed as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from zipplan.planner.topology.model import kind_of
from zipplan.planner.topology.node import PORT, Edge, NodeTemplate

if TYPE_CHECKING:
    from zipplan.planner.topology.cluster import Cluster

ROUNDS = 6
"""Refinement rounds: more than the radius of any node, so that every device has seen every rank."""


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def canonical_graph(colours: dict[str, object], edges: Iterable[Edge]) -> tuple[str, dict[str, str]]:
    """Weisfeiler-Lehman refinement: (digest of the whole graph, colour of each device), free of names.

    Ranks start with their number, everything else with its kind; hence relabelling switches, NICs or CPUs changes
    nothing and any bandwidth, latency or cable does.
    """
    edges = list(edges)
    colour = {device: _digest(start) for device, start in colours.items()}
    for _ in range(ROUNDS):
        seen: dict[str, list[object]] = {device: [] for device in colour}
        for edge in edges:
            seen[edge.src].append([">", edge.kind, edge.bandwidth, edge.latency, colour[edge.dst]])
            seen[edge.dst].append(["<", edge.kind, edge.bandwidth, edge.latency, colour[edge.src]])
        colour = {device: _digest([colour[device], sorted(seen[device], key=str)]) for device in colour}
    return _digest(sorted(colour.values())), colour


def _template(template: NodeTemplate, devices: Sequence[str]) -> str:
    colours: dict[str, object] = {PORT: "port"}
    for device in template.devices:
        colours[device] = [kind_of(device), devices.index(device)] if device in devices else kind_of(device)
    for nic in template.idle_nics:
        colours.pop(nic, None)
    kept = [edge for edge in template.edges if edge.src in colours and edge.dst in colours]
    return canonical_graph(colours, kept)[0]


def _nodes(cluster: Cluster) -> list[list[object]]:
    """[digest, how many in a row] over the nodes; a digest covers the links and the rail of every local rank.

    Rails are numbered as they first appear, so that the numbers of the NICs do not count but their alignment does.
    """
    rail_number: dict[int, int] = {}
    digests: dict[int, str] = {}
    runs: list[tuple[str, int]] = []
    for index in cluster.template_of:
        if index not in digests:
            template = cluster.templates[index]
            nics = [template.nic_of.get(device) for device in cluster.devices]
            rails = [-1 if nic is None else template.nics.index(nic) for nic in nics]
            aligned = [-1 if rail < 0 else rail_number.setdefault(rail, len(rail_number)) for rail in rails]
            digests[index] = _digest([_template(template, cluster.devices), aligned, template.p2p])
        digest = digests[index]
        count = runs.pop()[1] if runs and runs[-1][0] == digest else 0
        runs.append((digest, count + 1))
    return [list(run) for run in runs]


def fingerprint(cluster: Cluster) -> str:
    """'sha256:' + 64 hex digits."""
    machine, fabric, gpu, cpu = cluster.machine, cluster.fabric, cluster.gpu, cluster.machine.cpu
    if machine.fabric.kind == "graph" or any(o.node is None for o in machine.override):
        colours: dict[str, object] = dict.fromkeys(fabric.names, "switch")
        edges = list(fabric.edges)
        for node, row in enumerate(fabric.attach):
            for nic, switch in enumerate(row):
                colours[f"{node}/{nic}"] = [node, nic]
                edges.append(Edge(f"{node}/{nic}", switch, "port", 0, 0))
        shape: object = canonical_graph(colours, edges)[0]
    else:
        spec = machine.fabric
        shape = [
            spec.kind,
            *(getattr(spec, key) for key in _FABRIC_NUMBERS),
            fabric._latency if spec.kind != "none" else None,
        ]
    transport = cluster.transport.model_dump(exclude={"sources"})
    return "sha256:" + _digest(
        {
            "format": 1,
            "nodes": _nodes(cluster),
            "ranks_per_node": cluster.ranks_per_node,
            "fabric": shape,
            "pxn": machine.fabric.pxn,
            "routing": machine.fabric.routing,
            **({"sharp": True} if machine.fabric.sharp else {}),
            "transport": transport,
            "gpu": [gpu.sms, gpu.hbm_bandwidth] if gpu else None,
            "cpu": [cpu.codec_encode, cpu.codec_decode, cpu.cascade_encode, cpu.cascade_decode, cpu.cores]
            if cpu
            else None,
        }
    )


_FABRIC_NUMBERS = (
    "nodes_per_leaf",
    "spines",
    "oversubscription",
    "nodes_per_switch",
    "switches_per_group",
    "local_bandwidth",
    "global_bandwidth",
)
