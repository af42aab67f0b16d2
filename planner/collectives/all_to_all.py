"""All-to-all: slot p of every rank goes to rank p."""

from __future__ import annotations

from dataclasses import replace

from zipplan.planner.collectives import parts
from zipplan.planner.schedule import INPUT, OUTPUT, Axis, Collective, Exchange, Op, Payload, Schedule, Stage


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


def sizes_first(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """One frame per peer after an exchange of sizes (ZipCCL §3.2, design 1): that one makes all wait for the last rank.

    For studies: design 2 moves the same bytes without that wait.
    """
    encode, static, dynamic, decode = parts.zipped(Exchange.ALL_TO_ALL, INPUT, OUTPUT, Axis.WORLD, Op.DECODE)
    sizes = Stage(
        "all_to_all_world_sizes", Op.EXCHANGE, encode.dst, static.dst, (encode.name,), Axis.WORLD, Exchange.ALL_TO_ALL,
        Payload.SIZES,
    )  # fmt: skip
    known = (encode.name, sizes.name)
    stages = (encode, sizes, replace(static, after=known), replace(dynamic, after=known), decode)
    ranks = nodes * ranks_per_node
    return Schedule("sizes-first", Collective.ALL_TO_ALL, nodes, ranks_per_node, ranks, codec, stages)


def two_level(nodes: int, ranks_per_node: int, codec: str = "raw") -> Schedule:
    """Inside the node to the rank on the receiver's rail, then along the rails: a NIC meets one peer per node.

    Tutel's 2DH (microsoft/Tutel, tutel/custom/custom_kernel.cpp).
    """
    ranks = nodes * ranks_per_node
    to_rails = _to_rails(nodes, ranks_per_node)
    rail = parts.native(Exchange.ALL_TO_ALL, "by_node", OUTPUT, Axis.RAIL, (to_rails[-1].name,))
    stages = (*to_rails, rail)
    return Schedule("two-level", Collective.ALL_TO_ALL, nodes, ranks_per_node, ranks, "raw", stages)


def zipped_across_nodes(nodes: int, ranks_per_node: int, codec: str) -> Schedule:
    """In two levels, with frames along the rails only."""
    ranks = nodes * ranks_per_node
    to_rails = _to_rails(nodes, ranks_per_node)
    rail = parts.zipped(Exchange.ALL_TO_ALL, "by_node", OUTPUT, Axis.RAIL, Op.DECODE, (to_rails[-1].name,))
    stages = (*to_rails, *rail)
    return Schedule("zipped-across-nodes", Collective.ALL_TO_ALL, nodes, ranks_per_node, ranks, codec, stages)


def _to_rails(nodes: int, ranks_per_node: int) -> tuple[Stage, ...]:
    """Until every slot lies on its receiver's rail, ordered by the receiver's node, then by the sender."""
    to_rails = parts.transposed("permute_by_rail", INPUT, "by_rail", nodes, ranks_per_node)
    inside = parts.native(Exchange.ALL_TO_ALL, "by_rail", "by_sender", Axis.NODE, (to_rails.name,))
    back = parts.transposed("permute_by_node", "by_sender", "by_node", ranks_per_node, nodes, (inside.name,))
    return to_rails, inside, back
