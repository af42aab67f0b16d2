"""Calls into torch.distributed: the transport's own collectives on flat tensors, in the spelling that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import gloo
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


def exchange(
    kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits = (None, None), op: Any = dist.ReduceOp.SUM
) -> Any:
    """Start one collective on flat tensors and return its handle, or None when it is done (a group of one rank).

    `splits` (all-to-all): elements to receive from and to send to each peer; None: equal shares. `op`: of a reduction.
    """
    if group is None:
        out.copy_(src)
        return None
    if gloo.on_gpu(group, src):
        return gloo.Staged(out, src, lambda into, of: exchange(kind, into, of, group, splits, op))
    if kind in (Exchange.ALL_GATHER, Exchange.ALL_TO_ALL) and gloo.serves(group, src):
        even = src.nbytes // (group.size() if kind is Exchange.ALL_TO_ALL else 1)
        if splits[0] is not None or even >= gloo.LEAST:
            return _move(kind, out, src, group, splits)
    return own(kind, out, src, group, splits, op)


def own(
    kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits = (None, None), op: Any = dist.ReduceOp.SUM
) -> Any:
    """Start the transport's own collective, as `exchange` does where it knows no better form."""
    receive, send = splits
    match kind:
        case Exchange.ALL_GATHER:
            return _all_gather(out, src, group=group, async_op=True)
        case Exchange.ALL_TO_ALL:
            return dist.all_to_all_single(out, src, receive, send, group=group, async_op=True)
        case Exchange.REDUCE_SCATTER:
            return _reduce_scatter(out, src, op=op, group=group, async_op=True)
        case Exchange.ALL_REDUCE:
            if out.data_ptr() != src.data_ptr():
                out.copy_(src)
            return dist.all_reduce(out, op=op, group=group, async_op=True)


def _move(kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits) -> Any:
    size = group.size()
    receive, send = splits
    into = out.split(receive) if receive is not None else out.chunk(size)
    if kind is Exchange.ALL_GATHER:
        return gloo.move(into, [src] * size, group)
    return gloo.move(into, src.split(send) if send is not None else src.chunk(size), group)


def wire_bytes(kind: Exchange, sent: int, peers: int) -> float:
    """The least that any algorithm sends per rank for `sent` bytes of input (nccl-tests doc/PERFORMANCE.md)."""
    factor = {Exchange.ALL_GATHER: peers, Exchange.ALL_REDUCE: 2}.get(kind, 1)
    return factor * sent * (peers - 1) / peers


def check_summable(dtype: torch.dtype, backend: str) -> None:
    """Raise ConfigError when the transport cannot sum `dtype`; before the call, since gloo may fail one call later."""
    if backend == "gloo" and dtype not in _GLOO_SUMS:
        names = ", ".join(str(d).removeprefix("torch.") for d in _GLOO_SUMS)
        raise ConfigError(f"gloo cannot sum {str(dtype).removeprefix('torch.')}; it sums {names}: cast before the call")


Make = Callable[[list[int]], Any]


class Axes:
    """The process groups of this rank: all ranks of `group`, its node, its rail; ranks are counted in `group`.

    Made once; every rank must make them together. `make`: a process group of some ranks, called for all groups of an
    axis in the same order on all ranks.
    """

    def __init__(self, group: Any, ranks_per_node: int, used: frozenset[Axis], make: Make) -> None:
        self.rank = group.rank()
        grid = Schedule("grid", Collective.ALL_GATHER, group.size() // ranks_per_node, ranks_per_node, 1, "raw", ())
        self._groups: dict[Axis, Any] = {Axis.WORLD: group if grid.ranks > 1 else None}
        for axis in (Axis.NODE, Axis.RAIL):
            if axis in used:
                self._groups[axis] = self._make(grid, axis, make)

    def _make(self, grid: Schedule, axis: Axis, make: Make) -> Any:
        if grid.axis_size(axis) in (1, grid.ranks):
            return self._groups[Axis.WORLD] if grid.axis_size(axis) > 1 else None
        mine = None
        for ranks in grid.groups(axis):
            group = make(list(ranks))
            if self.rank in ranks:
                mine = group
        return mine

    def close(self) -> None:
        """Let the groups go."""
        self._groups.clear()

    def group(self, axis: Axis) -> Any:
        """Process group, or None when this rank is alone on the axis."""
        return self._groups[axis]
