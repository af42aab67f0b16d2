"""Ranks that do not hold the same things: all of them say so, alike, before any data moves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]


@pytest.fixture(scope="module")
def raised(torchrun: Callable[..., subprocess.CompletedProcess[str]]) -> dict[str, str]:
    """Case → what init raised, which must be the same on all four ranks."""
    done = torchrun("agreement.py")
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = {}
    for case, joined in json.loads(done.stdout).items():
        each = joined.removeprefix("rank 0: ")
        for rank in (1, 2, 3):
            first, _, each = each.partition(f"; rank {rank}: ")
            assert said.setdefault(case, first) == first
        assert each == said[case]
    return said


@pytest.mark.parametrize(
    ("case", "kind", "parts"),
    [
        ("plan", "AgreementError", ["plan differs between ranks: 0,2-3: ", "; 1: "]),
        ("plan, all switched off", "AgreementError", ["plan differs between ranks: 0,2-3: ", "; 1: "]),
        ("switch", "AgreementError", ["switch ZIPPLAN_DISABLE differs between ranks: 0,3: on; 1-2: off"]),
        ("unreadable switch", "AgreementError", ["0-1,3: no problem; 2: ZIPPLAN_DISABLE='maybe': expected 1 or 0"]),
        ("one rank without a file", "AgreementError", ["0-2: no problem; 3: /nowhere/plan.json: cannot read"]),
        ("other ranks per node", "AgreementError", ["ranks per node differs between ranks: 0: 2; 1-3: 4"]),
        ("eight ranks", "PlanError", ["plan needs 8 ranks (2 nodes × 4), job has 4 (1 × 4); start 8 ranks"]),
        ("two nodes", "PlanError", ["plan needs 4 ranks (2 nodes × 2), job has 4 (1 × 4)", "--ranks-per-node 2"]),
        ("three per node", "ConfigError", ["4 ranks do not fall into nodes of 3"]),
        ("other machine", "PlanError", ["made for topology test (fingerprint ffffffffffff), but loopback has"]),
    ],
)
def test_every_rank_raises_the_same(raised: dict[str, str], case: str, kind: str, parts: list[str]) -> None:
    """F073: ranks are grouped by value; F077: an 8-rank plan on 4 ranks is refused with both shapes; F081: whatever is
    switched off; F082: another machine.
    """
    assert raised[case].startswith(f"{kind}: ")
    for part in parts:
        assert part in raised[case]


@pytest.mark.parametrize("case", ["two nodes rehearsed", "flat plan of four nodes", "after all that"])
def test_what_fits_is_accepted(raised: dict[str, str], case: str) -> None:
    """Rehearsed nodes; flat schedules on any grid; and after all the refusals the group still works."""
    assert raised[case] == "nothing"
