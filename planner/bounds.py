"""Lower bounds of a schedule's time, without simulating it: whatever shares a resource cannot finish before it has.

Links: a set of ranks (one rank, one node, the nodes of one leaf switch) must send and receive certain bytes through the
links that join it to the rest, however the transport routes them (`crossing`). What holds for a collective whatever the
schedule, over every set of ranks, is in trees/cut.py. Codec: a rank has one engine. Stages:
what waits for something starts after it, even if nothing else is on the links.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zipplan.planner.costs import Rates, Wire
from zipplan.planner.schedule import Axis, Exchange, Op, Payload, Schedule, Stage
from zipplan.planner.simulate import Skew
from zipplan.planner.topology import Cluster
from zipplan.planner.transport import Transport
from zipplan.planner.trees.cut import Network
from zipplan.planner.units import PS_PER_SECOND, format_time

_ROUNDING = 1 - 1e-9
"""Shares of bytes and rates are floats; thousands of roundings of 2⁻⁵³ stay below this."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A schedule takes at least `time` ps for `what`. `one`: that is a single resource, not a chain of stages."""

    time: int
    what: str
    one: bool = True


@dataclass(frozen=True, slots=True)
class _Side:
    """A set of ranks and bytes/s of the links out of it and into it.

    nodes: whole nodes that it holds, 0 for a single rank. node0, local0: whether it holds node 0, a rank that is the
    first of its node.
    """

    what: str
    nodes: int
    node0: bool
    local0: bool
    out: int
    into: int

    def meets(self, schedule: Schedule, axis: Axis) -> tuple[int, int, bool]:
        """(groups of an axis that are cut, ranks of each inside, whether these hold the first of the group)."""
        if not self.nodes:
            return 1, 1, {Axis.NODE: self.local0, Axis.RAIL: self.node0}.get(axis, self.node0 and self.local0)
        if axis is Axis.RAIL:
            return schedule.ranks_per_node, self.nodes, self.node0
        return int(axis is Axis.WORLD), self.nodes * schedule.ranks_per_node, self.node0


def told(bounds: list[Bound]) -> str:
    """'at least 3.5 ms: exchanges 3.3 ms, codec and copies 200 µs, one after another; 3.1 ms for the NICs of one node
    alone'.
    """
    top, one = (max(some, key=lambda b: b.time) for some in (bounds, [b for b in bounds if b.one]))
    alone = f"{format_time(one.time)} for {one.what} alone"
    return f"at least {alone}" if top.one else f"at least {format_time(top.time)}: {top.what}; {alone}"


def crossing(exchange: Exchange, inside: int, group: int, first: bool) -> tuple[float, float]:
    """Bytes that must leave `inside` ranks of a group and enter them, per byte that each rank puts in.

    Where sums are made on the way, one partial sum stands for all. first: whether the group's first rank is inside.
    """
    outside = group - inside
    if outside == 0:
        return 0.0, 0.0
    return {
        Exchange.ALL_GATHER: (float(inside), float(outside)),
        Exchange.ALL_TO_ALL: (inside * outside / group, inside * outside / group),
        Exchange.REDUCE_SCATTER: (outside / group, inside / group),
        Exchange.ALL_REDUCE: (1.0, 1.0),
        Exchange.BROADCAST: (float(first), float(not first)),
        Exchange.REDUCE: (float(not first), float(first)),
        Exchange.SEND_RECV: (1.0, 1.0),
    }[exchange]


class Bounds:
    """The lower bounds of any schedule on one cluster with one transport."""

    def __init__(self, cluster: Cluster, transport: Transport) -> None:
        self.cluster, self.transport = cluster, transport
        self._sides = _sides(cluster) if cluster.ranks > 1 else []

    def of(self, schedule: Schedule, size: int, wire: Wire, rates: Rates, skew: Skew | None = None) -> list[Bound]:
        """Every bound for a message of `size` bytes."""
        if schedule.ranks == 1 or size == 0:
            return [Bound(0, "nothing")]
        parts = schedule.parts(schedule.slot_bytes(size))
        sent = [(s, sum(_sent(s, schedule, wire, p) for p in parts)) for s in schedule.stages if s.op is Op.EXCHANGE]
        load = min(skew.load) if skew is not None else 1.0
        found = [self._links(side, schedule, sent, load) for side in self._sides]
        engine = self._engine(schedule, rates, parts, max(skew.load) if skew is not None else 1.0)
        return [*found, engine, self._chain(schedule, wire, rates, parts, skew)]

    def _links(self, side: _Side, schedule: Schedule, sent: list[tuple[Stage, float]], load: float) -> Bound:
        out = into = 0.0
        for stage, each in sent:
            assert stage.exchange is not None  # an exchange stage names its exchange
            groups, inside, first = side.meets(schedule, stage.axis)
            leaving, entering = crossing(stage.exchange, inside, schedule.axis_size(stage.axis), first)
            out += groups * leaving * each
            into += groups * entering * each
        needed = max(out / side.out, into / side.into) * load / self.transport.beyond * PS_PER_SECOND
        return Bound(int(needed * _ROUNDING), side.what)

    def _engine(self, schedule: Schedule, rates: Rates, parts: tuple[int, ...], load: float) -> Bound:
        spent = sum(
            rates.duration(stage, schedule, part) * (load if stage.op is Op.ENCODE else 1.0)
            for stage in schedule.stages
            if stage.op is not Op.EXCHANGE
            for part in parts
        )
        return Bound(int(spent * _ROUNDING), "the codec and copies of one rank")

    def _chain(self, schedule: Schedule, wire: Wire, rates: Rates, parts: tuple[int, ...], skew: Skew | None) -> Bound:
        """The longest chain of stages on one rank: the last one, which is the uneven one where ranks differ."""
        rank = schedule.ranks - 1
        late, load = (skew.late[rank], skew.load[rank]) if skew is not None else (0, 1.0)
        ended: dict[tuple[str, int], tuple[int, int, int]] = {}  # when; how long on the wire and how long off it before
        for part, stage in schedule.unrolled(len(parts)):
            before = [ended[name, part] for name in stage.after] or [(0 if part else late, 0, 0)]
            start, wired, local = max(*before, ended[stage.name, part - 1]) if part else max(before)
            group, took = schedule.group(stage.axis, rank), 0
            if stage.exchange is None:
                took = int(rates.duration(stage, schedule, parts[part]) * (load if stage.op is Op.ENCODE else 1.0))
                local += took
            elif len(group) > 1:
                alone = self.transport.alone(stage.exchange, group, _sent(stage, schedule, wire, parts[part]))
                # Pair by pair, most bytes may have moved before this rank is there.
                paired = skew is not None and self.transport.is_direct(stage.exchange)
                took = int(alone.launch + (0.0 if paired else alone.wire * _ROUNDING) + alone.latency)
                took += rates.launch if stage.payload is Payload.SIZES else 0
                wired += took
            ended[stage.name, part] = start + took, wired, local
        time, wired, local = max(ended.values())
        stages = f"exchanges {format_time(wired)}, codec and copies {format_time(local)}, one after another"
        return Bound(time, stages, one=False)


def _sent(stage: Stage, schedule: Schedule, wire: Wire, part: int) -> float:
    return schedule.buffer_slots[stage.src] * wire.bytes(stage.payload, part)


def _sides(cluster: Cluster) -> list[_Side]:
    """Every rank, every node, the nodes of every leaf switch; one of those that are alike."""
    network = Network(cluster, reverse=False)
    rank = np.arange(cluster.ranks)
    kinds = ("the links of one rank", "the NICs of one node", "the links above the leaf switches of {} nodes")
    found = []
    for what, parts in zip(kinds, network.partitions, strict=False):
        nodes = parts.ranks // cluster.ranks_per_node if parts is not network.partitions[0] else 0 * parts.ranks
        node0, local0 = np.zeros((2, len(parts.ranks)), dtype=np.int64)
        home = parts.of[network.devices.rank]
        node0[home[rank < cluster.ranks_per_node]] = 1
        local0[home[rank % cluster.ranks_per_node == 0]] = 1
        for row in np.unique(np.stack((nodes, node0, local0, parts.out, parts.into)), axis=1).T.tolist():
            found.append(_Side(what.format(row[0]), row[0], bool(row[1]), bool(row[2]), row[3], row[4]))
    return found
