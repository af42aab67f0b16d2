"""`torchrun … -m zipplan.executor.bench`: collectives of a plan beside native ones: times and bits."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zipplan.executor import commands, need_torch
from zipplan.executor.commands import RanksCommand, TransportFailed, need_ranks, refuse
from zipplan.planner.errors import ConfigError, ZipplanError
from zipplan.planner.units import format_size, parse_size

if TYPE_CHECKING:
    from zipplan.executor.measure import Bench, Row
    from zipplan.executor.show import Skipped
    from zipplan.planner.plan import Entry, Plan

EXAMPLE = "torchrun --nproc-per-node 4 -m zipplan.executor.bench --plan plan.json"


@click.command(cls=RanksCommand, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"Example: {EXAMPLE}")
@click.option("--plan", metavar="FILE", help="Plan file.  [default: ZIPPLAN_PLAN]")
@click.option("-b", "--begin", metavar="S", help="Smallest size (1K is 1024).  [default: the sizes that were planned]")
@click.option("-e", "--end", metavar="S", help="Largest size.  [default: as -b]")
@click.option("-f", "--factor", type=click.IntRange(2), default=2, show_default=True, help="From size to size.")
@click.option("-n", "--iters", type=click.IntRange(1), default=10, show_default=True, help="Timed calls per size.")
@click.option(
    "-w",
    "--warmup",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="Untimed calls per size, after the first, which never counts.",
)
@click.option("--ranks-per-node", type=click.IntRange(1), metavar="K", help="Rehearse nodes of K ranks on one host.")
@click.option("--topology", metavar="T", help="This machine (shipped name or file); refuse a plan made for another.")
@click.option("--check/--no-check", default=True, show_default=True, help="Compare the bits of every result.")
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl"]),
    default="gloo",
    show_default=True,
    help="Transport; tensors on GPUs (nccl) have no codec yet: what the plan compresses runs natively, counted.",
)
@click.option("--timeout", type=click.IntRange(1), default=60, show_default=True, help="Seconds before a hang ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout of rank 0, nothing else there.")
def bench(**options: Any) -> int:
    """Time native and planned collectives on all ranks and check that planned ones return the right bits."""
    need_ranks("bench", EXAMPLE)
    sizes = list(read_sizes(options["begin"], options["end"], options["factor"]))
    need_torch()
    try:
        return run(options, sizes)
    except RuntimeError as error:  # torch.distributed's own errors are of this kind
        raise TransportFailed("start-up", error) from error


def read_sizes(begin: str | None, end: str | None, factor: int) -> Iterator[int]:
    """Sizes in bytes from -b, -e, -f; none when neither -b nor -e is given. Raises ConfigError."""
    if begin is None and end is None:
        return
    first = parse_size(begin or end or "", "-b")
    last = parse_size(end or begin or "", "-e")
    if not 0 < first <= last:
        raise ConfigError(f"-b {begin} -e {end}: expected 0 < begin ≤ end")
    while first <= last:
        yield first
        first *= factor


def run(options: dict[str, Any], sizes: list[int]) -> int:
    """Start the process group, agree, measure, print; the exit code."""
    import torch
    import torch.distributed as dist

    from zipplan.executor.measure import Bench
    from zipplan.executor.start import init

    timeout = timedelta(seconds=options["timeout"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if options["backend"] == "nccl":
        ranks, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)), torch.cuda.device_count()
        if gpus < ranks:  # alike on all ranks of the host, so that none waits for another
            raise ConfigError(
                f"--backend nccl: {ranks} ranks and {gpus} GPUs on this host, and NCCL does not allow two ranks on one "
                f"GPU: start {max(gpus, 1)} per host, or use --backend gloo"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    dist.init_process_group(options["backend"], timeout=timeout)
    try:
        try:
            session = init(
                options["plan"],
                ranks_per_node=options["ranks_per_node"],
                topology=options["topology"],
                timeout=timeout,
                adaptive=False,
            )
            if session.plan is None:
                raise ConfigError("no plan: give --plan FILE or set ZIPPLAN_PLAN")
            meter = Bench(session, device, options["iters"], options["warmup"], options["check"])
            entries, skipped = _measurable(session.plan, meter)
        except ZipplanError as error:
            return refuse(error)
        rows = _measure(meter, [(e, size) for e in entries for size in (sizes or e.sizes_planned)], options["timeout"])
        if dist.get_rank() == 0:
            _print(meter, rows, skipped, options)
        dist.barrier()
        return 0 if all(row.bits_identical is not False for row in rows) else 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        dist.destroy_process_group()


def _measurable(plan: Plan, meter: Bench) -> tuple[list[Entry], list[Skipped]]:
    """Tables of the plan that can run here, and those that cannot. Raises ConfigError when none can."""
    skipped: list[Skipped] = []
    entries = []
    for entry in plan.entries:
        why = meter.missing(entry.collective, entry.dtype)
        if why is None:
            entries.append(entry)
        else:
            skipped.append({"collective": str(entry.collective), "dtype": entry.dtype, "reason": why})
    if not entries:
        raise ConfigError(f"nothing of the plan can run here: {'; '.join(dict.fromkeys(s['reason'] for s in skipped))}")
    return entries, skipped


def _measure(meter: Bench, work: list[tuple[Entry, int]], timeout: int) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    first = os.environ["RANK"] == "0"
    rows = []
    with Progress(console=Console(stderr=True), transient=True, disable=not (first and sys.stderr.isatty())) as bar:
        task = bar.add_task("", total=len(work))
        for entry, size in work:
            what = f"{entry.collective} {entry.dtype} {format_size(size)}"
            bar.update(task, description=what)
            # The transport's own timeout ends a collective that hangs; this ends a rank that hangs anywhere else.
            faulthandler.dump_traceback_later(10 * timeout, exit=True)
            try:
                rows.append(meter.row(entry.collective, entry.dtype, size))
            except RuntimeError as error:  # what the transport raises when a peer ended or a timeout passed
                raise TransportFailed(what, error) from error
            bar.advance(task)
    return rows


def _print(meter: Bench, rows: list[Row], skipped: list[Skipped], options: dict[str, Any]) -> None:
    from zipplan.executor.show import document, print_tables

    path = options["plan"] or os.environ["ZIPPLAN_PLAN"]
    if options["as_json"]:
        click.echo(json.dumps(document(meter, path, rows, skipped), indent=1, allow_nan=False))
    else:
        print_tables(meter, Path(path).name, rows, skipped)


def main() -> None:
    """Entry point."""
    commands.main(bench)


if __name__ == "__main__":
    main()
