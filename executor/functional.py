"""Functional calls with torch.distributed's arguments, for the session of the last `zipplan.executor.init`.

`group`: None, or a group for which `init(plan, group=…)` was called; tensors are as in torch.distributed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zipplan.executor.calls import SUM
from zipplan.executor.start import current
from zipplan.executor.work import Handle


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Handle | None:
    """output_tensor = all ranks' input_tensor, in rank order. Returns a handle when async_op, else None."""
    return current(group).all_gather(output_tensor, input_tensor, async_op=async_op)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False
) -> Handle | None:
    """output = this rank's part of the reduction of all ranks' input. Returns a handle when async_op, else None."""
    return current(group).reduce_scatter(output, input, op, async_op=async_op)


def all_reduce(tensor: Tensor, op: Any = SUM, group: Any = None, async_op: bool = False) -> Handle | None:
    """tensor = reduction over all ranks, in place. Returns a handle when async_op, else None."""
    return current(group).all_reduce(tensor, op, async_op=async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None, group: Any = None, async_op: bool = False,
) -> Handle | None:  # fmt: skip
    """output part p = this rank's part of rank p's input; splits count rows. Returns a handle when async_op."""
    return current(group).all_to_all(output, input, output_split_sizes, input_split_sizes, async_op=async_op)
