"""Calls into torch.distributed: the transport's own collectives on flat tensors, in the spelling that torch has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import gloo
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Axis, Collective, Exchange, Schedule

# The group's own methods, without the wrappers of torch.distributed, which check anew what is known here and take as
# long as all of zipplan's own work. torch 2.13 renamed them; 2.11 and 2.12 know the old names only.
_Group = dist.ProcessGroup
_all_gather = getattr(_Group, "all_gather_single", None) or _Group._allgather_base
_reduce_scatter = getattr(_Group, "reduce_scatter_single", None) or _Group._reduce_scatter_base
_all_to_all = getattr(_Group, "all_to_all_single", None) or _Group.alltoall_base

# gloo answers "Invalid scalar type" for every other dtype, sometimes one call later (tried on torch 2.13.0).
GLOO_SUMS = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
)


_FAR = 1 << 62
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
        return gloo.Staged(out, src, group, lambda into, of: exchange(kind, into, of, group, splits, op))
    if in_pieces(kind, src, group, splits):
        return _move(kind, out, src, group, splits)
    return own(kind, out, src, group, splits, op)


def form(kind: Exchange, src: Tensor, group: Any) -> Callable[[Tensor, Tensor], Any]:
    """What `exchange` does with tensors (out, src) in CPU memory, SUM and equal shares, for any src as long as this."""
    if in_pieces(kind, src, group):
        return lambda out, src: _move(kind, out, src, group)
    match kind:
        case Exchange.ALL_GATHER:
            return functools.partial(_all_gather, group)
        case Exchange.ALL_TO_ALL:
            return lambda out, src: _all_to_all(group, out, src, [], [])
        case _:
            return lambda out, src: own(kind, out, src, group)


def in_pieces(kind: Exchange, src: Tensor, group: Any, splits: Splits = (None, None)) -> bool:
    """Whether `exchange` moves by sends and receives of its own, which someone has to wait for."""
    if kind is Exchange.ALL_GATHER:
        least = gloo.LEAST
    elif kind is Exchange.ALL_TO_ALL:
        # Through memory gloo's own is quicker, up to a third at 1 MiB (scripts/raw_overhead.py).
        least = 0 if splits[0] is not None else _FAR if gloo.one_host() else gloo.LEAST * group.size()
    else:
        return False
    return src.nbytes >= least and gloo.serves(group, src)


def own(
    kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits = (None, None), op: Any = dist.ReduceOp.SUM
) -> Any:
    """Start the transport's own collective, as `exchange` does where it knows no better form."""
    match kind:
        case Exchange.ALL_GATHER:
            return _all_gather(group, out, src)
        case Exchange.ALL_TO_ALL:
            return _all_to_all(group, out, src, splits[0] or [], splits[1] or [])
        case Exchange.REDUCE_SCATTER:
            scatter = dist.ReduceScatterOptions()
            scatter.reduceOp = op
            return _reduce_scatter(group, out, src, scatter)
        case Exchange.ALL_REDUCE:
            if out.data_ptr() != src.data_ptr():
                out.copy_(src)
            reduce = dist.AllreduceOptions()
            reduce.reduceOp = op
            return group.allreduce([out], reduce)


def _move(kind: Exchange, out: Tensor, src: Tensor, group: Any, splits: Splits = (None, None)) -> Any:
    size = group.size()
    receive, send = splits
    into = out.split(receive) if receive is not None else out.chunk(size)
    if kind is Exchange.ALL_GATHER:
        return gloo.Ring(into, src, group) if size > 2 else gloo.move(into, [src] * size, group)
    return gloo.move(into, src.split(send) if send is not None else src.chunk(size), group)


def wire_bytes(kind: Exchange, sent: int, peers: int) -> float:
    """The least that any algorithm sends per rank for `sent` bytes of input (nccl-tests doc/PERFORMANCE.md)."""
    factor = {Exchange.ALL_GATHER: peers, Exchange.ALL_REDUCE: 2}.get(kind, 1)
    return factor * sent * (peers - 1) / peers


def check_summable(dtype: torch.dtype, backend: str) -> None:
    """Raise ConfigError when the transport cannot sum `dtype`; before the call, since gloo may fail one call later."""
    if backend == "gloo" and dtype not in GLOO_SUMS:
        names = ", ".join(str(d).removeprefix("torch.") for d in GLOO_SUMS)
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
