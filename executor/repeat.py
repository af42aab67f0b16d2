"""Native calls like an earlier one: what they need is worked out once, so that choosing raw costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipplan.executor import native
from zipplan.executor.calls import SUM, Call
from zipplan.executor.interpreter import Traffic
from zipplan.planner.schedule import Collective, Exchange

Start = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, slots=True)
class Native:
    """A native call, ready to be made on any tensors that `fits` lets through. `start(output, input)`: the handle."""

    start: Start
    traffic: Traffic
    stage: str
    name: str

    @classmethod
    def of(cls, call: Call, stage: str, group: Any, ranks: int) -> Native | None:
        """What calls like `call` need; None for calls of which each is looked at (`fits` compares the rest)."""
        if call.splits is not None or call.op is not SUM or call.device != "cpu" or call.dtype.is_complex:
            return None
        kind = Exchange(call.collective)
        start = native.form(kind, call.input, group)
        if not call.collective.reduces and call.dtype not in native.GLOO_SUMS:
            start = _of_bytes(start)
        if call.input.dim() != 1 or call.output.dim() != 1:
            start = _of_flat(start)
        wire = native.wire_bytes(kind, call.input.numel() * call.dtype.itemsize, ranks)
        return cls(start, Traffic(wire_bytes=wire), stage, str(call))


def _of_bytes(start: Start) -> Start:
    return lambda out, src: start(out.view(torch.uint8), src.view(torch.uint8))


def _of_flat(start: Start) -> Start:
    return lambda out, src: start(out.view(-1), src.view(-1))


def key(collective: Collective, output: Tensor, input: Tensor, kind: str) -> tuple[Any, ...]:
    """What calls alike have in common."""
    return collective, input.dtype, input.shape, output.shape, kind


def fits(output: Tensor, input: Tensor) -> bool:
    """Whether two tensors are plain memory that a native call may use as it is: of one dtype, apart or the same."""
    if not (input.is_cpu and output.is_cpu and input.is_contiguous()) or input.requires_grad or input.is_neg():
        return False
    if output is input:
        return True
    if output.dtype is not input.dtype or not output.is_contiguous() or output.requires_grad or output.is_neg():
        return False
    begin, end = input.data_ptr(), output.data_ptr()
    return begin >= end + output.nbytes or end >= begin + input.nbytes
