"""Mixture of experts: tokens to the ranks of their experts and back, with autograd and uneven splits.

Every rank enters the same collectives, forward and backward, also one whose experts got no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zipplan.executor.session import Session


class Routing:
    """One routing decision: `send[p]` tokens of this rank go to rank p, `receive[p]` come from it.

        routing = Routing(session, send)
        mine = routing.dispatch(tokens)  # rows sorted by destination → rows by sender
        back = routing.combine(experts(mine))  # rows by sender → rows as `tokens`

    Making one is a collective call: the counts are exchanged, with one read-back to the host.
    """

    def __init__(self, session: Session, send: Sequence[int] | Tensor, *, kind: str = "tokens") -> None:
        self.session, self.kind = session, kind
        counts = torch.as_tensor(send, dtype=torch.int64).to(session.device)
        arriving = torch.empty_like(counts)
        session.all_to_all(arriving, counts, kind="counts")
        self.send: list[int] = [int(n) for n in counts.tolist()]
        self.receive: list[int] = [int(n) for n in arriving.tolist()]
        self._dispatched: Tensor | None = None

    def dispatch(self, tokens: Tensor) -> Tensor:
        """tokens (sum(send), …), sorted by destination → (sum(receive), …), by sender. Raises ConfigError if not."""
        out: Tensor = _AllToAll.apply(tokens, None, self.session, self.receive, self.send, self.kind)
        self._dispatched = out
        return out

    def combine(self, outputs: Tensor) -> Tensor:
        """outputs (sum(receive), …), in the order of `dispatch` → (sum(send), …), in the order of its tokens."""
        # Tied to what `dispatch` returned: a rank that skips its experts for want of tokens still takes part in the
        # backward exchange of `dispatch`.
        back: Tensor = _AllToAll.apply(outputs, self._dispatched, self.session, self.send, self.receive, self.kind)
        self._dispatched = None
        return back


class _AllToAll(torch.autograd.Function):
    """Rows to and from ranks; the gradient takes the way back. `tie` gets a gradient of zeros."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, tie: Tensor | None, session: Session, receive: list[int], send: list[int], kind: str
    ) -> Tensor:
        ctx.session, ctx.receive, ctx.send, ctx.kind = session, receive, send, kind
        ctx.tie = None if tie is None else (tie.shape, tie.dtype, tie.device)
        out = rows.new_empty((sum(receive), *rows.shape[1:]))
        session.all_to_all(out, rows, receive, send, kind=kind)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        back = gradient.new_empty((sum(ctx.send), *gradient.shape[1:]))
        ctx.session.all_to_all(back, gradient, ctx.send, ctx.receive, kind=f"{ctx.kind} gradients")
        tied = None if ctx.tie is None else torch.zeros(ctx.tie[0], dtype=ctx.tie[1], device=ctx.tie[2])
        return back, tied, None, None, None, None
