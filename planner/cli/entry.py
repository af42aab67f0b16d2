"""How every command begins and ends: `zipplan …`, and the modules that torchrun starts."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from zipplan.planner.errors import CollectiveError, ZipplanError


def say(message: str, kind: str = "error") -> None:
    """One message on stderr, with the rank that says it where there are ranks."""
    rank = os.environ.get("RANK")
    click.echo(f"zipplan: {kind}: {f'rank {rank}: ' if rank is not None else ''}{message}", err=True)


def start(command: click.Command) -> NoReturn:
    """Exit 0 ok, 1 a check or a collective failed, 2 bad input; one message on stderr, never a traceback."""
    try:
        code = command(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        say(_told(error))
        code = 2
    except (ZipplanError, ImportError) as error:
        say(str(error))
        code = 1 if isinstance(error, CollectiveError) else 2
    except BrokenPipeError:  # `zipplan … | head`
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _told(error: click.ClickException) -> str:
    """click's sentence in the form of ours, and where the options stand."""
    text = error.format_message().rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{text}; see {context.command_path} --help" if context else text
