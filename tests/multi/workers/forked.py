"""Starts ranks by fork: torch is imported once, so a launch takes tenths of a second, and ranks may die as they like.

Imports torch and runs nothing of it before the forks, so that no thread of torch is lost in them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Ended:
    """How one rank ended: exit code (negative: signal; None: had to be killed), what it returned or raised, when."""

    code: int | None
    said: Any
    seconds: float


def launch(
    job: Callable[[int], Any], ranks: int, limit_s: float = 60, backend: str | None = "gloo", timeout_s: float = 20,
    meddle: Callable[[list[int]], None] | None = None,
) -> list[Ended]:  # fmt: skip
    """Run job(rank) in `ranks` processes joined by `backend` (None: job joins them itself).

    `meddle` gets the process ids once all have been started.
    """
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        pids = [_fork(job, rank, ranks, Path(folder), backend, timeout_s) for rank in range(ranks)]
        if meddle is not None:
            meddle(pids)
        ended: dict[int, Ended] = {}
        while len(ended) < ranks:
            for rank, pid in enumerate(pids):
                if rank in ended:
                    continue
                done, status = os.waitpid(pid, os.WNOHANG)
                late = time.monotonic() - begin > limit_s
                if not done and late:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                if done or late:
                    path = Path(folder) / f"said-{rank}"
                    said = json.loads(path.read_text()) if path.exists() else None
                    code = os.waitstatus_to_exitcode(status) if done else None
                    ended[rank] = Ended(code, said, time.monotonic() - begin)
            time.sleep(0.01)
        return [ended[rank] for rank in range(ranks)]


def _fork(job: Callable[[int], Any], rank: int, ranks: int, folder: Path, backend: str | None, timeout_s: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
        if backend is not None:
            join(backend, rank, ranks, f"file://{folder}/store", timeout_s)
        else:
            os.environ["STORE"] = f"file://{folder}/store"
        _say(folder, rank, job(rank))
        if dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except BaseException as error:
        _say(folder, rank, f"{type(error).__name__}: {error}")
        if os.environ.get("FORKED_TRACE"):
            traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def join(backend: str, rank: int, ranks: int, store: str, timeout_s: float) -> None:
    """init_process_group through a file, which outlives any rank."""
    dist.init_process_group(
        backend, init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout_s)
    )


def _say(folder: Path, rank: int, what: Any) -> None:
    part = folder / f"part-{rank}"
    part.write_text(json.dumps(what))
    part.rename(folder / f"said-{rank}")
