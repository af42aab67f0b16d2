"""Calls into torch.distributed: the transport's own collectives on flat tensors, in the spelling that torch has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Axis, Collective, Exchange, Schedule

# torch 2.13 renamed the tensor forms and warns about the old names; 2.11 and 2.12 know the old ones only.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# gloo answers "Invalid scalar type" for every other dtype, sometimes one call later (tried on torch 2.13.0).
_GLOO_SUMS = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
)


Splits = tuple[list[int], list[int]] | tuple[None, None]


def exchange(kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits = (None, None)) -> Any:
    """Start one collective on flat tensors and return its handle, or None when it is done (a group of one rank).

    `splits` (all-to-all): elements to receive from and to send to each peer; None: equal shares.
    """
    if group is None:
        out.copy_(src)
        return None
    match kind:
        case Exchange.ALL_GATHER:
            return _all_gather(out, src, group=group, async_op=True)
        case Exchange.ALL_TO_ALL:
            receive, send = splits
            return dist.all_to_all_single(out, src, receive, send, group=group, async_op=True)
        case Exchange.REDUCE_SCATTER:
            return _reduce_scatter(out, src, group=group, async_op=True)
        case Exchange.ALL_REDUCE:
            if out.data_ptr() != src.data_ptr():
                out.copy_(src)
            return dist.all_reduce(out, group=group, async_op=True)


def check_summable(dtype: torch.dtype, backend: str) -> None:
    """Raise ConfigError when the transport cannot sum `dtype`; before the call, since gloo may fail one call later."""
    if backend == "gloo" and dtype not in _GLOO_SUMS:
        names = ", ".join(str(d).removeprefix("torch.") for d in _GLOO_SUMS)
        raise ConfigError(f"gloo cannot sum {str(dtype).removeprefix('torch.')}; it sums {names}: cast before the call")


class Axes:
    """The process groups of this rank: world, its node, its rail. Made once; every rank must make them together."""

    def __init__(self, nodes: int, ranks_per_node: int, used: frozenset[Axis], timeout: timedelta | None) -> None:
        self.nodes, self.ranks_per_node = nodes, ranks_per_node
        self.rank = dist.get_rank()
        grid = Schedule("grid", Collective.ALL_GATHER, nodes, ranks_per_node, 1, "raw", ())
        self._groups: dict[Axis, Any] = {Axis.WORLD: dist.group.WORLD if grid.ranks > 1 else None}
        for axis in (Axis.NODE, Axis.RAIL):
            if axis in used:
                self._groups[axis] = self._make(grid, axis, timeout)

    def _make(self, grid: Schedule, axis: Axis, timeout: timedelta | None) -> Any:
        if grid.axis_size(axis) in (1, grid.ranks):
            return dist.group.WORLD if grid.axis_size(axis) > 1 else None
        mine = None
        for ranks in grid.groups(axis):
            group = dist.new_group(list(ranks), timeout=timeout)
            if self.rank in ranks:
                mine = group
        return mine

    def group(self, axis: Axis) -> Any:
        """Process group, or None when this rank is alone on the axis."""
        return self._groups[axis]
