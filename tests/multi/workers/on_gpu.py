"""Every candidate schedule, and an uneven all-to-all, with the GPU's codec (emulated): bits, and how often it waits."""

from __future__ import annotations

import sys
from pathlib import Path

import schedules
import torch
import torch.distributed as dist
from common import Cases, plan_of, values

sys.path.insert(0, str(Path(__file__).parents[2] / "emulator"))

from stand_in import emulator, install

import zipplan.executor.session
from zipplan.executor import check, init
from zipplan.executor.coders import GpuCoder
from zipplan.planner.collectives import candidates
from zipplan.planner.errors import CodecError
from zipplan.planner.schedule import Collective, Payload, Schedule

ELEMENTS = (0, 1, 1001, 9000)


def main(nodes: int) -> None:
    """Run all cases and report."""
    install(emulator())
    made: list[GpuCoder] = []

    def coder_for(device: torch.device) -> GpuCoder:
        made.append(GpuCoder())
        return made[-1]

    zipplan.executor.session.coder_for = coder_for
    dist.init_process_group("gloo")
    world, cases = dist.get_world_size(), Cases()
    for collective in Collective:
        for schedule in candidates(collective, nodes, world // nodes, ("window", "cascade")):
            if schedule.codec == "raw":
                continue
            made.clear()
            session = init(plan_of([schedule]), ranks_per_node=world // nodes, adaptive=False)
            name = f"{collective} {schedule.name} {schedule.codec}"
            for elements in ELEMENTS:
                given = schedules.values_for(collective, elements, world)
                cases.note(f"{name} {elements}", schedules.one(session, schedule, elements, given))
            cases.note(f"{name} fallbacks", str(session.fallbacks) if session.fallbacks else None)
            cases.note(f"{name} waits", waits(schedule, made[0].waits))
            session.close()
            cases.note(f"{name} told", None if made[0]._worst is None else "a status was never read")
    cases.note("uneven", uneven(made))
    cases.note("damage", damage(made))
    cases.report()
    dist.destroy_process_group()


def waits(schedule: Schedule, found: int) -> str | None:
    """One wait for each exchange of dynamic regions that had bytes to move, and none besides."""
    rounds = sum(s.payload is Payload.DYNAMIC for s in schedule.stages) * schedule.chunks
    most = rounds * sum(1 for n in ELEMENTS if n)
    return None if 0 < found <= most else f"waited {found} times in place of {most}"


def zipped() -> Schedule:
    """The plain zipped all-to-all of all ranks."""
    found = candidates(Collective.ALL_TO_ALL, 1, dist.get_world_size(), ("window",))
    return next(s for s in found if s.name == "zipped")


def uneven(made: list[GpuCoder]) -> str | None:
    """Unequal parts, some empty, with one wait."""
    made.clear()
    session, rank, ranks = init(plan_of([zipped()]), adaptive=False), dist.get_rank(), dist.get_world_size()
    rows = [[(7 * a + 3 * b) % 5 * 700 for b in range(ranks)] for a in range(ranks)]
    send, receive = rows[rank], [row[rank] for row in rows]
    given, out = values(sum(send), seed=rank), torch.zeros(sum(receive), dtype=torch.bfloat16)
    session.all_to_all(out, given, receive, send)
    expected = torch.zeros_like(out)
    dist.all_to_all_single(
        check.bytes_of(expected), check.bytes_of(given), [2 * n for n in receive], [2 * n for n in send]
    )
    session.close()
    return check.differences(out, expected) or (None if made[0].waits <= 2 else f"waited {made[0].waits} times")


def damage(made: list[GpuCoder]) -> str | None:
    """A frame that breaks on its way is told by the next call at the latest, on the rank that found it."""
    made.clear()
    session, ranks = init(plan_of([zipped()]), adaptive=False), dist.get_world_size()
    given = values(5000 * ranks, seed=1)
    session.all_to_all(torch.empty_like(given), given)
    coder = made[0]
    status = coder._worst
    assert status is not None
    coder._worst = torch.full_like(status, (1 << 32) | (1 << 8) | 1)
    try:
        coder.check()
    except CodecError as error:
        return None if "frame 1, tile 0" in str(error) else f"told {error}"
    return "not told"


if __name__ == "__main__":
    main(int(sys.argv[1]))
