"""All-to-all with splits: one frame per pair of ranks, static regions first, each pair by its own size.

Both ends of a pair know how much it carries, so both look up the same choice and no sizes travel before the data. A
pair whose size does not pay sends raw bytes in place of a static region. All ranks enter the same two exchanges, also
those that have nothing to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zipplan import kernels
from zipplan.executor import native
from zipplan.executor.calls import Call, flat_bytes
from zipplan.executor.codec import codec_of
from zipplan.executor.coders import Asked, Coder
from zipplan.executor.faults import Watch
from zipplan.executor.interpreter import Scratch, Traffic
from zipplan.planner.schedule import Exchange

Parameters = tuple[tuple[str, int | float | str], ...]
CodecOf = Callable[[int], tuple[str, Parameters] | None]

_ALIGNED = 128  # bytes: where a frame may start (docs/wire-format.md)


def native_call(call: Call, group: Any, watch: Watch) -> Traffic:
    """The transport's own call, as bytes."""
    source, target, receive, send = _flat(call)
    _exchange("exchange", target, source, group, receive, send, watch)
    _return(call, target)
    return Traffic(wire_bytes=sum(send) - send[group.rank()])


def zipped(
    call: Call, group: Any, watch: Watch, scratch: Scratch, coder: Coder, dtype: str, choose: CodecOf
) -> Traffic:
    """Frames in place of bytes; `choose`: codec id and parameters for a pair of so many elements, None for raw."""
    item = call.dtype.itemsize
    source, target, receive, send = _flat(call)
    out, into = (_Runs([n // item for n in counts], item, dtype, choose) for counts in (send, receive))
    watch.stage = "encode"
    static, dynamic = out.room(scratch, "send")
    out.encode(coder, source, static, dynamic)
    got_static, got_dynamic = into.room(scratch, "receive")
    _exchange("static", got_static, static, group, into.static, out.static, watch)
    watch.stage = "dynamic"
    mine, theirs = out.asked(static), into.asked(got_static)
    found = coder.sizes(*mine, *theirs)
    sizes, got_sizes = out.by_part(found[: len(mine)]), into.by_part(found[len(mine) :])
    got = got_dynamic[: sum(got_sizes)]
    sent = out.packed(dynamic, sizes)
    _exchange("dynamic", got, sent, group, got_sizes, sizes, watch)
    watch.stage = "decode"
    into.decode(coder, got_static, got, got_sizes, target)
    _return(call, target)
    own = group.rank()
    encoded = sum(s + d for s, d in zip(out.static, sizes, strict=True))
    return Traffic(sum(send), encoded, encoded - out.static[own] - sizes[own])


class _Runs:
    """Parts of one side, in runs of neighbours with equal codec: (codec or None, first part, parts)."""

    def __init__(self, elements: Sequence[int], item: int, dtype: str, choose: CodecOf) -> None:
        self.elements, self.item = elements, item
        found = [choose(n) if n else None for n in elements]
        self.runs: list[tuple[Any, int, int]] = []
        self.static, self.bound = [0] * len(elements), [0] * len(elements)
        at = 0
        for key, members in groupby(found):
            count = len(list(members))
            codec = None if key is None else codec_of(key[0], dict(key[1]), dtype)
            for part in range(at, at + count):
                self.static[part] = -(-elements[part] * item // _ALIGNED) * _ALIGNED
                if codec is not None:
                    self.static[part] = kernels.static_size(codec[0], elements[part])
                    self.bound[part] = kernels.max_dynamic_size(codec[0], elements[part])
            self.runs.append((codec, at, count))
            at += count

    def room(self, scratch: Scratch, name: str) -> tuple[Tensor, Tensor]:
        """Scratch for static and dynamic regions."""
        return scratch.take(f"{name}.static", sum(self.static)), scratch.take(f"{name}.dynamic", sum(self.bound))

    def _places(self) -> Iterator[tuple[Any, slice, slice, slice, slice]]:
        """(codec, parts, bytes of their static regions, room for their dynamic ones, raw bytes) of every run."""
        starts, raw = np.cumsum([0, *self.static]), np.cumsum([0, *self.elements]) * self.item
        bounds = np.cumsum([0, *self.bound])
        for codec, at, count in self.runs:
            end = at + count
            places = (slice(int(edges[at]), int(edges[end])) for edges in (starts, bounds, raw))
            yield codec, slice(at, end), *places

    def _slots(self, raw: Tensor, parts: slice) -> Sequence[Tensor]:
        return raw.split([n * self.item for n in self.elements[parts]])

    def encode(self, coder: Coder, raw: Tensor, static: Tensor, dynamic: Tensor) -> None:
        """Fill both regions; the dynamic ones of a run packed from the start of the run's room."""
        for codec, parts, region, room, bytes_ in self._places():
            if codec is None:
                self._pairs(static[region], raw[bytes_], parts, lambda fixed, plain: fixed.copy_(plain))
            else:
                coder.encode(codec[0], codec[1], self._slots(raw[bytes_], parts), static[region], dynamic[room])

    def asked(self, static: Tensor) -> list[Asked]:
        """What to ask the coder for, to know the sizes of the dynamic regions."""
        return [
            (codec[0], static[region], self.elements[parts])
            for codec, parts, region, _, _ in self._places()
            if codec is not None
        ]

    def by_part(self, found: Sequence[np.ndarray]) -> list[int]:
        """Sizes of the dynamic regions of all parts, from those of the coded runs."""
        sizes, rest = [0] * len(self.elements), iter(found)
        for codec, parts, *_ in self._places():
            if codec is not None:
                sizes[parts] = [int(n) for n in next(rest)]
        return sizes

    def packed(self, dynamic: Tensor, sizes: Sequence[int]) -> Tensor:
        """The dynamic regions of all runs, one after another, from the start of `dynamic`."""
        used = 0
        for _, parts, _, room, _ in self._places():
            size = sum(sizes[parts])
            if room.start != used:
                dynamic[used : used + size].copy_(dynamic[room.start : room.start + size].clone())
            used += size
        return dynamic[:used]

    def decode(self, coder: Coder, static: Tensor, dynamic: Tensor, sizes: list[int], raw: Tensor) -> None:
        """Both regions to raw bytes."""
        starts = np.cumsum([0, *sizes[:-1]])
        for codec, parts, region, _, bytes_ in self._places():
            if codec is None:
                self._pairs(static[region], raw[bytes_], parts, lambda fixed, plain: plain.copy_(fixed))
            else:
                coder.decode(codec[0], static[region], dynamic, self._slots(raw[bytes_], parts), starts[parts])

    def _pairs(self, static: Tensor, raw: Tensor, parts: slice, copy: Callable[[Tensor, Tensor], object]) -> None:
        """Each part's place in the static regions, without its padding, and its raw bytes."""
        for fixed, plain in zip(static.split(self.static[parts]), self._slots(raw, parts), strict=True):
            copy(fixed[: plain.numel()], plain)


def _flat(call: Call) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Input and output as bytes (copies where they are not one run of bytes, or where they share memory), splits."""
    assert call.splits is not None
    source, target = flat_bytes(call.input), flat_bytes(call.output)
    shared = call.input.untyped_storage().data_ptr() == call.output.untyped_storage().data_ptr()
    if source is None or shared:
        source = flat_bytes(call.input.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format))
    if target is None:
        target = torch.empty(call.output.numel() * call.dtype.itemsize, dtype=torch.uint8, device=call.output.device)
    assert source is not None
    receive, send = ([n * call.dtype.itemsize for n in counts] for counts in call.splits)
    return source, target, receive, send


def _return(call: Call, target: Tensor) -> None:
    if flat_bytes(call.output) is None:
        call.output.copy_(target.view(call.dtype).view(call.output.shape))


def _exchange(
    stage: str, out: Tensor, src: Tensor, group: Any, receive: list[int], send: list[int], watch: Watch
) -> None:
    watch.stage = stage
    if group.size() == 1:
        out.copy_(src)
        return
    watch.wait(native.exchange(Exchange.ALL_TO_ALL, out, src, group, (receive, send)), out, src)
