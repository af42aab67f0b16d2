"""Runs a schedule: one stage after another, each an exchange, a codec call or a local move. Knows no algorithm.

Payload is uint8 from end to end. The transport's own sums and the FP32 sums here are the only typed reads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import native
from zipplan.executor.codec import SlotCodec
from zipplan.executor.faults import Watch
from zipplan.planner.errors import CodecError
from zipplan.planner.schedule import INPUT, OUTPUT, Exchange, Op, Payload, Schedule, Stage


class Scratch:
    """Byte buffers by name, kept from call to call; grown when a call needs more."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Tensor] = {}
        self._parts: dict[int, Scratch] = {}

    def take(self, name: str, size: int) -> Tensor:
        """`size` uninitialised bytes; the same memory for the same name until a larger size is asked for."""
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return held[:size]

    def part(self, number: int) -> Scratch:
        """Buffers of another part of the same call, by the same names."""
        return self._parts.setdefault(number, Scratch(self._device))

    @property
    def held_bytes(self) -> int:
        """Bytes that all buffers hold now."""
        own = sum(t.numel() for t in self._held.values())
        return own + sum(part.held_bytes for part in self._parts.values())


@dataclass
class Frames:
    """k frames: static regions at a constant stride; dynamic regions at `offsets` (bytes, k of them) once known."""

    static: Tensor
    dynamic: Tensor
    offsets: np.ndarray


@dataclass
class Traffic:
    """What one call moved. `raw_bytes` were encoded into `encoded_bytes`; `wire_bytes` left this rank.

    A native exchange counts the least that any algorithm sends (nccl-tests doc/PERFORMANCE.md: its bus factors).
    """

    raw_bytes: int = 0
    encoded_bytes: int = 0
    wire_bytes: float = 0

    @property
    def ratio(self) -> float:
        """Raw bytes / encoded bytes of what was encoded; 1 when nothing was."""
        return self.raw_bytes / self.encoded_bytes if self.encoded_bytes else 1.0

    def __iadd__(self, other: Traffic) -> Traffic:
        self.raw_bytes += other.raw_bytes
        self.encoded_bytes += other.encoded_bytes
        self.wire_bytes += other.wire_bytes
        return self


def run(
    schedule: Schedule, axes: native.Axes, codec: SlotCodec | None, scratch: Scratch, dtype: torch.dtype,
    source: Tensor, output: Tensor, watch: Watch, op: Any = dist.ReduceOp.SUM,
) -> Traffic:  # fmt: skip
    """Execute `schedule` from `source` to `output`, flat uint8 tensors of its input and output slots.

    `codec` codes one slot (None: the schedule has no codec stage). `watch` waits for the transport and is told the
    stage. `op`: of the transport's own reductions. The order of stages is the same on all ranks.
    """
    slot_bytes = source.numel() // schedule.slots
    sizes = schedule.parts(slot_bytes)
    slots = [buffer.view(-1, slot_bytes) if slot_bytes else buffer for buffer in (source, output)]
    traffic, parts, at = Traffic(), [], 0
    for number, size in enumerate(sizes):
        into, out = slots if len(sizes) == 1 else (rows[:, at : at + size] for rows in slots)
        coder = codec.of(size // dtype.itemsize) if codec is not None else None
        own = scratch if number == 0 else scratch.part(number)
        parts.append(_Part(schedule, axes, coder, own, dtype, size, into, out, watch, op, traffic))
        at += size
    for number, stage in schedule.unrolled(len(sizes)):
        parts[number].start(stage)
    for part in parts:
        part.finish()
    return traffic


def sum_by_sender(src: Tensor, senders: int, dtype: torch.dtype, dst: Tensor) -> None:
    """dst = src[0] + src[1] + … over `senders` equal parts of src, in FP32 in that order, rounded once to `dtype`."""
    parts = src.view(dtype).view(senders, -1)
    out = dst.view(dtype)
    total = out.copy_(parts[0]) if dtype is torch.float32 else parts[0].float()  # never the source itself
    for part in parts[1:]:
        total += part
    if total is not out:
        out.copy_(total)


class _Part:
    """One part of every slot on its way; `source`, `output`: its bytes of each slot, a row per slot."""

    def __init__(
        self, schedule: Schedule, axes: native.Axes, codec: SlotCodec | None, scratch: Scratch, dtype: torch.dtype,
        slot_bytes: int, source: Tensor, output: Tensor, watch: Watch, op: Any, traffic: Traffic,
    ) -> None:  # fmt: skip
        self.schedule, self.axes, self.codec, self.scratch, self.dtype = schedule, axes, codec, scratch, dtype
        self.slot_bytes = slot_bytes
        self.raw = {INPUT: source, OUTPUT: output}
        self.watch, self.op = watch, op
        self.frames: dict[str, Frames] = {}
        self.told: dict[str, tuple[Tensor, Tensor]] = {}
        self.pending: dict[str, Any] = {}
        self.traffic = traffic

    def start(self, stage: Stage) -> None:
        """Run a stage, or start it if it is an exchange, after what it waits for."""
        for name in stage.after:
            self._finish(name)
        self.watch.stage = stage.name
        handle = self._start(stage)
        if handle is not None:
            self.pending[stage.name] = handle

    def finish(self) -> None:
        """Wait for what still runs."""
        for name in list(self.pending):
            self._finish(name)

    def _finish(self, name: str) -> None:
        handle = self.pending.pop(name, None)
        if handle is not None:
            self.watch.stage = name
            self.watch.wait(handle, self.raw, self.frames)

    def _start(self, stage: Stage) -> Any:
        match stage.op:
            case Op.ENCODE:
                self._encode(stage)
            case Op.EXCHANGE:
                moves = {
                    Payload.RAW: self._raw, Payload.STATIC: self._static, Payload.DYNAMIC: self._dynamic,
                    Payload.SIZES: self._sizes,
                }  # fmt: skip
                return moves[stage.payload](stage)
            case Op.DECODE:
                at = self.frames[stage.src]
                self._codec.decode(at.static, at.dynamic, at.offsets, self._target(stage))
            case Op.DECODE_REDUCE:
                at = self.frames[stage.src]
                peers = self.schedule.axis_size(stage.axis)
                self._codec.decode_reduce(at.static, at.dynamic, at.offsets, peers, self._target(stage))
            case Op.REDUCE:
                peers = self.schedule.axis_size(stage.axis)
                sum_by_sender(self.raw[stage.src], peers, self.dtype, self._target(stage))
            case Op.PERMUTE:
                slots = self.raw[stage.src].view(len(stage.order), self.slot_bytes)
                to = self._target(stage).view(len(stage.order), self.slot_bytes)
                torch.index_select(slots, 0, _index(stage.order, slots.device), out=to)
        return None

    @property
    def _codec(self) -> SlotCodec:
        assert self.codec is not None, f"schedule {self.schedule.name} has codec stages and was run without a codec"
        return self.codec

    def _target(self, stage: Stage) -> Tensor:
        """The raw destination buffer of a stage."""
        if stage.dst not in self.raw:
            slots = self.schedule.buffer_slots[stage.dst]
            self.raw[stage.dst] = self.scratch.take(stage.dst, slots * self.slot_bytes)
        return self.raw[stage.dst]

    def _encode(self, stage: Stage) -> None:
        slots = self.schedule.buffer_slots[stage.dst]
        static = self.scratch.take(f"{stage.dst}.static", slots * self._codec.static_bytes)
        dynamic = self.scratch.take(f"{stage.dst}.dynamic", slots * self._codec.dynamic_bound)
        self._codec.encode(self.raw[stage.src], static, dynamic)
        self.frames[stage.dst] = Frames(static, dynamic, np.zeros(0, np.int64))

    def _raw(self, stage: Stage) -> Any:
        assert stage.exchange is not None
        out, src = self._target(stage).view(-1), self.raw[stage.src].view(-1)
        peers = self.schedule.axis_size(stage.axis)
        self.traffic.wire_bytes += native.wire_bytes(stage.exchange, src.numel(), peers)
        if stage.exchange.reduces:
            out, src = out.view(self.dtype), src.view(self.dtype)
        return native.exchange(stage.exchange, out, src, self.axes.group(stage.axis), op=self.op)

    def _static(self, stage: Stage) -> Any:
        assert stage.exchange is not None
        src = self.frames[stage.src].static
        slots, peers = self.schedule.buffer_slots[stage.dst], self.schedule.axis_size(stage.axis)
        out = self.scratch.take(f"{stage.dst}.static", slots * self._codec.static_bytes)
        self.frames[stage.dst] = Frames(out, out[:0], np.zeros(0, np.int64))
        gathers = stage.exchange is Exchange.ALL_GATHER
        self.traffic.wire_bytes += src.numel() * (peers - 1) / (1 if gathers else peers)
        return native.exchange(stage.exchange, out, src, self.axes.group(stage.axis))

    def _sizes(self, stage: Stage) -> Any:
        """Sizes of the dynamic regions ahead of the frames, int64; `told` holds both ends until they are read."""
        assert stage.exchange is not None
        frames, peers = self.frames[stage.src], self.schedule.axis_size(stage.axis)
        (own,) = self._codec.sizes(frames.static)
        src = torch.from_numpy(own.astype(np.int64)).to(frames.static.device).view(torch.uint8)
        out = self.scratch.take(f"{stage.dst}.sizes", self.schedule.buffer_slots[stage.dst] * 8)
        self.told[stage.dst] = out, src
        self.traffic.wire_bytes += native.wire_bytes(stage.exchange, src.numel(), peers)
        return native.exchange(stage.exchange, out, src, self.axes.group(stage.axis))

    def _dynamic(self, stage: Stage) -> Any:
        """How much comes from whom stands in the headers of the static regions, or came ahead of them."""
        src, dst, group = self.frames[stage.src], self.frames[stage.dst], self.axes.group(stage.axis)
        peers = self.schedule.axis_size(stage.axis)
        if stage.dst in self.told:
            own, sizes = (told.cpu().view(torch.int64).numpy() for told in reversed(self.told[stage.dst]))
            _check_sizes(sizes, self._codec.dynamic_bound)
        else:
            own, sizes = self._codec.sizes(src.static, dst.static)
        self.traffic += Traffic(len(own) * self.slot_bytes, src.static.numel() + int(own.sum()))
        from_peer = sizes.reshape(peers, -1)
        receive = from_peer.sum(axis=1)
        if stage.exchange is Exchange.ALL_GATHER:
            # The transport gathers equal sizes: all send as much as the largest, which all know from the headers.
            most, mine = int(receive.max()), int(own.sum())
            dst.offsets = (np.arange(peers)[:, None] * most + np.apply_along_axis(_starts, 1, from_peer)).reshape(-1)
            dst.dynamic = self._dynamic_buffer(stage)[: peers * most]
            if most == 0:
                return None
            src.dynamic[mine:most].zero_()
            self.traffic.wire_bytes += most * (peers - 1)
            return native.exchange(Exchange.ALL_GATHER, dst.dynamic, src.dynamic[:most], group)
        # Nobody knows whether all pairs have nothing to say, so all ranks enter the call even then.
        send = own.reshape(peers, -1).sum(axis=1)
        dst.offsets = _starts(sizes)
        dst.dynamic = self._dynamic_buffer(stage)[: int(receive.sum())]
        self.traffic.wire_bytes += int(send.sum() - send[self._place(stage)])
        sent = src.dynamic[: int(send.sum())]
        return native.exchange(Exchange.ALL_TO_ALL, dst.dynamic, sent, group, (receive.tolist(), send.tolist()))

    def _dynamic_buffer(self, stage: Stage) -> Tensor:
        """Room for the largest dynamic regions that its frames can have, so that no call has to make more."""
        slots = self.schedule.buffer_slots[stage.dst]
        return self.scratch.take(f"{stage.dst}.dynamic", slots * self._codec.dynamic_bound)

    def _place(self, stage: Stage) -> int:
        """This rank's place in its group on the stage's axis."""
        return self.schedule.group(stage.axis, self.axes.rank).index(self.axes.rank)


def _check_sizes(sizes: np.ndarray, bound: int) -> None:
    """Raise CodecError for a size that no frame has, before anything is made or received of that size."""
    wrong = np.flatnonzero((sizes < 0) | (sizes > bound))
    if len(wrong):
        raise CodecError(
            f"frame {wrong[0]}: size of its dynamic region, sent ahead of it: expected 0 to {bound} bytes, found "
            f"{sizes[wrong[0]]}; the message was damaged on its way"
        )


@functools.cache
def _index(order: tuple[int, ...], device: torch.device) -> Tensor:
    """An order on a device; kept, since a copy to a GPU waits for it."""
    return torch.tensor(order, device=device)


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Offsets of parts that lie one after another."""
    return np.concatenate(([0], np.cumsum(sizes)[:-1])) if len(sizes) else sizes
