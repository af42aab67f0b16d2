"""`zipplan explain`."""

from __future__ import annotations

from pathlib import Path

import click

from zipplan.planner.cli.common import console, json_option, print_json, read_collectives, read_sizes, table
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import Entry, Plan, Point, Range
from zipplan.planner.schedule import Op, Stage
from zipplan.planner.units import format_size, format_time


@click.command(epilog="Example: zipplan explain plan.json --collective all_gather --size 16M")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--collective", metavar="C", help="Only this collective.")
@click.option("--size", metavar="S", help="Only the planned size nearest to this one.")
@json_option
def explain(plan_file: Path, collective: str | None, size: str | None, as_json: bool) -> None:
    """Show choice, margin and break-even sizes of a plan, and why every rejected candidate lost."""
    plan = Plan.load(plan_file)
    wanted = read_collectives(collective) if collective else [e.collective for e in plan.entries]
    entries = [e for e in plan.entries if e.collective in wanted]
    if not entries:
        have = ", ".join(e.collective for e in plan.entries)
        raise ConfigError(f"--collective: {plan_file} has no table for {collective}; it has {have}")
    near = read_sizes(size)[0] if size else None
    if as_json:
        print_json({"schema": 1, "plan": plan.hash, "entries": [_document(e, near) for e in entries]})
        return
    out = console()
    out.print(f"[bold]{plan_file}[/bold]: {plan.topology.name}, {plan.topology.shape}, {plan.topology.transport}")
    out.print(
        f"made by {plan.made_by}, calibration: {plan.calibration}, {plan.hash[:19]}…, "
        f"topology {plan.topology.fingerprint[:19]}…"
    )
    for entry in entries:
        out.print(f"\n[bold]{entry.collective}[/bold] of {entry.dtype} ({entry.tensor_class})")
        for row in entry.choices:
            _show_range(row, near, entry)


def _points(row: Range, near: int | None, entry: Entry) -> list[Point]:
    """Points of a range that were asked for."""
    if near is None:
        return list(row.points)
    closest = min(entry.sizes_planned, key=lambda s: abs(s - near))
    return [p for p in row.points if p.size_bytes == closest]


def _show_range(row: Range, near: int | None, entry: Entry) -> None:
    points = _points(row, near, entry)
    if not points:
        return
    out = console()
    until = "∞" if row.stop is None else format_size(row.stop)
    out.print(f"  sizes [{format_size(row.start)}, {until}): [bold]{row.label}[/bold], ratio {row.expected_ratio:.3f}")
    out.print("  " + " → ".join(_stage_text(s) for s in row.schedule.stages), style="dim")
    columns = [("  size", "right"), ("candidate", "left"), ("predicted", "right"), ("range", "right"), ("why", "left")]
    made = table("", columns)
    made.columns[-1].no_wrap = False
    for point in points:
        span = f"{format_time(point.low_ps)} – {format_time(point.high_ps)}"
        scratch = f"chosen; scratch ≤ {point.scratch_bytes / 2**20:.1f} MiB"
        made.add_row(
            format_size(point.size_bytes), f"[bold]{row.label}[/bold]", format_time(point.predicted_ps), span, scratch
        )
        for loser in point.rejected:
            made.add_row("", loser.label, format_time(loser.predicted_ps), "", loser.reason)
    out.print(made)


def _stage_text(stage: Stage) -> str:
    if stage.op is Op.EXCHANGE:
        return f"{stage.exchange}({stage.axis}, {stage.payload})"
    return str(stage.op)


def _document(entry: Entry, near: int | None) -> dict[str, object]:
    rows = []
    for row in entry.choices:
        points = [p.model_dump(mode="json") for p in _points(row, near, entry)]
        if points:
            rows.append({"start": row.start, "stop": row.stop, "schedule": row.schedule.name, "codec": row.codec.id,
                         "expected_ratio": row.expected_ratio, "points": points})  # fmt: skip
    borders = [row.stop for row in entry.choices if row.stop is not None]
    return {
        "collective": str(entry.collective), "dtype": entry.dtype, "tensor_class": entry.tensor_class,
        "break_even_bytes": borders, "choices": rows,
    }  # fmt: skip
