"""Handles, and the lane on which collectives of one group run in the order in which they were called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Work

from zipplan.executor.faults import Watch
from zipplan.executor.streams import NoStreams, Streams


class Handle(Work):
    """What an asynchronous collective returns: `wait()`, `is_completed()`, `get_future()` (of the output tensors).

    Keeps the call's tensors alive until the collective has ended.
    """

    def __init__(self, outputs: Sequence[Tensor], streams: Streams | None = None) -> None:
        super().__init__()
        self._outputs = list(outputs)
        self._streams = streams or NoStreams()
        self._done: Future[None] = Future()
        self._future: torch.futures.Future[list[Tensor]] = self._streams.future()
        self._end: Any = None

    def finish(self, error: BaseException | None = None) -> None:
        """The collective ended (on a GPU: was put on the current stream), with this error or well."""
        self._end = self._streams.mark()
        if error is None:
            self._done.set_result(None)
            self._future.set_result(self._outputs)
        else:
            self._done.set_exception(error)
            self._future.set_exception(error)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective has ended (on a GPU: is on a stream; the current one then waits for it).

        Raises what it raised, TimeoutError after a timeout > 0.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0
        self._done.result(seconds if seconds > 0 else None)
        self._streams.follow(self._end)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done.done() and self._streams.reached(self._end)

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._done.exception() is None

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the output tensors."""
        return self._future

    def result(self) -> list[Tensor]:
        """The output tensors; waits."""
        self.wait()
        return self._outputs


class Forwarded(Handle):
    """The transport's own handle of a native call; a failure is told as the session's other failures are."""

    def __init__(self, inner: Any, outputs: Sequence[Tensor], watch: Watch, what: str) -> None:
        super().__init__(outputs)
        self._inner, self._watch, self._what = inner, watch, what

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block (on a GPU: make the current stream wait) until the collective has ended."""
        with self._watch.following(lambda: self._what):
            self._watch.stage = "exchange"
            if timeout is not None and timeout.total_seconds() > 0:
                self._inner.wait(timeout)
            else:
                self._watch.wait(self._inner, self._outputs)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self._inner.is_success())

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """The transport's future, of the output tensors."""
        outputs = self._outputs
        return self._inner.get_future().then(lambda _: outputs)


def finished(outputs: Sequence[Tensor]) -> Handle:
    """A handle of a collective that has ended."""
    handle = Handle(outputs)
    handle.finish()
    return handle


class Lane:
    """Runs collectives one at a time, in the order of their calls, which is the same on every rank.

    Synchronous calls run on the caller's thread once all earlier ones have ended; asynchronous ones on one thread of
    the lane. So a rank whose thread is late cannot issue to the transport in another order than its peers. On a GPU
    the thread has a stream of its own, and each call's work waits for that of the call before, since calls share
    scratch.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._pool: ThreadPoolExecutor | None = None
        self._last: Handle | None = None
        self.lock = threading.Lock()  # held while a call runs
        self._end: Any = None  # of the work of the last call

    @property
    def idle(self) -> bool:
        """Whether every asynchronous call has ended (on a GPU: is on its stream)."""
        return self._last is None or self._last._done.done()

    def close(self) -> None:
        """Wait for all calls and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def run(self, job: Callable[[], Any]) -> Any:
        """After all earlier calls; their errors are raised by their own handles."""
        last = self._last
        if last is not None:
            last._done.exception()
        with self.lock:
            return self._in_order(job)

    def start(self, job: Callable[[], Any], outputs: Sequence[Tensor], inputs: Sequence[Tensor] = ()) -> Handle:
        """Queue a call that reads `inputs` and writes `outputs`, after what the caller's stream has to do now."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="zipplan")
        handle = self._last = Handle(outputs, self._streams)
        called = self._streams.mark()

        def work() -> None:
            error: BaseException | None = None
            with self._streams.aside():
                with self.lock:
                    try:
                        self._streams.follow(called)
                        self._streams.keep((*inputs, *outputs))
                        self._in_order(job)
                    except BaseException as raised:
                        error = raised
                handle.finish(error)

        self._pool.submit(work)
        return handle

    def _in_order(self, job: Callable[[], Any]) -> Any:
        self._streams.follow(self._end)
        try:
            return job()
        finally:
            self._end = self._streams.mark()
