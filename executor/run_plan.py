"""`torchrun … -m zipplan.executor.run_plan plan.json`: every entry of a plan once: bits, predicted and measured."""

from __future__ import annotations

import click

from zipplan.executor import need_torch
from zipplan.executor.bench import run as measure
from zipplan.executor.commands import RanksCommand, TransportFailed, main, need_ranks

EXAMPLE = "torchrun --nproc-per-node 4 -m zipplan.executor.run_plan plan.json"


@click.command(cls=RanksCommand, context_settings={"help_option_names": ["-h", "--help"]}, epilog=f"Example: {EXAMPLE}")
@click.argument("plan", metavar="PLAN")
@click.option("--ranks-per-node", type=click.IntRange(1), metavar="K", help="Rehearse nodes of K ranks on one host.")
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True, help="Transport.")
@click.option("--timeout", type=click.IntRange(1), default=60, show_default=True, help="Seconds before a hang ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout of rank 0, nothing else there.")
def run(plan: str, ranks_per_node: int | None, backend: str, timeout: int, as_json: bool) -> int:
    """Execute every entry of a plan once after one untimed call, check its bits, show predicted and measured."""
    need_ranks("run", EXAMPLE)
    need_torch()
    options = {
        **{"plan": plan, "iters": 1, "warmup": 1, "ranks_per_node": ranks_per_node, "topology": None},
        **{"check": True, "backend": backend, "timeout": timeout, "as_json": as_json},
    }
    try:
        return measure(options, [])
    except RuntimeError as error:
        raise TransportFailed("start-up", error) from error


if __name__ == "__main__":
    main(run)
