"""What a session promises beyond plain calls: groups, splits, pieces, handles, checks, adaptive choices, hooks."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from common import plan_of, values
from forked import launch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import zipplan.executor as zipplan
from zipplan.executor import check
from zipplan.executor.adaptive import FIRST_LOOK
from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from zipplan.planner.errors import AgreementError, ConfigError
from zipplan.planner.schedule import Collective

RANKS = 4
Found = dict[str, str | None]
F037 = [[0, 0, 0, 0], [5, 0, 7, 1], [0, 0, 3, 0], [2, 2, 2, 2]]


def zipped_plan(ranks: int = RANKS, dtype: str = "bf16", codec: str = "window") -> Any:
    """Every collective zipped."""
    builders = (all_gather.zipped, reduce_scatter.zipped, all_reduce.two_shot, all_to_all.zipped)
    return plan_of([build(1, ranks, codec) for build in builders], dtype=dtype)


def expect(condition: bool, otherwise: str) -> str | None:
    """None when it holds."""
    return None if condition else otherwise


def raised(kind: type[Exception], call: Any) -> str:
    """What call() raises of this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing"


def splits(rank: int) -> Found:
    """F037: all-to-all with split lists, ranks with nothing to send or to receive, columns, integers, in place."""
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    large = [[900 * n for n in row] for row in F037]
    one_way = [[0, 0, 0, 4000] for _ in range(4)]
    for name, matrix in (("F037", F037), ("large", large), ("one rank gets all", one_way), ("nothing", [[0] * 4] * 4)):
        for dtype in (torch.bfloat16, torch.int64):
            send, receive = matrix[rank], [row[rank] for row in matrix]
            given = values((sum(send), 3), seed=5).to(dtype)
            got = torch.full((sum(receive), 3), 9, dtype=dtype)
            session.all_to_all(got, given, receive, send)
            want = torch.empty_like(got)
            dist.all_to_all_single(want, given, receive, send)
            found[f"{name} {dtype}"] = check.differences(got, want)
    found["ratio"] = expect(rank == 0 or session.last.raw_bytes == 0, "no traffic counted")
    send, receive = large[rank], [row[rank] for row in large]
    wide = values((sum(send), 6), seed=6)
    got = torch.zeros((sum(receive), 6), dtype=torch.bfloat16)
    handle = session.all_to_all(got[:, ::2], wide[:, ::2], receive, send, async_op=True)
    handle.wait()
    want = torch.empty((sum(receive), 3), dtype=torch.bfloat16)
    dist.all_to_all_single(want, wide[:, ::2].contiguous(), receive, send)
    found["columns"] = check.differences(got[:, ::2], want) or expect(not got[:, 1::2].any(), "gaps written")
    text = raised(ConfigError, lambda: session.all_to_all(got, wide, receive, [1, 2, 3]))
    found["wrong splits"] = expect("expected 4 numbers ≥ 0" in text, text)
    return found


def groups(rank: int) -> Found:
    """F056: a plan for three ranks on group [1, 2, 3]; the functional calls; groups that the plan does not fit."""
    found = Found()
    world = zipplan.init(zipped_plan(), adaptive=False)
    three = dist.new_group([1, 2, 3])
    if rank:
        session = zipplan.init(zipped_plan(3), group=three, adaptive=False)
        given = values(5000, seed=1)
        out = torch.empty(15000, dtype=torch.bfloat16)
        zipplan.all_gather_into_tensor(out, given, group=three)
        want = check.moved(Collective.ALL_GATHER, out, given, three)
        found["all_gather"] = check.differences(out, want) or expect(session.last.ratio > 1.2, "not compressed")
        part = torch.empty(5000, dtype=torch.bfloat16)
        rows = check.gathered(Collective.REDUCE_SCATTER, out, three)
        zipplan.reduce_scatter_tensor(part, out, group=three)
        found["reduce_scatter"] = check.differences(part, check.summed(rows))
        text = raised(Exception, lambda: zipplan.init(zipped_plan(4), group=three))
        found["plan of four"] = expect("plan needs 4 ranks" in text, text)
    given = values(4000, seed=2)
    got, want = torch.empty_like(given), torch.empty_like(given)
    handle = zipplan.all_to_all_single(got, given, async_op=True)
    handle.wait()
    dist.all_to_all_single(want, given)
    found["functional all_to_all"] = check.differences(got, want)
    rows = check.gathered(Collective.ALL_REDUCE, given)
    zipplan.all_reduce(given)
    found["functional all_reduce"] = check.differences(given, check.summed(rows))
    found["used"] = expect(all(row["codec"] == "window" for row in world.report()["used"]), str(world.report()["used"]))
    return found


def operations(rank: int) -> Found:
    """SUM and AVG by plan, the others natively, counted; complex sums; overlap of input and output."""
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        given = values(1000, seed=3)
        want = given.clone()
        dist.all_reduce(want, op=op)
        session.all_reduce(given, op)
        found[f"{op}"] = check.differences(given, want)
    reasons = [row["reason"] for row in session.fallback_rows()]
    found["counted"] = expect(reasons == [f"{n} is not accelerated" for n in ("MAX", "MIN", "PRODUCT")], str(reasons))
    given = values(1000, seed=4)
    want = check.summed(check.gathered(Collective.ALL_REDUCE, given)).div_(4)
    session.all_reduce(given, dist.ReduceOp.AVG)
    found["AVG"] = check.differences(given, want)
    text = raised(ConfigError, lambda: session.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG))
    found["AVG of integers"] = expect("only floats have a mean" in text, text)
    raw = zipplan.init(plan_of([check.raw_twin(all_reduce.two_shot(1, RANKS, "window"))]), adaptive=False)
    for op, plain in ((dist.ReduceOp.AVG, 2.5), (dist.ReduceOp.MAX, 4.0), (dist.ReduceOp.SUM, 10.0)):
        given = torch.full((1001,), 1.0 + rank).bfloat16()
        raw.all_reduce(given, op)
        found[f"raw sums of zipplan's own, {op}"] = check.differences(given, torch.full_like(given, plain))
    turned = torch.complex(torch.full((4,), 1.0 + rank), torch.ones(4))
    session.all_reduce(turned)
    found["complex"] = check.differences(turned, torch.complex(torch.full((4,), 10.0), torch.full((4,), 4.0)))
    whole = values(4096, seed=5)
    before = whole.clone()
    session.all_to_all(whole, whole)
    found["all_to_all in place"] = check.differences(whole, check.moved(Collective.ALL_TO_ALL, whole, before))
    whole = before.clone()
    mine = whole[1024 * rank :][:1024]
    rows = check.gathered(Collective.REDUCE_SCATTER, before)
    session.reduce_scatter(mine, whole)
    found["reduce_scatter in place"] = check.differences(mine, check.summed(rows))
    base = torch.zeros(4096 + 8, dtype=torch.bfloat16)
    text = raised(ConfigError, lambda: session.all_to_all(base[8:], base[:4096]))
    found["partial overlap"] = expect("overlap, -16 bytes apart" in text, text)
    return found


def pieces(rank: int) -> Found:
    """Tensors above the limit of one call go in pieces, with the same result."""
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    session.most_elements = 1000
    given = values(1001, seed=1)
    out = torch.empty((4, 1001), dtype=torch.bfloat16)
    handle = session.all_gather(out, given, async_op=True)
    handle.wait()
    found["all_gather"] = check.differences(out, check.moved(Collective.ALL_GATHER, out, given))
    given = values(4004, seed=2)
    got = torch.empty_like(given)
    session.all_to_all(got, given)
    found["all_to_all"] = check.differences(got, check.moved(Collective.ALL_TO_ALL, got, given))
    rows = check.gathered(Collective.REDUCE_SCATTER, given)
    part = torch.empty(1001, dtype=torch.bfloat16)
    session.reduce_scatter(part, given)
    found["reduce_scatter"] = check.differences(part, check.summed(rows))
    rows = check.gathered(Collective.ALL_REDUCE, given)
    session.all_reduce(given)
    found["all_reduce"] = check.differences(given, check.summed(rows))
    found["calls"] = expect(session.number > 4 * 4, str(session.number))
    return found


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
    bound = 0
    for entry in session.plan.entries:
        choice = entry.choose(32768 * (4 if entry.collective is Collective.ALL_GATHER else 1))
        size = 32768 * (4 if entry.collective is Collective.ALL_GATHER else 1)
        frame = choice.schedule.slot_bytes(size) + 4096
        bound = max(bound, choice.schedule.scratch_bytes(size, frame))
    names = {name for scratch in session._scratch.values() for name in scratch._held}
    found["bounded"] = expect(session.scratch_bytes <= bound * 2, f"{session.scratch_bytes} > 2 × {bound}: {names}")
    return found


def handles(rank: int) -> Found:
    """F061: many calls in flight, inputs dropped by the caller; futures; order with synchronous calls."""
    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    pending = []
    for turn in range(12):
        out = torch.empty(4 * 3000, dtype=torch.bfloat16)
        pending.append((out, session.all_gather(out, values(3000, seed=turn), async_op=True)))
        if turn % 5 == 4:
            total = torch.full((8,), 1.0)
            session.all_reduce(total)
            found[f"between {turn}"] = check.differences(total, torch.full((8,), 4.0))
    for turn, (out, handle) in enumerate(pending):
        future = handle.get_future()
        handle.wait()
        want = check.moved(Collective.ALL_GATHER, out, values(3000, seed=turn))
        done = handle.is_completed() and handle.is_success() and future.wait()[0] is out
        found[f"call {turn}"] = check.differences(out, want) or expect(done, "handle not done")
    numbers = torch.arange(1 << 20)  # int64: native
    out = torch.empty(4 << 20, dtype=torch.int64)
    handle = session.all_gather(out, numbers, async_op=True)
    handle.wait()
    found["native"] = check.differences(out, numbers.repeat(4))
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


def model_and_data(rank: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, list[Tensor]]:
    """A small model, equal on all ranks, and batches that differ."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(33, 70), nn.Tanh(), nn.Linear(70, 50), nn.Tanh(), nn.Linear(50, 10)).to(dtype)
    generator = torch.Generator().manual_seed(rank)
    return model, [torch.randn((16, 33), generator=generator).to(dtype) for _ in range(4)]


def fsdp(rank: int) -> Found:
    """Losses with planned all-gather equal those without, to the bit; planned sums are near; what is hooked is said."""
    from zipplan.executor.hooks import fsdp as hooks

    found = Found()
    losses: dict[str, list[str]] = {}
    session = zipplan.init(zipped_plan(), adaptive=False)
    numbers: dict[str, list[float]] = {}
    for way in ("plain", "gather", "both"):
        model, batches = model_and_data(rank)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for layer in (model[0], model[2]):
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        if way != "plain":
            done = hooks.install(model, session, reduce=way == "both")
            found[f"{way} hooked"] = expect(done.hooked == ["", "0", "2"] and not done.skipped, str(done))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses[way], numbers[way] = [], []
        for batch in batches:
            loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[way].append(float(loss.detach()).hex())
            numbers[way].append(float(loss.detach()))
    found["bit-identical losses"] = expect(losses["plain"] == losses["gather"], str(losses))
    worst = max(abs(a - b) / abs(a) for a, b in zip(numbers["plain"], numbers["both"], strict=True))
    found["planned sums"] = expect(worst < 2**-7, f"losses differ by {worst}")
    used = {(row["collective"], row["kind"], row["codec"]) for row in session.report()["used"]}
    want = {("all_gather", "weights", "window"), ("reduce_scatter", "gradients", "window")}
    found["used"] = expect(want <= used, str(used))
    text = raised(ConfigError, lambda: hooks.install(nn.Linear(2, 2), session))
    found["nothing sharded"] = expect("no module of this model is sharded" in text, text)
    model, _ = model_and_data(rank)
    fully_shard(model[0])
    model[0].set_allocate_memory_from_process_group_for_comm(True)
    empty = nn.Sequential(nn.Tanh())
    fully_shard(empty)
    done = hooks.install(nn.ModuleList([model, empty]), session)
    good = "already has ProcessGroupAllocAllGather" in done.skipped["0.0"] and "no parameters" in done.skipped["1"]
    found["not hooked, and why"] = expect(good, str(done))
    return found


def ddp(rank: int) -> Found:
    """F052: four steps through rebuilt buckets; a native plan equals plain DDP to the bit, a zipped one nearly."""
    from zipplan.executor.hooks import ddp as hooks

    found, parameters = Found(), {}
    for way, plan in (("plain", None), ("native", None), ("zipped", zipped_plan(dtype="fp32"))):
        model, batches = model_and_data(rank)
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
        session = zipplan.init(plan, adaptive=False)
        if way != "plain":
            hooks.install(wrapped, session)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
        for batch in batches:
            wrapped(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        parameters[way] = torch.cat([p.detach().flatten() for p in model.parameters()])
        if way == "zipped":
            found["equal on all ranks"] = expect(check.same_on_all_ranks(parameters[way]), "ranks differ")
            row = session.report()["used"][0]
            found["used"] = expect(row["codec"] == "window" and row["kind"] == "gradients", str(row))
    found["native"] = check.differences(parameters["native"], parameters["plain"])
    worst = float((parameters["zipped"] - parameters["plain"]).abs().max())
    found["zipped"] = expect(worst < 1e-6, f"off by {worst}")
    return found


def moe(rank: int) -> Found:
    """F041: rank 2 gets no token in step 1 and 17 in step 2; outputs and gradients equal a plain all-to-all's bits."""
    from zipplan.executor.hooks.moe import Routing

    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    for step, matrix in enumerate(
        (
            [[3, 4, 0, 1], [2, 9, 0, 0], [5, 5, 0, 5], [0, 0, 0, 7]],
            [[1, 1, 6, 0], [0, 3, 5, 2], [4, 0, 6, 1], [0, 0, 0, 0]],
        )
    ):
        send, receive = matrix[rank], [row[rank] for row in matrix]
        weight = values((64, 64), seed=7)
        results = []
        for way in ("plain", "planned"):
            tokens = values((sum(send), 64), seed=step).requires_grad_()
            expert = (weight * (rank + 1)).requires_grad_()
            if way == "plain":
                back = _Plain.apply(_Plain.apply(tokens, receive, send) @ expert, send, receive)
            else:
                routing = Routing(session, send)
                found[f"counts {step}"] = expect(routing.receive == receive, str(routing.receive))
                arrived = routing.dispatch(tokens)
                # A rank without tokens skips its expert, as training code does.
                back = routing.combine(arrived @ expert if len(arrived) else arrived.detach())
            back.float().square().sum().backward()
            gradient = expert.grad if expert.grad is not None else torch.zeros_like(expert)
            results.append((back.detach(), tokens.grad, gradient))
        names = ("output", "token gradient", "expert gradient")
        for name, plain, planned in zip(names, *results, strict=True):
            found[f"{name} {step}"] = check.differences(planned, plain)
    kinds = {row["kind"]: row["codec"] for row in session.report()["used"]}
    want = {"counts": "raw", "tokens": "window", "tokens gradients": "window"}
    found["used"] = expect(kinds == want, str(kinds))
    return found


def pipeline(rank: int) -> Found:
    """Activations down, gradients up, at the same time; small and other tensors raw; misfits in size do not hang."""
    from zipplan.executor.hooks.pipeline import Pipe

    session, found = zipplan.init(zipped_plan(), adaptive=False), Found()
    pipe = Pipe(session, "cascade", least=1 << 10)
    below, above = (rank + 1) % RANKS, (rank - 1) % RANKS
    for name, count, dtype in (
        ("large", 70_001, torch.bfloat16),
        ("small", 40, torch.bfloat16),
        ("empty", 0, torch.bfloat16),
        ("integers", 5000, torch.int64),
    ):
        sent = [values(count, torch.float32, seed=s).mul(1000).to(dtype) for s in (1, 2)]
        got = [torch.empty(count, dtype=dtype) for _ in range(2)]
        pipe.exchange([(sent[0], below), (sent[1], above)], [(got[0], above), (got[1], below)])
        want = [torch.empty(RANKS * count, dtype=dtype) for _ in range(2)]
        for whole, mine in zip(want, sent, strict=True):
            whole.copy_(check.moved(Collective.ALL_GATHER, whole, mine))
        parts = [want[0].view(RANKS, -1)[above], want[1].view(RANKS, -1)[below]]
        found[name] = check.differences(got[0], parts[0]) or check.differences(got[1], parts[1])
    columns, into = values((500, 8), seed=3), torch.zeros((500, 8), dtype=torch.bfloat16)
    if rank in (0, 1):
        pipe.send(columns[:, ::2], 1) if rank == 0 else pipe.recv(into[:, ::2], 0)
    generator = torch.Generator().manual_seed(3000)
    first = torch.normal(0.0, 0.02, (500, 8), generator=generator).bfloat16()
    wrong = check.differences(into[:, ::2], first[:, ::2]) if rank == 1 else None
    found["columns"] = wrong or expect(not into[:, 1::2].any(), "gaps written")
    return found


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, receive: list[int], send: list[int]) -> Tensor:
        ctx.back = (send, receive)
        out = rows.new_empty((sum(receive), rows.shape[1]))
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Plain.apply(gradient.contiguous(), *ctx.back), None, None


CASES = (splits, groups, operations, pieces, steady, handles, checks, adaptive, fsdp, ddp, moe, pipeline)


def main(names: list[str]) -> None:
    """Run each group of cases in a launch of its own; print group → case → problem."""
    out = {}
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        ended = launch(case, RANKS, limit_s=60)
        joined: Found = {}
        for rank, end in enumerate(ended):
            said = end.said if isinstance(end.said, dict) and end.code == 0 else {f"rank {rank} ended": str(end)}
            for name, problem in said.items():
                joined[name] = joined.get(name) or (f"rank {rank}: {problem}" if problem else None)
        out[case.__name__] = joined
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
