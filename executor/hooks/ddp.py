"""DDP: gradients reduced by a plan, through DDP's communication hook.

Buckets are told apart by size and dtype alone, since DDP rebuilds them after the first step. Gradients arrive
undivided and are divided before the sum, as DDP itself does; so where the plan says native, results equal plain DDP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from zipplan.executor.session import Session

Hook = Callable[[Any, Any], "torch.futures.Future[Tensor]"]


def install(model: DistributedDataParallel, session: Session) -> None:
    """Let `model` reduce its gradients by the session's plan. Before the first backward; torch allows it once."""
    model.register_comm_hook(None, hook(session))


def hook(session: Session) -> Hook:
    """A hook for `register_comm_hook`."""

    def reduce(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().div_(session.ranks)
        handle = session.all_reduce(buffer, async_op=True, kind="gradients")
        assert handle is not None
        return handle.get_future().then(lambda future: future.value()[0])

    return reduce
