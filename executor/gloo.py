"""Movement on gloo by sends and receives in pieces, all in flight at once, instead of its own collectives.

gloo's all-gather and all-to-all leave a link idle for part of the time: they announce a send before a receive, so that
one direction of a pair often waits for the other. docs/benchmarks/lab.md has both forms beside each other.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import cycle, zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from zipplan.executor.faults import Whole
from zipplan.executor.work import Handle

# Pieces of 0.25 to 4 MiB are alike; smaller ones cost time on the processor. Measured by `python -m
# zipplan.executor.lab run` of 1 and 8 MiB on 2 and 4 hosts at 0.2 and 1 Gbit/s, 2-core x86.
PIECE = 1 << 20
# Below, gloo's own collectives are as quick.
LEAST = 64 << 10
_TAG, _TAGS = 0x7A70 << 8, 256  # apart from tags that programs use for their own sends


def serves(group: Any, tensor: Tensor) -> bool:
    """Whether `group` moves tensors like this one by gloo, so that pieces can be sent."""
    if tensor.device.type != "cpu":
        return False
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
    return backend.name() == "gloo"


def one_host() -> bool:
    """Whether all ranks of the job share this host, as torchrun says; then it says so on every rank."""
    return os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "-")


def on_gpu(group: Any, tensor: Tensor) -> bool:
    """Whether `group` is gloo's and the tensor on a GPU, from where gloo moves little: it must go through the host."""
    return tensor.is_cuda and group._get_backend(tensor.device).name() == "gloo"


class Staged(Whole):
    """An exchange of host copies; `wait` brings what was received to the GPU, on the current stream."""

    def __init__(self, out: Tensor, src: Tensor, group: Any, start: Callable[[Tensor, Tensor], Any]) -> None:
        self._out, self._host, self._group = out, torch.empty(out.shape, dtype=out.dtype), group
        self._inner = start(self._host, src.cpu())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the transport's own handles."""
        self._inner.wait(timeout) if timeout is not None else self._inner.wait()
        self._out.copy_(self._host)
        return True

    def is_completed(self) -> bool:
        """Whether the exchange has ended, well or not."""
        return bool(self._inner.is_completed())

    def give_up(self) -> None:
        """Called by another thread: end the wait with an error."""
        close_connections(self._group)


def move(out: Sequence[Tensor], src: Sequence[Tensor], group: Any) -> Moving:
    """Start sending src[p] to rank p of the group and receiving out[p] from it; flat tensors, empty ones allowed.

    Both ends of a pair must agree on the bytes between them.
    """
    rank, size, tag = group.rank(), group.size(), _next_tag(group)
    waits = []
    for step in range(1, size):
        peer = (rank - step) % size
        waits += [group.recv([piece], peer, tag) for piece in _pieces(out[peer])]
    peers = [(rank + step) % size for step in range(1, size)]
    for row in zip_longest(*(_pieces(src[peer]) for peer in peers)):
        waits += [group.send([piece], peer, tag) for peer, piece in zip(peers, row, strict=True) if piece is not None]
    if out[rank].data_ptr() != src[rank].data_ptr():
        out[rank].copy_(src[rank])
    return Moving(group, waits, (out, src))


_calls: WeakKeyDictionary[Any, Iterator[int]] = WeakKeyDictionary()


def _next_tag(group: Any) -> int:
    """Of one exchange: pieces of one tag arrive in order, but exchanges in flight may be waited for in any order."""
    turn = next(_calls.setdefault(group, cycle(range(_TAGS))))
    return _TAG + turn


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    if tensor.nbytes <= PIECE:
        return (tensor,) if tensor.numel() else ()
    return tensor.split(max(1, PIECE // tensor.element_size()))


class Moving(Whole):
    """Sends and receives in flight as one handle; who calls `wait` waits. `kept`: alive until the end."""

    def __init__(self, group: Any, waits: Sequence[Any], kept: Any) -> None:
        self._group, self._waits, self._kept, self._ended = group, waits, kept, False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the transport's own handles; after a timeout > 0 gloo closes all connections of the group."""
        until = time.monotonic() + timeout.total_seconds() if timeout else None
        try:
            for each in self._waits:
                if until is None:
                    each.wait()
                else:
                    each.wait(timedelta(seconds=max(0.001, until - time.monotonic())))
        finally:
            self._ended = True
        return True

    def is_completed(self) -> bool:
        """Whether the wait for it has ended, well or not; gloo cannot be asked."""
        return self._ended

    def give_up(self) -> None:
        """Called by another thread: end the wait with an error."""
        close_connections(self._group)


def close_connections(group: Any) -> None:
    """Make every wait of the group fail. gloo has no call for it, but does so when the time of any wait is over."""
    with contextlib.suppress(RuntimeError):
        never = group.recv([torch.empty(1, dtype=torch.uint8)], (group.rank() + 1) % group.size(), _TAG + _TAGS)
        never.wait(timedelta(milliseconds=1))


class Ring(Handle):
    """An all-gather of src into out[p], equal in size, round a ring: no link has two senders.

    All pairs at once would meet in the link to each receiver, where TCP then loses a tenth of the rate (4 hosts at
    0.2 to 1 Gbit/s, docs/benchmarks/lab.md). A thread sends on what arrives, so that the codec can work meanwhile.
    """

    def __init__(self, out: Sequence[Tensor], src: Tensor, group: Any) -> None:
        super().__init__(out)
        rank, size, self._tag = group.rank(), group.size(), _next_tag(group)
        self._group, self._right = group, (rank + 1) % size
        self._receives = []
        for step in range(1, size):
            for piece in _pieces(out[(rank - step) % size]):
                handle = group.recv([piece], (rank - 1) % size, self._tag)
                self._receives.append((handle, piece if step < size - 1 else None))
        self._sends = [group.send([piece], self._right, self._tag) for piece in _pieces(src)]
        self._source = src  # alive until all is sent
        threading.Thread(target=self._go_round, name="zipplan-ring", daemon=True).start()
        if out[rank].data_ptr() != src.data_ptr():
            out[rank].copy_(src)

    def _go_round(self) -> None:
        try:
            for receive, onward in self._receives:
                receive.wait()
                if onward is not None:
                    self._sends.append(self._group.send([onward], self._right, self._tag))
            for send in self._sends:
                send.wait()
        except BaseException as error:
            self.finish(error)
        else:
            self.finish()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the transport's own handles: RuntimeError when the time is over before the end."""
        try:
            return super().wait(timeout)
        except TimeoutError:
            raise RuntimeError("timed out waiting for sends and receives") from None
