"""When every task of a step runs: compute is one queue, each group of ranks has one, calls take turns on the wire.

Two calls at once would share the same NIC; letting them take turns moves the same bytes in the same time. What runs on
the wire and what computes slow each other (planner/contention.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from zipplan.planner.contention import Cost
from zipplan.planner.errors import SimulationError
from zipplan.planner.workload.step import Call, Step, Task

_DONE = 0.5  # ps: what is left of a task that has ended is rounding
Ran = tuple[int, int]
"""(start, end) of a task, ps."""


@dataclass(frozen=True)
class StepTime:
    """A simulated step, ps. `time` = (computing + exposed) · stretch; hidden + exposed = all communication.

    `exposed` by call: that part of its time in which the GPU computes nothing. `slowed`: that part of `computing` which
    contention costs. `ran`: by task of the step.
    """

    time: int
    computing: int
    exposed: dict[Call, int]
    communicating: dict[Call, int]
    slowed: int
    ran: tuple[Ran, ...]

    @property
    def hidden(self) -> int:
        """Communication behind compute."""
        return sum(self.communicating.values()) - sum(self.exposed.values())


def run_step(step: Step, cost_of: Callable[[Call], Cost]) -> StepTime:
    """Run all tasks. Raises SimulationError if a task waits for ever."""
    ran = _Run(step.tasks, cost_of).ran()
    busy = [span for span, task in zip(ran, step.tasks, strict=True) if task.call is None]
    computed = _Busy(sorted(busy))
    exposed: dict[Call, int] = {}
    communicating: dict[Call, int] = {}
    for (start, end), task in zip(ran, step.tasks, strict=True):
        if task.call is not None:
            communicating[task.call] = communicating.get(task.call, 0) + end - start
            exposed[task.call] = exposed.get(task.call, 0) + end - start - computed.within(start, end)
    whole = max((end for _, end in ran), default=0)
    computing = sum(end - start for start, end in busy)
    alone = sum(task.ps for task in step.tasks if task.call is None)
    return StepTime(round(whole * step.stretch), computing, exposed, communicating, computing - alone, tuple(ran))


class _Server:
    """Compute or the wire: what runs on it, and how much of that is left, in ps at full speed."""

    def __init__(self) -> None:
        self.task: int | None = None
        self.left = 0.0


class _Run:
    """Two servers; whenever one ends or begins something, the speeds of both are set anew."""

    def __init__(self, tasks: tuple[Task, ...], cost_of: Callable[[Call], Cost]) -> None:
        self.tasks, self.cost_of = tasks, cost_of
        self.queues: dict[object, deque[int]] = {}
        for number, task in enumerate(tasks):
            self.queues.setdefault(None if task.call is None else task.call.grid, deque()).append(number)
        self.compute, self.wire = _Server(), _Server()
        self.starts = [0] * len(tasks)
        self.ends: list[int | None] = [None] * len(tasks)

    def ran(self) -> list[Ran]:
        """(start, end) of every task."""
        now, open_ = 0.0, len(self.tasks)
        while open_:
            for server in (self.compute, self.wire):
                if server.task is None:
                    self._begin(server, now)
            now += self._until_next()
            ended = [s for s in (self.compute, self.wire) if s.task is not None and s.left <= _DONE]
            if not ended:
                stuck = [self.tasks[waiting[0]].name for waiting in self.queues.values() if waiting]
                raise SimulationError(f"the step stands still; waiting: {stuck}")
            for server in ended:
                assert server.task is not None
                self.ends[server.task], server.task = round(now), None
                open_ -= 1
        return [(start, end) for start, end in zip(self.starts, self.ends, strict=True) if end is not None]

    def _begin(self, server: _Server, now: float) -> None:
        """The task that has been ready for longest among the heads of the server's queues."""
        best: tuple[int, int, object] | None = None
        for queue, waiting in self.queues.items():
            if waiting and (queue is None) == (server is self.compute):
                needed = [self.ends[i] for i in self.tasks[waiting[0]].after]
                if None not in needed:
                    offer = (max((end for end in needed if end is not None), default=0), waiting[0], queue)
                    best = offer if best is None or offer[:2] < best[:2] else best
        if best is not None:
            _, number, queue = best
            call = self.tasks[number].call
            server.task = self.queues[queue].popleft()
            server.left = float(self.tasks[number].ps if call is None else self.cost_of(call).ps)
            self.starts[number] = round(now)

    def _until_next(self) -> float:
        """Let time pass until one of the two ends; how much passed."""
        wire, compute = 1.0, 1.0
        if self.wire.task is not None and self.compute.task is not None:
            call = self.tasks[self.wire.task].call
            assert call is not None
            wire, compute = self.cost_of(call).beside_compute()
        running = [(s, speed) for s, speed in ((self.wire, wire), (self.compute, compute)) if s.task is not None]
        passed = min((0.0 if s.left <= _DONE else s.left / speed for s, speed in running if speed or s.left <= _DONE),
                     default=0.0)  # fmt: skip
        for server, speed in running:
            server.left -= speed * passed
        return passed


class _Busy:
    """Disjoint intervals in order; how much of a span they cover."""

    def __init__(self, intervals: list[tuple[int, int]]) -> None:
        self.starts = [start for start, _ in intervals]
        self.ends = [end for _, end in intervals]
        self.before = [0]
        for start, end in intervals:
            self.before.append(self.before[-1] + end - start)

    def _until(self, moment: int) -> int:
        number = bisect_right(self.starts, moment)
        covered = self.before[number]
        return covered - max(0, self.ends[number - 1] - moment) if number else 0

    def within(self, start: int, end: int) -> int:
        """Covered part of [start, end)."""
        return self._until(end) - self._until(start)
