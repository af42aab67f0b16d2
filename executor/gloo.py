"""Movement on gloo by sends and receives in pieces, all pairs at once, instead of its own collectives.

gloo's all-gather and all-to-all leave a link idle for part of the time (it serves one direction of a pair, or one peer,
after the other): docs/benchmarks/lab.md has both forms beside each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from zipplan.executor.work import Handle

# Measured in the lab (docs/benchmarks/lab.md): one message per pair uses the link's two directions by turns, so that
# 32 MiB each way took 549 ms of 268 at 1 Gbit/s; pieces of 0.25 to 4 MiB are alike.
PIECE = 1 << 20
# Below, gloo's own collectives are as quick: they need no thread that waits.
LEAST = 64 << 10
_TAG = 0x7A70 << 8  # of the first piece; apart from tags that programs use for their own sends


def serves(group: Any, tensor: Tensor) -> bool:
    """Whether `group` moves tensors like this one by gloo, so that pieces can be sent."""
    if tensor.device.type != "cpu":
        return False
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else group
    return backend.name() == "gloo"


def on_gpu(group: Any, tensor: Tensor) -> bool:
    """Whether `group` is gloo's and the tensor on a GPU, from where gloo moves little: it must go through the host."""
    return tensor.is_cuda and group._get_backend(tensor.device).name() == "gloo"


class Staged(Handle):
    """An exchange of host copies; `wait` brings what was received to the GPU, on the current stream."""

    def __init__(self, out: Tensor, src: Tensor, start: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__([out])
        self._out, self._host = out, torch.empty(out.shape, dtype=out.dtype)
        self._inner = start(self._host, src.cpu())
        self.finish()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the transport's own handles."""
        if self._inner is not None:
            self._inner.wait(timeout) if timeout is not None else self._inner.wait()
        self._out.copy_(self._host)
        return True

    def is_completed(self) -> bool:
        """Whether the exchange has ended, well or not."""
        return self._inner is None or bool(self._inner.is_completed())


def move(out: Sequence[Tensor], src: Sequence[Tensor], group: Any) -> Handle:
    """Start sending src[p] to rank p of the group and receiving out[p] from it; flat tensors, empty ones allowed.

    Both ends of a pair must agree on the bytes between them.
    """
    rank, size = group.rank(), group.size()
    waits = []
    for step in range(1, size):
        peer = (rank - step) % size
        waits += [group.recv([piece], peer, _TAG + n) for n, piece in enumerate(_pieces(out[peer]))]
    peers = [(rank + step) % size for step in range(1, size)]
    for n, row in enumerate(zip_longest(*(_pieces(src[peer]) for peer in peers))):
        waits += [
            group.send([piece], peer, _TAG + n) for peer, piece in zip(peers, row, strict=True) if piece is not None
        ]
    if out[rank].data_ptr() != src[rank].data_ptr():
        out[rank].copy_(src[rank])
    return Waited(out, src, waits)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    return tensor.split(max(1, PIECE // tensor.element_size())) if tensor.numel() else ()


class Waited(Handle):
    """Several sends and receives as one handle.

    gloo can neither be asked whether one has ended nor be left waiting for a while: a thread waits for all.
    """

    def __init__(self, out: Sequence[Tensor], src: Sequence[Tensor], waits: list[Any]) -> None:
        super().__init__(out)
        self._source = src  # alive until all is sent
        threading.Thread(target=self._wait_for, args=(waits,), name="zipplan-gloo", daemon=True).start()

    def _wait_for(self, waits: list[Any]) -> None:
        try:
            for wait in waits:
                wait.wait()
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
