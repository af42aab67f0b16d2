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
