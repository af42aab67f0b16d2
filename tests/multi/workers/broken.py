"""A codec that swaps two 4-KiB blocks and schedules that swap two slots: does the bench's check see them?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from common import Cases, plan_of

from zipplan import kernels
from zipplan.executor import init
from zipplan.executor.measure import Bench
from zipplan.planner.collectives import candidates
from zipplan.planner.schedule import OUTPUT, Collective, Op, Schedule, Stage

SIZE = 256 * 1024
BLOCK = 4096


def main() -> None:
    """Run all cases and report."""
    dist.init_process_group("gloo")
    cases = Cases()
    for collective in Collective:
        for schedule in candidates(collective, 2, 2, ("window",)):
            where = f"{collective} {schedule.name}"
            cases.note(f"sound {where}", bench(schedule))
            cases.note(f"schedule {where}", noticed(bench(swapped_slots(schedule))))
            if schedule.codec != "raw":
                cases.note(f"codec {where}", noticed(with_broken_codec(schedule)))
    cases.report()
    dist.destroy_process_group()


def noticed(problem: str | None) -> str | None:
    """None when the check found something."""
    return None if problem else "the check saw nothing"


def bench(schedule: Schedule) -> str | None:
    """What the bench's bit check says."""
    session = init(plan_of([schedule]), ranks_per_node=2)
    return Bench(session, torch.device("cpu"), 1, 0, True).row(schedule.collective, "bf16", SIZE).problem


def swapped_slots(schedule: Schedule) -> Schedule:
    """The same schedule with two slots of its output (one slot: two of its input) exchanged at the end."""
    slots = schedule.buffer_slots[OUTPUT]
    if slots > 1:
        last = schedule.stages[-1]
        order = (1, 0, *range(2, slots))
        swap = Stage("swap", Op.PERMUTE, "unswapped", OUTPUT, (last.name,), order=order)
        return replace(schedule, stages=(*schedule.stages[:-1], replace(last, dst="unswapped"), swap))
    order = (*range(schedule.slots - 2), schedule.slots - 1, schedule.slots - 2)
    if schedule.slots == 1:  # native all-reduce: cut the buffer in two
        return swapped_slots(replace(schedule, slots=2))
    first = replace(schedule.stages[0], src="swapped", after=("swap",))
    swap = Stage("swap", Op.PERMUTE, "input", "swapped", order=order)
    return replace(schedule, stages=(swap, first, *schedule.stages[1:]))


def with_broken_codec(schedule: Schedule) -> str | None:
    """Bench with decoders that swap the first two blocks of what they decode."""
    sound = kernels.decode, kernels.decode_reduce
    kernels.decode, kernels.decode_reduce = (swapping(f) for f in sound)  # type: ignore[assignment]
    try:
        return bench(schedule)
    finally:
        kernels.decode, kernels.decode_reduce = sound


def swapping(decode: Callable[..., None]) -> Callable[..., None]:
    """Decode, then exchange two blocks of the first output."""

    def broken(codec: Any, static: Any, dynamic: Any, outs: Any, **options: Any) -> None:
        decode(codec, static, dynamic, outs, **options)
        first = outs[0][:BLOCK].copy()
        outs[0][:BLOCK] = outs[0][BLOCK : 2 * BLOCK]
        outs[0][BLOCK : 2 * BLOCK] = first

    return broken


if __name__ == "__main__":
    main()
