"""When every task of a step runs: compute is one queue, each group of ranks has one, calls take turns on the wire.

The next thing to start is always the one that can start first, so this is a discrete-event run without a clock. Two
calls at once would share the same NIC; letting them take turns moves the same bytes in the same time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from zipplan.planner.errors import SimulationError
from zipplan.planner.workload.step import Call, Step, Task


@dataclass(frozen=True)
class StepTime:
    """A simulated step, ps. `time` = (computing + exposed) · stretch; hidden + exposed = all communication.

    `exposed` by call: that part of its time in which the GPU computes nothing.
    """

    time: int
    computing: int
    exposed: dict[Call, int]
    communicating: dict[Call, int]

    @property
    def hidden(self) -> int:
        """Communication behind compute."""
        return sum(self.communicating.values()) - sum(self.exposed.values())


def run_step(step: Step, time_of: Callable[[Call], int]) -> StepTime:
    """Run all tasks; `time_of` gives the ps of a call. Raises SimulationError if a task waits for ever."""
    ends = _ends(step.tasks, time_of)
    busy = [(ends[i] - task.ps, ends[i]) for i, task in enumerate(step.tasks) if task.call is None]
    computed = _Busy(busy)
    exposed: dict[Call, int] = {}
    communicating: dict[Call, int] = {}
    for end, task in zip(ends, step.tasks, strict=True):
        if task.call is not None:
            lasted = time_of(task.call)
            communicating[task.call] = communicating.get(task.call, 0) + lasted
            exposed[task.call] = exposed.get(task.call, 0) + lasted - computed.within(end - lasted, end)
    whole = max(ends, default=0)
    return StepTime(round(whole * step.stretch), sum(b - a for a, b in busy), exposed, communicating)


def _ends(tasks: tuple[Task, ...], time_of: Callable[[Call], int]) -> list[int]:
    queues: dict[object, deque[int]] = {}
    for number, task in enumerate(tasks):
        queues.setdefault(None if task.call is None else task.call.grid, deque()).append(number)
    ends: list[int | None] = [None] * len(tasks)
    free = {False: 0, True: 0}  # compute, network
    for _ in tasks:
        best: tuple[int, int, int, object] | None = None
        for queue, waiting in queues.items():
            if not waiting:
                continue
            number = waiting[0]
            needed = [ends[i] for i in tasks[number].after]
            if None in needed:
                continue
            ready = max((end for end in needed if end is not None), default=0)
            offer = (max(ready, free[queue is not None]), ready, number, queue)
            best = offer if best is None or offer[:3] < best[:3] else best
        if best is None:
            stuck = [tasks[waiting[0]].name for waiting in queues.values() if waiting]
            raise SimulationError(f"the step stands still; waiting: {stuck}")
        start, _, number, queue = best
        task = tasks[number]
        end = start + (task.ps if task.call is None else time_of(task.call))
        ends[number] = free[queue is not None] = end
        queues[queue].popleft()
    return [end for end in ends if end is not None]


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
