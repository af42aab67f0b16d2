"""Ranks that die, stall, lie or run out of memory: how every rank ends, again and again.

python tests/multi/workers/chaos.py 2                        every case twice, as CI has it; JSON
python tests/multi/workers/chaos.py --minutes 10 --seed 1    any case, any way, at any moment; what ended wrongly
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # FSDP2 loads it at first use; so once, not in every rank
import torch.distributed as dist
from common import RANKS, values, zipped_plan
from forked import Ended, launch
from torch import nn
from torch.distributed.fsdp import fully_shard

import zipplan.executor as zipplan
from zipplan.executor import interpreter, process_group
from zipplan.executor.hooks import fsdp
from zipplan.planner.schedule import Payload

VICTIM = 2
TIMEOUT_S = 3
GOOD = 2  # steps before the victim is hurt

Step = Callable[[], None]
Hurt = Callable[[Step], None]  # gets what the ranks do, step by step


def calls(session: zipplan.Session) -> Step:
    """One of each collective, waited for at once."""

    def step() -> None:
        given = values(4 * 5000, seed=1)
        session.all_gather(torch.empty(16 * 5000, dtype=torch.bfloat16), given)
        session.all_reduce(given)
        session.all_to_all(torch.empty_like(given), given)

    return step


def handles(session: zipplan.Session) -> Step:
    """The same, all in flight at once."""

    def step() -> None:
        given = values(4 * 5000, seed=1)
        outs = torch.empty(16 * 5000, dtype=torch.bfloat16), torch.empty_like(given)
        pending = [
            session.all_gather(outs[0], given, async_op=True),
            session.all_reduce(given, async_op=True),
            session.all_to_all(outs[1], given, async_op=True),
        ]
        for handle in pending:
            assert handle is not None
            handle.wait()

    return step


def group(session: zipplan.Session) -> Step:
    """The same through torch.distributed."""
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name before 2.13

    def step() -> None:
        given = values(4 * 5000, seed=1)
        gather(torch.empty(16 * 5000, dtype=torch.bfloat16), given)
        dist.all_reduce(given)
        dist.all_to_all_single(torch.empty_like(given), given)

    return step


def sharded(session: zipplan.Session) -> Step:
    """Forward and backward of a model whose parameters and gradients go by the plan."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 100)).bfloat16()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    fsdp.install(model, session)

    def step() -> None:
        model(values((8, 100), seed=1)).square().mean().backward()

    return step


WAYS = {way.__name__: way for way in (calls, handles, group, sharded)} | {"plain": calls}  # plain: without a plan
BACKEND = {"group": "cpu:zipplan"}


def job(hurt: Hurt, way: str, good: int = GOOD, steps: int = 3) -> Callable[[int], Any]:
    """A few good steps, then the victim is hurt, then steps until something happens."""

    def run(rank: int) -> str:
        if rank == VICTIM and hurt in AT_START:
            hurt(list)
        own = way != "group"
        session = (
            zipplan.init(None if way == "plain" else zipped_plan(), adaptive=False) if own else dist.group.WORLD.session
        )
        step = WAYS[way](session)
        for _ in range(good):
            step()
        if rank == VICTIM:
            hurt(step)
        for _ in range(steps):
            step()
        return "nothing happened"

    return run


def killed(step: Step) -> None:
    """As the kernel's memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)


def terminated(step: Step) -> None:
    """As torchrun and schedulers do."""
    os.kill(os.getpid(), signal.SIGTERM)


def stalled(step: Step) -> None:
    """Comes back after all others have given up."""
    time.sleep(TIMEOUT_S + 5)


def raised(step: Step) -> None:
    """The program's own code, between two collectives."""
    raise ValueError("the loss is not a number")


def corrupted(step: Step) -> None:
    """A frame arrives with another header than was sent."""
    static = interpreter._Part._static

    def damaged(self: Any, stage: Any) -> Any:
        handle = static(self, stage)
        handle.wait()
        self.frames[stage.dst].static[:64] ^= 0x5A
        return handle

    interpreter._Part._static = damaged  # type: ignore[method-assign]


def out_of_memory(step: Step) -> None:
    """No scratch for the encoder."""
    encode = interpreter._Part._encode

    def refused(self: Any, stage: Any) -> None:
        if stage.payload is Payload.RAW:
            raise MemoryError("cannot allocate 1.2 GB of scratch")
        encode(self, stage)

    interpreter._Part._encode = refused  # type: ignore[method-assign]


def corrupted_and_caught(step: Step) -> None:
    """The program catches the error and goes on: the session stays broken, the others still hear of it."""
    corrupted(step)
    first = again = None
    for attempt in range(2):
        try:
            step()
        except RuntimeError as error:
            first, again = (error, None) if attempt == 0 else (first, error)
    time.sleep(3)
    assert first is again
    raise RuntimeError(f"twice: {again}")


def absent(step: Step) -> None:
    """Dies before the session is made."""
    os.kill(os.getpid(), signal.SIGKILL)


def late(step: Step) -> None:
    """Comes to make the session when the others have given up."""
    time.sleep(TIMEOUT_S + 6)


AT_START = (absent, late)


def interrupted(step: Step) -> None:
    """Ctrl-C while the codec works; sent from there, so that a busy machine cannot move it elsewhere."""
    encode = interpreter._Part._encode

    def slow(self: Any, stage: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        encode(self, stage)

    mock.patch.object(interpreter._Part, "_encode", slow).start()


IN_CODEC = (corrupted, out_of_memory, corrupted_and_caught, interrupted)
CASES: dict[str, Hurt] = {
    case.__name__: case
    for case in (
        killed,
        terminated,
        stalled,
        raised,
        corrupted,
        out_of_memory,
        corrupted_and_caught,
        interrupted,
        absent,
        late,
    )
}
CODES = {"killed": -signal.SIGKILL, "terminated": -signal.SIGTERM, "absent": -signal.SIGKILL}


def start(hurt: Hurt, way: str, good: int = GOOD, **options: Any) -> list[Ended]:
    """One launch."""
    process_group.register(zipped_plan() if way == "group" else None)
    limit = TIMEOUT_S + 15
    return launch(
        job(hurt, way, good), RANKS, limit_s=limit, backend=BACKEND.get(way, "gloo"), timeout_s=TIMEOUT_S, **options
    )


def rounds(number: int) -> None:
    """Print round → case → way and how every rank ended; another way in every round."""
    out: list[dict[str, Any]] = []
    for turn in range(number):
        ends: dict[str, Any] = {}
        for place, (name, hurt) in enumerate(CASES.items()):
            if hurt in AT_START and hurt is not AT_START[turn % 2]:
                continue
            way = "calls" if turn == 0 or hurt in AT_START else ("handles", "group", "sharded")[(place + turn) % 3]
            ended = [{"code": e.code, "said": e.said, "seconds": e.seconds} for e in start(hurt, way)]
            ends[name] = {"way": way, "ranks": ended}
        out.append(ends)
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    rounds(int(sys.argv[1]))
