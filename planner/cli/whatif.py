"""`zipplan whatif`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, TypedDict

import click
from rich.console import Console
from rich.progress import Progress

from zipplan.planner.cli.common import (
    calibration_option,
    cluster_options,
    console,
    dtype_option,
    json_option,
    print_json,
    profile_option,
    read_collectives,
    read_dtype,
    read_gpus,
    read_sizes,
    set_option,
    table,
    warn,
)
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import write_whole, zipplan_version
from zipplan.planner.profiles import parse_profile
from zipplan.planner.settings import Settings, rows
from zipplan.planner.topology import load_described
from zipplan.planner.units import format_time
from zipplan.planner.whatif import Case, Outcome, StepCase, Study, Where, read_sweep, run
from zipplan.planner.whatif.study import JOB, cache_folder
from zipplan.planner.workload import load_workload


class _Used(TypedDict):
    nodes: int | None
    ranks_per_node: int | None
    gpus: tuple[int, ...] | None
    settings: Settings


def _keys() -> str:
    lines = [f"  {key:27} {values:27} {about}" for key, values, about in rows()]
    lines += [f"  {key:27} {example:27} {about} (--sweep only)" for key, (_, example, about) in JOB.items()]
    return "\b\nKeys, each with what it takes; 0.5x is half of what the machine has:\n" + "\n".join(lines)


EXAMPLE = (
    "\b\nExample: zipplan whatif --topology a6000x8-200g --nodes 8 --collective all_to_all --size 64M\n"
    "         --sweep codec.speed=0.25x,0.5x,1x,2x --sweep link.nic.bandwidth=100Gb/s,200Gb/s,400Gb/s -o report.html"
)


@click.command(epilog=f"{EXAMPLE}\n\n{_keys()}")
@cluster_options
@click.option("--collective", metavar="C", help="Plan one collective, or")
@click.option("--workload", metavar="W", help="a training step: a shipped name or a TOML file.")
@click.option("--size", default="64M", show_default=True, metavar="S", help="Message size; 16M is 16 MiB.")
@dtype_option
@profile_option
@calibration_option
@set_option
@click.option(
    "--sweep", "sweeps", multiple=True, required=True, metavar="KEY=V,V,…", help="Values to try; several: all pairs."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML report here.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep outcomes in this folder; a killed run goes on from there.  [default: whatif in "
    "ZIPPLAN_CACHE_DIR, else in XDG_CACHE_HOME/zipplan or ~/.cache/zipplan]",
)
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, metavar="N", help="Processes.")
@click.option("--no-map", is_flag=True, help="Leave the map of link rate × codec speed out of the report.")
@json_option
def whatif(
    topology: str,
    gpu: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    gpus: str | None,
    collective: str | None,
    workload: str | None,
    size: str,
    dtype: str,
    profile: str,
    calibration: Path | None,
    changes: tuple[str, ...],
    sweeps: tuple[str, ...],
    output: Path | None,
    cache: Path | None,
    jobs: int,
    no_map: bool,
    as_json: bool,
) -> None:
    """Plan one collective or training step again and again while parameters change: where does compression pay?"""
    described, settings, chosen = (
        load_described(topology, gpu=gpu),
        Settings.read(changes, calibration),
        read_gpus(gpus),
    )
    warn(topology, described)
    machine = described.machine
    used = _Used(nodes=nodes, ranks_per_node=ranks_per_node, gpus=chosen, settings=settings)
    base: Where
    if workload is not None and collective is None:
        base = StepCase(machine, load_workload(workload), **used)
    elif collective is not None and workload is None:
        collectives, sizes = read_collectives(collective), read_sizes(size)
        if len(collectives) * len(sizes) != 1:
            raise ConfigError("--collective, --size: one of each; for more use --sweep collective=… and --sweep size=…")
        base = Case(machine, collectives[0], sizes[0], read_dtype(dtype), parse_profile(profile).text, **used)
    else:
        raise ConfigError("say what to plan: either --collective or --workload")
    study = Study(base, tuple(read_sweep(text) for text in sweeps))
    cache = cache or cache_folder()
    cases = study.cases()
    outcomes = _run(cases, cache, jobs, "planning")
    if output is not None:
        from zipplan.planner.report import render, speed_map

        shown = max(range(len(cases)), key=lambda i: outcomes[i].gain)
        chart = None if no_map else speed_map(cases[shown])
        map_outcomes = None if chart is None else _run(chart.cases(), cache, jobs, "mapping")
        write_whole(output, render(study, outcomes, shown, chart, map_outcomes))
    document = _document(study, cases, outcomes)
    if as_json:
        print_json(document)
        return
    _show(study, cases, outcomes)
    if output is not None:
        click.echo(f"\nreport written to {output}; outcomes kept in {cache}")


def _run(cases: list[Where], cache: Path, jobs: int, what: str) -> list[Outcome]:
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=len(cases))
        return run(cases, cache=cache, jobs=jobs, each=lambda: bar.advance(task))


def _document(study: Study, cases: list[Where], outcomes: list[Outcome]) -> dict[str, Any]:
    base = study.base
    found = []
    for case, outcome in zip(cases, outcomes, strict=True):
        found.append(
            {
                "at": dict(case.at),
                "choice": outcome.choice,
                "time_us": round(outcome.time / 1e6, 3),
                "native_us": round(outcome.native / 1e6, 3),
                "speedup": round(outcome.gain, 4),
                "busiest": outcome.busiest,
                "candidates": [
                    {"name": name, "time_us": round(time / 1e6, 3), "reason": why}
                    for name, time, why in outcome.candidates
                ],
                "dropped": [{"name": name, "reason": why} for name, why in outcome.dropped],
            }
        )
    return {
        "schema": 1,
        "made_by": f"zipplan {zipplan_version()}",
        "topology": base.machine.name,
        "planned": base.what,
        "set": dict(base.settings.values),
        "sweeps": {key: list(values) for key, values in study.sweeps},
        "rows": found,
    }


def _show(study: Study, cases: list[Where], outcomes: list[Outcome]) -> None:
    out, base = console(), study.base
    changed = f", {base.settings}" if base.settings.values else ""
    out.print(f"[bold]{base.machine.name}[/bold]: {base.what}{changed}, simulated")
    columns = [(key, "right") for key, _ in study.sweeps]
    columns += [
        ("choice", "left"),
        ("predicted", "right"),
        ("native", "right"),
        ("vs native", "right"),
        ("bound by", "left"),
    ]
    made = table("", columns)
    for case, outcome in zip(cases, outcomes, strict=True):
        made.add_row(
            *(value for _, value in case.at), outcome.choice, format_time(outcome.time), format_time(outcome.native),
            f"{outcome.gain:.2f}×", outcome.busiest.removeprefix("busiest "),
        )  # fmt: skip
    out.print(made)
