"""Ranks that differ, each case in one process group: what does every rank raise?"""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist
from common import Cases, plan_of, values

from zipplan.executor import init
from zipplan.planner.collectives import all_gather
from zipplan.planner.errors import ZipplanError


def raised(**given: object) -> str:
    """Type and text of what init raises on this rank."""
    try:
        init(**given)  # type: ignore[arg-type]
    except ZipplanError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    """Run all cases; each finding is the text itself, for the test to judge."""
    dist.init_process_group("gloo")
    rank, cases = dist.get_rank(), Cases()
    zipped, native = (plan_of([build(1, 4, "window")]) for build in (all_gather.zipped, all_gather.native))
    cases.note("plan", raised(plan=native if rank == 1 else zipped))
    os.environ.update(ZIPPLAN_DISABLE="1", ZIPPLAN_CHECK="off")
    cases.note("plan, all switched off", raised(plan=native if rank == 1 else zipped))
    del os.environ["ZIPPLAN_DISABLE"], os.environ["ZIPPLAN_CHECK"]
    if rank in (0, 3):
        os.environ["ZIPPLAN_DISABLE"] = "1"
    cases.note("switch", raised(plan=zipped))
    os.environ["ZIPPLAN_DISABLE"] = "maybe" if rank == 2 else ""
    cases.note("unreadable switch", raised(plan=zipped))
    os.environ.pop("ZIPPLAN_DISABLE")
    cases.note("one rank without a file", raised(plan=Path("/nowhere/plan.json") if rank == 3 else zipped))
    cases.note("other ranks per node", raised(plan=zipped, ranks_per_node=2 if rank == 0 else 4))
    cases.note("eight ranks", raised(plan=plan_of([all_gather.zipped(2, 4, "window")])))
    hierarchical = plan_of([all_gather.zipped_across_nodes(2, 2, "window")])
    cases.note("two nodes", raised(plan=hierarchical))
    cases.note("two nodes rehearsed", raised(plan=hierarchical, ranks_per_node=2))
    cases.note("flat plan of four nodes", raised(plan=plan_of([all_gather.zipped(4, 1, "window")])))
    cases.note("three per node", raised(plan=zipped, ranks_per_node=3))
    cases.note("other machine", raised(plan=zipped, topology="loopback"))
    session = init(zipped)
    out = values(4 * 64).new_empty(4 * 64)
    session.all_gather(out, values(64))
    cases.note("after all that", "nothing" if session.last.ratio > 0 else "no traffic")
    cases.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
