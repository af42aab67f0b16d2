"""Reduce-scatter: rank p ends with the sum of all ranks' slot p."""

from __future__ import annotations

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Schedule, Stage


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


def two_level(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """The transport's reduce-scatter inside the node, then along each rail: sums in its own order of additions."""
    ranks = nodes * ranks_per_node
    inside = _inside(nodes, ranks_per_node)
    rail = parts.native(Exchange.REDUCE_SCATTER, "node_sums", OUTPUT, Axis.RAIL, (inside[-1].name,))
    return Schedule("two-level", Collective.REDUCE_SCATTER, nodes, ranks_per_node, ranks, "raw", (*inside, rail))


def zipped_across_nodes(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """The transport's reduce-scatter inside the node; frames along each rail, summed in FP32 in order of nodes."""
    ranks = nodes * ranks_per_node
    inside = _inside(nodes, ranks_per_node)
    rail = parts.zipped(Exchange.ALL_TO_ALL, "node_sums", OUTPUT, Axis.RAIL, Op.DECODE_REDUCE, (inside[-1].name,))
    stages = (*inside, *rail)
    return Schedule("zipped-across-nodes", Collective.REDUCE_SCATTER, nodes, ranks_per_node, ranks, codec, stages)


def _inside(nodes: int, ranks_per_node: int) -> tuple[Stage, ...]:
    """Until every rank holds its node's sums of the slots of its rail, one for each node."""
    by_rail = parts.transposed("permute", INPUT, "by_rail", nodes, ranks_per_node)
    return by_rail, parts.native(Exchange.REDUCE_SCATTER, "by_rail", "node_sums", Axis.NODE, (by_rail.name,))
