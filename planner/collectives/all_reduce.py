"""All-reduce: every rank ends with the sum over all ranks.

Never a compressed ring: it decodes and encodes at every hop, and published results show it loses to the native ring
(UCCL-Zip, arXiv 2604.17172, §5.2.2).
"""

from __future__ import annotations

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Schedule, Stage


def native(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """The transport's all-reduce on raw values, in its own order of additions."""
    stage = parts.native(Exchange.ALL_REDUCE, INPUT, OUTPUT)
    return Schedule("native", Collective.ALL_REDUCE, nodes, ranks_per_node, 1, "raw", (stage,))


def direct(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """All-to-all of raw slots, their sum in FP32 in rank order, all-gather of the sums."""
    ranks = nodes * ranks_per_node
    shares = parts.summed(INPUT, "share")
    gather = parts.native(Exchange.ALL_GATHER, "share", OUTPUT, after=(shares[-1].name,))
    return Schedule("direct", Collective.ALL_REDUCE, nodes, ranks_per_node, ranks, "raw", (*shares, gather))


def two_shot(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """Zipped reduce-scatter, then zipped all-gather of the sums."""
    ranks = nodes * ranks_per_node
    stages = _two_shot_on(Axis.WORLD, INPUT, OUTPUT)
    return Schedule("two-shot", Collective.ALL_REDUCE, nodes, ranks_per_node, ranks, codec, stages)


def two_level(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """Reduce-scatter inside the node, all-reduce along each rail, all-gather inside the node, sums by the transport."""
    ranks = nodes * ranks_per_node
    scatter = parts.native(Exchange.REDUCE_SCATTER, INPUT, "node_sums", Axis.NODE)
    rail = parts.native(Exchange.ALL_REDUCE, "node_sums", "rail_sums", Axis.RAIL, (scatter.name,))
    gather = parts.native(Exchange.ALL_GATHER, "rail_sums", OUTPUT, Axis.NODE, (rail.name,))
    stages = (scatter, rail, gather)
    return Schedule("two-level", Collective.ALL_REDUCE, nodes, ranks_per_node, ranks, "raw", stages)


def zipped_across_nodes(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """Reduce-scatter inside the node, zipped two-shot along each rail, all-gather inside the node."""
    ranks = nodes * ranks_per_node
    scatter = parts.native(Exchange.REDUCE_SCATTER, INPUT, "node_sums", Axis.NODE)
    rail = _two_shot_on(Axis.RAIL, "node_sums", "rail_sums", (scatter.name,))
    gather = parts.native(Exchange.ALL_GATHER, "rail_sums", OUTPUT, Axis.NODE, (rail[-1].name,))
    stages = (scatter, *rail, gather)
    return Schedule("zipped-across-nodes", Collective.ALL_REDUCE, nodes, ranks_per_node, ranks, codec, stages)


def _two_shot_on(axis: Axis, src: str, dst: str, after: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    shares = parts.zipped(Exchange.ALL_TO_ALL, src, f"{axis}_share", axis, Op.DECODE_REDUCE, after)
    return (*shares, *parts.zipped(Exchange.ALL_GATHER, f"{axis}_share", dst, axis, Op.DECODE, (shares[-1].name,)))
