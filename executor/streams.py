"""What orders and times work on a device: CUDA's streams on a GPU; nothing on the CPU, where a call returns at its end.

A point is a place in a stream's queue; a stream that waits for a point runs nothing further before it is reached.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

Told = Callable[[float], None]


class Streams(Protocol):
    """Order of work on one device, as Lane needs it."""

    def mark(self) -> Any:
        """The end of what the current stream has to do now."""

    def follow(self, *points: Any) -> None:
        """Let the current stream wait for points; None among them is reached already."""

    def reached(self, point: Any) -> bool:
        """Whether the device has come to a point."""

    def aside(self) -> AbstractContextManager[Any]:
        """Makes the lane's own stream the current one."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """The current stream reads or writes these: their memory must not be given away before it has."""

    def future(self) -> torch.futures.Future[Any]:
        """A future whose waiters also wait for what the current stream had to do when its result was set."""

    def timed(self, tell: Told) -> Callable[[], None]:
        """Start a clock; the function returned stops it. `tell` gets the seconds between, at once or later."""

    def settle(self) -> None:
        """Wait for the device and tell all times that are still to tell."""


class NoStreams:
    """On the CPU."""

    def mark(self) -> None:
        """See Streams."""

    def follow(self, *points: None) -> None:
        """See Streams."""

    def reached(self, point: None) -> bool:
        """See Streams."""
        return True

    def aside(self) -> AbstractContextManager[Any]:
        """See Streams."""
        return contextlib.nullcontext()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """See Streams."""

    def future(self) -> torch.futures.Future[Any]:
        """See Streams."""
        return torch.futures.Future()

    def timed(self, tell: Told) -> Callable[[], None]:
        """See Streams."""
        begin = time.perf_counter()
        return lambda: tell(time.perf_counter() - begin)

    def settle(self) -> None:
        """See Streams."""


class CudaStreams:
    """On one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = torch.cuda.Stream(device)
        self._running: deque[tuple[Any, Any, Told]] = deque()

    def mark(self) -> Any:
        """See Streams."""
        return torch.cuda.current_stream(self._device).record_event()

    def follow(self, *points: Any) -> None:
        """See Streams."""
        for point in points:
            if point is not None:
                torch.cuda.current_stream(self._device).wait_event(point)

    def reached(self, point: Any) -> bool:
        """See Streams."""
        return point is None or bool(point.query())

    def aside(self) -> AbstractContextManager[Any]:
        """See Streams; current device included, since a thread has its own of both."""
        return torch.cuda.stream(self._own)

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """See Streams."""
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(self._device))

    def future(self) -> torch.futures.Future[Any]:
        """See Streams."""
        return torch.futures.Future(devices=[self._device])

    def timed(self, tell: Told) -> Callable[[], None]:
        """See Streams; between two events, told when a later call finds that they have passed."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(torch.cuda.current_stream(self._device))

        def stop() -> None:
            end.record(torch.cuda.current_stream(self._device))
            self._running.append((begin, end, tell))
            self._tell(lambda event: event.query())

        return stop

    def settle(self) -> None:
        """See Streams."""
        self._tell(lambda event: event.synchronize() is None)

    def _tell(self, passed: Callable[[Any], bool]) -> None:
        while self._running and passed(self._running[0][1]):
            begin, end, tell = self._running.popleft()
            tell(begin.elapsed_time(end) / 1e3)


def streams_of(device: torch.device) -> Streams:
    """What orders work on this device."""
    return CudaStreams(device) if device.type == "cuda" else NoStreams()


def device_of(backend: str) -> torch.device:
    """Where a transport wants its tensors."""
    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
