"""Runs a plan on torch.distributed: `init(plan)` returns a Session with the collectives.

The functions here take torch's own arguments and follow the plan of the last `init`; hooks for FSDP2, DDP, MoE and
pipelines stand in `zipplan.executor.hooks`, the process group in `zipplan.executor.process_group`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipplan.executor.functional import (
        all_gather_into_tensor,
        all_reduce,
        all_to_all_single,
        reduce_scatter_tensor,
    )
    from zipplan.executor.session import Session
    from zipplan.executor.start import current, init

_HOMES = {
    "Session": "session",
    "init": "start",
    "current": "start",
    "all_gather_into_tensor": "functional",
    "all_reduce": "functional",
    "all_to_all_single": "functional",
    "reduce_scatter_tensor": "functional",
}
__all__ = [
    "Session",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "current",
    "init",
    "reduce_scatter_tensor",
]


def __getattr__(name: str) -> Any:
    """Load torch only when the executor is used, and say which extra to install when it is missing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_torch()
    return getattr(importlib.import_module(f"zipplan.executor.{_HOMES[name]}"), name)


def need_torch() -> None:
    """Raise ImportError with the command to run when torch is not installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise ImportError("zipplan.executor needs torch: pip install 'zipplan[torch]'") from None
