"""`zipplan explain`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table

from zipplan.planner.cli.common import (
    calibration_option,
    console,
    gpu_option,
    json_option,
    print_json,
    read_cluster,
    read_collectives,
    read_gpus,
    read_sizes,
    set_option,
)
from zipplan.planner.errors import ConfigError, PlanError
from zipplan.planner.make import calibration_of
from zipplan.planner.plan import Entry, Plan, Point, Range
from zipplan.planner.schedule import Op, Stage
from zipplan.planner.settings import Settings
from zipplan.planner.topology import load_machine
from zipplan.planner.units import format_bandwidth, format_time, short_size
from zipplan.planner.whatif import Case, Flip, sensitivity
from zipplan.planner.whatif.levers import REACH

WIDTH = 100  # columns where the output is no terminal; a terminal has its own


@click.command(
    epilog="Example: zipplan explain plan.json --collective all_gather --size 16M\n\n"
    "Example: zipplan explain plan.json --size 16M --topology hgx-h100"
)
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--collective", metavar="C", help="Only this collective.")
@click.option("--size", metavar="S", help="Only the planned size nearest to this one.")
@click.option(
    "--topology", metavar="T", help="The machine of the plan: then also what must change for another schedule to win."
)
@gpu_option
@click.option("--gpus", metavar="LIST", help="The GPUs of each node that the plan was made for.")
@calibration_option
@set_option
@json_option
def explain(
    plan_file: Path,
    collective: str | None,
    size: str | None,
    topology: str | None,
    gpu: str | None,
    gpus: str | None,
    calibration: Path | None,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show choice, margin and break-even sizes of a plan, and why every rejected candidate lost."""
    plan = Plan.load(plan_file)
    wanted = read_collectives(collective) if collective else [e.collective for e in plan.entries]
    entries = [e for e in plan.entries if e.collective in wanted]
    if not entries:
        have = ", ".join(dict.fromkeys(e.collective for e in plan.entries))
        raise ConfigError(f"--collective: {plan_file} has no table for {collective}; it has {have}")
    near = read_sizes(size)[0] if size else None
    shown = [(entry, row, point) for entry in entries for row in entry.choices for point in _points(row, near, entry)]
    flips: dict[int, list[Flip]] = {}
    if topology is not None:
        settings = Settings.read(changes, calibration)
        _same_machine(plan, plan_file, topology, gpu, gpus, settings)
        machine = load_machine(topology, gpu=gpu)
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            for entry, _, point in bar.track(shown, description="what if"):
                case = Case(machine, entry.collective, point.size_bytes, entry.dtype, entry.tensor_class,
                            nodes=plan.topology.nodes, ranks_per_node=plan.topology.ranks_per_node,
                            gpus=read_gpus(gpus), settings=settings)  # fmt: skip
                flips[id(point)] = sensitivity(case)
    elif changes or gpu or gpus or calibration:
        raise ConfigError("--set, --gpu, --gpus, --calibration: these describe the machine, so they need --topology")
    if as_json:
        documents = [_document(e, near, flips) for e in entries]
        print_json({"schema": 1, "plan": plan.hash, "entries": documents})
        return
    out = console(WIDTH)
    out.print(f"[bold]{plan_file}[/bold]: {plan.topology.name}, {plan.topology.shape}, {plan.topology.transport}")
    out.print(
        f"made by {plan.made_by}, calibration: {plan.calibration}\n"
        f"{plan.hash[:19]}…, topology {plan.topology.fingerprint[:19]}…"
    )
    for entry in entries:
        out.print(f"\n[bold]{entry.collective}[/bold] of {entry.dtype} ({entry.tensor_class})")
        for row in entry.choices:
            _show_range(row, near, entry, flips)


def _same_machine(plan: Plan, path: Path, topology: str, gpu: str | None, gpus: str | None, settings: Settings) -> None:
    """Sensitivity of another machine would be a wrong answer. Raises PlanError with both fingerprints."""
    where = plan.topology
    per_node = None if gpus else where.ranks_per_node
    cluster = read_cluster(topology, gpu, where.nodes, per_node, gpus, settings)
    advice = "give the topology and the --set that the plan was made with"
    if cluster.fingerprint != where.fingerprint:
        raise PlanError(
            f"{path} was made for {where.name} {where.fingerprint[:19]}…, --topology {topology} is "
            f"{cluster.machine.name} {cluster.fingerprint[:19]}…, another machine or other constants; {advice}"
        )
    if calibration_of(settings) != plan.calibration:
        raise PlanError(f"{path}: codec as in {plan.calibration!r}, here {calibration_of(settings)!r}; {advice}")


def _points(row: Range, near: int | None, entry: Entry) -> list[Point]:
    """Points of a range that were asked for."""
    if near is None:
        return list(row.points)
    closest = min(entry.sizes_planned, key=lambda s: abs(s - near))
    return [p for p in row.points if p.size_bytes == closest]


def _show_range(row: Range, near: int | None, entry: Entry, flips: dict[int, list[Flip]]) -> None:
    points = _points(row, near, entry)
    if not points:
        return
    out = console(WIDTH)
    until = "∞" if row.stop is None else short_size(row.stop)
    out.print(f"  sizes [{short_size(row.start)}, {until}): [bold]{row.label}[/bold], ratio {row.expected_ratio:.3f}")
    stages = " → ".join(_stage_text(s, points[0]) for s in row.schedule.stages)
    out.print(Padding(stages, (0, 0, 0, 4), expand=False), style="dim")
    names = max(len(r.label) for p in points for r in p.rejected) if any(p.rejected for p in points) else 0
    for point in points:
        span = f"{format_time(point.low_ps)} – {format_time(point.high_ps)}"
        scratch = f"scratch ≤ {short_size(point.scratch_bytes)}"
        out.print(
            f"    [bold]{short_size(point.size_bytes)}: {format_time(point.predicted_ps)}[/bold] ({span}), {scratch}"
        )
        out.print(Padding(f"chosen{_margin(point)}", (0, 0, 0, 6), expand=False))
        losers = Table.grid(padding=(0, 2, 0, 0))
        losers.add_column(min_width=names, no_wrap=True)
        losers.add_column(min_width=len("999 ms"), justify="right", no_wrap=True)
        losers.add_column()
        for loser in point.rejected:
            time = "" if loser.predicted_ps is None else format_time(loser.predicted_ps)
            losers.add_row(loser.label, time, loser.reason)
        out.print(Padding(losers, (0, 0, 0, 6), expand=False))
        for line in (*_codec_lines(point), *_flip_lines(flips.get(id(point), []))):
            out.print(Padding(line, (0, 0, 0, 6), expand=False), style="dim")


def _margin(point: Point) -> str:
    second, margin = point.runner_up, point.margin
    if second is None or margin is None:
        return ""
    return (
        f", {margin:.0%} ahead of {second.label}" if margin >= 0 else f" though {second.label} is {-margin:.0%} faster"
    )


def _codec_lines(point: Point) -> Iterator[str]:
    """What codec would break even (field case F030)."""
    if any(r.codec != "raw" for r in point.rejected) or point.codec_break_even:
        yield (
            f"compression pays from a codec of {format_bandwidth(point.codec_break_even)} each way, "
            "stages one after another"
            if point.codec_break_even
            else "no codec is fast enough to pay: what else the compressed schedules cost is more than native takes"
        )


def _flip_lines(flips: list[Flip]) -> Iterator[str]:
    for flip in flips:
        if flip.factor is not None:
            yield flip.text
    still = [key for key in dict.fromkeys(f.key for f in flips) if all(f.factor is None for f in flips if f.key == key)]
    if still:
        yield f"no other choice from 1/{REACH:g}× to {REACH:g}× of: {', '.join(still)}"


def _stage_text(stage: Stage, point: Point) -> str:
    if stage.op is not Op.EXCHANGE:
        return str(stage.op)
    carried = " ".join(("", *point.carried.get(stage.name, ())))
    return f"{stage.exchange}({stage.axis}, {stage.payload}{',' if carried else ''}{carried})"


def _document(entry: Entry, near: int | None, flips: dict[int, list[Flip]]) -> dict[str, Any]:
    rows = []
    for row in entry.choices:
        points = [_point_document(p, flips) for p in _points(row, near, entry)]
        if points:
            rows.append({"start": row.start, "stop": row.stop, "schedule": row.schedule.name, "codec": row.codec.id,
                         "expected_ratio": row.expected_ratio, "points": points})  # fmt: skip
    borders = [row.stop for row in entry.choices if row.stop is not None]
    return {
        "collective": str(entry.collective), "dtype": entry.dtype, "tensor_class": entry.tensor_class,
        "break_even_bytes": borders, "choices": rows,
    }  # fmt: skip


def _point_document(point: Point, flips: dict[int, list[Flip]]) -> dict[str, Any]:
    margin = point.margin
    document = {**point.model_dump(mode="json"), "margin": None if margin is None else round(margin, 4)}
    if id(point) in flips:
        document["sensitivity"] = [
            {"key": f.key, "rises": f.rises, "factor": f.factor and round(f.factor, 4), "to": f.to}
            for f in flips[id(point)]
        ]
    return document
