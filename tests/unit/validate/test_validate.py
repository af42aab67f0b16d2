"""`zipplan validate`: accuracy against the shipped tables, tables of one's own, verdicts on a log, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from zipplan.planner.cli.validate import validate
from zipplan.planner.errors import ConfigError, ZipplanError
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.validate.compare import Row, compare, predict
from zipplan.planner.validate.diagnose import DEFECTS, causes, verdict
from zipplan.planner.validate.fit import constants, fit, loss
from zipplan.planner.validate.points import Point, Table, read_tables, shipped

GOLDEN = Path(__file__).parents[2] / "golden" / "nccl_tests"


def run(*arguments: object) -> Any:
    done = CliRunner().invoke(validate, [*map(str, arguments), "--json"], catch_exceptions=False, standalone_mode=False)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def everything() -> Any:
    return run()


def test_floors_of_accuracy(everything: Any) -> None:
    """Promised: median ≤ 8 %, p90 ≤ 25 % from 32 KiB, median ≤ 4 % from 256 MiB. Held tighter than that."""
    overall = everything["overall"]
    assert overall["points"] >= 540
    assert overall["median_abs_error_pct"] <= 5
    assert overall["p90_abs_error_pct"] <= 20
    assert overall["large"]["median_abs_error_pct"] <= 2.5
    assert overall["nccl_median_abs_error_pct"] >= 4 * overall["median_abs_error_pct"]
    assert not everything["skipped"]


def test_every_table_of_a_healthy_machine_is_close(everything: Any) -> None:
    """No table but those of the dragonfly, the one noisy host and the 2021 all-gathers is off by more than 10 %."""
    worst = {t["table_id"]: t["median_abs_error_pct"] for t in everything["tables"] if t["median_abs_error_pct"] > 10}
    assert set(worst) <= {"H100x2_META_P2P", "MI250x32_TECCL_AG_RCCL", "B300x8_EBPF_RING_CH32"}


def test_yardsticks_do_not_count(everything: Any) -> None:
    assert {t["table_id"] for t in everything["yardsticks"]} == {
        "A100x8_MSCCLPP_AR", "A100x8_MSCCLPP_A2A", "H100x16_MSCCLPP_AR", "H100x16_MSCCLPP_AG", "H100x16_MSCCLPP_A2A",
        "P5x2_UCCL_A2A_CROSS", "P5x2_UCCL_A2A_RAIL",
    }  # fmt: skip
    assert len(everything["tables"]) + len(everything["yardsticks"]) == 48


def test_sick_points_are_flagged(everything: Any) -> None:
    """GH200x8 takes 921 µs for 1 MiB and 129 µs for 2 MiB; 64 GH200 take 8.7 ms for 64 MiB and 5.5 ms for 128."""
    flagged = {(a["table_id"], a["size_bytes"]): a["rule"] for a in everything["abnormal"]}
    assert "a larger message took 129.2 µs" in flagged["GH200x8_ALPS25_AR", 2**20]
    assert flagged["GH200x64_ALPS25_AR", 2**26].startswith("drop")
    assert not any(name.startswith(("A100", "H100x8", "H200", "V100")) for name, _ in flagged)


def test_prediction_comes_from_the_simulator() -> None:
    """The error of a point moves with the machine: half the NVLinks, about twice the time."""
    (table,) = (t for t in read_tables(*shipped()) if t.name == "H100x8_ISS290_AR")
    half = load_machine("hgx-h100").model_copy(
        update={"node": tuple(n.model_copy(update={"link": tuple(
            r.model_copy(update={"lanes": 9}) if r.kind == "nvlink" else r for r in n.link)})
            for n in load_machine("hgx-h100").node)}
    )  # fmt: skip
    slow = predict(table, build_cluster(half, nodes=1))
    for row, other in zip(predict(table), slow, strict=True):
        assert 1.8 < other.simulated_us / row.simulated_us < 2


def write(folder: Path, points: str, mapping: str) -> tuple[Path, Path]:
    (folder / "p.csv").write_text(points)
    (folder / "m.csv").write_text(mapping)
    return folder / "p.csv", folder / "m.csv"


HEAD = "table_id,collective,size_bytes,time_us\n"
MAP = "table_id,topology,nodes,ranks_per_node\n"


def test_tables_of_ones_own(tmp_path: Path) -> None:
    points, mapping = write(
        tmp_path,
        HEAD + "a,all_reduce,1048576,40\na,all_reduce,1024,9\nb,alltoall,1048576,60\nc,all_gather,1048576,60\n",
        MAP + "a,hgx-h100,1,8\nb,hgx-h100,2,8\nc,no-such-machine,1,8\n",
    )
    found = run("--points", points, "--map", mapping)
    assert [(t["table_id"], t["points"], t["ranks"]) for t in found["tables"]] == [("a", 1, 8), ("b", 1, 16)]
    assert [s["table_id"] for s in found["skipped"]] == ["c"]
    assert found["tables"][1]["nccl_median_abs_error_pct"] is None


@pytest.mark.parametrize(
    ("points", "mapping", "message"),
    [
        ("table_id,size_bytes\n", MAP + "a,hgx-h100,1,8\n", "no column 'collective'"),
        (HEAD, MAP + "a,hgx-h100,1,8\n", "no rows below the heading"),
        (HEAD + "a,all_reduce,x,1\n", MAP + "a,hgx-h100,1,8\n", "p.csv line 2: size_bytes is 'x'"),
        (HEAD + "a,all_reduce,1024,-1\n", MAP + "a,hgx-h100,1,8\n", "line 2: time_us is '-1'"),
        (HEAD + "a,all_reduce,1024,nan\n", MAP + "a,hgx-h100,1,8\n", "line 2: time_us is 'nan'"),
        (HEAD + "a,all_redduce,1024,1\n", MAP + "a,hgx-h100,1,8\n", "'all_redduce'; did you mean all_reduce"),
        (HEAD + "a,all_reduce,1024,1\n", MAP + "b,hgx-h100,1,8\n", "table 'b' is not in"),
        (HEAD + "a,all_reduce,1024,1\n", MAP + "a,hgx-h100,0,8\n", "m.csv line 2: nodes is '0'"),
        (HEAD + "a,all_reduce\n", MAP + "a,hgx-h100,1,8\n", "line 2: fewer columns"),
        (HEAD + "a,all_reduce,65536,1\n", MAP + "a,hgx-h1000,1,8\n", "no table can be simulated"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, points: str, mapping: str, message: str) -> None:
    files = write(tmp_path, points, mapping)
    with pytest.raises(ZipplanError, match=message):
        run("--points", files[0], "--map", files[1])


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    log = GOLDEN / "all_reduce_2021.log"
    for arguments, message in (
        ((log,), "--topology is needed"),
        (("--topology", "hgx-h100"), "describe a FILE"),
        (("--points", log), "belong together"),
        ((log, "--topology", "hgx-a100", "--fit"), "give either"),
        ((log, "--topology", "hgx-a100", "--collective", "x"), "unknown collective 'x'"),
        ((log, "--topology", "hgx-a100", "--collective", "all_reduce", "--nodes", 3), "8 ranks on 1 host .localhost.,"),
        (
            (GOLDEN / "two_runs_mpi.log", "--topology", "hgx-h100", "--nodes", 1),
            "on 2 hosts .node-a, node-b., --nodes says 1",
        ),
        ((GOLDEN / "two_runs_mpi.log", "--topology", "hgx-h100", "--ranks-per-node", 9), "does not fit hgx-h100"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(*arguments)


def test_a_normal_log_is_called_normal() -> None:
    (found,) = run(GOLDEN / "all_reduce_2021.log", "--topology", "hgx-a100", "--collective", "all_reduce")["runs"]
    assert [p["verdict"] for p in found["points"]] == ["normal"] * 3
    assert found["points"][-1]["measured_busbw_GBps"] == pytest.approx(235.26, abs=0.01)
    assert found["causes"] == []


@pytest.mark.parametrize(
    ("defect", "machine", "nodes"),
    [
        ("NVLS off", "hgx-h100", 1),
        ("NVLink off, through host memory", "hgx-h100", 1),
        ("peer-to-peer off, through host memory", "pcie-4090x4-p2p", 1),
        ("one NIC only", "hgx-h100", 2),
        ("half of the NICs", "hgx-h100", 4),
        ("wrong rail", "hgx-a100-hdr8", 4),
    ],
)
def test_the_cause_of_a_gap_is_found(defect: str, machine: str, nodes: int) -> None:
    """A log that a defective machine would give names that defect first."""
    healthy = load_machine(machine)
    chosen = next(d for d in DEFECTS if d.name == defect)
    worse = chosen.change(healthy)
    assert worse is not None
    sizes = [Point(2**k, 1.0) for k in range(22, 33, 2)]
    cluster = build_cluster(healthy, nodes=nodes)
    blank = Table("x", Exchange.ALL_REDUCE, machine, nodes, cluster.ranks_per_node, tuple(sizes))
    measured = [Point(r.size, r.simulated_us * 1.03) for r in predict(blank, build_cluster(worse, nodes=nodes))]
    table = Table("x", Exchange.ALL_REDUCE, machine, nodes, cluster.ranks_per_node, tuple(measured))
    found = causes(table, healthy, cluster, predict(table, cluster))
    assert found[0].defect.name == defect
    assert found[0].distance < 0.05


def test_verdicts() -> None:
    def of(size: int, measured: float) -> str:
        return verdict(Row(size, measured, 100.0, None, "ring", "Simple"))

    assert [of(2**20, t) for t in (70, 90, 120, 130)] == ["fast", "normal", "normal", "slow"]
    assert [of(2**30, t) for t in (105, 115)] == ["normal", "slow"]


def test_what_is_abnormal() -> None:
    times = {2**20: 900.0, 2**21: 100.0, 2**22: 130.0}
    table = Table("x", Exchange.ALL_REDUCE, "hgx-h100", 1, 8, tuple(Point(s, t) for s, t in times.items()))
    assert [row.abnormal.partition(":")[0] for row in compare(table).rows] == ["drop", "slow", "slow"]


def test_fit_improves_what_it_starts_from() -> None:
    """Two rounds on one table lower its loss; constants of other generations stay as they are."""
    measured = [t for t in read_tables(*shipped()) if t.name == "GH200x4_ALPS25_AR"]
    start, found = fit(measured, rounds=0)
    better, _ = fit(measured, rounds=2)
    assert loss(measured[0], better) < loss(measured[0], start)
    assert {c.path[1] for c in found if c.path[0] == "generation"} == {"hopper"}
    assert {c.path for c in found} < {c.path for c in constants(start)}
