"""Sessions as training code uses them: groups, splits, handles, checks, adaptive choices; FSDP2, DDP and MoE."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Found = dict[str, dict[str, str | None]]

CASES = {
    "splits": 11,
    "groups": 6,
    "operations": 15,
    "pieces": 5,
    "steady": 6,
    "handles": 15,
    "checks": 12,
    "adaptive": 8,
    "fsdp": 7,
    "ddp": 4,
    "moe": 9,
    "pipeline": 5,
    "shards": 5,
    "buckets": 8,
    "order": 5,
    "threads": 1,
    "lies": 6,
    "compiled": 3,
    "many": 3,
}


@pytest.fixture(scope="module")
def found(forked: Callable[..., Found]) -> Found:
    """Group of cases → case → what is wrong with it on some rank, or None."""
    cases: Found = forked("sessions.py")
    return cases


@pytest.mark.parametrize("group", CASES)
def test_group(found: Found, group: str) -> None:
    """What each case promises stands in the workers that sessions.py runs; none may be missing."""
    assert {name: problem for name, problem in found[group].items() if problem} == {}
    assert len(found[group]) == CASES[group], sorted(found[group])
