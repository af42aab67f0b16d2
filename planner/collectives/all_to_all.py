"""All-to-all: slot p of every rank goes to rank p."""

from __future__ import annotations

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Schedule


def native(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """The transport's all-to-all on raw bytes."""
    stage = parts.native(Exchange.ALL_TO_ALL, INPUT, OUTPUT)
    ranks = nodes * ranks_per_node
    return Schedule("native", Collective.ALL_TO_ALL, nodes, ranks_per_node, ranks, "raw", (stage,))


def zipped(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """One frame per peer, static regions first (ZipCCL §3.2, design 2)."""
    stages = parts.zipped(Exchange.ALL_TO_ALL, INPUT, OUTPUT, Axis.WORLD, Op.DECODE)
    ranks = nodes * ranks_per_node
    return Schedule("zipped", Collective.ALL_TO_ALL, nodes, ranks_per_node, ranks, codec, stages)
