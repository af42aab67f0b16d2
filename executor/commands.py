"""What the commands that run under torchrun share: their start, their errors, their exit codes."""

from __future__ import annotations

import faulthandler
import os
import re
import shlex
import sys

import click

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


def say(message: str, kind: str = "error") -> None:
    """One message on stderr, with the rank that says it."""
    rank = os.environ.get("RANK")
    click.echo(f"zipplan: {kind}: {f'rank {rank}: ' if rank is not None else ''}{message}", err=True)


def main(command: click.Command) -> None:
    """Exit 0 ok, 1 a check or a collective failed, 2 bad input; one message on stderr, no traceback."""
    faulthandler.enable()
    try:
        code = command(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        say(error.format_message())
        code = 2
    except CollectiveError as error:
        say(str(error))
        code = 1
    except (ZipplanError, ImportError) as error:
        say(str(error))
        code = 2
    sys.exit(code)
