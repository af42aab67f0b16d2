"""Runs a plan on torch.distributed: `init(plan)` returns a Session with the collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipplan.executor.session import Session, init

__all__ = ["Session", "init"]


def __getattr__(name: str) -> Any:
    """Load torch only when the executor is used, and say which extra to install when it is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_torch()
    from zipplan.executor import session

    return getattr(session, name)


def need_torch() -> None:
    """Raise ImportError with the command to run when torch is not installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise ImportError("zipplan.executor needs torch: pip install 'zipplan[torch]'") from None
