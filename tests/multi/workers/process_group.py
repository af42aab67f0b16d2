"""The process group `zipplan`: which override every dist call reaches, its results, and many launches in a row."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from common import plan_of
from forked import launch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from zipplan.executor import check, process_group
from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter

BACKEND = "cpu:zipplan,cuda:zipplan"
RANKS = 3


def zipped_plan(ranks: int) -> Any:
    """Every collective zipped."""
    builders = (all_gather.zipped, reduce_scatter.zipped, all_reduce.two_shot, all_to_all.zipped)
    return plan_of([build(1, ranks, "window") for build in builders])


def count_overrides() -> Counter[str]:
    """Count calls of every public method of the group."""
    reached: Counter[str] = Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            reached[name] += 1
            return method(self, *args, **kwargs)

        return wrapper

    group = process_group.ZipplanProcessGroup
    for name, method in list(vars(group).items()):
        if callable(method) and not name.startswith("__") and name not in ("_nccl", "name", "getBackendName"):
            setattr(group, name, counted(name, method))
    return reached


def conformance(rank: int) -> dict[str, Any]:
    """Every dist call once; call → overrides it reached, and whether its result is right."""
    reached = count_overrides()
    ones = torch.full((6,), rank + 1.0, dtype=torch.bfloat16)
    rows: dict[str, Any] = {}

    def note(name: str, found: torch.Tensor, want: list[float]) -> None:
        expected = torch.tensor(want, dtype=found.dtype)
        rows[name] = {"reached": sorted(reached), "problem": check.differences(found.reshape(-1), expected)}
        reached.clear()

    new_names = hasattr(dist, "all_gather_single")
    gather = dist.all_gather_single if new_names else dist.all_gather_into_tensor
    scatter = dist.reduce_scatter_single if new_names else dist.reduce_scatter_tensor
    everyone = [float(r) for r in (1, 2, 3) for _ in range(6)]
    out = torch.empty(18, dtype=torch.bfloat16)
    gather(out, ones)
    note("all_gather_single", out, everyone)
    handle = gather(out.zero_(), ones, async_op=True)
    handle.wait()
    note("all_gather_single async", out, everyone)
    part = torch.empty(2, dtype=torch.bfloat16)
    scatter(part, ones)
    note("reduce_scatter_single", part, [6.0] * 2)
    scatter(part, ones, op=dist.ReduceOp.AVG)
    note("reduce_scatter_single AVG", part, [2.0] * 2)
    given = ones.clone()
    dist.all_reduce(given)
    note("all_reduce", given, [6.0] * 6)
    given = ones.clone()
    dist.all_reduce(given, op=dist.ReduceOp.MAX)
    note("all_reduce MAX", given, [3.0] * 6)
    given = torch.arange(6, dtype=torch.bfloat16) + 10 * rank
    got = torch.empty_like(given)
    dist.all_to_all_single(got, given)
    note("all_to_all_single", got, [10.0 * r + 2 * rank + i for r in range(3) for i in (0, 1)])
    sends = [[0, 4, 2], [1, 0, 5], [6, 0, 0]]
    got = torch.empty(sum(row[rank] for row in sends), dtype=torch.bfloat16)
    dist.all_to_all_single(got, given, [row[rank] for row in sends], sends[rank])
    starts = [sum(row[:rank]) for row in sends]
    note("all_to_all_single splits", got, [10.0 * r + starts[r] + i for r in range(3) for i in range(sends[r][rank])])
    parts = [torch.empty(6, dtype=torch.bfloat16) for _ in range(3)]
    dist.all_gather(parts, ones)
    note("all_gather", torch.cat(parts), everyone)
    given = ones.clone()
    dist.broadcast(given, src=1)
    note("broadcast", given, [2.0] * 6)
    given = ones.clone()
    dist.reduce(given, dst=0)
    note("reduce", given if rank == 0 else torch.full_like(given, 6), [6.0] * 6)
    part = torch.empty(6, dtype=torch.bfloat16)
    dist.reduce_scatter(part, [ones, ones, ones])
    note("reduce_scatter", part, [6.0] * 6)
    parts = [torch.empty(6, dtype=torch.bfloat16) for _ in range(3)]
    dist.gather(ones, parts if rank == 0 else None, dst=0)
    note("gather", torch.cat(parts) if rank == 0 else torch.tensor(everyone), everyone)
    dist.scatter(part, [ones * 2, ones * 3, ones * 4] if rank == 0 else None, src=0)
    note("scatter", part, [rank + 2.0] * 6)
    if rank == 0:
        dist.send(ones, dst=1)
        dist.recv(part, src=2)
    else:
        dist.recv(part, src=rank - 1)
        dist.send(ones, dst=(rank + 1) % 3)
    note("send and recv", part, [(rank - 1) % 3 + 1.0] * 6)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, ones, (rank + 1) % 3), dist.P2POp(dist.irecv, part, (rank - 1) % 3)]
    )
    for work in works:
        work.wait()
    note("batch_isend_irecv", part, [(rank - 1) % 3 + 1.0] * 6)
    dist.barrier()
    note("barrier", ones, [rank + 1.0] * 6)
    objects: list[Any] = [None] * 3
    dist.all_gather_object(objects, {"rank": rank})
    note("all_gather_object", torch.tensor([float(o["rank"]) for o in objects]), [0.0, 1.0, 2.0])
    note("functional all_reduce", functional.all_reduce(ones, "sum", dist.group.WORLD).wait(), [6.0] * 6)
    gather = functional.all_gather_single if new_names else functional.all_gather_tensor
    scatter = functional.reduce_scatter_single if new_names else functional.reduce_scatter_tensor
    note("functional all_gather", gather(ones, 0, dist.group.WORLD).wait(), everyone)
    found = scatter(ones, "sum", 0, dist.group.WORLD).wait()
    note("functional reduce_scatter", found, [6.0] * 2)
    found = scatter(ones, "avg", 0, dist.group.WORLD).wait()
    note("functional reduce_scatter AVG", found, [2.0] * 2)
    found = functional.all_to_all_single(ones, None, None, dist.group.WORLD).wait()
    note("functional all_to_all", found, [float(r) for r in (1, 2, 3) for _ in range(2)])
    mesh = init_device_mesh("cpu", (3,))
    sharded = distribute_tensor(torch.arange(9).bfloat16(), mesh, [Shard(0)])
    note("DTensor", sharded.redistribute(mesh, [Replicate()]).to_local(), [float(i) for i in range(9)])
    pair = dist.new_group([0, 2])
    if rank != 1:
        given = ones.clone()
        dist.all_reduce(given, group=pair)
        note("new_group", given, [4.0] * 6)
    else:
        note("new_group", ones, [2.0] * 6)
    rows["reasons"] = sorted({row["reason"] for row in dist.group.WORLD.session.fallback_rows()})
    dist.barrier()
    return rows


def training(rank: int) -> list[float]:
    """DDP and FSDP2 steps, as unchanged code has them; sums of parameters."""
    torch.manual_seed(7)
    sizes: list[float] = []
    for wrap in ("ddp", "fsdp"):
        model: Any = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10)).to(torch.bfloat16)
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        else:
            fully_shard(model[0])
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            generator = torch.Generator().manual_seed(100 * step + rank)
            given = torch.randn((8, 40), generator=generator).bfloat16()
            model(given).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p.data for p in model.parameters()]
        sizes.append(float(sum(p.detach().double().abs().sum() for p in whole)))
    return sizes


def main(what: str, times: int) -> None:
    """Print what the ranks of every launch said."""
    process_group.register(zipped_plan(RANKS))
    job = {"conformance": conformance, "training": training}[what]
    launches = []
    for _ in range(times):
        ended = launch(job, RANKS, limit_s=30, backend=BACKEND)
        launches.append([{"code": e.code, "said": e.said} for e in ended])
    json.dump(launches, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
