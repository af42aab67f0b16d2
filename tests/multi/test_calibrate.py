"""calibrate and run as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zipplan.planner.calibration import Calibration
from zipplan.planner.cli.common import read_cluster
from zipplan.planner.make import make_plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective, Exchange, Op
from zipplan.planner.settings import Settings

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Launch = Callable[..., subprocess.CompletedProcess[str]]


def test_what_was_measured_is_planned_with_and_runs(torchrun: Launch, tmp_path: Path) -> None:
    """calibrate → plan → run: every exchange and stage has a curve, the plan names the file, its bits are right."""
    path, plan_file = tmp_path / "cal.json", tmp_path / "plan.json"
    done = torchrun("-m", "zipplan.executor.calibrate", "-o", str(path), "-b", "16K", "-e", "256K", ranks=2)
    assert done.returncode == 0, done.stderr
    assert f"written to {path}" in done.stdout
    made = Calibration.load(path)
    assert (made.transport, made.nodes, made.ranks_per_node) == ("gloo", 1, 2)
    assert {e.exchange for e in made.exchanges} == {
        *(Exchange.ALL_GATHER, Exchange.ALL_TO_ALL, Exchange.REDUCE_SCATTER, Exchange.ALL_REDUCE)
    }
    assert {s.op for s in made.stages if s.codec == "window"} == {Op.ENCODE, Op.DECODE, Op.DECODE_REDUCE}
    assert len(made.links) == 1
    # Exchanges of ranks that share a memory may be measured quicker than the shipped description allows.
    settings = Settings.read(["link.loopback.bandwidth=200GB/s"], path)
    cluster = read_cluster("loopback", None, 1, 2, None, settings)
    plan = make_plan(cluster, list(Collective)[:2], [64 << 10], "bf16", parse_profile("gaussian"), settings=settings)
    assert made.id in plan.calibration
    plan.save(plan_file)
    done = torchrun("-m", "zipplan.executor.run_plan", str(plan_file), "--json", ranks=2)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["collective"] for row in rows] == [str(c) for c in list(Collective)[:2]]
    assert all(row["bits_identical"] for row in rows)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["calibrate", "-o", "cal.json"], "zipplan.executor.calibrate -o cal.json"),
        (["run", "plan.json"], "zipplan.executor.run_plan plan.json"),
        (["bench", "--plan", "plan.json"], "zipplan.executor.bench --plan plan.json"),
    ],
)
def test_without_torchrun_the_command_is_told(command: list[str], module: str) -> None:
    code = "import sys; from zipplan.planner.cli import main; sys.argv[0] = 'zipplan'; main()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"start it with torchrun: torchrun --nproc-per-node 4 -m {module}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_range_too_narrow_for_a_line(torchrun: Launch, tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    done = torchrun("-m", "zipplan.executor.calibrate", "-o", str(path), "-b", "64K", "-e", "128K", ranks=2)
    assert done.returncode != 0
    assert "-b, -e: expected 4K ≤ begin and end ≥ 16 × begin" in done.stderr
    assert not path.exists()
