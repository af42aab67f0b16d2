"""`zipplan validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zipplan.planner.cli.common import console, json_option, print_json, table
from zipplan.planner.errors import ConfigError, TopologyError
from zipplan.planner.units import format_size, format_time
from zipplan.planner.validate.compare import LARGE, Compared, Summary, cluster_of, compare
from zipplan.planner.validate.points import Table, read_tables, shipped


@click.command(
    epilog="Example: zipplan validate all_reduce.log --topology hgx-h100 --nodes 2\n\nWithout FILE: the shipped "
    "tables, or those of --points and --map."
)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))
@click.option("--topology", metavar="T", help="Machine that FILE was measured on: shipped name, TOML or topology text.")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Nodes of FILE (default: hosts named in it, or 1).")
@click.option("--ranks-per-node", type=click.IntRange(1), metavar="K", help="Ranks per node of FILE (default: all).")
@click.option("--collective", metavar="C", help="Collective of FILE, where its text does not say.")
@click.option("--points", type=click.Path(path_type=Path), metavar="CSV", help="Tables of your own; needs --map.")
@click.option(
    "--map", "mapping", type=click.Path(path_type=Path), metavar="CSV",
    help="table_id,topology,nodes,ranks_per_node[,algorithm,start]",
)  # fmt: skip
@click.option("--fit", is_flag=True, help="Fit the constants to the tables and print them beside the present ones.")
@click.option("--left-out", is_flag=True, help="Fit without each table in turn and print its error then (20 minutes).")
@json_option
def validate(
    files: tuple[Path, ...],
    topology: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    collective: str | None,
    points: Path | None,
    mapping: Path | None,
    fit: bool,
    left_out: bool,
    as_json: bool,
) -> None:
    """Hold the simulator against measurements, or a measurement of yours against the simulator.

    FILE is what nccl-tests prints, its JSON report (-J), or CSV with the columns size_bytes and time_us.
    """
    if files:
        if points or mapping or fit or left_out:
            raise ConfigError("give either FILE, or --points with --map")
        from zipplan.planner.cli.validate_log import judge

        judge(files, topology, nodes, ranks_per_node, collective, as_json)
        return
    if topology or nodes or ranks_per_node or collective:
        raise ConfigError("--topology, --nodes, --ranks-per-node and --collective describe a FILE; none was given")
    if (points is None) != (mapping is None):
        raise ConfigError("--points and --map belong together")
    tables = read_tables(points, mapping) if points and mapping else read_tables(*shipped())
    if fit or left_out:
        from zipplan.planner.validate.fit import fitted, unseen

        for line in fitted(tables) if fit else unseen(tables):
            click.echo(line)
        return
    compared, skipped = compare_all(tables)
    data = report(compared, skipped)
    if as_json:
        print_json(data)
    else:
        _show(data)


def compare_all(tables: list[Table]) -> tuple[list[Compared], dict[str, str]]:
    """(compared tables, why others could not be built). Raises TopologyError when none can."""
    compared, skipped = [], {}
    for one in tables:
        try:
            cluster_of(one.topology, one.nodes, one.ranks_per_node)
            compared.append(compare(one))
        except (TopologyError, ConfigError) as error:
            skipped[one.name] = str(error)
    if tables and not compared:
        raise TopologyError(f"no table can be simulated; the first: {next(iter(skipped.items()))}")
    return compared, skipped


def report(compared: list[Compared], skipped: dict[str, str]) -> dict[str, Any]:
    """Everything that `--json` prints."""
    counted = [c for c in compared if not c.table.yardstick and c.rows]
    rows = [row for c in counted for row in c.rows]
    return {
        "schema": 1,
        "tables": [_table(c) for c in counted],
        "overall": {
            **_errors(Summary.of(rows)),
            "large": _errors(Summary.of(row for row in rows if row.size >= LARGE)),
            "without_abnormal": _errors(Summary.of(row for row in rows if not row.abnormal)),
        },
        "abnormal": [
            {"table_id": c.table.name, "size_bytes": row.size, "measured_us": row.measured_us,
             "simulated_us": round(row.simulated_us, 3), "rule": row.abnormal}
            for c in counted for row in c.rows if row.abnormal
        ],
        "yardsticks": [_table(c) for c in compared if c.table.yardstick and c.rows],
        "skipped": [{"table_id": name, "reason": reason} for name, reason in skipped.items()],
    }  # fmt: skip


def _table(compared: Compared) -> dict[str, Any]:
    one = compared.table
    return {
        "table_id": one.name,
        "collective": str(one.exchange),
        "topology": one.topology,
        "nodes": one.nodes,
        "ranks": one.nodes * one.ranks_per_node,
        "start": one.start,
        "algorithm": one.algorithm,
        **_errors(Summary.of(compared.rows)),
        "abnormal_points": sum(bool(row.abnormal) for row in compared.rows),
        "source": one.source,
    }


def _errors(summary: Summary) -> dict[str, Any]:
    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 2)

    return {
        "points": summary.points,
        "median_abs_error_pct": rounded(summary.median),
        "p90_abs_error_pct": rounded(summary.p90),
        "bias_pct": rounded(summary.bias),
        "nccl_median_abs_error_pct": rounded(summary.nccl_median),
        "nccl_p90_abs_error_pct": rounded(summary.nccl_p90),
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _show(data: dict[str, Any]) -> None:
    out = console()
    columns = [
        ("table", "left"), ("collective", "left"), ("machine", "left"), ("nodes", "right"), ("ranks", "right"),
        ("points", "right"), ("median %", "right"), ("p90 %", "right"), ("bias %", "right"),
        ("NCCL's model: median %", "right"), ("p90 %", "right"), ("abnormal", "right"),
    ]  # fmt: skip
    made = table("|simulated / measured − 1|, points from 32 KiB", columns)
    for r in [*data["tables"], *({**y, "table_id": f"{y['table_id']} (no NCCL)"} for y in data["yardsticks"])]:
        made.add_row(
            r["table_id"], r["collective"], r["topology"], str(r["nodes"]), str(r["ranks"]), str(r["points"]),
            _percent(r["median_abs_error_pct"]), _percent(r["p90_abs_error_pct"]), _percent(r["bias_pct"]),
            _percent(r["nccl_median_abs_error_pct"]), _percent(r["nccl_p90_abs_error_pct"]), str(r["abnormal_points"]),
        )  # fmt: skip
    out.print(made)
    overall = data["overall"]
    for name, part in (("all points", overall), ("from 256 MiB", overall["large"]),
                       ("without abnormal points", overall["without_abnormal"])):  # fmt: skip
        if part["points"]:
            out.print(
                f"{name} ({part['points']}): median {_percent(part['median_abs_error_pct'])} %, "
                f"p90 {_percent(part['p90_abs_error_pct'])} %, bias {_percent(part['bias_pct'])} %; "
                f"NCCL's own model: median {_percent(part['nccl_median_abs_error_pct'])} %, "
                f"p90 {_percent(part['nccl_p90_abs_error_pct'])} %"
            )
    for bad in data["abnormal"]:
        times = f"{format_time(bad['measured_us'] * 1e6)}, simulated {format_time(bad['simulated_us'] * 1e6)}"
        out.print(f"abnormal: {bad['table_id']} at {format_size(bad['size_bytes'])}: {times} ({bad['rule']})")
    for one in data["skipped"]:
        out.print(f"skipped: {one['table_id']}: {one['reason']}")
