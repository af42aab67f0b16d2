"""The executor on a GPU; torchrun starts it (run.sh): several gloo ranks that share one GPU, or one rank on NCCL.

Every coded schedule, synchronous and asynchronous, on tensors of the GPU: bits against the same call on the host.
--dry: CPU tensors and the emulated kernels.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from common import plan_of, values
from stand_in import emulator, install

import zipplan.executor.session
from zipplan.executor import check, init
from zipplan.executor.coders import GpuCoder
from zipplan.executor.decide import has_frames
from zipplan.executor.session import Session
from zipplan.planner.collectives import candidates
from zipplan.planner.schedule import Collective, Schedule

BACKEND, DRY = sys.argv[1], "--dry" in sys.argv
ELEMENTS = (1, 9000) if DRY else (1, 9000, 1 << 20)
CODECS = ("window", "cascade")


def called(session: Session, collective: Collective, out: torch.Tensor, given: torch.Tensor, async_op: bool) -> None:
    """One call; asynchronous ones lose their input at once and are waited for on another stream."""
    name = str(collective)
    tensors = (out,) if collective is Collective.ALL_REDUCE else (out, given.clone() if async_op else given)
    handle = getattr(session, name)(*tensors, async_op=async_op)
    if handle is not None:
        del tensors
        torch.full_like(given, 3.0)  # takes the memory of the input, if that was given away too early
        handle.wait()


def case(session: Session, schedule: Schedule, elements: int, device: torch.device, async_op: bool) -> str | None:
    """None when the bits are right."""
    collective, ranks = schedule.collective, session.ranks
    parts = ranks if collective in (Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL) else 1
    given = values(elements * parts, seed=elements)
    made = {Collective.ALL_GATHER: ranks * elements, Collective.REDUCE_SCATTER: elements}.get(collective, given.numel())
    out = torch.zeros(made, dtype=given.dtype, device=device)
    if collective is Collective.ALL_REDUCE:
        out.copy_(given)
    called(session, collective, out, given.to(device), async_op)
    found = out.cpu()
    if ranks == 1:
        return check.differences(found, given)
    if not collective.reduces:
        return check.differences(found, check.moved(collective, found, given))
    return check.near(found, check.gathered(collective, given))


def main() -> None:
    """Run all cases; exit 1 if one is wrong."""
    if DRY:
        install(emulator())
        zipplan.executor.session.coder_for = lambda device: GpuCoder()
    dist.init_process_group("gloo" if DRY else BACKEND)
    device = torch.device("cpu" if DRY else "cuda")
    ranks, start, cases, wrong = dist.get_world_size(), time.monotonic(), 0, []
    for collective in Collective:
        for schedule in candidates(collective, 1, ranks, CODECS):
            if not has_frames(schedule):
                continue
            session = init(plan_of([schedule]), ranks_per_node=ranks, adaptive=False)
            for elements in ELEMENTS:
                for async_op in (False, True):
                    problem = case(session, schedule, elements, device, async_op)
                    cases += 1
                    if problem:
                        wrong.append(f"{collective} {schedule.name} {schedule.codec} {elements} {async_op}: {problem}")
            if session.fallbacks:
                wrong.append(f"{collective} {schedule.name}: {dict(session.fallbacks)}")
            session.close()
    if dist.get_rank() == 0:
        took = time.monotonic() - start
        print(
            f"executor, {ranks} ranks on {'the CPU, dry' if DRY else BACKEND}: {cases} calls in {took:.0f} s",
            *wrong,
            sep="\n",
        )
    dist.destroy_process_group()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
