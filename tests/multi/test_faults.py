"""Ranks that die, stall, lie or run out of memory, again and again: every rank ends, saying what, where and who."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

ROUNDS = 2
VICTIM = 2
LIMIT_S = 3 + 1 + 3 + 5  # timeout, a look at the store, grace, and slack for two busy cores
WAYS = {"calls", "handles", "group", "sharded"}
WHAT = (
    r"CollectiveError: all_gather of \d+ bf16 {kind}\(call {call} of 4 ranks\) failed on rank {rank} in stage '\w+': "
)
START = r"CollectiveError: start-up of 4 ranks failed on rank {rank} in stage 'process groups': Wait timeout; "
SILENT = "no word from rank 2, which ended, stalled or did not make this call"


@pytest.fixture(scope="module")
def ends(forked: Callable[..., Any]) -> list[dict[str, Any]]:
    """Round → case → how every rank ended."""
    rounds: list[dict[str, Any]] = forked("chaos.py", ROUNDS)
    return rounds


@pytest.mark.parametrize(
    ("case", "code", "said", "told"),
    [
        ("killed", -9, None, SILENT),
        ("terminated", -15, None, SILENT),
        ("stalled", 1, "CollectiveError: all_gather", SILENT),
        ("raised", 1, "ValueError: the loss is not a number", SILENT),
        (
            "corrupted",
            1,
            "CodecError: frame 0: magic",
            "rank 2 failed first, in stage 'all_gather_world_dynamic': CodecErr",
        ),
        (
            "out_of_memory",
            1,
            "MemoryError: cannot allocate",
            "rank 2 failed first, in stage 'all_gather_world_encode': Mem",
        ),
        (
            "corrupted_and_caught",
            1,
            "RuntimeError: twice: all_gather",
            "rank 2 failed first, in stage 'all_gather_world_",
        ),
        ("absent", -9, None, SILENT),
        ("late", 1, "'process groups': peers gave up before this rank came", SILENT),
        ("interrupted", 1, "KeyboardInterrupt", "rank 2 failed first, in stage 'all_gather_world_encode': Keyboard"),
    ],
)
def test_every_rank_ends(ends: list[dict[str, Any]], case: str, code: int, said: str | None, told: str) -> None:
    """F040, F068, F069: survivors end in time with collective, call, stage and ranks; the victim as it was hurt."""
    for done in (done for done in ends if case in done):
        way, ranks = done[case]["way"], done[case]["ranks"]
        what = START if case in ("absent", "late") else WHAT
        kind, call = (r"\(weights\) ", 13) if way == "sharded" else ("", 7)
        assert ranks[VICTIM]["code"] == code
        assert ranks[VICTIM]["said"] is None if said is None else said in ranks[VICTIM]["said"]
        for rank in (0, 1, 3):
            end = ranks[rank]
            assert end["code"] == 1, end
            assert re.match(what.format(rank=rank, kind=kind, call=call), end["said"]), end
            assert told in end["said"], end
            if case == "corrupted_and_caught":  # its connections stay open, so that its word alone ends the wait
                assert ": a peer failed; " in end["said"], end
            assert end["seconds"] < LIMIT_S, end


def test_every_way_in_is_hurt(ends: list[dict[str, Any]]) -> None:
    """Calls, handles, the process group and FSDP2's hooks: the second round goes another way in every case."""
    assert {case for done in ends for case in done} >= {"absent", "late"}  # in a round each
    assert {case["way"] for done in ends for case in done.values()} == WAYS
