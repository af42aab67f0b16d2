"""What a session promises beside right results: no allocation, calls checked between ranks, choices made alike."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from common import RANKS, Found, expect, raised, values, zipped_plan
from torch.utils._python_dispatch import TorchDispatchMode

import zipplan.executor as zipplan
from zipplan.executor import check
from zipplan.executor.adaptive import FIRST_LOOK
from zipplan.planner.errors import AgreementError, ConfigError
from zipplan.planner.schedule import Collective


class Allocations(TorchDispatchMode):
    """Counts what torch operators allocate while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(word in str(func) for word in ("empty", "new_", "clone", "zeros", "ones", "_to_copy", "cat")):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def steady(rank: int) -> Found:
    """After the first call nothing is allocated, and scratch is what the schedule says at most."""
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    noise = torch.randint(0, 256, (4 * 8192,), dtype=torch.uint8).view(torch.bfloat16)
    given, out = values(16384, seed=1), torch.empty(4 * 16384, dtype=torch.bfloat16)
    part, other = torch.empty(4096, dtype=torch.bfloat16), torch.empty_like(given)
    calls = {
        "all_gather": lambda: session.all_gather(out, given),
        "reduce_scatter": lambda: session.reduce_scatter(part, given),
        "all_reduce": lambda: session.all_reduce(other),
        "all_to_all": lambda: session.all_to_all(other, given),
    }
    other.copy_(given)
    for name, call in calls.items():
        call()
        held = session.scratch_bytes
        given.copy_(noise)  # the worst case needs no more
        with Allocations() as seen:
            call()
        problem = expect(session.scratch_bytes == held, f"scratch grew from {held} to {session.scratch_bytes}")
        found[name] = problem or expect(not seen.seen, f"allocated by {seen.seen}")
    session.all_reduce(noise.view(torch.bfloat16)[:4003].clone())
    session.all_reduce(values(1001, seed=9))
    left = session._scratch[torch.device("cpu")].take("input", 2 * 1004)[2 * 1001 :]
    found["padding"] = expect(not left.any(), f"what earlier calls left is sent: {left.tolist()}")
    bound = 0
    for entry in session.plan.entries:
        choice = entry.choose(32768 * (4 if entry.collective is Collective.ALL_GATHER else 1))
        size = 32768 * (4 if entry.collective is Collective.ALL_GATHER else 1)
        frame = choice.schedule.slot_bytes(size) + 4096
        bound = max(bound, choice.schedule.scratch_bytes(size, frame))
    names = {name for scratch in session._scratch.values() for name in scratch._held}
    found["bounded"] = expect(session.scratch_bytes <= bound * 2, f"{session.scratch_bytes} > 2 × {bound}: {names}")
    return found


def checks(rank: int) -> Found:
    """F038, F039: with ZIPPLAN_CHECK every rank raises, naming ranks and numbers, before data moves; bits agree."""
    found = Found()
    for mode in ("sizes", "bits"):
        os.environ["ZIPPLAN_CHECK"] = mode
        session = zipplan.init(zipped_plan(), adaptive=False)
        big = values(4000 + 4 * (rank == 2), seed=1)
        text = raised(AgreementError, lambda s=session, b=big: s.all_reduce(b))
        want = "0-1,3: all_reduce SUM of bf16, 4000 elements in, 4000 out; 2: all_reduce SUM of bf16, 4004"
        found[f"{mode} sizes"] = expect(want in text, text)
        wrong = values(4000, seed=1, dtype=torch.float32 if rank == 1 else torch.bfloat16)
        text = raised(AgreementError, lambda s=session, b=wrong: s.all_reduce(b))
        found[f"{mode} dtypes"] = expect("1: all_reduce SUM of fp32" in text, text)
        for plan in (session, zipplan.init(None)):  # compressed and raw alike
            send = [3 if (rank, to) == (0, 1) else 2 for to in range(4)]
            given, got = values(sum(send), seed=2), torch.empty(8, dtype=torch.bfloat16)
            text = raised(AgreementError, lambda s=plan, o=got, g=given, n=send: s.all_to_all(o, g, [2] * 4, n))
            want = "rank 0 sends 3 elements to rank 1, which expects 2"
            found[f"{mode} splits {plan is session}"] = expect(want in text, text)
        out = torch.empty(4 * 1001, dtype=torch.bfloat16)
        session.all_gather(out, values(1001, seed=3))
        part = torch.empty(1000, dtype=torch.bfloat16)
        session.reduce_scatter(part, values(4000, seed=3), dist.ReduceOp.AVG)
        session.all_reduce(values(1001, seed=3))
        session.all_to_all(torch.empty(8, dtype=torch.bfloat16), values(8, seed=2), [2] * 4, [2] * 4)
        session.all_reduce(torch.arange(5))
        found[f"{mode} goes on"] = None
    os.environ["ZIPPLAN_CHECK"] = "size"
    text = raised(ConfigError, lambda: zipplan.init(None))
    found["misspelt value"] = expect("did you mean sizes" in text, text)
    os.environ.pop("ZIPPLAN_CHECK")
    os.environ["ZIPPLAN_DISABEL"] = "1"
    text = raised(ConfigError, lambda: zipplan.init(None))
    found["misspelt name"] = expect("did you mean ZIPPLAN_DISABLE" in text, text)
    os.environ.pop("ZIPPLAN_DISABEL")
    return found


def adaptive(rank: int) -> Found:
    """Noise on two ranks: all ranks stop compressing at the same call; σ that drifts keeps the ratio."""
    session, found = zipplan.init(zipped_plan()), Found()
    calm = values(50_000, seed=1)
    noise = torch.randint(0, 256, (100_000,), dtype=torch.uint8).view(torch.bfloat16)
    out = torch.empty(200_000, dtype=torch.bfloat16)
    mine = noise if rank > 1 else calm
    states = []
    for _ in range(FIRST_LOOK + 3):
        session.all_gather(out, noise, kind="noise")
        session.all_gather(out, calm, kind="calm")
        session.all_to_all(torch.empty_like(mine), mine, kind="mixed")
        states.append([c.compressing for c in session.classes.values()])
    found["result"] = check.differences(out, check.moved(Collective.ALL_GATHER, out, calm))
    found["noise is sent raw"] = expect([s[0] for s in states] == [True] * (FIRST_LOOK - 1) + [False] * 4, str(states))
    found["calm is compressed"] = expect(all(s[1] for s in states), str(states))
    everyone: list[Any] = [None] * RANKS
    dist.all_gather_object(everyone, states)
    found["decisions are alike"] = expect(all(s == states for s in everyone), str(everyone))
    rows = {row["kind"]: row for row in session.report()["used"]}
    row = rows["noise"]
    good = row["native_calls"] == 3 and row["judged"][0]["ratio"] < 1.0 and row["expected_ratio"] == 1.4
    found["report"] = expect(good, str(row))
    reasons = [row["reason"] for row in session.fallback_rows()]
    found["reason"] = expect(any(r.startswith("compression does not pay: ratio 0.9") for r in reasons), str(reasons))
    noisy = session.classes[next(iter(session.classes))]
    noisy.left = 1
    session.all_gather(out, noise, kind="noise")
    found["tried again"] = expect(noisy.compressing, "not tried again")
    ratios = []
    for power in range(-30, 30, 6):
        drifting = (values(50_000, seed=2, dtype=torch.float32) * 2.0**power).bfloat16()
        session.all_gather(out, drifting, kind="drift")
        ratios.append(session.last.ratio)
    found["drift"] = expect(min(ratios) > 1.3, str(ratios))
    return found
