"""The commands as a user runs them: output, JSON contract, exit codes (field cases F024, F025, F110, F122, F128)."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from zipplan.planner.costs import CODECS
from zipplan.planner.plan import Plan
from zipplan.planner.schedule import Collective

GOLDEN = Path(__file__).parents[2] / "golden"
MATRIX = Path(__file__).parents[3] / "examples" / "topologies" / "8xA100-pcie-pairs.txt"
LAB = Path(__file__).parents[3] / "topologies" / "lab.toml"


def zipplan(*args: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process; its exit code must be `code`, and never a traceback."""
    command = [sys.executable, "-m", "zipplan.planner.cli", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    return done


def document(*args: object) -> Any:
    """The JSON on stdout; nothing else may be there."""
    return json.loads(zipplan(*args, "--json").stdout)


def test_plan_writes_and_prints_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "with space.json"
    printed = document("plan", "--topology", "lab", "--nodes", 4, "--size", "64K,16M", "-o", path)
    assert printed == json.loads(path.read_text())
    plan = Plan.load(path)
    assert [e.collective for e in plan.entries] == list(Collective)
    assert plan.ranks == 4
    for entry in plan.entries:
        assert {65536, 16 << 20} <= set(entry.sizes_planned)  # and where a third choice wins between them
        for choice in entry.choices:
            assert all(point.rejected for point in choice.points)


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        zipplan("plan", "--topology", "a6000x8-200g", "--nodes", 2, "--size", "1K,1M,64M", "-o", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_golden_plan(tmp_path: Path) -> None:
    """A plan file cannot drift unseen; when a model change is meant, write the new file and say so in the changelog."""
    zipplan(
        "plan",
        "--topology",
        "lab",
        "--nodes",
        2,
        "--collective",
        "all_gather",
        "--size",
        "1K,16M",
        "-o",
        tmp_path / "p",
    )
    new, old = json.loads((tmp_path / "p").read_text()), json.loads((GOLDEN / "plan_lab_all_gather.json").read_text())
    for plan in (new, old):
        del plan["made_by"], plan["hash"]
    assert new == old


def test_break_even_separates_the_choices(tmp_path: Path) -> None:
    """On a slow link small messages stay raw and large ones are zipped; the border lies between the planned sizes."""
    path = tmp_path / "p"
    zipplan("plan", "--topology", "lab", "--nodes", 4, "--collective", "all_gather", "--size", "1K,64M", "-o", path)
    rows = Plan.load(path).entries[0].choices
    assert [r.schedule.name for r in rows] == ["native", "zipped", "zipped-x4"]
    assert 1024 < rows[0].stop < 64 << 20  # type: ignore[operator]
    explained = document("explain", path)
    assert explained["entries"][0]["break_even_bytes"] == [rows[0].stop, rows[1].stop]


def test_one_plan_holds_every_collective_and_dtype(tmp_path: Path) -> None:
    """Each pair has its own table, which is that of a plan for this pair alone; explain and diff read them all."""
    both, one = tmp_path / "both.json", tmp_path / "one.json"
    zipplan("plan", "--topology", "lab", "--dtype", "fp32,bf16,fp32", "--size", "64K,16M", "-o", both)
    zipplan("plan", "--topology", "lab", "--dtype", "fp32", "--size", "64K,16M", "-o", one)
    plan, alone = Plan.load(both), Plan.load(one)
    pairs = [(c, d) for c in Collective for d in ("fp32", "bf16")]
    assert [(e.collective, e.dtype) for e in plan.entries] == pairs
    assert [e for e in plan.entries if e.dtype == "fp32"] == list(alone.entries)
    text = zipplan("explain", both).stdout
    assert [line for line in text.splitlines() if line.endswith("(gaussian)")] == [
        f"{c} of {d} (gaussian)" for c, d in pairs
    ]
    found = {
        (d["where"], d["what"]) for d in json.loads(zipplan("diff", both, one, "--json", code=1).stdout)["differences"]
    }
    assert found == {(f"{c} of bf16 (gaussian)", "table") for c in Collective}


def test_all_dtypes_are_those_that_a_codec_serves() -> None:
    plan = document("plan", "--topology", "lab", "--collective", "all_gather", "--dtype", "all", "--size", "64K")
    assert {"bf16", "fp16", "fp32", "fp8_e4m3"} <= {e["dtype"] for e in plan["entries"]} == set(CODECS)


@pytest.mark.parametrize(("machine", "largest"), [("hgx-h100", 16 << 30), ("lab", 64 << 20)])
def test_default_sizes_are_those_that_the_machine_can_run(machine: str, largest: int) -> None:
    entry = document("plan", "--topology", machine, "--collective", "all_gather")["entries"][0]
    sizes = [point["size_bytes"] for row in entry["choices"] for point in row["points"]]
    assert (sizes[0], sizes[-1]) == (1024, largest)


def test_explain_fits_100_columns(tmp_path: Path) -> None:
    path = tmp_path / "p"
    zipplan("plan", "--topology", "hgx-h100", "--nodes", 8, "--size", "1K,64M", "-o", path)
    lines = zipplan("explain", path).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines[lines.index("") :])  # nothing is cut off to get there


def test_explain_gives_every_rejected_candidate_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "p"
    zipplan("plan", "--topology", "a6000x8-200g", "--nodes", 8, "--size", "64M", "-o", path)
    text = zipplan("explain", path, "--collective", "all_reduce", "--size", "64M").stdout
    for name in ("native", "two-shot window", "zipped-across-nodes window", "exchanges", "busiest"):
        assert name in text


def test_nvlink_stays_raw_and_a_slow_network_is_zipped() -> None:
    """F030: compression does not pay on NVLink and pays on 200 Gb/s; so UCCL-Zip found too."""
    fast = document("plan", "--topology", "hgx-h100", "--collective", "all", "--size", "64M")
    assert {e["choices"][0]["schedule"]["name"] for e in fast["entries"]} == {"native"}
    slow = document("plan", "--topology", "a6000x8-200g", "--nodes", 8, "--collective", "all_to_all", "--size", "64M")
    assert slow["entries"][0]["choices"][0]["schedule"]["name"] == "zipped"


def test_random_bytes_stay_raw(tmp_path: Path) -> None:
    """F016: nothing to gain, and the reason says that the codec costs time."""
    path = tmp_path / "p"
    zipplan(
        "plan", "--topology", "lab", "--collective", "all_gather", "--size", "32M", "--profile", "random", "-o", path
    )
    (row,) = Plan.load(path).entries[0].choices
    assert row.schedule.name == "native"
    assert all("codec" in r.reason for r in row.points[0].rejected)


def test_a_dtype_without_a_codec_stays_raw() -> None:
    plan = document("plan", "--topology", "lab", "--collective", "all_gather", "--size", "16M", "--dtype", "u8")
    assert [r["schedule"]["name"] for r in plan["entries"][0]["choices"]] == ["native"]


def test_a_real_matrix_plans() -> None:
    plan = document("plan", "--topology", MATRIX, "--gpu", "A100", "--collective", "all_to_all", "--size", "64M")
    assert plan["topology"]["ranks_per_node"] == 8


def test_simulate_prints_what_the_contract_says() -> None:
    answer = document(
        "simulate", "--topology", "hgx-h100", "--nodes", 2, "--collective", "all_reduce", "--size", "1M,1G"
    )
    assert answer["schema"] == 1
    keys = {"collective", "size_bytes", "dtype", "nodes", "ranks", "codec", "algorithm", "protocol", "time_us",
            "algbw_GBps", "busbw_GBps", "wirebw_GBps"}  # fmt: skip
    for row, size in zip(answer["rows"], (1 << 20, 1 << 30), strict=True):
        assert keys <= set(row)
        assert row["size_bytes"] == size
        assert row["ranks"] == 16
        assert row["algbw_GBps"] == pytest.approx(size / row["time_us"] / 1000, rel=1e-3)
        assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 2 * 15 / 16, abs=2e-3)


def test_compression_lowers_wirebw_below_busbw() -> None:
    """F122: busbw counts raw bytes, wirebw the encoded ones."""
    (row,) = document("simulate", "--topology", "lab", "--nodes", 4, "--collective", "all_gather", "--size", "64M",
                      "--codec", "window")["rows"]  # fmt: skip
    assert row["busbw_GBps"] / row["wirebw_GBps"] == pytest.approx(1.43, abs=0.02)
    assert row["wirebw_GBps"] <= 0.125


def test_one_rank_has_nothing_to_do() -> None:
    """F122: no division by zero for n = 1."""
    (row,) = document("simulate", "--topology", "lab", "--nodes", 1, "--collective", "all_reduce", "--size", "1M")[
        "rows"
    ]
    assert row["busbw_GBps"] == row["time_us"] == 0


def test_trace_sums_to_the_table(tmp_path: Path) -> None:
    """F110: table, JSON and trace say the same; slices of one track never overlap."""
    path = tmp_path / "t.json"
    (row,) = document("simulate", "--topology", "lab", "--nodes", 4, "--collective", "all_reduce", "--size", "8M",
                      "--codec", "window", "--trace", path)["rows"]  # fmt: skip
    slices = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(row["time_us"], abs=1e-2)
    assert {e["pid"] for e in slices} == {0, 1, 2, 3, 8}  # the ranks and the network
    for track in {(e["pid"], e["tid"]) for e in slices}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine))


PLAN = ("plan", "--topology", "lab")
SIMULATE = ("simulate", "--topology", "lab", "--collective", "all_gather", "--size", "1M")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("plan", "--topology", "/nonexistent"), ["/nonexistent", "no such file"]),
        (("plan", "--topology", "hgx-h10"), ["did you mean", "hgx-h100"]),
        ((*PLAN, "--size", "16Q"), ["--size", "'16Q'", "16 MiB"]),
        ((*PLAN, "--size", ""), ["--size", "''"]),
        ((*PLAN, "--size", "1M,0"), ["--size", "'1M,0'", "0 bytes", "1 byte or more"]),
        ((*SIMULATE[:-1], "0K"), ["--size", "0 bytes"]),
        ((*PLAN, "--dtype", "bf16,fp61"), ["'fp61'", "did you mean fp16"]),
        ((*PLAN, "--collective", "allgather"), ["'allgather'", "did you mean all_gather"]),
        ((*PLAN, "--dtype", "bf61"), ["'bf61'", "did you mean bf16"]),
        ((*PLAN, "--profile", "gausian"), ["'gausian'", "did you mean gaussian"]),
        ((*PLAN, "--profile", "gaussian:-1"), ["gaussian:-1", "above 0"]),
        ((*PLAN, "--profile", "gaussian:nan"), ["above 0"]),
        ((*PLAN, "--nodes", "0"), ["--nodes", "0"]),
        ((*PLAN, "--gpus", "a,b"), ["--gpus", "0,2,5"]),
        ((*PLAN, "-o", "/nonexistent/plan.json"), ["/nonexistent/plan.json", "cannot write"]),
        (("plan",), ["missing option '--topology'; see ", "plan --help"]),
        ((*PLAN, "--seize", "1M"), ["no such option", "--size", "plan --help"]),
        (("topo", "shwo"), ["'shwo'", "topo --help"]),
        (("paln",), ["'paln'", "did you mean plan"]),
        ((*SIMULATE, "--codec", "nome"), ["'nome'", "raw"]),
        ((*SIMULATE, "--algorithm", "rign"), ["ring"]),
        (("simulate", "--topology", "lab", "--collective", "all", "--size", "1M", "--trace", "t"), ["--trace"]),
        (("explain", "/nonexistent/plan.json"), ["/nonexistent/plan.json", "cannot read"]),
        (("explain", MATRIX), ["not a whole JSON file"]),
        (("explain", LAB), ["not a plan", "zipplan plan --topology"]),
    ],
    ids=lambda v: " ".join(map(str, v))[:40],
)  # fmt: skip
def test_bad_input_is_one_clear_message_and_exit_2(args: tuple[object, ...], words: list[str]) -> None:
    done = zipplan(*args, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("zipplan: error: ")
    for word in words:
        assert word in done.stderr
    assert len(done.stderr) < 1200


def test_nothing_is_left_behind_by_a_failed_command(tmp_path: Path) -> None:
    zipplan(*PLAN, "--size", "16Q", "-o", tmp_path / "plan.json", code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["plan", "explain", "simulate", "topo"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert "Example" in zipplan(command, "--help").stdout
