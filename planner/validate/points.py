"""Measured points: the columns of topologies/measurements/nccl_points.csv and a map from table to machine."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.schedule import Exchange
from zipplan.planner.transport import STARTS

SMALLEST = 32768
"""Bytes from which a point counts: below, start-up alone decides."""
_NEEDED = ("table_id", "collective", "size_bytes", "time_us")
_MAP_NEEDED = ("table_id", "topology", "nodes", "ranks_per_node")
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv", "allreduce": "all_reduce", "allgather": "all_gather",
          "reducescatter": "reduce_scatter"}  # fmt: skip
_YARDSTICK = re.compile(r"msccl\+\+|raw rdma|not nccl", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Point:
    """Message size in bytes as nccl-tests counts it, time in µs."""

    size: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Table:
    """One published table, or one collective of a log.

    algorithm, channels: what was forced, "auto" and None when nothing was. start: who called NCCL. yardstick: no NCCL,
    so that it does not count in the error.
    """

    name: str
    exchange: Exchange
    topology: str
    nodes: int
    ranks_per_node: int
    points: tuple[Point, ...]
    algorithm: str = "auto"
    channels: int | None = None
    start: str = "process"
    yardstick: bool = False
    source: str = ""

    @property
    def counted(self) -> tuple[Point, ...]:
        """Points that are large enough for the error."""
        return tuple(p for p in self.points if p.size >= SMALLEST)


def exchange_of(name: str, where: str) -> Exchange:
    """From any spelling of nccl-tests or of the tables. Raises ConfigError."""
    plain = name.strip().lower().replace("-", "_")
    plain = _NAMES.get(plain, plain)
    if plain not in {str(e) for e in Exchange}:
        raise ConfigError(f"{where}: unknown collective {name!r}; {nearest(plain, map(str, Exchange))}")
    return Exchange(plain)


def shipped() -> tuple[Traversable, Traversable]:
    """The shipped points and their map."""
    folder = resources.files("zipplan.topologies").joinpath("measurements")
    return folder.joinpath("nccl_points.csv"), folder.joinpath("map.csv")


def read_tables(points: Path | Traversable, mapping: Path | Traversable) -> list[Table]:
    """Tables of a CSV that the map names. Raises ConfigError naming file, line and column."""
    places = {row["table_id"]: (line, row) for line, row in _rows(mapping, _MAP_NEEDED)}
    found: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for line, row in _rows(points, _NEEDED):
        found.setdefault(row["table_id"], []).append((line, row))
    missing = sorted(set(places) - set(found))
    if missing:
        raise ConfigError(f"{mapping}: table {missing[0]!r} is not in {points}; {nearest(missing[0], found)}")
    return [_table(name, found[name], points, *places[name], mapping) for name in places]


def _rows(path: Path | Traversable, needed: Iterable[str]) -> list[tuple[int, dict[str, str]]]:
    text = read_text(path)
    reader = csv.DictReader(text.splitlines())
    lacking = [column for column in needed if column not in (reader.fieldnames or ())]
    if lacking:
        raise ConfigError(f"{path}: no column {lacking[0]!r}; expected at least {', '.join(needed)}")
    rows = [(line, row) for line, row in enumerate(reader, 2) if any(row.values())]
    if not rows:
        raise ConfigError(f"{path}: no rows below the heading")
    for line, row in rows:
        if any(row[column] is None for column in needed):
            raise ConfigError(f"{path} line {line}: fewer columns than the heading")
    return rows


def read_text(path: Path | Traversable) -> str:
    """UTF-8 text. Raises ConfigError for what cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not text; expected CSV, nccl-tests output or its JSON (-J)") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror or error}") from None


def _table(
    name: str,
    rows: list[tuple[int, dict[str, str]]],
    points: Path | Traversable,
    line: int,
    place: dict[str, str],
    mapping: Path | Traversable,
) -> Table:
    first = rows[0][1]
    library = " ".join(first.get(column) or "" for column in ("library", "network"))
    nodes, per_node = (_whole(place, column, f"{mapping} line {line}") for column in ("nodes", "ranks_per_node"))
    kind = first["collective"].removesuffix("_rdma")
    forced = re.search(r"NCCL_ALGO=(\w+)", library)
    channels = re.search(r"(\d+) channel\(s\)", library)
    algorithm = (place.get("algorithm") or (forced[1] if forced else "auto")).lower()
    start = place.get("start") or start_of(library, nodes)
    if start not in STARTS:
        raise ConfigError(f"{mapping} line {line}: start {start!r}; {nearest(start, STARTS)}")
    return Table(
        name,
        exchange_of(kind, f"{points} line {rows[0][0]}"),
        place["topology"],
        nodes,
        per_node,
        tuple(_point(row, f"{points} line {number}") for number, row in rows),
        algorithm,
        int(channels[1]) if channels else None,
        start,
        bool(_YARDSTICK.search(library)) or first["collective"].endswith("_rdma"),
        first.get("source") or "",
    )


def start_of(library: str, nodes: int) -> str:
    """Who called NCCL, from what a table says about the run: torch, `-g N` or nccl-tests without a launcher."""
    if re.search(r"\btorch\b|pytorch", library, re.IGNORECASE):
        return "framework"
    alone = nodes == 1 and "nccl-tests" in library and not re.search(r"mpi|srun|slurm", library, re.IGNORECASE)
    return "threads" if alone or re.search(r"-g [2-9]\b|-g 1\d\b", library) else "process"


def read_points(path: Path) -> Iterator[tuple[Point, dict[str, str], str]]:
    """(point, its row, where it stands) of any CSV with size_bytes and time_us. Raises ConfigError."""
    for line, row in _rows(path, ("size_bytes", "time_us")):
        where = f"{path} line {line}"
        yield _point(row, where), row, where


def _point(row: dict[str, str], where: str) -> Point:
    size = _whole(row, "size_bytes", where)
    try:
        time = float(row["time_us"])
    except ValueError:
        time = -1.0
    if not 0 < time < 1e12:
        raise ConfigError(f"{where}: time_us is {row['time_us']!r}; expected microseconds above 0")
    return Point(size, time)


def _whole(row: dict[str, str], column: str, where: str) -> int:
    text = (row[column] or "").strip()
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{where}: {column} is {text!r}; expected a whole number from 1")
    return int(text)
