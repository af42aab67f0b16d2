"""nccl-tests output, as text or as its JSON report (-J): collective, who called NCCL, points, hosts and GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zipplan.planner.errors import ConfigError
from zipplan.planner.schedule import Exchange
from zipplan.planner.validate.points import Point, exchange_of, read_text, start_of

_PROGRAMS = {
    "all_reduce": Exchange.ALL_REDUCE,
    "all_gather": Exchange.ALL_GATHER,
    "reduce_scatter": Exchange.REDUCE_SCATTER,
    "alltoall": Exchange.ALL_TO_ALL,
    "broadcast": Exchange.BROADCAST,
    "reduce": Exchange.REDUCE,
    "sendrecv": Exchange.SEND_RECV,
}
_PROGRAM = re.compile(rf"\b({'|'.join(sorted(_PROGRAMS, key=len, reverse=True))})_perf(?:_mpi)?\b")
_MPI_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")
_DEVICE = re.compile(r"Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+)$")


@dataclass(frozen=True, slots=True)
class Log:
    """One run of one collective. gpus: host of every rank that the header lists; model: GPU name, "" if not listed."""

    exchange: Exchange
    start: str
    points: tuple[Point, ...]
    hosts: tuple[str, ...] = ()
    model: str = ""


def read_log(path: Path, collective: str | None = None) -> list[Log]:
    """Every run in a file. `collective`: where the text does not name the program. Raises ConfigError."""
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return [_from_json(path, text, collective)]
    logs = list(_from_text(path, text, collective))
    if not logs:
        raise ConfigError(
            f"{path}: no row of nccl-tests in it; expected lines such as '1048576 262144 float sum -1 44.2 23.7 41.5 "
            "0', its JSON report (-J), or CSV with the columns size_bytes,time_us"
        )
    return logs


def _from_text(path: Path, text: str, collective: str | None) -> Iterator[Log]:
    program: Exchange | None = exchange_of(collective, "--collective") if collective else None
    named, gpus_of_process, column = program is not None, 1, None
    points: list[Point] = []
    devices: list[tuple[str, str]] = []

    def finished() -> Iterator[Log]:
        if points:
            if program is None:
                raise ConfigError(
                    f"{path}: the text does not say which collective ran; name it, such as --collective all_reduce"
                )
            start = "threads" if gpus_of_process > 1 else "process"
            hosts = tuple(host for host, _ in devices)
            yield Log(program, start, tuple(points), hosts, devices[0][1] if devices else "")

    for number, raw in enumerate(text.splitlines(), 1):
        line = _MPI_PREFIX.sub("", raw).strip()
        if (found := _PROGRAM.search(line)) and not named and "concluded" not in line:
            if points:
                yield from finished()
                points, devices = [], []
            program = _PROGRAMS[found[1]]
        if header := re.search(r"nThread\s+(\d+)\s+nGpus\s+(\d+)", line):
            if points:
                yield from finished()
                points, devices = [], []
            gpus_of_process = int(header[1]) * int(header[2])
        elif device := _DEVICE.search(line):
            devices.append((device[1], device[2].strip()))
        elif line.startswith("#") and "size" in line and "count" in line:
            names = line.lstrip("# ").split()
            column = next((i for i, name in enumerate(names) if name in ("time", "cputime")), None)
        elif (point := _row(line.split(), column)) is not None:
            points.append(_checked(point, f"{path} line {number}"))
    yield from finished()


def _row(words: list[str], column: int | None) -> tuple[int, float] | None:
    """(bytes, µs out of place) of one row; None for any other line and for rows of 0 bytes."""
    if len(words) < 7 or not (words[0].isdecimal() and words[1].isdecimal()) or words[2][:1].isdigit():
        return None
    if column is None:
        column = next((i for i in range(3, len(words)) if re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?", words[i])), None)
    if column is None or column >= len(words):
        return None
    for at in (column, column + 4):  # out of place; where that was not run, in place
        try:
            return (int(words[0]), float(words[at])) if int(words[0]) else None
        except (ValueError, IndexError):
            continue
    return None


def _from_json(path: Path, text: str, collective: str | None) -> Log:
    try:
        report = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} line {error.lineno}: not JSON ({error.msg}); was the run cut off?") from None
    results = report.get("results")
    if not isinstance(results, list) or not results:
        raise ConfigError(f'{path}: no "results" in it; expected the report that nccl-tests writes with -J')
    called = " ".join(map(str, report.get("args", [])))
    found = _PROGRAM.search(called)
    if collective is None and found is None:
        raise ConfigError(
            f'{path}: "args" names no nccl-tests program; name the collective, such as --collective all_reduce'
        )
    exchange = exchange_of(collective, "--collective") if collective else _PROGRAMS[found[1]]  # type: ignore[index]
    config: Mapping[str, Any] = report.get("config") or {}
    devices = [d for d in config.get("devices") or report.get("devices") or [] if isinstance(d, dict)]
    points = []
    for number, result in enumerate(results):
        body = result.get("out_of_place") or result.get("in_place") if isinstance(result, dict) else None
        if not isinstance(body, dict) or not isinstance(result.get("size"), int):
            raise ConfigError(f"{path}: results[{number}] has no size and out_of_place.time")
        if result["size"]:
            points.append(
                _checked((result["size"], body.get("time", body.get("cpu_time"))), f"{path} results[{number}]")
            )
    single = int(config.get("nthreads", 1)) * int(config.get("ngpus", 1)) > 1
    return Log(
        exchange,
        "threads" if single else "process",
        tuple(points),
        tuple(str(d.get("hostname", "")) for d in devices),
        str(devices[0].get("device_info", "")) if devices else "",
    )


def _checked(point: tuple[int, Any], where: str) -> Point:
    size, time = point
    if not isinstance(time, int | float) or not 0 < time < 1e12:
        raise ConfigError(f"{where}: time is {time!r}; expected microseconds above 0")
    return Point(size, float(time))


def read_plain_csv(path: Path, collective: str | None) -> list[Log]:
    """CSV with size_bytes, time_us and, unless `collective` says it, collective. Raises ConfigError."""
    from zipplan.planner.validate.points import read_points

    runs: dict[Exchange, list[Point]] = {}
    texts: list[str] = []
    for point, row, where in read_points(path):
        name = collective or row.get("collective")
        if not name:
            raise ConfigError(f"{path}: no column 'collective'; add it, or name it, such as --collective all_reduce")
        runs.setdefault(exchange_of(name, where), []).append(point)
        texts.append(row.get("library") or "")
    start = start_of(" ".join(dict.fromkeys(texts)), 1)
    return [Log(exchange, start, tuple(points)) for exchange, points in runs.items()]
