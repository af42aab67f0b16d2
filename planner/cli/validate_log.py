"""The half of `zipplan validate` that judges a user's own log: is my number normal?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from zipplan.planner.bandwidth import bus_factor, gigabytes_per_second
from zipplan.planner.cli.common import console, print_json, table
from zipplan.planner.errors import ConfigError, TopologyError
from zipplan.planner.schedule import Exchange
from zipplan.planner.topology import Cluster, Machine, build_cluster, load_machine
from zipplan.planner.units import format_size, format_time
from zipplan.planner.validate.compare import Row, predict
from zipplan.planner.validate.diagnose import EXPLAINS, NORMAL, NORMAL_LARGE, Cause, causes, slow_points, verdict
from zipplan.planner.validate.logs import Log, read_log, read_plain_csv
from zipplan.planner.validate.points import SMALLEST, Table


def judge(
    files: Sequence[Path],
    topology: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    collective: str | None,
    as_json: bool,
) -> None:
    """Print a verdict per size of every run in the files, and what usually causes the gap."""
    if topology is None:
        raise ConfigError("--topology is needed to judge a log: a shipped name (`zipplan topo list`), or a file")
    machine = load_machine(topology)
    runs = []
    for path in files:
        logs = read_plain_csv(path, collective) if path.suffix.lower() == ".csv" else read_log(path, collective)
        runs += [_run(path, log, machine, topology, nodes, ranks_per_node) for log in logs]
    if as_json:
        print_json({"schema": 1, "runs": [run for run, _ in runs]})
        return
    for run, found in runs:
        _show(run, found)


def _run(
    path: Path, log: Log, machine: Machine, topology: str, nodes: int | None, ranks_per_node: int | None
) -> tuple[dict[str, Any], list[Cause]]:
    cluster = _cluster(path, log, machine, nodes, ranks_per_node)
    one = Table(str(path), log.exchange, topology, cluster.nodes, cluster.ranks_per_node, log.points, start=log.start)
    rows = sorted(predict(one, cluster), key=lambda row: row.size)
    if not rows:
        raise ConfigError(
            f"{path}: no point from {format_size(SMALLEST)} on; smaller ones only show the start of a call"
        )
    found = causes(one, machine, cluster, rows)
    run = {
        "file": str(path),
        "collective": str(log.exchange),
        "topology": machine.name,
        "nodes": cluster.nodes,
        "ranks": cluster.ranks,
        "start": log.start,
        "points": [_point(row, log.exchange, cluster.ranks) for row in rows],
        "slow_points": len(slow_points(rows)),
        "causes": [
            {"name": c.defect.name, "distance_pct": round(100 * c.distance, 1), "advice": c.defect.advice}
            for c in found
        ],
    }
    return run, found


def _cluster(path: Path, log: Log, machine: Machine, nodes: int | None, ranks_per_node: int | None) -> Cluster:
    """The cluster of a run: what the header of the log lists, else what was said. Raises ConfigError."""
    hosts = len(dict.fromkeys(log.hosts))
    if hosts and nodes and nodes != hosts:
        raise ConfigError(
            f"{path}: its header lists {len(log.hosts)} ranks on {hosts} host{'' if hosts == 1 else 's'} "
            f"({', '.join(list(dict.fromkeys(log.hosts))[:4])}), --nodes says {nodes}; leave --nodes out"
        )
    nodes = nodes or hosts or 1
    if ranks_per_node is None and log.hosts and len(log.hosts) % nodes == 0:
        ranks_per_node = len(log.hosts) // nodes
    try:
        cluster = build_cluster(machine, nodes=nodes, ranks_per_node=ranks_per_node)
    except TopologyError as error:
        raise ConfigError(f"{path}: the run does not fit {machine.name}: {error}") from None
    if log.hosts and len(log.hosts) != cluster.ranks:
        raise ConfigError(
            f"{path}: its header lists {len(log.hosts)} ranks on {hosts} hosts, {machine.name} with {nodes} nodes has "
            f"{cluster.ranks}; give --nodes and --ranks-per-node as they were"
        )
    return cluster


def _point(row: Row, exchange: Exchange, ranks: int) -> dict[str, Any]:
    gap = row.measured_us / row.simulated_us
    algbw = gigabytes_per_second(row.size, round(row.measured_us * 1e6))
    expected = gigabytes_per_second(row.size, round(row.simulated_us * 1e6))
    factor = bus_factor(exchange, ranks)
    return {
        "size_bytes": row.size,
        "measured_us": row.measured_us,
        "expected_us": round(row.simulated_us, 3),
        "measured_busbw_GBps": round(algbw * factor, 2),
        "expected_busbw_GBps": round(expected * factor, 2),
        "gap": round(gap, 3),
        "verdict": verdict(row),
        "algorithm": row.algorithm,
        "protocol": row.protocol,
    }


def _show(run: dict[str, Any], found: list[Cause]) -> None:
    out = console()
    columns = [
        ("size", "right"), ("measured", "right"), ("expected", "right"), ("busbw (GB/s)", "right"),
        ("expected (GB/s)", "right"), ("verdict", "left"), ("NCCL runs", "left"),
    ]  # fmt: skip
    title = f"{run['file']}: {run['collective']}, {run['topology']}, {run['nodes']} nodes, {run['ranks']} ranks"
    made = table(title, columns)
    for p in run["points"]:
        gap = p["gap"]
        words = p["verdict"] if p["verdict"] == "normal" else f"{p['verdict']}, {gap:.3g}× the time"
        made.add_row(
            format_size(p["size_bytes"]), format_time(p["measured_us"] * 1e6), format_time(p["expected_us"] * 1e6),
            f"{p['measured_busbw_GBps']:.1f}", f"{p['expected_busbw_GBps']:.1f}", words,
            f"{p['algorithm']} {p['protocol']}",
        )  # fmt: skip
    out.print(made)
    allowed = f"within {NORMAL:.0%}, from 256 MiB within {NORMAL_LARGE:.0%}"
    total, slow = len(run["points"]), run["slow_points"]
    if not slow:
        click.echo(f"\nnormal: every size takes what a healthy {run['topology']} needs ({allowed})")
        return
    click.echo(f"\n{slow} of {total} sizes take longer than a healthy {run['topology']} needs ({allowed})")
    likely = [cause for cause in found if cause.distance <= EXPLAINS]
    if not likely:
        click.echo("no usual cause comes near: NVLink or peer-to-peer off, NICs missing, NVLS off, wrong rail")
    for rank, cause in enumerate(likely[:3]):
        lead = "closest" if rank == 0 else "next"
        click.echo(f"{lead}: {cause.defect.name} ({cause.distance:.0%} away); {cause.defect.advice}")
