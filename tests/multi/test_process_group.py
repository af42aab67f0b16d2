"""`init_process_group("cpu:zipplan,cuda:zipplan")`: unchanged programs follow the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Run = Callable[..., Any]


def run(forked: Run, what: str, times: int) -> Any:
    """What every rank of every launch said."""
    launches = forked("process_group.py", what, times)
    for ranks in launches:
        assert [rank["code"] for rank in ranks] == [0, 0, 0], ranks
    return launches


# dist call → overrides that torch 2.13 reaches
REACHED = {
    "all_gather_single": ["all_gather_single"],
    "all_gather_single async": ["all_gather_single"],
    "reduce_scatter_single": ["reduce_scatter_single"],
    "reduce_scatter_single AVG": ["reduce_scatter_single"],
    "all_reduce": ["allreduce"],
    "all_reduce MAX": ["allreduce"],
    "all_to_all_single": ["all_to_all_single"],
    "all_to_all_single splits": ["all_to_all_single"],
    "all_gather": ["allgather"],
    "broadcast": ["broadcast"],
    "reduce": ["reduce"],
    "reduce_scatter": ["reduce_scatter"],
    "gather": ["gather"],
    "scatter": ["scatter"],
    "send and recv": ["recv", "send"],
    "batch_isend_irecv": ["recv", "send"],
    "barrier": ["barrier"],
    "all_gather_object": ["allgather"],
    "functional all_reduce": ["allreduce"],
    "functional all_gather": ["all_gather_single_coalesced"],
    "functional reduce_scatter": ["reduce_scatter_single_coalesced"],
    "functional reduce_scatter AVG": ["reduce_scatter_single_coalesced"],
    "functional all_to_all": ["all_to_all_single"],
    "DTensor": ["all_gather_single_coalesced", "scatter"],
    "new_group": ["allreduce"],
}


def test_every_call_reaches_an_override_and_is_right(forked: Run) -> None:
    """F137: what torch calls on the group, by dist function; results are right; what is not accelerated is counted."""
    (ranks,) = run(forked, "conformance", 1)
    for number, rank in enumerate(ranks):
        found = rank["said"]
        assert found.pop("reasons") == ["MAX is not accelerated", "not accelerated"]
        assert {name: row["problem"] for name, row in found.items() if row["problem"]} == {}
        assert {name: row["reached"] for name, row in found.items()} == REACHED | (
            {"new_group": []} if number == 1 else {}  # rank 1 is not in that group
        )


def test_many_launches_train_alike(forked: Run) -> None:
    """DDP and FSDP2, ten launches: none hangs (a method left to torch's C++ would, now and then), all sums equal."""
    sums = {tuple(rank["said"]) for ranks in run(forked, "training", 10) for rank in ranks}
    assert len(sums) == 1, sums
