"""DDP: gradients reduced by a plan, through DDP's communication hook.

Buckets are told apart by size and dtype alone, since DDP rebuilds them after the first step. Gradients arrive
undivided and are divided before the sum, as DDP itself does; so where the plan says native, results equal plain DDP.
"""

# DDP reads the hook's annotations, so they must not be strings: no `from __future__ import annotations`.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from zipplan.executor.session import Session

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]  # type: ignore[name-defined]


def install(model: DistributedDataParallel, session: Session) -> None:
    """Let `model` reduce its gradients by the session's plan. Before the first backward; torch allows it once."""
    model.register_comm_hook(None, hook(session))


def hook(session: Session) -> Hook:
    """A hook for `register_comm_hook`."""

    def reduce(
        state: Any,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(session.ranks)
        handle = session.all_reduce(buffer, async_op=True, kind="gradients")
        assert handle is not None
        return handle.get_future().then(lambda future: future.value()[0])

    return reduce
