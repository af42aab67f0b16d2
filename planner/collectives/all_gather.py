"""All-gather: every rank ends with every rank's block, in rank order."""

from __future__ import annotations

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Schedule, Stage


def native(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """The transport's all-gather on raw bytes."""
    stage = parts.native(Exchange.ALL_GATHER, INPUT, OUTPUT)
    return Schedule("native", Collective.ALL_GATHER, nodes, ranks_per_node, 1, "raw", (stage,))


def zipped(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """Encode once, gather frames from all ranks, decode all (ZipCCL §3.1)."""
    stages = parts.zipped(Exchange.ALL_GATHER, INPUT, OUTPUT, Axis.WORLD, Op.DECODE)
    return Schedule("zipped", Collective.ALL_GATHER, nodes, ranks_per_node, 1, codec, stages)


def two_level(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """Along each rail, then inside the node."""
    rail = parts.native(Exchange.ALL_GATHER, INPUT, "rail_blocks", Axis.RAIL)
    stages = (rail, *_inside(nodes, ranks_per_node, rail.name))
    return Schedule("two-level", Collective.ALL_GATHER, nodes, ranks_per_node, 1, "raw", stages)


def zipped_across_nodes(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """Frames across nodes along each rail, then raw slots inside the node; the slow links alone carry frames."""
    rail = parts.zipped(Exchange.ALL_GATHER, INPUT, "rail_blocks", Axis.RAIL, Op.DECODE)
    stages = (*rail, *_inside(nodes, ranks_per_node, rail[-1].name))
    return Schedule("zipped-across-nodes", Collective.ALL_GATHER, nodes, ranks_per_node, 1, codec, stages)


def _inside(nodes: int, ranks_per_node: int, after: str) -> tuple[Stage, ...]:
    """From the blocks of this rank's rail to all blocks in rank order."""
    node = parts.native(Exchange.ALL_GATHER, "rail_blocks", "by_rail", Axis.NODE, (after,))
    return node, parts.transposed("permute", "by_rail", OUTPUT, ranks_per_node, nodes, (node.name,))
