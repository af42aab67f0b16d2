"""`zipplan reproduce`."""

from __future__ import annotations

from pathlib import Path

import click

from zipplan.planner.cli.common import console, json_option, print_json, table
from zipplan.planner.plan import write_whole
from zipplan.planner.reproduce import all_rows
from zipplan.planner.reproduce.page import cell, page


@click.command(epilog="Example: zipplan reproduce -o reproduce.md")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the page (Markdown) here.")
@json_option
def reproduce(output: Path | None, as_json: bool) -> None:
    """Predict the ZipCCL paper's results, and those of other systems, beside what was published; nothing is fitted."""
    rows = all_rows()
    if output is not None:
        write_whole(output, page(rows))
    if as_json:
        print_json(
            {
                "schema": 1,
                "rows": [
                    {
                        "id": row.id, "what": row.what, "source": row.source, "published": row.published,
                        "predicted": row.predicted, "holds": row.holds, "why": row.why,
                    }
                    for row in rows
                ],
            }
        )  # fmt: skip
        return
    columns = [
        ("id", "left"), ("what", "left"), ("published", "right"), ("predicted", "right"), ("off by", "right"),
        ("holds", "left"),
    ]  # fmt: skip
    made = table("published beside predicted; numbers are ratios of times", columns)
    made.columns[1].no_wrap = False
    for row in rows:
        off = "" if row.error is None else f"{row.error:+.1%}"
        made.add_row(row.id, row.what, cell(row.published), cell(row.predicted), off, "yes" if row.holds else "no")
    out = console()
    out.print(made)
    kept = sum(row.holds for row in rows)
    out.print(f"{kept} of {len(rows)} hold; why the others do not: docs/reproduce.md")
