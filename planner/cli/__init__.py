"""The `zipplan` command. Sub-commands are imported when they are used, so that `--help` is quick and loads no torch."""

from __future__ import annotations

from importlib import import_module

import click

from zipplan.planner.cli.entry import start
from zipplan.planner.errors import nearest

COMMANDS = {
    "plan": ("zipplan.planner.cli.plan:plan", "Choose the fastest schedule for each size and write plan.json."),
    "explain": ("zipplan.planner.cli.explain:explain", "Show why a plan chose what it chose, and what it rejected."),
    "simulate": (
        "zipplan.planner.cli.simulate:simulate",
        "Predict the time of one collective, as nccl-tests prints it.",
    ),
    "diff": ("zipplan.planner.cli.diff:diff", "Compare two plans."),
    "export": ("zipplan.planner.cli.export:export", "Write the uncompressed choices of a plan as an NCCL tuner file."),
    "whatif": ("zipplan.planner.cli.whatif:whatif", "Sweep parameters: when does compression start to pay?"),
    "reproduce": ("zipplan.planner.cli.reproduce:reproduce", "Predict published results beside the published numbers."),
    "codec": ("zipplan.planner.cli.codec:codec", "Measure size and speed of the codecs on this machine."),
    "inspect": ("zipplan.planner.cli.inspect_cmd:inspect", "Show what a file's tensors look like to the codec."),
    "validate": (
        "zipplan.planner.cli.validate:validate",
        "Hold the simulator against published measurements, or your own log.",
    ),
    "bench": ("zipplan.executor.bench:bench", "Time planned collectives beside native ones, check bits (torchrun)."),
    "run": ("zipplan.executor.run_plan:run", "Execute every entry of a plan once and check it (torchrun)."),
    "calibrate": ("zipplan.executor.calibrate:calibrate", "Measure exchanges and codec for --calibration (torchrun)."),
    "doctor": ("zipplan.planner.cli.doctor:doctor", "Show what is on this machine and what will work here."),
    "topo": ("zipplan.planner.cli.topo:topo", "List, draw, import and check machines."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when called; their one-line helps stand in COMMANDS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest names for an unknown one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command {args[0]!r}; {nearest(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: zipplan plan --topology hgx-h100 --nodes 8 --collective all_gather --size 64M -o plan.json",
)
@click.version_option(package_name="zipplan")
def cli() -> None:
    """Find, explain and run the fastest losslessly compressed schedule of every collective."""


def main() -> None:
    """Entry point."""
    start(cli)
