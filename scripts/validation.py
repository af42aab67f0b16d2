"""Writes docs/validation.md from `zipplan validate`: `python scripts/validation.py > docs/validation.md`."""

from __future__ import annotations

from typing import Any

from zipplan.planner.cli.validate import compare_all, report
from zipplan.planner.transport.constants import shipped_tables
from zipplan.planner.units import format_size
from zipplan.planner.validate.fit import constants
from zipplan.planner.validate.points import read_tables, shipped

HEAD = """\
# Validation

How far the simulator is from published measurements. This page is made by `make docs`; `zipplan validate` prints the
same numbers. The measurements are 48 published tables of nccl-tests and its like, each with the address it was
read from, in `topologies/measurements/nccl_points.csv`; `map.csv` beside it says which machine, how many nodes and
ranks, and what was forced.

Error of a point: |simulated time / measured time − 1|, for messages from 32 KiB on. The simulated time comes from the
same simulation that plans are made with. Beside it the error of NCCL's own cost model, with the constants of NCCL 2.27.
"""

METHOD = """\
## How the model works

Each native collective is lowered to what NCCL does: rings (through every NIC, or the mix of rings that fills an NVLink
mesh), a chain in each node with a double binary tree across nodes, NVLS in the switch, NVLSTree, all pairs at once,
PAT.

    time = start + Σ steps + bytes / rate + fill

- *start*: NCCL's base latency by protocol, plus what the calling program adds (one process for all GPUs, a framework).
- *steps*: NCCL's latency per step and protocol on NVLink, PCIe or network, times a factor by GPU generation or network.
  A network step of a ring hides behind the second slice of a chunk once half a chunk takes longer.
- *bytes / rate*: flows on the links of the machine, at the share of the link rate that the protocol reaches (LL 1/2;
  LL128 a fitted share; Simple the efficiency of the GPU in `topologies/_catalogue.toml`), or at a protocol's peak.
- *fill*: what is still on its way when the wire falls silent. LL and LL128 hand on single lines, so they fill at once.
  Simple hands on chunks: in a tree each hop costs one chunk (256 KiB per channel); rings that share the ports of an
  NVSwitch drift apart by one chunk (up to 2 MiB per channel); rings that own their lanes, in an NVLink mesh or over
  PCIe, show no fill at all (V100, GH200 and 4090 tables); NVLS keeps about two chunks on their way and stops between
  chunks. NVLS moves (n+1)/n of the message each way.

Algorithm and protocol are NCCL's picks by its own cost table, or a pick that NCCL only makes for larger messages where
that is already quicker by the calibrated constants: versions of NCCL differ in where they switch, and with this rule a
larger message is never predicted to be quicker than a smaller one.

## Constants

`topologies/transport_nccl.toml` holds {count} constants of this kind; they belong to GPU generations and kinds of
networks, never to a table. `zipplan validate --fit` reproduces them: coordinate descent from NCCL's own constants, all
at once, with a loss that sick points pull little (Σ log(1 + (ln(simulated / measured) / 0.08)²), twice the weight from
256 MiB) and a prior that holds every constant near its start.

Left out one at a time, the tables are predicted by constants that never saw them (`zipplan validate --left-out`):
{left_out}

## What a table may be wrong about

Points that no healthy machine gives are flagged and still counted; nothing is fitted to them.

- *drop*: a larger message of the same table took less time, by more than 15 %.
- *slow*: more than twice the simulated time.

Kernels of MSCCL++ and raw RDMA are no NCCL: they are simulated as if NCCL ran, stand below as yardsticks and do not
count.
"""

# Measured once, by `zipplan validate --left-out` (20 minutes).
LEFT_OUT = """\
median 4.8 %, 90th percentile 23.5 %, median 2.4 % from 256 MiB. Worst are the tables whose kind then has no other: the
only ones on InfiniBand, of a single send, of a forced tree, called through a framework."""


def percent(value: float | None) -> str:
    """'3.4', or a dash."""
    return "–" if value is None else f"{value:.1f}"


def line(first: str, part: dict[str, Any]) -> str:
    """One row of a table."""
    keys = (
        "median_abs_error_pct",
        "p90_abs_error_pct",
        "bias_pct",
        "nccl_median_abs_error_pct",
        "nccl_p90_abs_error_pct",
    )
    return f"| {first} | {part['points']} | " + " | ".join(percent(part[key]) for key in keys) + " |"


def main() -> None:
    """Print the page."""
    data = report(*compare_all(read_tables(*shipped())))
    overall = data["overall"]
    errors = "points | median % | p90 % | bias % | NCCL's model: median % | p90 % |"
    print(HEAD)
    print(f"| | {errors}\n|---|--:|--:|--:|--:|--:|--:|")
    print(line("all points", overall))
    print(line("from 256 MiB", overall["large"]))
    print(line("without abnormal points", overall["without_abnormal"]))
    print(f"\n{METHOD.format(count=len(constants(shipped_tables())), left_out=LEFT_OUT)}")
    print(f"## Tables\n\n| table | what | machine | {errors}\n|---|---|---|--:|--:|--:|--:|--:|--:|")
    for one in data["tables"]:
        forced = "" if one["algorithm"] == "auto" else f", {one['algorithm']} forced"
        what = f"{one['collective']}, {one['nodes']} × {one['ranks'] // one['nodes']}{forced}"
        name = f"[{one['table_id']}]({one['source']})" if one["source"].startswith("https") else one["table_id"]
        print(line(f"{name} | {what} | {one['topology']}", one))
    print("\n## Abnormal points\n\n| table | size | measured µs | simulated µs | rule |\n|---|--:|--:|--:|---|")
    for bad in data["abnormal"]:
        times = f"{bad['measured_us']:.4g} | {bad['simulated_us']:.4g}"
        print(f"| {bad['table_id']} | {format_size(bad['size_bytes'])} | {times} | {bad['rule']} |")
    print("\n## Yardsticks\n\n| table | points | median error, as if it were NCCL |\n|---|--:|--:|")
    for one in data["yardsticks"]:
        print(f"| {one['table_id']} | {one['points']} | {percent(one['median_abs_error_pct'])} % off |")


if __name__ == "__main__":
    main()
