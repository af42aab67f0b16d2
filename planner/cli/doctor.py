"""`zipplan doctor`: what is on this machine, what will work, and where each setting comes from."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.markup import escape

from zipplan.planner.cli.common import console, json_option, print_json, table

STYLE = {"ok": "", "absent": "dim", "wrong": "bold red"}


@click.command(epilog="Example: zipplan doctor --json")
@json_option
def doctor(as_json: bool) -> int:
    """Versions, codec, GPUs, transports and variables of this machine, and what will and will not work here.

    Exit 1 when something is wrong, such as a variable that nothing reads; what is only absent is no fault.
    """
    from zipplan.executor.doctor import WRONG, examine

    rows = examine()
    wrong = [row for row in rows if row.state == WRONG]
    if as_json:
        print_json({"schema": 1, "ok": not wrong, "rows": [asdict(row) for row in rows]})
        return int(bool(wrong))
    out, made, group = console(160), table("", [("", "left")] * 3), ""
    made.show_header = False
    for column in made.columns[1:]:
        column.no_wrap = False
    for row in rows:
        if row.group != group:
            group = row.group
            if made.row_count:
                made.add_row()
            made.add_row(group, style="bold")
        source = f"  ({row.source})" if row.source else ""
        made.add_row(f"  {row.what}", escape(row.found + source), escape(row.advice), style=STYLE[row.state])
    out.print(made)
    out.print()
    out.print(f"{len(wrong)} wrong: {', '.join(row.what for row in wrong)}" if wrong else "nothing is wrong")
    return int(bool(wrong))
