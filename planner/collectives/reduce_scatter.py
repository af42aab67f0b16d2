"""Reduce-scatter: rank p ends with the sum of all ranks' slot p."""

from __future__ import annotations

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Schedule


def native(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """The transport's reduce-scatter on raw values, in its own order of additions."""
    stage = parts.native(Exchange.REDUCE_SCATTER, INPUT, OUTPUT)
    ranks = nodes * ranks_per_node
    return Schedule("native", Collective.REDUCE_SCATTER, nodes, ranks_per_node, ranks, "raw", (stage,))


def direct(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """All-to-all of raw slots, then the sum in FP32 in rank order: no arithmetic in flight."""
    stages = parts.summed(INPUT, OUTPUT)
    ranks = nodes * ranks_per_node
    return Schedule("direct", Collective.REDUCE_SCATTER, nodes, ranks_per_node, ranks, "raw", stages)


def zipped(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """All-to-all of frames, then decode and sum in FP32 in rank order (ZipCCL §3.3): no arithmetic in flight."""
    stages = parts.zipped(Exchange.ALL_TO_ALL, INPUT, OUTPUT, Axis.WORLD, Op.DECODE_REDUCE)
    ranks = nodes * ranks_per_node
    return Schedule("zipped", Collective.REDUCE_SCATTER, nodes, ranks_per_node, ranks, codec, stages)
