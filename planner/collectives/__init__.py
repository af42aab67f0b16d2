"""Candidate schedules. One function per family and collective; adding an algorithm is one more function here.

Every function takes (nodes, ranks_per_node, codec id) and returns a Schedule. `candidates` composes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from zipplan.planner.schedule import Collective, Schedule

Builder = Callable[[int, int, str], Schedule]

NATIVE: dict[Collective, Builder] = {
    Collective.ALL_GATHER: all_gather.native,
    Collective.ALL_TO_ALL: all_to_all.native,
    Collective.REDUCE_SCATTER: reduce_scatter.native,
    Collective.ALL_REDUCE: all_reduce.native,
}
ZIPPED: dict[Collective, tuple[Builder, ...]] = {
    Collective.ALL_GATHER: (all_gather.zipped,),
    Collective.ALL_TO_ALL: (all_to_all.zipped,),
    Collective.REDUCE_SCATTER: (reduce_scatter.zipped,),
    Collective.ALL_REDUCE: (all_reduce.two_shot,),
}
SUMMED: dict[Collective, Builder] = {
    Collective.REDUCE_SCATTER: reduce_scatter.direct,
    Collective.ALL_REDUCE: all_reduce.direct,
}
"""Raw, with sums by zipplan. On gloo only: its own reduce-scatter takes twice the time of its all-to-all
(docs/benchmarks/lab.md), while NCCL sums on the way."""
STUDIED: dict[Collective, tuple[Builder, ...]] = {Collective.ALL_TO_ALL: (all_to_all.sizes_first,)}
"""Forms that another one of the same bytes always beats: no candidates, but studies name them."""
TWO_LEVEL: dict[Collective, Builder] = {
    Collective.ALL_GATHER: all_gather.two_level,
    Collective.ALL_TO_ALL: all_to_all.two_level,
    Collective.REDUCE_SCATTER: reduce_scatter.two_level,
    Collective.ALL_REDUCE: all_reduce.two_level,
}
"""Raw, inside the nodes and along the rails apart. Studied only: a plan asks what compression gains over the
transport's own collectives, and raw means these."""
ZIPPED_ACROSS: dict[Collective, Builder] = {
    Collective.ALL_GATHER: all_gather.zipped_across_nodes,
    Collective.ALL_TO_ALL: all_to_all.zipped_across_nodes,
    Collective.REDUCE_SCATTER: reduce_scatter.zipped_across_nodes,
    Collective.ALL_REDUCE: all_reduce.zipped_across_nodes,
}

CHUNKED: dict[Collective, tuple[Builder, ...]] = {
    Collective.ALL_GATHER: (all_gather.zipped, all_gather.zipped_across_nodes),
    Collective.ALL_TO_ALL: (all_to_all.zipped, all_to_all.zipped_across_nodes),
    Collective.REDUCE_SCATTER: (reduce_scatter.zipped, reduce_scatter.zipped_across_nodes),
    Collective.ALL_REDUCE: (all_reduce.two_shot,),
}
"""Families whose input and output only the codec touches, so that they can run in chunks."""
CHUNKS = 4
"""Parts of a chunked candidate: of the codec's time next to transfers a quarter stays, and each part pays every launch
and start-up again."""


def chunked(schedule: Schedule, chunks: int) -> Schedule:
    """The same schedule in chunks: the codec works on one part while others travel."""
    return replace(schedule, name=f"{schedule.name}-x{chunks}", chunks=chunks)


def candidates(
    collective: Collective, nodes: int, ranks_per_node: int, codecs: Sequence[str], transport: str = "nccl"
) -> Iterator[Schedule]:
    """Every schedule worth simulating on this grid, simplest first: native, each family with each codec, then chunked.

    The forms in two levels need more than one node and more than one rank in each.
    """
    yield NATIVE[collective](nodes, ranks_per_node, "raw")
    if transport == "gloo" and collective in SUMMED:
        yield SUMMED[collective](nodes, ranks_per_node, "raw")
    families = ZIPPED[collective]
    if nodes > 1 and ranks_per_node > 1:
        families += (ZIPPED_ACROSS[collective],)
    for codec in codecs:
        for build in families:
            yield build(nodes, ranks_per_node, codec)
    for codec in codecs:
        for build in CHUNKED[collective]:
            if build in families:
                yield chunked(build(nodes, ranks_per_node, codec), CHUNKS)


def studied(collective: Collective, nodes: int, ranks_per_node: int, codecs: Sequence[str]) -> Iterator[Schedule]:
    """The forms that only studies ask for."""
    if nodes > 1 and ranks_per_node > 1:
        yield TWO_LEVEL[collective](nodes, ranks_per_node, "raw")
    for codec in codecs:
        for build in STUDIED.get(collective, ()):
            yield build(nodes, ranks_per_node, codec)
