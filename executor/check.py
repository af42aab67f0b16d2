"""What a planned collective must return, worked out without its schedule, and the comparison of bytes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import native
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


def moved(collective: Collective, like: Tensor, input: Tensor) -> Tensor:
    """What the native all-gather or all-to-all of flat `input` returns, moved as bytes; shape and dtype of `like`."""
    out = torch.empty(like.numel() * like.dtype.itemsize, dtype=torch.uint8, device=like.device)
    _wait(native.exchange(Exchange(collective), out, bytes_of(input), _world()))
    return out.view(like.dtype).view(like.shape)


def gathered(collective: Collective, input: Tensor) -> Tensor:
    """All ranks' flat `input` as rows, by rank, moved as bytes; of reduce-scatter only this rank's part."""
    ranks = dist.get_world_size()
    everyone = torch.empty(ranks * input.numel() * input.dtype.itemsize, dtype=torch.uint8, device=input.device)
    _wait(native.exchange(Exchange.ALL_GATHER, everyone, bytes_of(input), _world()))
    rows = everyone.view(input.dtype).view(ranks, input.numel())
    if collective is Collective.REDUCE_SCATTER:
        rows = rows.view(ranks, ranks, input.numel() // ranks)[:, dist.get_rank()]
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


def raw_twin(schedule: Schedule) -> Schedule:
    """The same schedule with raw exchanges in place of frames: what its codec must not change."""
    stages: list[Stage] = []
    dropped = {s.name for s in schedule.stages if s.payload is Payload.DYNAMIC}
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


def _world() -> object:
    return dist.group.WORLD if dist.get_world_size() > 1 else None


def _wait(handle: object) -> None:
    if handle is not None:
        handle.wait()  # type: ignore[attr-defined]
