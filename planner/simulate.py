"""Discrete-event simulation of one schedule on one cluster: time, timeline, use of every link.

Every rank runs every stage as soon as what it waits for is done. A rank has one codec engine, which takes its local
stages in the order in which the executor issues them; exchanges share links with whatever else is in flight
(network.py).

Ranks begin alike, so one stands for all as long as all groups of every exchange begin and end together; where they do
not, each rank is simulated. Both give the same picoseconds.

A schedule in chunks runs part by part: a stage of a part follows the same stage of the part before.

An exchange starts when its last rank is there. Only a direct exchange among ranks that differ (`Skew`) starts pair by
pair, as sends and receives of NCCL do: each pair when both its ends are there. After an exchange of sizes the host
reads them, so that it can post what they say.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy
from numpy.typing import NDArray

from zipplan.planner.costs import Rates, Wire
from zipplan.planner.errors import SimulationError
from zipplan.planner.network import Apart, Moved, Network, delay
from zipplan.planner.schedule import Exchange, Op, Payload, Schedule, Stage
from zipplan.planner.topology import Cluster
from zipplan.planner.transport import Transport

Steps = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True)
class Span:
    """One stage on one rank, picoseconds."""

    stage: str
    rank: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """What a simulation found. `link_bytes`, `link_busy` (ps) by link index.

    `spans`: of every rank, or of rank 0 alone where all do the same at the same time.
    `carried`: (algorithm, protocol) by exchange stage. `moved`: bytes over links by exchange stage, where recorded.
    """

    time: int
    spans: tuple[Span, ...]
    link_bytes: NDArray[np.float64]
    link_busy: NDArray[np.int64]
    carried: dict[str, tuple[str, str]]
    moved: tuple[Moved, ...] = ()

    def stage_times(self) -> dict[str, int]:
        """Longest time of every stage on any rank, all parts together, ps, in order of starting."""
        taken: dict[tuple[str, int], int] = {}
        for span in sorted(self.spans, key=lambda s: (s.start, s.rank)):
            key = (span.stage, span.rank)
            taken[key] = taken.get(key, 0) + span.end - span.start
        longest: dict[str, int] = {}
        for (stage, _), time in taken.items():
            longest[stage] = max(longest.get(stage, 0), time)
        return longest


@dataclass(frozen=True, slots=True)
class Skew:
    """How ranks differ, by rank: `late`, ps before its input is ready; `load`, what it sends over the mean.

    A rank that receives more than the mean takes the same time: every link has a twin in the other direction.
    """

    late: tuple[int, ...]
    load: tuple[float, ...]

    @classmethod
    def busiest(cls, ranks: int, load: float, late: int) -> Skew | None:
        """The last rank has `load` times the mean (at most all of it) and comes `late`; the others share the rest.

        None when that makes no difference.
        """
        if ranks == 1 or (load == 1.0 and late == 0):
            return None
        load = min(load, ranks)
        rest = (ranks - load) / (ranks - 1)
        return cls((*(0,) * (ranks - 1), late), (*(rest,) * (ranks - 1), load))


def simulate(
    schedule: Schedule,
    cluster: Cluster,
    size: int,
    wire: Wire,
    transport: Transport,
    rates: Rates,
    skew: Skew | None = None,
    record: bool = False,
    folded: bool = True,
) -> Timeline:
    """Run `schedule` for a message of `size` bytes; time counts from when the first rank is ready.

    `record`: keep what every rank did, and what moved over every link when, for a trace. `folded`: let one rank stand
    for all while they are alike. Raises SimulationError if it cannot finish.
    """
    if (schedule.nodes, schedule.ranks_per_node) != (cluster.nodes, cluster.ranks_per_node):
        raise SimulationError(
            f"schedule {schedule.name} is for {schedule.nodes} × {schedule.ranks_per_node} ranks, "
            f"{cluster.machine.name} has {cluster.nodes} × {cluster.ranks_per_node}"
        )
    if schedule.ranks == 1 or size == 0:
        nothing = np.zeros(len(cluster.bandwidths))
        return Timeline(0, (), nothing, nothing.astype(np.int64), {})
    if skew is not None and not len(skew.late) == len(skew.load) == schedule.ranks:
        raise SimulationError(f"a skew of {len(skew.late)} and {len(skew.load)} ranks on {schedule.ranks} ranks")
    if folded and skew is None and not record:
        try:
            return _Run(schedule, cluster, size, wire, transport, rates, skew, record, alike=True).result()
        except Apart:
            pass
    return _Run(schedule, cluster, size, wire, transport, rates, skew, record).result()


class _Run:
    def __init__(
        self,
        schedule: Schedule,
        cluster: Cluster,
        size: int,
        wire: Wire,
        transport: Transport,
        rates: Rates,
        skew: Skew | None,
        record: bool,
        alike: bool = False,
    ) -> None:
        self.alike, self.ranks = alike, range(1 if alike else schedule.ranks)
        self.schedule, self.wire, self.transport, self.rates, self.skew = schedule, wire, transport, rates, skew
        self.parts = schedule.parts(schedule.slot_bytes(size))
        self.env = simpy.Environment()
        self.network = Network(self.env, cluster.bandwidths, record, transport.folds)
        self.last: dict[int, simpy.Event] = {}  # local stage issued, by rank
        self.spans: list[Span] = []
        self.carried: dict[str, tuple[str, str]] = {}
        self.done = {
            (s.name, part, rank): self.env.event()
            for s in schedule.stages
            for part in range(len(self.parts))
            for rank in self.ranks
        }

    def result(self) -> Timeline:
        for part, stage in self.schedule.unrolled(len(self.parts)):
            start = self._exchange if stage.op is Op.EXCHANGE else self._local
            start(stage, part)
        self.env.run()
        waiting = sorted({name for (name, *_), event in self.done.items() if not event.processed})
        if waiting:
            raise SimulationError(
                f"schedule {self.schedule.name} stands still at {self.env.now} ps; waiting: {waiting}"
            )
        time = max(span.end for span in self.spans)
        network = self.network
        return Timeline(time, tuple(self.spans), network.bytes, network.busy, self.carried, tuple(network.moved))

    def _ready(self, stage: Stage, part: int, rank: int) -> simpy.Event:
        if self.skew is not None and not stage.after and part == 0:
            return delay(self.env, self.skew.late[rank])
        before = [self.done[name, part, rank] for name in stage.after]
        if part > 0:
            before.append(self.done[stage.name, part - 1, rank])
        return simpy.AllOf(self.env, before)

    def _finish(self, stage: Stage, part: int, rank: int, start: int) -> None:
        self.spans.append(Span(stage.name, rank, start, int(self.env.now)))
        self.done[stage.name, part, rank].succeed()

    def _local(self, stage: Stage, part: int) -> None:
        duration = self.rates.duration(stage, self.schedule, self.parts[part])

        def work(rank: int, turn: simpy.Event | None) -> Steps:
            yield self._ready(stage, part, rank)
            if turn is not None:
                yield turn
            start = int(self.env.now)
            yield delay(self.env, duration * self._load(stage, rank))
            self._finish(stage, part, rank, start)

        for rank in self.ranks:
            self.env.process(work(rank, self.last.get(rank)))
            self.last[rank] = self.done[stage.name, part, rank]

    def _exchange(self, stage: Stage, part: int) -> None:
        exchange = stage.exchange
        assert exchange is not None  # verified: an exchange stage names its exchange
        sent = self.schedule.buffer_slots[stage.src] * self.wire.bytes(stage.payload, self.parts[part])

        def work(groups: tuple[range, ...], ranks: range) -> Steps:
            yield simpy.AllOf(self.env, [self._ready(stage, part, rank) for rank in ranks])
            start = int(self.env.now)
            if len(groups[0]) > 1:
                carried = self.transport.carry(exchange, groups[0], sent)
                if len(groups) > 1:
                    carried = self.transport.carry_alike(exchange, groups, carried)
                self.carried[stage.name] = (carried.algorithm, carried.protocol)
                yield delay(self.env, carried.launch)
                yield self.network.transfer(carried.paths, carried.sizes, stage.name, len(groups))
                yield delay(self.env, carried.latency + self._read_back(stage))
            for rank in ranks:
                self._finish(stage, part, rank, start)

        groups = tuple(self.schedule.groups(stage.axis))
        if self.alike:
            self.env.process(work(groups, self.ranks))
            return
        for group in groups:
            if self.skew is not None and self.transport.is_direct(exchange):
                self._pairwise(stage, part, exchange, group, sent)
            else:
                self.env.process(work((group,), group))

    def _read_back(self, stage: Stage) -> int:
        """ps until the host has sizes that have arrived: a copy that it waits for, as long as one launch."""
        return self.rates.launch if stage.payload is Payload.SIZES else 0

    def _load(self, stage: Stage, rank: int) -> float:
        """What a rank handles over the mean: it encodes what it sends."""
        return self.skew.load[rank] if self.skew is not None and stage.op is Op.ENCODE else 1.0

    def _pairwise(self, stage: Stage, part: int, exchange: Exchange, group: range, sent: float) -> None:
        assert self.skew is not None
        load = np.array(self.skew.load)
        carried = self.transport.carry(exchange, group, sent)
        self.carried[stage.name] = (carried.algorithm, carried.protocol)
        src, dst = (np.array(group)[side] for side in np.nonzero(~np.eye(len(group), dtype=bool)))
        sizes = carried.sizes * load[src]
        here: list[int] = []
        moving: list[simpy.Event] = []
        last = self.env.event()

        def work(rank: int) -> Steps:
            yield self._ready(stage, part, rank)
            start = int(self.env.now)
            yield delay(self.env, carried.launch)
            mine = (src == rank) & np.isin(dst, here) | (dst == rank) & np.isin(src, here)
            here.append(rank)
            if mine.any():
                moving.append(self.network.transfer(carried.paths.subset(mine), sizes[mine], stage.name))
            if len(here) == len(group):
                last.succeed()
            yield last
            yield simpy.AllOf(self.env, moving)
            yield delay(self.env, carried.latency + self._read_back(stage))
            self._finish(stage, part, rank, start)

        for rank in group:
            self.env.process(work(rank))
