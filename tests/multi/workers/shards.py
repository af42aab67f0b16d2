"""Parameters that do not divide, are of several dtypes, unused or on several meshes; hooks in any order; sub-groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from common import RANKS, Found, expect, raised, values, zipped_plan
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard

import zipplan.executor as zipplan
from zipplan.executor import check
from zipplan.executor.hooks import ddp
from zipplan.executor.hooks import fsdp as hooks
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective


def steps(model: nn.Module, given: Tensor, session: Any = None) -> Tensor:
    """Three steps of a sharded model, with our gathers if a session is given; all its parameters, as bytes."""
    if session is not None:
        done = hooks.install(model, session, reduce=False)
        assert not done.skipped, done
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        model(given).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([check.bytes_of(p.full_tensor().detach()) for p in model.parameters()])


class Rows(nn.Module):
    """One weight of the given rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.weight = nn.Parameter(torch.randn((rows, 8), generator=generator).bfloat16())

    def forward(self, given: Tensor) -> Tensor:
        return given @ self.weight.T


def shards(rank: int) -> Found:
    """F046: 4,096 rows over three ranks, 5 over eight (three own none). F056: ranks 1, 3 and 6 of eight."""
    found = Found()
    zipplan.init(zipped_plan(8), adaptive=False)
    members = [1, 3, 6]
    three = dist.new_group(members)
    for name, rows, group, ranks in (("5 rows over 8", 5, None, 8), ("4096 rows over 3", 4096, three, 3)):
        if group is not None and rank not in members:
            continue
        mesh = None if group is None else DeviceMesh.from_group(group, "cpu")
        session = zipplan.init(zipped_plan(ranks), group=group, adaptive=False)
        given, ends = values((4, 8), seed=rows), []
        for way in (None, session):
            model = Rows(rows)
            fully_shard(model, mesh=mesh)
            ends.append(steps(model, given, way))
        found[name] = check.differences(*ends)
        used = session.report()["used"]
        good = bool(used) and all(row["codec"] == "window" for row in used)
        found[f"{name}, compressed"] = expect(good, str(used))
    if rank in members:
        given = values(5000, seed=1)
        out = torch.empty(15000, dtype=torch.bfloat16)
        session.all_gather(out, given)
        want = torch.cat([values(5000, seed=1, rank=r) for r in members])
        found["sub-group"] = check.differences(out, want)
    dist.barrier()
    return found


def buckets(rank: int) -> Found:
    """F045: tensors of unlike dtypes and of none in one bucket. F054: a parameter that one rank alone uses."""
    found, session, ends = Found(), zipplan.init(zipped_plan(), adaptive=False), []
    parts = [values((1024, 64), seed=2), values(64, torch.float32, 3), values(0), torch.arange(3).byte() + rank]
    for number, part in enumerate(parts):
        out = torch.empty((RANKS, *part.shape), dtype=part.dtype)
        session.all_gather(out, part)
        found[f"segment {number}"] = check.differences(out, check.moved(Collective.ALL_GATHER, out, part))
    used = {(row["dtype"], row["codec"]) for row in session.report()["used"]}
    found["each by its dtype"] = expect(("bf16", "window") in used, str(used))
    for name in ("plain", "planned"):
        torch.manual_seed(4)
        model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        wrapped = nn.parallel.DistributedDataParallel(Only(model, rank), find_unused_parameters=True)
        if name == "planned":
            ddp.install(wrapped, zipplan.init(zipped_plan(dtype="fp32"), adaptive=False))
        wrapped(values((4, 8), torch.float32, 5)).square().mean().backward()
        gradients = [p.grad for p in model.parameters()]
        found[f"{name}, unused elsewhere"] = expect(all(g is not None for g in gradients), str(gradients))
        ends.append(torch.cat([g.flatten() for g in gradients if g is not None]))
    worst = float((ends[-1] - ends[-2]).abs().max())
    found["as plain DDP"] = expect(worst < 1e-6 and bool(ends[-1].any()), f"off by {worst}")
    return found


class Only(nn.Module):
    """The second layer is for rank 0."""

    def __init__(self, layers: nn.ModuleList, rank: int) -> None:
        super().__init__()
        self.layers, self.rank = layers, rank

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.layers[0](given)
        return self.layers[1](hidden) if self.rank == 0 else hidden


def order(rank: int) -> Found:
    """F053: hooks and torch's allocator in either order, hooks twice. F140: parameters of one module on two meshes."""
    found, session = Found(), zipplan.init(zipped_plan(), adaptive=False)
    for name in ("allocator first", "hooks first"):
        model = nn.Sequential(nn.Linear(8, 8))
        fully_shard(model)
        if name == "allocator first":
            model.set_allocate_memory_from_process_group_for_comm(True)
            done = hooks.install(model, session)
            why = done.skipped.get("", "")
            found[name] = expect("already has ProcessGroupAlloc" in why and not done.hooked, str(done))
        else:
            hooks.install(model, session)
            text = raised(AssertionError, lambda m=model: m.set_allocate_memory_from_process_group_for_comm(True))
            found[name] = expect("when all gather comm is custom: PlannedAllGather" in text, text)
    model = nn.Sequential(nn.Linear(8, 8))
    fully_shard(model)
    for _ in range(2):
        done = hooks.install(model, session)
        found["twice"] = expect(done.hooked == [""] and not done.skipped, str(done))
    for number, pair in enumerate(([0, 1], [2, 3])):
        pairs = dist.new_group(pair)
        if rank // 2 == number:
            mine = DeviceMesh.from_group(pairs, "cpu", mesh_dim_names=("pair",))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    fully_shard(model[0])
    two = FSDPMeshInfo(mine, shard_mesh_dim=0)
    fully_shard(model, shard_placement_fn=lambda p: ShardPlacementResult(Shard(0), two) if p.ndim == 1 else None)
    done = hooks.install(model, session)
    found["two meshes"] = expect(done.hooked == ["0"] and "2 parameter groups" in done.skipped[""], str(done))
    text = raised(ConfigError, lambda: hooks.install(nn.Linear(3, 3), session))
    found["before fully_shard"] = expect("call fully_shard(…) first" in text, text)
    return found
