"""`zipplan codec`: what the codec does on this machine."""

from __future__ import annotations

import click

from zipplan.planner.cli.common import console, json_option, print_json, table
from zipplan.planner.errors import ConfigError
from zipplan.planner.units import parse_size


@click.group()
def codec() -> None:
    """Measure the codec."""


@codec.command(epilog="Example: zipplan codec bench --size 16M --threads 1,4")
@click.option("--size", default="64M", show_default=True, help="Raw bytes of each tensor.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Timed rounds; the best counts.")
@click.option("--threads", default="1,2", show_default=True, help="Thread counts; all rows use the first.")
@json_option
def bench(size: str, rounds: int, threads: str, as_json: bool) -> None:
    """Ratio, bits and speed of each codec and backend, beside a copy of the same bytes, and zipnn when installed."""
    from zipplan.kernels.bench import bench as run

    try:
        counts = tuple(int(part) for part in threads.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise ConfigError(f"--threads: cannot read {threads!r}; expected numbers ≥ 1 with commas, such as 1,2")
    result = run(parse_size(size, "--size"), rounds, counts)
    if as_json:
        print_json(result)
        return
    copy = result["copy_GBps"]
    out = table(
        f"one tensor of {size}; a copy of it: {copy} GB/s; GB = 10⁹ raw bytes",
        [
            *((name, "left") for name in ("codec", "backend", "dtype", "profile")),
            *((name, "right") for name in ("threads", "bits/element", "ratio", "encode GB/s", "decode GB/s")),
            *((name, "right") for name in ("encode/copy", "decode/copy")),
        ],
    )
    for row in result["rows"]:
        speeds = row["encode_GBps"], row["decode_GBps"]
        out.add_row(
            *(str(row[name]) for name in ("codec", "backend", "dtype", "profile", "threads")),
            f"{row['bits_per_element']:.3f}",
            f"{row['ratio']:.3f}",
            *(f"{speed:.2f}" for speed in speeds),
            *(f"{speed / copy:.2f}" for speed in speeds),
        )
    console().print(out)
