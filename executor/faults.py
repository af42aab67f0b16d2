"""When a collective fails: every rank learns which ranks failed, in which stage and why, and none waits for ever.

A rank that fails writes one line into the job's store. A rank that waits looks there every second, so it leaves as
soon as a peer has failed, and otherwise when the transport's own timeout ends the wait. Nothing is written or read
while all is well.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from zipplan.planner.errors import CollectiveError, ZipplanError

LOOK = timedelta(seconds=1)
"""How often a waiting rank looks for failed peers; a chosen number: one small request to the store."""

GRACE_S = 3.0
"""How long a failed rank listens to what its peers say before it calls the others silent; three looks."""


_FAILED = "failed"
"""Key that says that some rank has written why it failed."""


class PeerFailed(Exception):
    """A peer has written that it failed, while this rank was waiting for the transport, or before it came."""


class Whole(ABC):
    """A handle whose `wait` must not be cut short; `give_up`, called by another thread, ends it with an error."""

    @abstractmethod
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the end; raises what the transport raises."""

    @abstractmethod
    def give_up(self) -> None:
        """Make the wait fail now."""


class Watch:
    """Follows the collectives of one group. `stage` is where the current one is; `broken` the first failure, if any."""

    def __init__(self, store: Any, rank: int, ranks: int, device: torch.device) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks
        self.sliced = device.type == "cpu"  # elsewhere wait() only orders streams
        self.stage = ""
        self.broken: CollectiveError | None = None
        self._left: list[Any] = []
        self._whole: Any = None
        self._gave_up = False
        self._looker: threading.Thread | None = None
        self._closed = threading.Event()

    def close(self) -> None:
        """End the thread that looks for failed peers."""
        self._closed.set()
        if self._looker is not None:
            self._looker.join(GRACE_S)

    def wait(self, handle: Any, *kept: Any) -> None:
        """Wait for a transport's handle. Raises PeerFailed or what the transport raises; then `kept` stays alive."""
        if not self.sliced:
            handle.wait()
            return
        if isinstance(handle, Whole):
            self._wait_whole(handle, kept)
            return
        try:
            while True:
                try:
                    handle.wait(LOOK)
                    return
                except RuntimeError:
                    if handle.is_completed():
                        handle.wait()  # ended just now, or raises the transport's own error
                        return
                    if self._said_by_peers():
                        raise PeerFailed("a peer failed") from None
        except BaseException:
            self._left += [handle, *kept]  # the transport may still write there
            raise

    def _wait_whole(self, handle: Whole, kept: Any) -> None:
        """A wait that cannot be cut into looks: a thread looks meanwhile and makes the handle give up."""
        if self._looker is None:
            self._looker = threading.Thread(target=self._look, name="zipplan-watch", daemon=True)
            self._looker.start()
        self._whole = handle
        try:
            handle.wait()
        except BaseException as error:
            self._left += [handle, kept]  # the transport may still write there
            if self._gave_up and isinstance(error, RuntimeError):
                raise PeerFailed("a peer failed") from None
            raise
        finally:
            self._whole = None

    def _look(self) -> None:
        seen: Any = None
        while not self._closed.wait(LOOK.total_seconds()):
            handle = self._whole
            if handle is not None and handle is seen and self._said_by_peers():
                self._gave_up = True
                handle.give_up()
            seen = handle

    @contextlib.contextmanager
    def following(self, what: Callable[[], str]) -> Iterator[None]:
        """Around one collective: anything that fails inside becomes a CollectiveError that all ranks hear of.

        `what` names the call. Errors that all ranks raise alike before data moves (other ZipplanErrors than codec
        errors) pass unchanged; so do interrupts and exits, after which the session is broken.
        """
        if self.broken is not None:
            raise self.broken
        self.stage = "start"
        try:
            yield
        except CollectiveError as error:
            self.broken = error
            raise
        except ZipplanError as error:
            if type(error).__name__ != "CodecError":
                raise
            raise self._failed(what(), error, own=True) from error
        except PeerFailed as error:
            raise self._failed(what(), error, own=False) from None
        except MemoryError as error:
            raise self._failed(what(), error, own=True) from error
        except RuntimeError as error:
            own = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
            raise self._failed(what(), error, own=own) from error
        except BaseException as error:  # an interrupt, an exit, a bug: raised as it is, but peers must not wait for it
            self._failed(what(), error, own=True)
            raise

    def _failed(self, what: str, error: BaseException, own: bool) -> CollectiveError:
        text = first_sentence(error)
        stage = self.stage
        self._say(f"{'first' if own else 'then'}\t{stage}\t{text}")
        said = {} if own else self._listen()
        parts = [f"{what} failed on rank {self.rank} in stage {stage!r}: {text}"]
        for rank, line in sorted(said.items()):
            kind, at, reason = line.split("\t", 2)
            if kind == "first":
                parts.append(f"rank {rank} failed first, in stage {at!r}: {reason}")
        silent = [r for r in range(self.ranks) if r != self.rank and r not in said]
        if not own and silent and not any(line.startswith("first") for line in said.values()):
            one = len(silent) == 1
            names = ", ".join(map(str, silent))
            parts.append(
                f"no word from rank{'' if one else 's'} {names}, which ended, stalled or did not make this call"
            )
        self.broken = CollectiveError("; ".join(parts), stage=stage, silent=silent if not own else [])
        return self.broken

    def _say(self, line: str) -> None:
        with contextlib.suppress(RuntimeError):  # the store may have ended with the rank that held it
            self.store.set(str(self.rank), line)
            self.store.set(_FAILED, "")

    def _said_by_peers(self) -> dict[int, str]:
        said: dict[int, str] = {}
        with contextlib.suppress(RuntimeError):
            if not self.store.check([_FAILED]):  # one request, however many ranks there are
                return said
            for rank in range(self.ranks):
                if rank != self.rank and self.store.check([str(rank)]):
                    said[rank] = self.store.get(str(rank)).decode(errors="replace")
        return said

    def _listen(self) -> dict[int, str]:
        """What peers say within GRACE_S; less when one of them failed first or all have spoken."""
        end = time.monotonic() + GRACE_S
        while True:
            said = self._said_by_peers()
            done = len(said) == self.ranks - 1 or any(line.startswith("first") for line in said.values())
            if done or time.monotonic() > end:
                return said
            time.sleep(0.1)


@contextlib.contextmanager
def starting(store: Any, rank: int, ranks: int, device: torch.device) -> Iterator[Watch]:
    """Around making groups and agreeing: a rank that does not come is named by all others, in CollectiveError."""
    watch = Watch(store, rank, ranks, device)
    with watch.following(lambda: f"start-up of {ranks} ranks"):
        watch.stage = "process groups"
        if watch._said_by_peers():
            raise PeerFailed("peers gave up before this rank came")
        yield watch


def first_sentence(error: BaseException) -> str:
    """The error's first sentence without a transport's source positions; its kind where it is not a transport's."""
    text = str(error).split("] ", 1)[-1] if str(error).startswith("[") else str(error)
    kind = type(error).__name__
    if not text.strip():
        return kind
    text = text.strip().splitlines()[0].split(". ")[0]
    plain = isinstance(error, RuntimeError | PeerFailed) and not isinstance(error, ZipplanError)
    return text if plain else f"{kind}: {text}"


def store_of(members: Sequence[int], number: int) -> Any:
    """A corner of the job's store for the `number`-th session of these ranks; equal on all of them."""
    store = dist.distributed_c10d._get_default_store()
    return PrefixStore(f"zipplan/{'-'.join(map(str, members))}/{number}", store)
