"""What workers share: a plan that takes one given schedule per collective, test data, and the report to the parent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from zipplan.planner.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from zipplan.planner.plan import CodecUse, Entry, Plan, PlanTopology, Point, Range
from zipplan.planner.schedule import Schedule

RANKS = 4
Found = dict[str, str | None]  # case → what is wrong with it; None when it holds


def plan_of(schedules: Sequence[Schedule], transport: str = "gloo", dtype: str = "bf16", size: int = 4096) -> Plan:
    """A plan that runs each schedule for its collective at every size."""
    point = Point(size_bytes=size, predicted_ps=1, low_ps=1, high_ps=1, scratch_bytes=0, rejected=())
    entries = tuple(
        Entry(
            collective=s.collective,
            dtype=dtype,
            tensor_class="gaussian",
            choices=(
                Range(start=0, stop=None, schedule=s, codec=CodecUse(id=s.codec), expected_ratio=1.4, points=(point,)),
            ),
        )
        for s in schedules
    )
    grid = schedules[0]
    topology = PlanTopology(
        name="test", fingerprint="f" * 64, nodes=grid.nodes, ranks_per_node=grid.ranks_per_node, transport=transport
    )
    return Plan(made_by="tests", calibration="none", topology=topology, entries=entries)


def zipped_plan(ranks: int = RANKS, dtype: str = "bf16", codec: str = "window") -> Plan:
    """Every collective zipped."""
    builders = (all_gather.zipped, reduce_scatter.zipped, all_reduce.two_shot, all_to_all.zipped)
    return plan_of([build(1, ranks, codec) for build in builders], dtype=dtype)


def expect(condition: bool, otherwise: str) -> str | None:
    """None when it holds."""
    return None if condition else otherwise


def raised(kind: type[Exception], call: Callable[[], Any]) -> str:
    """What call() raises of this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing"


def values(
    shape: int | Sequence[int], dtype: torch.dtype = torch.bfloat16, seed: int = 0, rank: int | None = None
) -> torch.Tensor:
    """N(0, 0.02), different at every position and on every rank; those of `rank` (None: this one)."""
    random = torch.Generator().manual_seed(1000 * seed + (dist.get_rank() if rank is None else rank))
    return torch.normal(0.0, 0.02, (shape,) if isinstance(shape, int) else tuple(shape), generator=random).to(dtype)


class Cases:
    """Collects what failed on any rank and prints it as one JSON document from rank 0."""

    def __init__(self) -> None:
        self.found: dict[str, str | None] = {}

    def note(self, name: str, problem: str | None) -> None:
        """Record a case; None means that it holds."""
        assert name not in self.found, f"two cases are called {name}"
        self.found[name] = problem

    def report(self) -> None:
        """Join all ranks' findings; a collective call."""
        everyone: list[dict[str, str | None]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, self.found)
        if dist.get_rank() == 0:
            joined = {
                name: "; ".join(f"rank {r}: {found[name]}" for r, found in enumerate(everyone) if found[name]) or None
                for name in self.found
            }
            json.dump(joined, sys.stdout)
