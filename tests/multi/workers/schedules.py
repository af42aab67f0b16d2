"""Every candidate schedule on a grid NODES × (world / NODES), against the native call or sums in FP32."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from common import Cases, plan_of, values

from zipplan.executor import check, init
from zipplan.executor.session import Session
from zipplan.planner.collectives import candidates, studied
from zipplan.planner.schedule import Collective, Schedule

ELEMENTS = (0, 1, 3, 64, 1001, 4099, 70_000)
CODECS = ("raw", "window")


def main(nodes: int) -> None:
    """Run all cases and report."""
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    cases = Cases()
    for collective in Collective:
        grid = collective, nodes, world // nodes, CODECS
        for schedule in (*candidates(*grid), *studied(*grid)):
            session = init(plan_of([schedule]), ranks_per_node=world // nodes, adaptive=False)
            for elements in ELEMENTS:
                name = f"{collective} {schedule.name} {schedule.codec} {elements}"
                cases.note(name, one(session, schedule, elements, values_for(collective, elements, world)))
            if session.fallbacks:
                cases.note(f"{collective} {schedule.name} {schedule.codec} fallbacks", str(session.fallbacks))
    cases.report()
    dist.destroy_process_group()


def values_for(collective: Collective, elements: int, world: int) -> torch.Tensor:
    """Input with `elements` per part (all-reduce, all-gather: in all)."""
    parts = world if collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL) else 1
    return values(elements * parts, seed=elements)


def one(session: Session, schedule: Schedule, elements: int, given: torch.Tensor) -> str | None:
    """None when the collective returns what it must."""
    collective = schedule.collective
    before = given.clone()
    match collective:
        case Collective.ALL_GATHER:
            out = torch.full((session.ranks * elements,), 7.0, dtype=given.dtype)
            session.all_gather(out, given)
        case Collective.ALL_TO_ALL:
            out = torch.full_like(given, 7.0)
            session.all_to_all(out, given)
        case Collective.REDUCE_SCATTER:
            out = torch.full((elements,), 7.0, dtype=given.dtype)
            session.reduce_scatter(out, given)
        case Collective.ALL_REDUCE:
            out = given.clone()
            session.all_reduce(out)
    if not torch.equal(check.bytes_of(given), check.bytes_of(before)):
        return "the input was changed"
    if not collective.reduces:
        return check.differences(out, check.moved(collective, out, given))
    rows = check.gathered(collective, given)
    if collective is Collective.ALL_REDUCE and not check.same_on_all_ranks(out):
        return "ranks hold different sums"
    if any(s.exchange is not None and s.exchange.reduces for s in schedule.stages):
        return check.near(out, rows) if elements else None
    return check.differences(out, check.summed(rows))


if __name__ == "__main__":
    main(int(sys.argv[1]))
