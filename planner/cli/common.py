"""Options and output that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from zipplan.planner.cli.entry import say
from zipplan.planner.costs import CODECS, ELEMENT_BYTES
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.schedule import Collective
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.topology import Cluster, Imported, build_cluster, load_described
from zipplan.planner.units import parse_size

F = TypeVar("F", bound=Callable[..., Any])


def part_options(command: F) -> F:
    """--gpu, --nodes, --ranks-per-node, --gpus: what tells more of a machine, and narrows or widens it."""
    for option in (
        gpus_option,
        click.option("--ranks-per-node", type=click.IntRange(1), metavar="K", help="Use K ranks of each node."),
        click.option("--nodes", type=click.IntRange(1), metavar="N", help="Number of nodes."),
        gpu_option,
    ):
        command = option(command)
    return command


def cluster_options(command: F) -> F:
    """--topology and `part_options`: the keyword arguments of `read_cluster`."""
    return click.option(
        "--topology", required=True, metavar="T", help="Shipped name, TOML file, or `nvidia-smi topo -m` text."
    )(part_options(command))


def gpu_option(command: F) -> F:
    """--gpu."""
    return click.option(
        "--gpu", metavar="MODEL", help="GPU model, where the topology text does not tell (H100, A100, …)."
    )(command)


def gpus_option(command: F) -> F:
    """--gpus."""
    return click.option("--gpus", metavar="LIST", help="Use these GPUs of each node: 0,2,5.")(command)


def profile_option(command: F) -> F:
    """--profile."""
    return click.option(
        "--profile",
        default="gaussian",
        show_default=True,
        metavar="P",
        help="Shape of the values: gaussian[:σ], laplace, swiglu, relu, random.",
    )(command)


def dtype_option(command: F) -> F:
    """--dtype of one message."""
    return click.option("--dtype", default="bf16", show_default=True, metavar="D", help="Element type.")(command)


def calibration_option(command: F) -> F:
    """--calibration."""
    return click.option(
        "--calibration",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="CAL",
        help="Measured times of this job's exchanges and codec, from `zipplan calibrate`.",
    )(command)


def set_option(command: F) -> F:
    """--set."""
    return click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a parameter, such as link.nic.bandwidth=25GB/s or codec.speed=0.5x; keys: zipplan whatif --help.",
    )(command)


def json_option(command: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else there.")(
        command
    )


def read_cluster(
    topology: str,
    gpu: str | None,
    nodes: int | None,
    ranks_per_node: int | None,
    gpus: str | None,
    settings: Settings = UNCHANGED,
) -> Cluster:
    """The cluster that the options describe; what the machine's text leaves open is said on stderr.

    Raises TopologyError or ConfigError.
    """
    described = load_described(topology, gpu=gpu)
    warn(topology, described)
    machine = settings.machine(described.machine)
    return build_cluster(machine, nodes=nodes, ranks_per_node=ranks_per_node, gpus=read_gpus(gpus))


def warn(where: str, described: Imported) -> None:
    """On stderr: what is odd in the text that a machine was read from."""
    for sentence in described.warnings:
        say(f"{where}: {sentence}", "warning")


def read_gpus(text: str | None) -> tuple[int, ...] | None:
    """Numbers from '0,2,5'. Raises ConfigError."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--gpus: cannot read {text!r}; expected numbers with commas, such as 0,2,5") from None


def read_sizes(text: str) -> list[int]:
    """Sizes from '64K,1M,16M', each at least a byte. Raises ConfigError."""
    sizes = [parse_size(part, "--size") for part in text.split(",")]
    if 0 in sizes:
        raise ConfigError(f"--size: {text!r} holds a message of 0 bytes, which takes nothing; expected 1 byte or more")
    return sizes


def read_collectives(text: str) -> list[Collective]:
    """Collectives from 'all_gather,all_reduce' or 'all'. Raises ConfigError."""
    if text == "all":
        return list(Collective)
    names = text.split(",")
    for name in names:
        if name not in {str(c) for c in Collective}:
            raise ConfigError(f"--collective: unknown {name!r}; {nearest(name, [*map(str, Collective), 'all'])}")
    return [Collective(name) for name in dict.fromkeys(names)]


def read_dtype(name: str) -> str:
    """A dtype that zipplan knows. Raises ConfigError."""
    if name not in ELEMENT_BYTES:
        raise ConfigError(f"--dtype: unknown {name!r}; {nearest(name, ELEMENT_BYTES)}")
    return name


def read_dtypes(text: str) -> list[str]:
    """Dtypes from 'bf16,fp32', or 'all' that a codec serves. Raises ConfigError."""
    return list(CODECS) if text == "all" else [read_dtype(name) for name in dict.fromkeys(text.split(","))]


def print_json(data: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(data, indent=1, allow_nan=False))


def console(width: int = 200) -> Console:
    """A console that cuts nothing off: a terminal's own width, else `width`, by default as wide as any table needs."""
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else width)


def table(title: str, columns: list[tuple[str, str]]) -> Table:
    """A table with (heading, justification) columns."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading, justify in columns:
        made.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    return made
