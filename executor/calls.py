"""One call of a collective: what it moves, whether it is allowed, and how its tensors lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import native
from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Collective
from zipplan.planner.units import format_size

SUM = dist.ReduceOp.SUM
_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """'bf16' for torch.bfloat16, torch's own name for a dtype that plans do not know."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def op_name(op: Any) -> str:
    """'SUM' for any of torch's forms of it."""
    return next((name for name in _OPS if op == getattr(dist.ReduceOp, name)), str(op))


def parts(collective: Collective, ranks: int) -> tuple[int, int]:
    """Parts of the input and of the output: what one rank contributes to or gets from another."""
    return {
        Collective.ALL_GATHER: (1, ranks),
        Collective.REDUCE_SCATTER: (ranks, 1),
        Collective.ALL_REDUCE: (1, 1),
        Collective.ALL_TO_ALL: (ranks, ranks),
    }[collective]


@dataclass(frozen=True)
class Call:
    """Tensors of equal dtype and device. `splits` (all-to-all): elements from and to each rank. `kind`: a name."""

    collective: Collective
    output: Tensor
    input: Tensor
    op: Any = SUM
    kind: str = ""
    splits: tuple[list[int], list[int]] | None = None

    def __str__(self) -> str:
        extra = "" if self.op == SUM else f" {op_name(self.op)}"
        kind = f" ({self.kind})" if self.kind else ""
        return f"{self.collective}{extra} of {format_size(self.size)} {dtype_name(self.dtype)}{kind}"

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of input and output."""
        return self.input.dtype

    @cached_property
    def device(self) -> str:
        """'cpu' or 'cuda'."""
        return self.input.device.type

    @cached_property
    def elements(self) -> int:
        """Of the larger tensor; as nccl-tests counts."""
        return max(self.input.numel(), self.output.numel())

    @cached_property
    def size(self) -> int:
        """`elements` in bytes."""
        return self.elements * self.dtype.itemsize

    @cached_property
    def divides(self) -> bool:
        """Whether the sum is divided by the number of ranks."""
        return bool(self.op == dist.ReduceOp.AVG)

    @cached_property
    def not_accelerated(self) -> str | None:
        """Why no schedule of zipplan's own can do it."""
        if not self.collective.reduces or self.op == SUM or (self.divides and self.dtype.is_floating_point):
            return None
        return f"{op_name(self.op)} is not accelerated"

    def checked(self, ranks: int, backend: str) -> Call:
        """The call as it runs: complex sums as sums of reals. Raises ConfigError before anything is sent."""
        output, input = self.output, self.input
        if output.dtype != input.dtype or output.device != input.device:
            raise ConfigError(
                f"{self.collective}: input is {input.dtype} on {input.device}, output is {output.dtype} on "
                f"{output.device}; they must be alike"
            )
        if self.splits is None:
            self._check_sizes(ranks)
        if not self.collective.reduces:
            return self
        if input.is_complex() and not (input.is_conj() or output.is_conj()):
            same = output is input
            output, input = torch.view_as_real(output), torch.view_as_real(input)
            self = replace(self, output=input if same else output, input=input)
        native.check_summable(self.dtype, backend)
        if self.divides and not self.dtype.is_floating_point:
            raise ConfigError(f"{self.collective}: AVG of {dtype_name(self.dtype)}: only floats have a mean; use SUM")
        return self

    def _check_sizes(self, ranks: int) -> None:
        into, out = self.input.numel(), self.output.numel()
        fits = {
            Collective.ALL_GATHER: out == ranks * into,
            Collective.REDUCE_SCATTER: into == ranks * out,
            Collective.ALL_REDUCE: True,
            Collective.ALL_TO_ALL: into == out and into % ranks == 0,
        }[self.collective]
        if not fits:
            raise ConfigError(
                f"{self.collective} on {ranks} ranks: input has {into} elements, output {out}; "
                "all_gather needs output = ranks × input, reduce_scatter input = ranks × output, all_to_all equal "
                "numbers that divide by ranks"
            )

    def pieces(self, ranks: int, most: int) -> Iterator[Call]:
        """The same call as several calls of at most `most` elements (at least one per part), in order."""
        parts_in, parts_out = parts(self.collective, ranks)
        input = self.input.contiguous().view(parts_in, -1)
        output = self.output.view(parts_out, -1)
        for begin, end in piece_bounds(input.shape[1], max(1, most // max(parts_in, parts_out))):
            target = output[:, begin:end]
            source = target if self.output is self.input else input[:, begin:end]
            yield replace(self, output=target, input=source)


def piece_bounds(elements: int, most: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of at most `most` elements that cover 0 … elements, as equal as whole numbers allow."""
    count = -(-elements // most)
    return ((elements * i // count, elements * (i + 1) // count) for i in range(count))


def split_elements(tensor: Tensor, splits: list[int] | None, ranks: int, name: str) -> list[int]:
    """Elements per rank for `splits` rows of dimension 0 (None: equal rows). Raises ConfigError if they do not fit."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits is None:
        if rows % ranks:
            raise ConfigError(f"all_to_all: {rows} rows of the {name} do not divide by {ranks} ranks; give splits")
        splits = [rows // ranks] * ranks
    if len(splits) != ranks or min(splits) < 0 or sum(splits) != rows:
        raise ConfigError(
            f"all_to_all: {name} splits {list(splits)} do not fit: expected {ranks} numbers ≥ 0 (one per rank) that "
            f"sum to {rows}, the rows of the {name}"
        )
    row = tensor.shape[1:].numel()
    return [int(count) * row for count in splits]


def flat_bytes(tensor: Tensor) -> Tensor | None:
    """The tensor's own memory as flat uint8, or None when it is not one plain run of bytes."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.detach().reshape(-1).view(torch.uint8)


def must_copy(collective: Collective, output: Tensor, input: Tensor, rank: int) -> bool:
    """Whether input and output share memory so that the input must be copied first.

    In place is fine for all-reduce and for an all-gather whose input is its own part of the output; all-to-all and
    reduce-scatter in place are copied. Raises ConfigError where memory overlaps in any other way.
    """
    if collective is Collective.ALL_REDUCE or not (output.is_contiguous() and input.is_contiguous()):
        return False
    into, out = input.numel() * input.element_size(), output.numel() * output.element_size()
    offset = input.data_ptr() - output.data_ptr()
    if offset >= out or offset <= -into or into == 0 or out == 0:
        return False
    part = min(into, out)
    if collective is Collective.ALL_GATHER:
        if offset == rank * into:
            return False
    elif offset % part == 0:
        return True
    raise ConfigError(
        f"{collective}: input and output overlap, {offset} bytes apart; allowed are separate tensors, all-gather whose "
        "input is its own part of the output, reduce-scatter into a part of its input, all-to-all into its input"
    )
