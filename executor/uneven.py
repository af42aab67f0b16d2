"""All-to-all with splits: one frame per pair of ranks, static regions first, each pair by its own size.

Both ends of a pair know how much it carries, so both look up the same choice and no sizes travel before the data. A
pair whose size does not pay sends raw bytes in place of a static region. All ranks enter the same two exchanges, also
those that have nothing to send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zipplan import kernels
from zipplan.executor import native
from zipplan.executor.calls import Call, flat_bytes
from zipplan.executor.codec import codec_of, threads
from zipplan.executor.faults import Watch
from zipplan.executor.interpreter import Scratch, Traffic
from zipplan.planner.schedule import Exchange

Parameters = tuple[tuple[str, int | float | str], ...]
CodecOf = Callable[[int], tuple[str, Parameters] | None]


def native_call(call: Call, group: Any, watch: Watch) -> Traffic:
    """The transport's own call, as bytes."""
    source, target, receive, send = _flat(call)
    _exchange("exchange", target, source, group, receive, send, watch)
    _return(call, target)
    return Traffic(wire_bytes=sum(send) - send[group.rank()])


def zipped(call: Call, group: Any, watch: Watch, scratch: Scratch, dtype: str, choose: CodecOf) -> Traffic:
    """Frames in place of bytes; `choose`: codec id and parameters for a pair of so many elements, None for raw."""
    item = call.dtype.itemsize
    source, target, receive, send = _flat(call)
    out, into = (_Runs([n // item for n in counts], item, dtype, choose) for counts in (send, receive))
    watch.stage = "encode"
    static, dynamic = out.room(scratch, "send")
    sizes = out.encode(source.numpy(), static.numpy(), dynamic.numpy())
    got_static, got_dynamic = into.room(scratch, "receive")
    _exchange("static", got_static, static, group, into.static, out.static, watch)
    watch.stage = "dynamic"
    got_sizes = into.sizes(got_static.numpy())
    got = got_dynamic[: sum(got_sizes)]
    sent = dynamic[: sum(sizes)]
    _exchange("dynamic", got, sent, group, got_sizes, sizes, watch)
    watch.stage = "decode"
    into.decode(got_static.numpy(), got.numpy(), got_sizes, target.numpy())
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
            coder = None if key is None else codec_of(key[0], dict(key[1]), dtype)
            for part in range(at, at + count):
                self.static[part] = elements[part] * item
                if coder is not None:
                    self.static[part] = kernels.static_size(coder[0], elements[part])
                    self.bound[part] = kernels.max_dynamic_size(coder[0], elements[part])
            self.runs.append((coder, at, count))
            at += count

    def room(self, scratch: Scratch, name: str) -> tuple[Tensor, Tensor]:
        """Scratch for static and dynamic regions."""
        return scratch.take(f"{name}.static", sum(self.static)), scratch.take(f"{name}.dynamic", sum(self.bound))

    def _places(self) -> Iterator[tuple[Any, slice, slice, slice]]:
        """(codec, parts, bytes of their static regions, raw bytes) of every run."""
        starts, raw = np.cumsum([0, *self.static]), np.cumsum([0, *self.elements]) * self.item
        for coder, at, count in self.runs:
            end = at + count
            yield coder, slice(at, end), slice(starts[at], starts[end]), slice(raw[at], raw[end])

    def _slots(self, raw: np.ndarray, parts: slice) -> list[np.ndarray]:
        bounds = np.cumsum([0, *self.elements[parts]]) * self.item
        return [raw[a:b] for a, b in pairwise(bounds)]

    def encode(self, raw: np.ndarray, static: np.ndarray, dynamic: np.ndarray) -> list[int]:
        """Fill both regions, dynamic ones packed; their sizes."""
        sizes = [0] * len(self.elements)
        used = 0
        for coder, parts, region, bytes_ in self._places():
            if coder is None:
                static[region] = raw[bytes_]
                continue
            codec, params = coder
            done = kernels.encode(
                codec, self._slots(raw[bytes_], parts), static[region], dynamic[used:], params=params, threads=threads()
            )
            sizes[parts] = [int(n) for n in done.sizes]
            used += sum(sizes[parts])
        return sizes

    def sizes(self, static: np.ndarray) -> list[int]:
        """Sizes of the dynamic regions that belong to static ones."""
        sizes = [0] * len(self.elements)
        for coder, parts, region, _ in self._places():
            if coder is not None:
                found = kernels.dynamic_sizes(coder[0], static[region], list(self.elements[parts]))
                sizes[parts] = [int(n) for n in found]
        return sizes

    def decode(self, static: np.ndarray, dynamic: np.ndarray, sizes: list[int], raw: np.ndarray) -> None:
        """Both regions to raw bytes."""
        starts = np.cumsum([0, *sizes])
        for coder, parts, region, bytes_ in self._places():
            if coder is None:
                raw[bytes_] = static[region]
                continue
            mine = dynamic[starts[parts.start] : starts[parts.stop]]
            kernels.decode(coder[0], static[region], mine, self._slots(raw[bytes_], parts), threads=threads())


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
