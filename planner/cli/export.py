"""`zipplan export`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import click

from zipplan.planner.cli.common import json_option, print_json
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import Entry, Plan, write_whole

# Words and columns of NCCL's example tuner plugin, which reads the file that NCCL_TUNER_CONFIG_FILE names:
# https://github.com/NVIDIA/nccl/tree/master/plugins/tuner/example (README.md, plugin.c)
COLUMNS = "collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
COLLECTIVES = {
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
}
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
# Limits are inclusive and read by strtoull; the plugin's own sample stops at 4 GiB - 1 and leaves larger sizes out.
TOP = 2**64 - 1
ANY = -1

HEADER = """\
# NCCL tuner choices of the ranges that {name} leaves uncompressed; {hash}
# {topology}: {shape}. Sizes as NCCL counts them: the larger of send and receive buffer.
# Before building the example plugin remove "*nChannels = 1" from its plugin.c: as it is, every size without a row here,
# and every row with channels -1, runs on one channel.
# {columns}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line; sizes in bytes, both ends inclusive; -1 matches anything (channels: NCCL's own number)."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    nNodes: int
    nRanks: int
    numPipeOps: int
    regBuff: int


@click.command(epilog="Example: zipplan export plan.json -o nccl_tuner.conf")
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here, not to stdout.")
@json_option
def export(plan_file: Path, output: Path | None, as_json: bool) -> None:
    """Write the uncompressed choices of a plan as a configuration of NCCL's example tuner plugin (CSV)."""
    plan = Plan.load(plan_file)
    if plan.topology.transport != "nccl":
        raise ConfigError(f"{plan_file}: a plan for {plan.topology.transport}; only NCCL reads tuner files")
    rows = list(dict.fromkeys(row for entry in plan.entries for row in tuner_rows(plan, entry)))
    if not rows:
        have = ", ".join(sorted({str(e.collective) for e in plan.entries}))
        raise ConfigError(
            f"{plan_file}: nothing to export: the plan ({have}) leaves no range of {', '.join(COLLECTIVES)} to NCCL"
        )
    head = HEADER.format(
        name=plan_file.name, hash=plan.hash, topology=plan.topology.name, shape=plan.topology.shape, columns=COLUMNS
    )
    lines = head + "".join(",".join(map(str, astuple(row))) + "\n" for row in rows)
    if output is not None:
        write_whole(output, lines)
    if as_json:
        print_json({"schema": 1, "rows": [dict(zip(COLUMNS.split(","), astuple(row), strict=True)) for row in rows]})
    elif output is not None:
        click.echo(f"{len(rows)} rows written to {output}; use them with NCCL_TUNER_CONFIG_FILE={output}")
    else:
        click.echo(lines, nl=False)


def tuner_rows(plan: Plan, entry: Entry) -> Iterator[Row]:
    """Rows of one table: what was predicted at a planned size holds from there to the next."""
    if str(entry.collective) not in COLLECTIVES:
        return  # an all-to-all is sends and receives to NCCL, which has nothing to choose there
    spans: list[tuple[int, int, str, str]] = []
    for row in entry.choices:
        if row.schedule.codec != "raw" or len(row.schedule.stages) != 1:
            continue
        starts = [row.start, *(p.size_bytes for p in row.points[1:])]
        stops = [*starts[1:], TOP + 1 if row.stop is None else row.stop]
        for point, start, stop in zip(row.points, starts, stops, strict=True):
            for algorithm, protocol in point.carried.values():
                words = _word(algorithm), _word(protocol)
                if words[0] not in ALGORITHMS or words[1] not in PROTOCOLS:
                    continue
                if spans and spans[-1][1] == start and spans[-1][2:] == words:
                    start = spans.pop()[0]
                spans.append((start, stop, *words))
    where = plan.topology
    for start, stop, algorithm, protocol in spans:
        name = COLLECTIVES[str(entry.collective)]
        yield Row(name, start, stop - 1, algorithm, protocol, ANY, where.nodes, plan.ranks, ANY, ANY)


def _word(name: str) -> str:
    """'nvls_tree' for NVLSTree, nvls-tree or nvls_tree."""
    word = name.lower().replace("-", "_")
    return {"nvlstree": "nvls_tree", "collnetdirect": "collnet_direct", "collnetchain": "collnet_chain"}.get(word, word)
