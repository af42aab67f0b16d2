"""`python -m zipplan.executor.lab`: run a command on hosts made here, or measure what compression brings there."""

from __future__ import annotations

import json
import statistics
import subprocess

import click

from zipplan.executor.commands import main
from zipplan.executor.lab import Lab, missing
from zipplan.executor.lab.worker import Row
from zipplan.planner.errors import ConfigError
from zipplan.planner.units import format_size, parse_bandwidth, parse_size

Cases = list[tuple[str, str]]
_ALL = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
SHORT: list[tuple[int, str | None, Cases]] = [
    (2, "200Mb/s", [(c, "8M") for c in _ALL]),
    (4, "200Mb/s", [(c, "8M") for c in _ALL]),
    (2, None, [("all_gather", "16K"), ("all_gather", "1M"), ("all_reduce", "64K")]),
]
FULL: list[tuple[int, str | None, Cases]] = [
    *(
        (hosts, rate, [(c, size) for c in _ALL for size in ("1M", "8M", "64M")])
        for rate in ("1Gb/s", "2Gb/s", "500Mb/s", "100Mb/s")
        for hosts in (2, 4)
    ),
    *((hosts, None, [(c, size) for c in _ALL for size in ("16K", "1M", "8M")]) for hosts in (2, 4)),
]
FLOOR_SHARE = 0.90
"""Of the gain that the ratio allows where the link is the bottleneck, the median of all such cases."""
FLOOR_ERROR = 0.10
"""Median of |predicted / measured − 1| after calibration."""
_LIMIT = 900.0  # seconds for all cases on one set of hosts


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Hosts made out of network namespaces on this machine, joined by rate-limited links."""


@lab.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: python -m zipplan.executor.lab run --rate 1Gb/s -- -m zipplan.executor.bench --plan p.json",
)
@click.option("--hosts", type=int, default=2, show_default=True, help="Number of hosts, one rank each.")
@click.option("--rate", metavar="R", help="Of every link, each way: 1Gb/s, 100MB/s.  [default: no limit]")
@click.option(
    "--timeout", type=click.FloatRange(1), default=600, show_default=True, help="Seconds before all is ended."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(hosts: int, rate: str | None, timeout: float, command: tuple[str, ...]) -> int:
    """Start torchrun COMMAND (a script, or -m module, and its arguments) on every host."""
    place = Lab(hosts, None if rate is None else parse_bandwidth(rate, "--rate"))
    try:
        return place.run(command, timeout).returncode
    except subprocess.TimeoutExpired:
        click.echo(f"zipplan: error: lab: the command did not end within {timeout:g} s; hosts removed", err=True)
        return 1


@lab.command(epilog="Example: python -m zipplan.executor.lab check")
@click.option("--full", is_flag=True, help="All sizes, rates and hosts: about twenty minutes instead of two.")
def check(full: bool) -> int:
    """Measure raw and compressed collectives, compare with what the ratio allows and with predictions."""
    why = missing()
    if why is not None:
        click.echo(f"lab: not run: {why}")
        return 0
    click.echo("| hosts | link | collective | size | gloo's own | raw | compressed | ratio | gain | of ratio | choice "
               "| error raw | error compressed |\n" + "|---" * 13 + "|")  # fmt: skip
    rows: list[Row] = []
    for hosts, rate, cases in FULL if full else SHORT:
        for row in measure(hosts, rate, cases):
            click.echo(_line(row, rate))
            rows.append(row)
    missed, summary = judge(rows)
    for text in missed:
        click.echo(f"missed: {text}")
    click.echo(f"lab: {'FAILED' if missed else 'ok'}: {summary}")
    return 1 if missed else 0


@lab.command(epilog="Example: python -m zipplan.executor.lab train")
@click.option("--rate", default="200Mb/s", show_default=True, metavar="R", help="Of every link, each way.")
@click.option("--steps", type=click.IntRange(2), default=20, show_default=True, help="Of each way to train.")
def train(rate: str, steps: int) -> int:
    """Train a small transformer on 2 and 4 hosts with DDP, FSDP2 and mixture of experts, raw and planned."""
    why = missing()
    if why is not None:
        click.echo(f"lab: not run: {why}")
        return 0
    speed = parse_bandwidth(rate, "--rate")
    click.echo("| hosts | link | way | step raw | step planned | gain | ratio | loss, first and last | losses |\n"
               + "|---" * 9 + "|")  # fmt: skip
    wrong = False
    for hosts in (2, 4):
        command = ("-m", "zipplan.executor.lab.train", str(steps), str(speed))
        done = Lab(hosts, speed).run(command, _LIMIT, capture=True)
        if done.returncode:
            raise ConfigError(f"lab of {hosts} hosts failed with {done.returncode}:\n{done.stderr}")
        for row in json.loads(done.stdout):
            said = "same bits" if row["same_bits"] else "NOT the same bits"
            if row["errors"] is not None:
                said = "from FP32 sums: raw {:.1e}, planned {:.1e}".format(*row["errors"])
            else:
                wrong |= not row["same_bits"]
            raw, planned = row["raw_ms"], row["planned_ms"]
            click.echo(
                f"| {hosts} | {rate} | {row['way']} | {raw:.0f} ms | {planned:.0f} ms | {raw / planned:.2f} "
                f"| {row['ratio']:.2f} | {row['first_loss']:.2f}, {row['last_loss']:.2f} | {said} |"
            )
    return 1 if wrong else 0


def measure(hosts: int, rate: str | None, cases: Cases) -> list[Row]:
    """Rows of one set of hosts. Raises ConfigError when the run fails there."""
    bytes_per_second = None if rate is None else parse_bandwidth(rate, "rate")
    asked = {"rate": bytes_per_second, "cases": [(c, parse_size(size, "size")) for c, size in cases]}
    command = ("-m", "zipplan.executor.lab.worker", json.dumps(asked))
    done = Lab(hosts, bytes_per_second).run(command, _LIMIT, capture=True)
    if done.returncode:
        raise ConfigError(f"lab of {hosts} hosts failed with {done.returncode}:\n{done.stderr}")
    return [Row(**row) for row in json.loads(done.stdout)["rows"]]


def judge(rows: list[Row]) -> tuple[list[str], str]:
    """What missed its floor, and one line about all of it."""
    bound = [r for r in rows if r.link_bound]
    missed = [f"{_name(row)}: {row.missed}" for row in rows if row.missed]
    share = statistics.median(r.share for r in bound)
    if share < FLOOR_SHARE:
        missed.append(f"median gain {share:.0%} of the ratio where the link is the bottleneck, floor {FLOOR_SHARE:.0%}")
    error = statistics.median(e for r in rows for e in r.errors)
    if error > FLOOR_ERROR:
        missed.append(f"median error of predictions {error:.0%}, floor {FLOOR_ERROR:.0%}")
    raw = sum(r.choice == r.raw for r in rows)
    return missed, (
        f"{len(bound)} of {len(rows)} cases bound by the link, there median gain {share:.0%} of the ratio; "
        f"raw chosen {raw} times; median error of predictions {error:.1%}"
    )


def _name(row: Row) -> str:
    rate = "no limit" if row.rate is None else f"{row.rate / 1e6:g} MB/s"
    return f"{row.collective} {format_size(row.size)}, {row.hosts} hosts, {rate}"


def _line(row: Row, rate: str | None) -> str:
    raw, zipped = row.errors
    cells = [
        *(str(row.hosts), rate or "no limit", row.collective, format_size(row.size)),
        *(f"{us / 1e3:.2f} ms" for us in (row.own_us, row.raw_us, row.zipped_us)),
        *(f"{row.ratio:.2f}", f"{row.gain:.2f}", f"{row.share:.0%}" if row.link_bound else "–"),
        *(row.choice, f"{raw:.0%}", f"{zipped:.0%}"),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(lab)
