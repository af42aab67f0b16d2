"""`zipplan plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from zipplan.planner.cli.common import (
    calibration_option,
    cluster_options,
    console,
    json_option,
    print_json,
    profile_option,
    read_cluster,
    read_collectives,
    read_dtypes,
    read_sizes,
    set_option,
    table,
)
from zipplan.planner.cli.step import save_plans, show_step
from zipplan.planner.costs import CODECS
from zipplan.planner.errors import ConfigError
from zipplan.planner.make import make_plan
from zipplan.planner.plan import Plan, write_whole
from zipplan.planner.profiles import parse_profile
from zipplan.planner.settings import Settings
from zipplan.planner.units import format_time, short_size
from zipplan.planner.workload import load_workload, plan_workload, step_trace

# By transport. `zipplan run` and `bench` execute what was planned: ranks on CPUs have no memory or time for 16 GiB.
SIZES = {"nccl": "1K,16K,256K,4M,64M,1G,16G", "gloo": "1K,16K,256K,4M,64M"}


@click.command(
    epilog="Example: zipplan plan --topology hgx-h100 --nodes 8 --collective all --size 1M,16M,256M -o plan.json\n\n"
    "Example: zipplan plan --topology a6000x8-200g --nodes 8 --workload llama3-8b -o plan.json"
)
@cluster_options
@click.option("--collective", default="all", show_default=True, metavar="C[,C…]", help="Collectives, or all.")
@click.option(
    "--size",
    metavar="S[,S…]",
    help=f"Message sizes; 16M is 16 MiB.  [default: {SIZES['nccl']}; with gloo {SIZES['gloo']}]",
)
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    metavar="D[,D…]",
    help=f"Element types, or all: {', '.join(CODECS)}.",
)
@profile_option
@click.option(
    "--workload", metavar="W", help="Plan the collectives of a training step instead: a shipped name or a TOML file."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the plan file here.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --workload: write the step, raw and planned; opens in Perfetto.",
)
@calibration_option
@set_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    collective: str,
    size: str | None,
    dtype: str,
    profile: str,
    workload: str | None,
    output: Path | None,
    trace: Path | None,
    calibration: Path | None,
    changes: tuple[str, ...],
    as_json: bool,
    **where: Any,
) -> None:
    """Choose the fastest schedule for every message size: candidates, verified, simulated, compared."""
    if workload is not None:
        for name in ("collective", "size", "dtype", "profile"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise ConfigError(f"--{name}: the workload says what is sent; give --workload or --{name}, not both")
        settings = Settings.read(changes, calibration)
        step = load_workload(workload)
        planned = plan_workload(step, read_cluster(**where, settings=settings), settings)
        written = save_plans(planned, output)
        if trace is not None:
            write_whole(trace, json.dumps(step_trace(planned), allow_nan=False))
        if as_json:
            print_json(next(iter(planned.plans.values())).document())
        else:
            show_step(planned, written)
            if trace is not None:
                click.echo(f"\ntrace written to {trace}; open it at https://ui.perfetto.dev")
        return
    if trace is not None:
        raise ConfigError("--trace shows the step of a --workload; for one collective: zipplan simulate --trace")
    collectives, dtypes = read_collectives(collective), read_dtypes(dtype)
    sizes = None if size is None else read_sizes(size)
    shape = parse_profile(profile)
    settings = Settings.read(changes, calibration)
    cluster = read_cluster(**where, settings=settings)
    sizes = sizes or read_sizes(SIZES[cluster.transport.kind])
    made = make_plan(cluster, collectives, sizes, dtypes, shape, settings=settings, progress=not as_json)
    if output is not None:
        made.save(output)
    if as_json:
        print_json(made.document())
        return
    show(made)
    if output is not None:
        click.echo(f"\nplan written to {output}; `zipplan explain {output}` says why")


def show(made: Plan) -> None:
    """One row for each planned size: choice, prediction, gain over native, runner-up."""
    where = made.topology
    out = console()
    out.print(f"[bold]{where.name}[/bold]: {where.shape}, {where.transport}")
    columns = [
        ("collective", "left"), ("size", "right"), ("dtype", "left"), ("choice", "left"), ("ratio", "right"),
        ("predicted", "right"), ("range", "right"), ("vs native", "right"), ("runner-up", "left"),
        ("its time", "right"),
    ]  # fmt: skip
    rows = table("", columns)
    for entry in made.entries:
        for choice in entry.choices:
            for point in choice.points:
                native = point.native_ps or point.predicted_ps
                second = point.runner_up
                rows.add_row(
                    entry.collective,
                    short_size(point.size_bytes),
                    entry.dtype,
                    choice.label,
                    f"{choice.expected_ratio:.2f}×",
                    format_time(point.predicted_ps),
                    f"{format_time(point.low_ps)} – {format_time(point.high_ps)}",
                    f"{native / point.predicted_ps:.2f}×" if point.predicted_ps else "n/a",
                    second.label if second else "none",
                    format_time(second.predicted_ps) if second and second.predicted_ps is not None else "",
                )
    out.print(rows)
