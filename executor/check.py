"""What a planned collective must return, worked out without its schedule, and the comparison of bytes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import native
from zipplan.executor.calls import SUM, Call
from zipplan.planner.schedule import Collective, Exchange, Op, Payload, Schedule, Stage


def bytes_of(tensor: Tensor) -> Tensor:
    """A flat uint8 view or copy of any tensor (any dtype, any layout, 0-dim too)."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def differences(found: Tensor, expected: Tensor) -> str | None:
    """None when both hold the same bytes, else how many elements differ, where the first is, and both bit patterns.

    Compares bytes, so −0 is not 0 and a NaN equals itself only with the same payload. Tensors of equal shape and dtype.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"found {tuple(found.shape)} {found.dtype}, expected {tuple(expected.shape)} {expected.dtype}"
    a, b = (bytes_of(t).view(-1, t.dtype.itemsize) for t in (found, expected))
    wrong = (a != b).any(dim=1)
    count = int(wrong.sum())
    if count == 0:
        return None
    first = int(wrong.to(torch.uint8).argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), found.shape))
    # Little-endian machines only (as CUDA hosts are): the last byte is the most significant.
    bits = [bytes(t[first].tolist()[::-1]).hex() for t in (a, b)]
    return (
        f"{count} of {found.numel()} elements differ, first at flat index {first} {place}: "
        f"found 0x{bits[0]}, expected 0x{bits[1]}"
    )


def moved(
    collective: Collective, like: Tensor, input: Tensor, group: Any = None,
    splits: tuple[list[int], list[int]] | None = None,
) -> Tensor:  # fmt: skip
    """What the native all-gather or all-to-all of flat `input` returns, moved as bytes; shape and dtype of `like`.

    `group`: None for all ranks. `splits`: elements from and to each rank.
    """
    out = torch.empty(like.numel() * like.dtype.itemsize, dtype=torch.uint8, device=like.device)
    sizes: native.Splits = (None, None)
    if splits is not None:
        sizes = ([n * like.dtype.itemsize for n in splits[0]], [n * like.dtype.itemsize for n in splits[1]])
    _wait(native.exchange(Exchange(collective), out, bytes_of(input), _ranks(group), sizes))
    return out.view(like.dtype).view(like.shape)


def gathered(collective: Collective, input: Tensor, group: Any = None) -> Tensor:
    """All ranks' flat `input` as rows, by rank, moved as bytes; of reduce-scatter only this rank's part."""
    group = dist.group.WORLD if group is None else group
    ranks = group.size()
    everyone = torch.empty(ranks * input.numel() * input.dtype.itemsize, dtype=torch.uint8, device=input.device)
    _wait(native.exchange(Exchange.ALL_GATHER, everyone, bytes_of(input), _ranks(group)))
    rows = everyone.view(input.dtype).view(ranks, input.numel())
    if collective is Collective.REDUCE_SCATTER:
        rows = rows.view(ranks, ranks, input.numel() // ranks)[:, group.rank()]
    return rows


def summed(rows: Tensor) -> Tensor:
    """FP32 sum of rows in rank order, rounded once to their dtype: what zipplan's own sums promise."""
    total = rows[0].float()
    for row in rows[1:]:
        total = total + row.float()
    return total.to(rows.dtype)


def near(found: Tensor, rows: Tensor) -> str | None:
    """None when `found` is within what rounding at every addition of `rows` can do, else the worst place.

    Each of at most `ranks` roundings errs by half a unit in the last place of a partial sum, which the sum of
    magnitudes bounds (Higham, Accuracy and Stability of Numerical Algorithms, §4.2).
    """
    exact, magnitudes = rows[0].double(), rows[0].abs().float()
    for row in rows[1:]:
        exact += row
        magnitudes += row.abs()
    error = (found.flatten().double() - exact).abs()
    allowed = magnitudes.double() * (len(rows) * torch.finfo(found.dtype).eps)
    worst = int((error - allowed).argmax())
    if bool(error[worst] <= allowed[worst]):
        return None
    return f"element {worst} is off by {float(error[worst]):g}, rounding explains {float(allowed[worst]):g}"


class Expected:
    """What one call must return on this rank, found before it runs (ZIPPLAN_CHECK=bits). A collective call."""

    def __init__(self, call: Call, group: Any) -> None:
        self.call = call
        if call.collective.reduces:
            self.rows = gathered(call.collective, call.input, group)
        else:
            self.moved = moved(call.collective, call.output, call.input, group, call.splits)

    def problem(self, found: Tensor, schedule: Schedule) -> str | None:
        """None when `found`, made by `schedule`, holds the right bits (sums by the transport: the right value)."""
        if not self.call.collective.reduces:
            return differences(found, self.moved)
        if not any(s.exchange is not None and s.exchange.reduces for s in schedule.stages):
            want = summed(self.rows)
            return differences(found.reshape(-1), want.div_(len(self.rows)) if self.call.divides else want)
        if self.call.op != SUM:
            return None  # the transport's own
        if found.dtype.is_floating_point:
            return near(found.reshape(-1), self.rows)
        return differences(found.reshape(-1), self.rows.sum(0).to(found.dtype))


def raw_twin(schedule: Schedule) -> Schedule:
    """The same schedule with raw exchanges in place of frames: what its codec must not change."""
    stages: list[Stage] = []
    dropped = {s.name for s in schedule.stages if s.payload in (Payload.DYNAMIC, Payload.SIZES)}
    for stage in schedule.stages:
        if stage.name in dropped:
            continue
        op, payload, order = stage.op, stage.payload, stage.order
        if op in (Op.ENCODE, Op.DECODE):
            op, order = Op.PERMUTE, tuple(range(schedule.buffer_slots[stage.src]))
        elif op is Op.DECODE_REDUCE:
            op = Op.REDUCE
        elif payload is Payload.STATIC:
            payload = Payload.RAW
        after = tuple(a for a in stage.after if a not in dropped)
        stages.append(Stage(stage.name, op, stage.src, stage.dst, after, stage.axis, stage.exchange, payload, order))
    return Schedule(
        f"{schedule.name}-raw", schedule.collective, schedule.nodes, schedule.ranks_per_node, schedule.slots, "raw",
        tuple(stages),
    )  # fmt: skip


def same_on_all_ranks(tensor: Tensor) -> bool:
    """Whether every rank holds the same bytes as rank 0, seen from all of them."""
    flat = bytes_of(tensor)
    first = flat.clone()
    dist.broadcast(first, src=0)
    verdict = torch.tensor([int(torch.equal(first, flat))], dtype=torch.int32, device=tensor.device)
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict.item())


def _ranks(group: Any) -> Any:
    group = dist.group.WORLD if group is None else group
    return group if group.size() > 1 else None


def _wait(handle: Any) -> None:
    if handle is not None:
        handle.wait()
