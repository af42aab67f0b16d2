"""How bench results look: a JSON document, or tables that cut nothing off."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from zipplan.executor.measure import Bench, Row
from zipplan.planner.units import format_size, format_time

Skipped = dict[str, str]
"""A table of the plan that cannot run here: collective, dtype, reason."""

_VERDICT = {True: "yes", False: "NO", None: "not checked"}


def document(meter: Bench, path: str, rows: list[Row], skipped: list[Skipped]) -> dict[str, Any]:
    """The JSON document of the bench; times in µs, bandwidths in 10⁹ bytes per second."""
    session = meter.session
    assert session.plan is not None
    return {
        "schema": 1,
        "plan": {"path": path, "hash": session.plan.hash, **session.plan.topology.model_dump(mode="json")},
        "transport": session.backend,
        "rehearsal": session.rehearsal,
        "iterations": meter.iterations,
        "untimed": meter.untimed,
        "rows": [row.to_json() for row in rows],
        "skipped": skipped,
        "fallbacks": session.fallback_rows(),
    }


def print_tables(meter: Bench, name: str, rows: list[Row], skipped: list[Skipped]) -> None:
    """One row per collective and size on stdout, then what went wrong, what was skipped and what ran natively."""
    session = meter.session
    assert session.plan is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("collective", "dtype", "size", "schedule"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=True)
    for heading in ("native", "planned", "predicted", "ratio", "wire", "algbw", "busbw", "wirebw"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bits identical", no_wrap=True)
    for row in rows:
        table.add_row(
            row.collective,
            row.dtype,
            format_size(row.size_bytes),
            row.schedule if row.codec == "raw" else f"{row.schedule} ({row.codec})",
            format_time(row.native_us * 1e6),
            format_time(row.planned_us * 1e6),
            "–" if row.predicted_us is None else format_time(row.predicted_us * 1e6),
            f"{row.ratio:.3f}×",
            f"{row.wire_bytes / 1e6:.3f} MB",
            *(f"{bandwidth:.3f}" for bandwidth in (row.algbw_GBps, row.busbw_GBps, row.wirebw_GBps)),
            _VERDICT[row.bits_identical],
        )
    # As wide as the rows need: a narrow terminal wraps lines, nothing is cut off.
    console = Console(highlight=False, width=Console(width=10_000).measure(table).maximum)
    console.print(f"{name}: {session.plan.topology.name}, {session.ranks} ranks on {session.backend}", soft_wrap=True)
    console.print(table)
    console.print(
        f"times: median of the slowest rank over {meter.iterations} calls after {meter.untimed} untimed; "
        "bandwidths in GB/s; wire: bytes that a rank sends",
        soft_wrap=True,
    )
    for row in rows:
        if row.problem:
            console.print(
                f"NOT identical: {row.collective} {row.dtype} {format_size(row.size_bytes)}: {row.problem}",
                soft_wrap=True,
            )
    for one in skipped:
        console.print("skipped: {collective} of {dtype}: {reason}".format(**one), soft_wrap=True)
    for fallback in session.fallback_rows():
        console.print("native: {collective} of {dtype}, {calls} calls: {reason}".format(**fallback), soft_wrap=True)
