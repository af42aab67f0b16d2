"""`zipplan doctor`: what it finds wrong, where values come from, and that what is only absent is no fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zipplan.executor import environment

GOLDEN = Path(__file__).parents[2] / "golden"


def doctor(home: Path, code: int = 0, **variables: str) -> dict[str, dict[str, Any]]:
    """Rows by what they are about, with only these variables of ours and of NCCL's set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZIPPLAN_", "NCCL_", "XDG_"))}
    command = [sys.executable, "-m", "zipplan.planner.cli", "doctor", "--json"]
    environ = {**kept, "HOME": str(home), **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == code, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["schema"] == 1
    assert told["ok"] is (code == 0)
    return {row["what"]: row for row in told["rows"]}


def test_nothing_is_wrong_without_a_gpu_and_every_variable_stands_with_its_source(tmp_path: Path) -> None:
    rows = doctor(tmp_path)
    for variable in environment.VARIABLES:
        assert rows[variable.name]["source"] == "default"
    assert rows["CPU"]["found"].startswith("compiled")
    assert rows["bench, run, calibrate and training on gloo"]["found"] == "yes"
    assert str(tmp_path / ".cache" / "zipplan") in rows["ZIPPLAN_CACHE_DIR"]["found"]
    assert not (tmp_path / ".cache").exists()  # it only looks


def test_a_plan_that_the_variable_names_is_read(tmp_path: Path) -> None:
    plan = GOLDEN / "plan_lab_all_gather.json"
    row = doctor(tmp_path, ZIPPLAN_PLAN=str(plan))["ZIPPLAN_PLAN"]
    assert row["source"] == "environment"
    assert "lab, 2 ranks" in row["found"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ZIPPLAN_DISABL", "1", "ZIPPLAN_DISABLE"),
        ("ZIPPLAN_CHECK", "bit", "did you mean bits"),
        ("ZIPPLAN_PLAN", "/nowhere/plan.json", "/nowhere/plan.json"),
    ],
)
def test_a_variable_that_a_job_would_refuse_is_a_fault(tmp_path: Path, name: str, value: str, says: str) -> None:
    row = doctor(tmp_path, code=1, **{name: value})[name]
    assert row["state"] == "wrong"
    assert says in row["found"]


def test_nccls_own_variables_are_told_with_their_source_and_what_they_mean_for_plans(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_NVLS_ENABLE=0  # a comment\nNCCL_ALGO=Tree\nNCCL_DEBUG=WARN\n")
    rows = doctor(tmp_path, NCCL_ALGO="Ring")
    assert (rows["NCCL_ALGO"]["found"], rows["NCCL_ALGO"]["source"]) == ("Ring", "environment")
    found = rows["NCCL_NVLS_ENABLE"]
    assert (found["found"], found["source"]) == ("0", str(tmp_path / ".nccl.conf"))
    assert "--set transport.nvls=off" in found["advice"]
    assert rows["NCCL_DEBUG"]["advice"] == ""


def test_variables_that_force_or_forbid_are_each_explained(tmp_path: Path) -> None:
    """F076: who reads a plan beside such variables is told what they change."""
    said = {
        "NCCL_ALGO": ("Tree", "simulate --algorithm"),
        "NCCL_PROTO": ("LL", "does not choose its protocol"),
        "NCCL_P2P_DISABLE": ("1", "--set node.p2p=off"),
        "NCCL_IB_DISABLE": ("1", "sockets"),
    }
    rows = doctor(tmp_path, **{name: value for name, (value, _) in said.items()})
    for name, (value, advice) in said.items():
        assert (rows[name]["found"], rows[name]["source"]) == (value, "environment")
        assert advice in rows[name]["advice"]


def test_the_settings_that_the_advice_names_exist(tmp_path: Path) -> None:
    from zipplan.executor.doctor import TOLD
    from zipplan.planner.settings import SETTINGS

    for advice in TOLD.values():
        if "--set " in advice:
            assert advice.partition("--set ")[2].partition("=")[0] in SETTINGS
