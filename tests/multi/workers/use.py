"""A session in unusual use: from two threads, in compiled functions, told impossible sizes, with calls without end."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from common import RANKS, Found, expect, plan_of, raised, values, zipped_plan

import zipplan.executor as zipplan
from zipplan.executor import check
from zipplan.executor.codec import SlotCodec
from zipplan.planner.collectives import all_gather, all_to_all
from zipplan.planner.errors import CollectiveError
from zipplan.planner.schedule import Collective

ROUNDS = 20


def threads(rank: int) -> Found:
    """F064: a schedule of two levels on all ranks from one thread, another group's calls from a second."""
    plan = plan_of([all_gather.zipped_across_nodes(2, 2, "window")])
    whole = zipplan.init(plan, ranks_per_node=2, adaptive=False)
    for pair in ([0, 2], [1, 3]):
        group = dist.new_group(pair)
        if rank in pair:
            half = zipplan.init(zipped_plan(2), group=group, adaptive=False)
    problems: list[str | None] = []

    def work(session: Any, members: list[int], seed: int) -> None:
        for turn in range(ROUNDS):
            given = values(3000, seed=seed + turn)
            out = torch.empty(3000 * len(members), dtype=torch.bfloat16)
            session.all_gather(out, given)
            want = torch.cat([values(3000, seed=seed + turn, rank=r) for r in members])
            problems.append(check.differences(out, want))

    both = [
        threading.Thread(target=work, args=(whole, [0, 1, 2, 3], 100), daemon=True),
        threading.Thread(target=work, args=(half, [rank % 2, rank % 2 + 2], 200), daemon=True),
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(20)
    wrong = next((p for p in problems if p), None)
    return {"both threads": wrong or expect(len(problems) == 2 * ROUNDS, f"{len(problems)} of {2 * ROUNDS} calls")}


def lies(rank: int) -> Found:
    """F020: a rank tells a size of three billion bytes, or of less than none: an error, and no such allocation."""
    found = Found()
    plan = plan_of([all_to_all.sizes_first(1, RANKS, "window")])
    for size in (3_000_000_000, -128):
        session = zipplan.init(plan, adaptive=False)
        given = values(4 * 5000, seed=1)
        out = torch.empty_like(given)
        session.all_to_all(out, given)
        found[f"{size}, before"] = check.differences(out, check.moved(Collective.ALL_TO_ALL, out, given))
        held = session.scratch_bytes
        lie = mock.patch.object(SlotCodec, "sizes", functools.partialmethod(told, size))
        with lie if rank == 1 else contextlib.nullcontext():
            text = raised(CollectiveError, lambda s=session, o=out, g=given: s.all_to_all(o, g))
        own = (
            "frame 1: size of its dynamic region, sent ahead of it: expected 0 to " in text and f"found {size};" in text
        )
        found[f"{size}"] = expect(own, text)
        found[f"{size} allocates nothing"] = expect(session.scratch_bytes == held, f"{held}, {session.scratch_bytes}")
        dist.barrier()
    return found


def told(codec: SlotCodec, size: int, *statics: torch.Tensor) -> list[np.ndarray]:
    """What a damaged rank says of its frames."""
    return [np.full(static.numel() // codec.static_bytes, size) for static in statics]


def compiled(rank: int) -> Found:
    """F060: a compiled function steps aside for a call of zipplan; a whole graph is refused, naming what breaks it."""
    session, found = zipplan.init(zipped_plan(2), adaptive=False), Found()

    def step(given: torch.Tensor) -> torch.Tensor:
        out = torch.empty(2 * given.numel(), dtype=given.dtype)
        zipplan.all_gather_into_tensor(out, given * 2)
        return out + 1

    given = values(4000, seed=1)
    want = check.moved(Collective.ALL_GATHER, torch.empty(8000, dtype=torch.bfloat16), given * 2) + 1
    found["same bits"] = check.differences(torch.compile(step, backend="eager")(given), want)
    found["through the codec"] = expect(session.last.ratio > 1.2, str(session.last))
    torch.compiler.reset()
    text = raised(Exception, lambda: torch.compile(step, backend="eager", fullgraph=True)(given))
    found["fullgraph"] = expect("Session.all_gather" in text, text)
    return found


def many(rank: int) -> Found:
    """F062: a hundred calls in flight need the scratch of one, and nothing of theirs is kept once they have ended.

    F033: they are counted beyond 2³¹.
    """
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    session.all_gather(torch.empty(4 * 50_000, dtype=torch.bfloat16), values(50_000))
    held, pending, seen = session.scratch_bytes, [], []
    session.number = 2**31 - 50
    for turn in range(100):
        out, given = torch.empty(4 * 50_000, dtype=torch.bfloat16), values(50_000, seed=turn)
        pending.append(session.all_gather(out, given, async_op=True))
        seen.append(weakref.ref(given))
        del out, given
    for handle in pending:
        handle.wait()
    found["scratch"] = expect(session.scratch_bytes == held, f"{held} bytes grew to {session.scratch_bytes}")
    session.all_gather(torch.empty(4, dtype=torch.bfloat16), values(1))
    found["counted on"] = expect(session.number == 2**31 + 51, str(session.number))
    del pending, handle
    until = time.monotonic() + 5
    while (alive := sum(ref() is not None for ref in seen)) and time.monotonic() < until:
        time.sleep(0.01)  # the lane's thread may still be on its way out of the last call
    found["freed"] = expect(alive == 0, f"{alive} inputs are kept")
    return found
