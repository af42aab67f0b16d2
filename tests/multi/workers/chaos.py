"""Ranks that die, stall, lie or run out of memory: how every rank ends, again and again."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import plan_of, values
from forked import Ended, launch

import zipplan.executor as zipplan
from zipplan.executor import interpreter
from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from zipplan.planner.schedule import Payload

RANKS = 4
VICTIM = 2
TIMEOUT_S = 3

Hurt = Callable[[Any], None]


def step(session: zipplan.Session) -> None:
    """One of each collective."""
    given = values(4 * 5000, seed=1)
    session.all_gather(torch.empty(16 * 5000, dtype=torch.bfloat16), given)
    session.all_reduce(given)
    session.all_to_all(torch.empty_like(given), given)


def job(hurt: Hurt) -> Callable[[int], Any]:
    """Two good steps, then the victim is hurt, then steps until something happens."""

    def run(rank: int) -> str:
        builders = (all_gather.zipped, reduce_scatter.zipped, all_reduce.two_shot, all_to_all.zipped)
        session = zipplan.init(plan_of([build(1, RANKS, "window") for build in builders]), adaptive=False)
        for _ in range(2):
            step(session)
        if rank == VICTIM:
            hurt(session)
        for _ in range(3):
            step(session)
        return "nothing happened"

    return run


def killed(session: Any) -> None:
    """As the kernel's memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def terminated(session: Any) -> None:
    """As torchrun and schedulers do."""
    os.kill(os.getpid(), signal.SIGTERM)


def stalled(session: Any) -> None:
    """Comes back after all others have given up."""
    time.sleep(TIMEOUT_S + 5)


def raised(session: Any) -> None:
    """The program's own code, between two collectives."""
    raise ValueError("the loss is not a number")


def corrupted(session: Any) -> None:
    """A frame arrives with another header than was sent."""
    static = interpreter._Part._static

    def damaged(self: Any, stage: Any) -> Any:
        handle = static(self, stage)
        handle.wait()
        self.frames[stage.dst].static[:64] ^= 0x5A
        return handle

    interpreter._Part._static = damaged  # type: ignore[method-assign]


def out_of_memory(session: Any) -> None:
    """No scratch for the encoder."""
    encode = interpreter._Part._encode

    def refused(self: Any, stage: Any) -> None:
        if stage.payload is Payload.RAW:
            raise MemoryError("cannot allocate 1.2 GB of scratch")
        encode(self, stage)

    interpreter._Part._encode = refused  # type: ignore[method-assign]


def corrupted_and_caught(session: Any) -> None:
    """The program catches the error and goes on: the session stays broken, the others still hear of it."""
    corrupted(session)
    first = again = None
    for attempt in range(2):
        try:
            step(session)
        except RuntimeError as error:
            first, again = (error, None) if attempt == 0 else (first, error)
    time.sleep(3)
    assert first is again
    raise RuntimeError(f"twice: {again}")


CASES: dict[str, Hurt] = {
    case.__name__: case
    for case in (killed, terminated, stalled, raised, corrupted, out_of_memory, corrupted_and_caught)
}


def main(rounds: int) -> None:
    """Print round → case → how every rank ended."""
    out: list[dict[str, Any]] = []
    for _ in range(rounds):
        ends: dict[str, Any] = {}
        for name, hurt in CASES.items():
            ended: list[Ended] = launch(job(hurt), RANKS, limit_s=TIMEOUT_S + 15, timeout_s=TIMEOUT_S)
            ends[name] = [{"code": e.code, "said": e.said, "seconds": e.seconds} for e in ended]
        out.append(ends)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
