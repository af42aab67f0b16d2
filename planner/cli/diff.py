"""`zipplan diff`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from zipplan.planner.cli.common import console, json_option, print_json, table
from zipplan.planner.plan import Entry, Plan, Range
from zipplan.planner.units import format_time, short_size


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two plans say differently; None: this plan does not say it."""

    where: str
    what: str
    a: str | None
    b: str | None


@click.command(epilog="Example: zipplan diff before.json after.json")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def diff(context: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Compare two plans: machine, ranges, choices, predicted times. Exit code 1 when they differ."""
    one, other = Plan.load(a), Plan.load(b)
    found = list(differences(one, other))
    if as_json:
        print_json({"schema": 1, "same": one.hash == other.hash, "differences": [asdict(d) for d in found]})
    elif one.hash == other.hash:
        click.echo(f"{a} and {b} are the same plan, {one.hash[:19]}…")
    else:
        click.echo(f"A: {a}\nB: {b}")
        rows = table("", [("where", "left"), ("what", "left"), ("A", "left"), ("B", "left")])
        for d in found:
            rows.add_row(d.where, d.what, "none" if d.a is None else d.a, "none" if d.b is None else d.b)
        console().print(rows)
    context.exit(int(one.hash != other.hash))


def differences(a: Plan, b: Plan) -> Iterator[Difference]:
    """Everything that differs, from the machine down to single times; at least one for plans of unequal hash."""
    count = 0
    for difference in (*_heads(a, b), *_tables(a, b)):
        count += 1
        yield difference
    if not count and a.hash != b.hash:
        yield Difference("plan", "details", a.hash[:19], b.hash[:19])


def _heads(a: Plan, b: Plan) -> Iterator[Difference]:
    for what in ("made_by", "calibration"):
        if getattr(a, what) != getattr(b, what):
            yield Difference("plan", what, getattr(a, what), getattr(b, what))
    for what in type(a.topology).model_fields:
        pair = str(getattr(a.topology, what)), str(getattr(b.topology, what))
        if pair[0] != pair[1]:
            yield Difference("topology", what, *(f"{text[:19]}…" if len(text) > 40 else text for text in pair))


def _tables(a: Plan, b: Plan) -> Iterator[Difference]:
    left, right = ({(e.collective, e.dtype, e.tensor_class): e for e in plan.entries} for plan in (a, b))
    for key in (*left, *(k for k in right if k not in left)):
        where = f"{key[0]} of {key[1]} ({key[2]})"
        if key not in left or key not in right:
            yield Difference(where, "table", *("present" if key in side else None for side in (left, right)))
        else:
            yield from _ranges(where, left[key], right[key])
            yield from _times(where, left[key], right[key])


def _ranges(where: str, a: Entry, b: Entry) -> Iterator[Difference]:
    """Sizes with unlike choices, neighbours with the same pair of choices joined."""
    starts = sorted({row.start for entry in (a, b) for row in entry.choices})
    runs: list[tuple[int, int | None, Range, Range]] = []
    for start, stop in zip(starts, [*starts[1:], None], strict=True):
        pair = _at(a, start), _at(b, start)
        if runs and [_choice(r) for r in runs[-1][2:]] == [_choice(r) for r in pair]:
            start = runs.pop()[0]
        runs.append((start, stop, *pair))
    for start, stop, left, right in runs:
        if _choice(left) != _choice(right):
            until = "∞" if stop is None else short_size(stop)
            what = f"choice in [{short_size(start)}, {until})"
            same = left.label == right.label
            yield Difference(where, what, *(_told(row, same) for row in (left, right)))


def _choice(row: Range) -> tuple[object, ...]:
    return row.schedule, row.codec, row.expected_ratio


def _told(row: Range, fully: bool) -> str:
    return f"{row.label}, ratio {row.expected_ratio:.3f}, {len(row.schedule.stages)} stages" if fully else row.label


def _at(entry: Entry, size: int) -> Range:
    return next(row for row in reversed(entry.choices) if row.start <= size)


def _times(where: str, a: Entry, b: Entry) -> Iterator[Difference]:
    left, right = ({p.size_bytes: p for row in entry.choices for p in row.points} for entry in (a, b))
    for size in sorted({*left, *right}):
        if size not in left or size not in right:
            sides = ("planned" if size in side else None for side in (left, right))
            yield Difference(where, f"size {short_size(size)}", *sides)
        elif (old := left[size].predicted_ps) != (new := right[size].predicted_ps):
            change = f" ({new / old - 1:+.1%})" if old else ""
            yield Difference(where, f"time at {short_size(size)}", format_time(old), format_time(new) + change)
