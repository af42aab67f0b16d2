"""What the commands that run under torchrun share: their start, their errors, their exit codes."""

from __future__ import annotations

import faulthandler
import os
import re
import shlex
import sys
from typing import NoReturn

import click

from zipplan.planner.cli.entry import say, start
from zipplan.planner.errors import CollectiveError, ConfigError, ZipplanError


class TransportFailed(CollectiveError):
    """A collective that began and did not end well; says which, and the transport's first sentence about it."""

    def __init__(self, what: str, error: RuntimeError) -> None:
        if isinstance(error, CollectiveError):  # says all of this itself
            super().__init__(str(error))
            return
        said = re.sub(r"^\[[^]]*\] ", "", str(error)).split(". ")[0].splitlines()[0]
        super().__init__(f"{what} failed: {said}; another rank may have ended or stalled first, see what it says")


def need_ranks(name: str, example: str) -> None:
    """Raise ConfigError with the command to run unless torchrun started this process. `name`: bench, run, …"""
    missing = [v for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if v not in os.environ]
    if missing:
        words = sys.argv[1:]
        given = shlex.join(words[1:] if words[:1] == [name] else words)
        raise ConfigError(
            f"{name} needs several ranks and {missing[0]} is not set; start it with torchrun: "
            + (f"torchrun --nproc-per-node 4 -m {MODULES[name]} {given}" if given else example)
        )


MODULES = {
    "bench": "zipplan.executor.bench",
    "run": "zipplan.executor.run_plan",
    "calibrate": "zipplan.executor.calibrate",
}
"""The module of each command."""


class RanksCommand(click.Command):
    """A command that torchrun starts: its help says how."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """torchrun and the module in place of the words that were typed."""
        words = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(f"torchrun --nproc-per-node R -m {MODULES[self.name or '']}", words)


def refuse(error: ZipplanError) -> int:
    """Exit code 2 after an error that all ranks raise alike: the first rank of each host says it, then all leave.

    A collective call: torchrun ends the other ranks when one exits, so nobody leaves before it has been said.
    """
    import torch.distributed as dist

    if os.environ.get("LOCAL_RANK", "0") == "0":
        say(str(error))
    dist.barrier()
    return 2


def main(command: click.Command) -> NoReturn:
    """As `zipplan` starts its commands, and with a traceback of all threads when a rank dies of a signal."""
    faulthandler.enable()
    start(command)
