"""The bench as a user starts it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from zipplan.planner.cli.common import read_cluster
from zipplan.planner.make import make_plan
from zipplan.planner.plan import Plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective

pytestmark = [pytest.mark.multi, pytest.mark.timeout(170)]

Launch = Callable[..., subprocess.CompletedProcess[str]]
BENCH = ("-m", "zipplan.executor.bench")
COLUMNS = {
    *("collective", "dtype", "size_bytes", "ranks", "schedule", "codec", "native_us", "planned_us", "predicted_us"),
    *("ratio", "expected_ratio", "wire_bytes", "algbw_GBps", "busbw_GBps", "wirebw_GBps", "bits_identical"),
}


def plan_for(topology: str, nodes: int, ranks_per_node: int, sizes: list[int]) -> Plan:
    """A plan as `zipplan plan` makes it."""
    cluster = read_cluster(topology, None, nodes, ranks_per_node, None)
    return make_plan(cluster, list(Collective), sizes, "bf16", parse_profile("gaussian"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for four gloo ranks on this host."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan_for("loopback", 1, 4, [64 << 10, 1 << 20]).save(path)
    return path


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """What the first rank says on stderr, for all, after input that all refuse: exit code 2 of each, no traceback.

    torchrun adds a report of its own, exits with 1, and ends ranks that are still leaving when the first is gone.
    """
    assert done.stdout == ""
    assert "/executor/" not in done.stderr
    codes = re.findall(r"exitcode  : (-?[0-9]+)", done.stderr)
    assert codes[-1] == "2"  # the root cause stands last
    assert set(codes) <= {"2", "-15"}
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("zipplan: error: ")]
    assert line.startswith("zipplan: error: rank 0: ")
    return line


def test_json_is_all_there_is_on_stdout(torchrun: Launch, plan: Path) -> None:
    """F124: one document from rank 0, parseable, no NaN; predictions stand where the plan's transport is at hand."""
    done = torchrun(*BENCH, "--plan", str(plan), "--json", "--iters", "2", "--warmup", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["schema"] == 1
    assert document["plan"]["hash"] == Plan.load(plan).hash
    assert document["fallbacks"] == []
    assert (document["iterations"], document["untimed"]) == (2, 2)  # the first call of a size never counts (F070)
    rows = document["rows"]
    asked = {(c, s) for c in Collective for s in (65536, 1 << 20)}
    assert {(r["collective"], r["size_bytes"]) for r in rows} >= asked
    for row in rows:
        assert row.keys() >= COLUMNS
        assert row["bits_identical"] is True
        assert row["problem"] is None
        assert row["predicted_us"] > 0
        factor = 1.5 if row["collective"] == "all_reduce" else 0.75
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * factor)
        if row["codec"] == "raw":
            assert row["ratio"] == 1
            assert row["wire_bytes"] == pytest.approx(row["size_bytes"] * factor)
        else:
            assert row["ratio"] == pytest.approx(row["expected_ratio"], rel=0.03)  # headers weigh in at 64 KiB
            assert row["wire_bytes"] < row["size_bytes"] * factor / 1.35
    assert any(row["codec"] != "raw" for row in rows)


def test_table_and_rehearsal_of_two_nodes(torchrun: Launch, tmp_path: Path) -> None:
    """F124: lines whole when stdout is no terminal, from rank 0 alone; a plan for NCCL is rehearsed, said once."""
    path = tmp_path / "two nodes.json"
    plan_for("hgx-a100", 2, 2, [1 << 20]).save(path)
    done = torchrun(
        *BENCH, "--plan", str(path), "--ranks-per-node", "2", "--iters", "1", "-b", "6", "-e", "96K", "-f", "128",
        env={"COLUMNS": "40", "TERM": "dumb"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "two nodes.json: hgx-a100, 4 ranks on gloo"
    assert any("over 1 calls after 3 untimed" in line for line in lines)
    assert lines[2].split()[2] == "8"  # asked for 6 bytes: one element of every rank is moved, and shown (F121)
    assert lines[1].split()[:3] == ["collective", "dtype", "size"]
    assert lines[1].rstrip().endswith("bits identical")
    assert [line.rstrip().endswith(" yes") for line in lines[2:14]] == [True] * 12
    assert "…" not in done.stdout
    assert done.stderr.count("rehearsal: the plan was made for nccl and runs on gloo here") == 1


def test_ranks_with_different_plans_all_leave(torchrun: Launch, plan: Path, tmp_path: Path) -> None:
    """F073: rank 1 reads another file; both are named, and nobody waits."""
    other = tmp_path / "other.json"
    plan_for("loopback", 1, 4, [64 << 10]).save(other)
    done = torchrun("bench_differs.py", f"1:ZIPPLAN_PLAN={other}", "--", "--json", env={"ZIPPLAN_PLAN": str(plan)})
    assert f"plan differs between ranks: 0,2-3: {Plan.load(plan).hash[7:19]} ({plan}); 1: " in refused(done)


def test_plan_for_eight_ranks_on_four(torchrun: Launch, tmp_path: Path) -> None:
    """F077: refused with both shapes."""
    path = tmp_path / "eight.json"
    plan_for("hgx-h100", 2, 4, [1 << 20]).save(path)
    said = refused(torchrun(*BENCH, "--plan", str(path)))
    assert "plan needs 8 ranks (2 nodes × 4), job has 4 (1 × 4)" in said


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_unreadable_plans(torchrun: Launch, plan: Path, tmp_path: Path, damage: str) -> None:
    """One message that names the file."""
    path = tmp_path / "broken.json"
    if damage == "truncated":
        path.write_bytes(plan.read_bytes()[:-200])
    assert f"{path}: " in refused(torchrun(*BENCH, "--plan", str(path), ranks=2))


def test_what_the_transport_cannot_sum_is_skipped_and_said(torchrun: Launch, tmp_path: Path) -> None:
    """A plan for every dtype: gloo has no sums of fp8, the other tables are measured; with nothing left, exit 2."""
    both, alone = tmp_path / "both.json", tmp_path / "alone.json"
    cluster, shape = read_cluster("loopback", None, 1, 2, None), parse_profile("gaussian")
    kinds = [Collective.ALL_GATHER, Collective.ALL_REDUCE]
    make_plan(cluster, kinds, [64 << 10], ["bf16", "fp8_e4m3"], shape).save(both)
    make_plan(cluster, kinds[1:], [64 << 10], "fp8_e4m3", shape).save(alone)
    done = torchrun("-m", "zipplan.executor.run_plan", str(both), "--json", ranks=2)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {(r["collective"], r["dtype"]) for r in document["rows"]} == {
        ("all_gather", "bf16"), ("all_gather", "fp8_e4m3"), ("all_reduce", "bf16")
    }  # fmt: skip
    (skipped,) = document["skipped"]
    assert (skipped["collective"], skipped["dtype"]) == ("all_reduce", "fp8_e4m3")
    assert skipped["reason"].startswith("gloo cannot sum float8_e4m3fn")
    assert "nothing of the plan can run here: gloo cannot sum" in refused(
        torchrun(*BENCH, "--plan", str(alone), ranks=2)
    )


def test_a_failing_check_fails_the_run(torchrun: Launch, plan: Path) -> None:
    """Exit code 1 and the place of the first wrong element when the bits are not identical."""
    done = torchrun("bench_broken.py", "--plan", str(plan), "-b", "1M", "--iters", "1", "--warmup", "0")
    assert "exitcode  : 1 " in done.stderr  # of the first rank; torchrun ends those that are still leaving
    assert "NOT identical: reduce_scatter bf16 1M: rank 0: " in done.stdout
    assert "elements differ, first at flat index 0" in done.stdout
    assert " NO" in done.stdout


def test_a_stalled_rank_ends_the_run(torchrun: Launch, plan: Path) -> None:
    """Ranks that wait for one that does not come leave after --timeout, naming the collective."""
    done = torchrun("bench_stalls.py", "--plan", str(plan), "-b", "1M", "--timeout", "3")
    assert done.returncode != 0
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("zipplan: error: ")]
    assert said
    for line in said:
        begin = r"zipplan: error: rank [013]: [a-z_]+ of 1M bf16 \(call \d+ of 4 ranks\) failed on rank [013] in stage "
        assert re.match(begin, line), line
        assert line.endswith("no word from rank 2, which ended, stalled or did not make this call"), line


def test_repeated_launches(torchrun: Launch, plan: Path) -> None:
    """One launch after the other, each from start to end; what a port or a group left behind would break it."""
    for _ in range(2):
        done = torchrun(*BENCH, "--plan", str(plan), "-b", "64K", "--iters", "1", "--no-check", ranks=4)
        assert done.returncode == 0, done.stderr
        assert "not checked" in done.stdout
