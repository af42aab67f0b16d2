"""What `zipplan plan --workload` writes and prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from zipplan.planner.cli.common import console, table
from zipplan.planner.units import format_time, short_size
from zipplan.planner.workload import Planned, StepTime


def save_plans(planned: Planned, output: Path | None) -> list[Path]:
    """Write the plan of the group that moves most to `output`, those of other groups beside it: plan.2x8.json."""
    if output is None:
        return []
    written = []
    for number, (where, plan) in enumerate(planned.plans.items()):
        name = output.name if number == 0 else f"{output.stem}.{where.nodes}x{where.per_node}{output.suffix}"
        path = output.with_name(name)
        plan.save(path)
        written.append(path)
    return written


def show_step(planned: Planned, written: list[Path]) -> None:
    """One row for each collective of the step, then the step: raw against planned."""
    out, workload, cluster = console(), planned.workload, planned.cluster
    out.print(f"[bold]{workload.name}[/bold]: {workload.summary}")
    out.print(f"[bold]{cluster.machine.name}[/bold]: {cluster.nodes} nodes × {cluster.ranks_per_node} ranks")
    columns = [
        ("what", "left"), ("collective", "left"), ("ranks", "right"), ("size", "right"), ("dtype", "left"),
        ("calls", "right"), ("choice", "left"), ("raw", "right"), ("planned", "right"), ("gain", "right"),
        ("exposed raw", "right"), ("exposed planned", "right"),
    ]  # fmt: skip
    rows = table("", columns)
    for row in planned.rows:
        call = row.call
        rows.add_row(
            call.what, call.collective, call.grid.text, short_size(call.size), call.dtype, str(row.count),
            row.choice, format_time(row.raw), format_time(row.planned), f"{row.raw / row.planned:.2f}×",
            format_time(row.raw_exposed), format_time(row.planned_exposed),
        )  # fmt: skip
    out.print(rows)
    step = table("one step", [("", "left"), ("raw", "right"), ("planned", "right"), ("gain", "right")])
    measures: tuple[tuple[str, Callable[[StepTime], int]], ...] = (
        ("step", lambda s: s.time),
        ("compute", lambda s: s.computing),
        ("  slowed", lambda s: s.slowed),
        ("communication", lambda s: sum(s.communicating.values())),
        ("  exposed", lambda s: sum(s.exposed.values())),
        ("  hidden", lambda s: s.hidden),
    )
    for name, value in measures:
        before, after = value(planned.raw), value(planned.planned)
        step.add_row(name, format_time(before), format_time(after), f"{before / after:.2f}×" if after else "")
    out.print(step)
    if all(row.choice == "native" for row in planned.rows):
        out.print("\nNothing to gain here: every collective is best left raw.")
    for path in written:
        click.echo(f"\nplan written to {path}; `zipplan explain {path}` says why")
