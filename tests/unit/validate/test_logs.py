"""nccl-tests output as it is found: old and new headers, MPI prefixes, several runs, JSON, CSV; and what is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Exchange
from zipplan.planner.validate.logs import read_log, read_plain_csv
from zipplan.planner.validate.points import Point, start_of

GOLDEN = Path(__file__).parents[2] / "golden" / "nccl_tests"


def test_text_of_2021_has_no_root_column_and_no_program_name() -> None:
    (log,) = read_log(GOLDEN / "all_reduce_2021.log", "all_reduce")
    assert log.exchange is Exchange.ALL_REDUCE
    assert log.start == "threads"
    assert log.hosts == ("localhost",) * 8
    assert log.model == "A100-SXM4-40GB"
    assert log.points[1:3] == (Point(16777216, 226.0), Point(134217728, 1162.2))
    with pytest.raises(ConfigError, match=r"does not say which collective ran.*--collective"):
        read_log(GOLDEN / "all_reduce_2021.log")


def test_two_runs_under_mpi_with_timestamps() -> None:
    gather, exchange = read_log(GOLDEN / "two_runs_mpi.log")
    assert (gather.exchange, exchange.exchange) == (Exchange.ALL_GATHER, Exchange.ALL_TO_ALL)
    assert gather.start == exchange.start == "process"
    assert gather.hosts == ("node-a", "node-b")
    assert gather.points == (Point(1048576, 57.1), Point(4194304, 104.2))
    assert exchange.points == (Point(1048576, 61.5),)


def test_json_report_takes_in_place_where_out_of_place_is_missing() -> None:
    (log,) = read_log(GOLDEN / "report.json")
    assert log.exchange is Exchange.REDUCE_SCATTER
    assert log.start == "threads"
    assert log.points == (Point(1048576, 72.37), Point(2097152, 80.64))


def test_plain_csv(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("size_bytes,time_us,collective\n1048576,40.5,all_reduce\n2097152,60,alltoall\n")
    assert [log.exchange for log in read_plain_csv(path, None)] == [Exchange.ALL_REDUCE, Exchange.ALL_TO_ALL]
    path.write_text("size_bytes,time_us\n1048576,40.5\n")
    assert read_plain_csv(path, "all_gather")[0].points == (Point(1048576, 40.5),)
    with pytest.raises(ConfigError, match="no column 'collective'"):
        read_plain_csv(path, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no row of nccl-tests"),
        ("# all_reduce_perf\nhello\n", "no row of nccl-tests"),
        ("all_reduce_perf\n 1024 256 float sum -1 -3.0 1.0 1.0 0 1.0 1.0 1.0 0", "line 2: time is -3.0"),
        ('{"results": []}', 'no "results"'),
        ('{"args": ["a"], "results": [{"size": 1}]}', "names no nccl-tests program"),
        ('{"args": ["all_reduce_perf"], "results": [{"size": 1}]}', r"results\[0\] has no size"),
        (
            '{"args": ["all_reduce_perf"], "results": [{"size": 1, "out_of_place": {"time": "nan"}}]}',
            r"results\[0\]: time is 'nan'",
        ),
        ('{"args": [', "not JSON .*cut off"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_log(path)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    for path, message in (
        (tmp_path / "binary", "not text"),
        (tmp_path / "none", "cannot read"),
        (tmp_path, "cannot read"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_log(path)


@given(st.text(max_size=300))
def test_no_text_makes_it_crash(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_text(text, encoding="utf-8")
    if not re.search(r"^\s*\d+\s+\d+\s", text):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            read_log(path)


@pytest.mark.parametrize(
    ("library", "nodes", "start"),
    [
        ("NCCL version not printed (2021 nccl-tests, 1 process -g 8)", 1, "threads"),
        ("torch 2.9.1+cu130, NCCL 2.27.7, all_reduce_bench.py", 1, "framework"),
        ("NCCL 2.23.4, aws-ofi-nccl 1.13.0, -w 8 -n 24", 1, "process"),
        ("nccl-tests under srun", 1, "process"),
        ("nccl-tests", 2, "process"),
    ],
)
def test_who_called_nccl(library: str, nodes: int, start: str) -> None:
    assert start_of(library, nodes) == start
