"""Calls of a session in every form: splits, groups, operations, pieces of large tensors, handles."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import RANKS, Found, expect, plan_of, raised, values, zipped_plan

import zipplan.executor as zipplan
from zipplan.executor import check
from zipplan.planner.collectives import all_reduce
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective

F037 = [[0, 0, 0, 0], [5, 0, 7, 1], [0, 0, 3, 0], [2, 2, 2, 2]]


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
    plain, out = zipplan.init(None), torch.empty(400_000, dtype=torch.bfloat16)
    for grad in (False, True):  # the second call is like the first but for this
        given = values(100_000, seed=8).requires_grad_(grad)
        plain.all_gather(out, given)
    wrong = check.differences(out, check.moved(Collective.ALL_GATHER, out, given))
    found["no graph of gradients"] = wrong or expect(not out.requires_grad, "the output has one")
    other = whole[1024 * ((rank + 1) % RANKS) :][:1024]
    text = raised(ConfigError, lambda: session.all_gather(whole, other))
    found["another's part of the output"] = expect("all_gather: input and output overlap" in text, text)
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
