"""Handles that wait for gloo, and how a session waits for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from zipplan.executor.faults import Watch
from zipplan.executor.gloo import Staged


class Inner:
    """An exchange that fills its output when it is waited for, and notes how."""

    def __init__(self, out: torch.Tensor, src: torch.Tensor) -> None:
        self.out, self.src, self.timeouts = out, src, []  # type: ignore[var-annotated]

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.timeouts.append(timeout)
        self.out.copy_(self.src)
        return True


def test_a_staged_exchange_is_waited_for_in_one_piece() -> None:
    """A wait cut into looks would end gloo's connections after the first second; and the host's copy comes back."""
    made: list[Inner] = []

    def start(out: torch.Tensor, src: torch.Tensor) -> Any:
        made.append(Inner(out, src))
        return made[0]

    given, out = torch.arange(5000, dtype=torch.int16), torch.zeros(5000, dtype=torch.int16)
    Watch(None, 0, 1, torch.device("cpu")).wait(Staged(out, given, None, start))
    assert torch.equal(out, given)
    assert made[0].timeouts == [None]


def test_a_staged_exchange_that_fails_raises_what_the_transport_raised() -> None:
    class Broken(Inner):
        def wait(self, timeout: timedelta | None = None) -> bool:
            raise RuntimeError("connection closed by peer")

    given = torch.arange(8, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="connection closed by peer"):
        Watch(None, 0, 1, torch.device("cpu")).wait(Staged(given.clone(), given, None, Broken))
