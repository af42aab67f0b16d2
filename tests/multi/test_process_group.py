"""`init_process_group("cpu:zipplan,cuda:zipplan")`: unchanged programs follow the plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

WORKERS = Path(__file__).parent / "workers"


def run(what: str, times: int) -> Any:
    """What every rank of every launch said."""
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", str(WORKERS / "process_group.py"), what, str(times)],
        capture_output=True,
        text=True,
        timeout=150,
        env={k: v for k, v in os.environ.items() if not k.startswith("ZIPPLAN_")} | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    launches = json.loads(done.stdout)
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
    "functional all_to_all": ["all_to_all_single"],
    "DTensor": ["all_gather_single_coalesced", "scatter"],
    "new_group": ["allreduce"],
}


def test_every_call_reaches_an_override_and_is_right() -> None:
    """F137: what torch calls on the group, by dist function; results are right; what is not accelerated is counted."""
    (ranks,) = run("conformance", 1)
    for number, rank in enumerate(ranks):
        found = rank["said"]
        assert found.pop("reasons") == ["MAX is not accelerated", "not accelerated"]
        assert {name: row["problem"] for name, row in found.items() if row["problem"]} == {}
        assert {name: row["reached"] for name, row in found.items()} == REACHED | (
            {"new_group": []} if number == 1 else {}  # rank 1 is not in that group
        )


def test_many_launches_train_alike() -> None:
    """DDP and FSDP2, ten launches: none hangs (a method left to torch's C++ would, now and then), all sums equal."""
    sums = {tuple(rank["said"]) for ranks in run("training", 10) for rank in ranks}
    assert len(sums) == 1, sums
