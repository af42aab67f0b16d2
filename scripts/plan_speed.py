"""How long a whole plan takes, on this machine: scripts/plan_speed.py > docs/benchmarks/planner.md (minutes).

Each row is a process of its own, so that its peak memory is its own and nothing is remembered from the row before.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

from zipplan.planner.cli.common import read_sizes
from zipplan.planner.cli.plan import SIZES
from zipplan.planner.make import make_plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.topology import build_cluster, load_machine

MACHINES = ("hgx-h100", "gb200-nvl72")
GPUS = (64, 1024, 16384)
LIMIT = 150  # seconds of one row
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3")


def measure(machine: str, gpus: int) -> dict[str, float]:
    """Seconds and MiB of planning everything on so many GPUs (whole nodes), and what was simulated for it."""
    found = load_machine(machine)
    start, used = time.perf_counter(), time.process_time()
    cluster = build_cluster(found, nodes=-(-gpus // found.node[0].ranks))
    plan = make_plan(cluster, list(Collective), read_sizes(SIZES["nccl"]), DTYPES, parse_profile("gaussian"))
    taken, used = time.perf_counter() - start, time.process_time() - used
    points = [point for entry in plan.entries for row in entry.choices for point in row.points]
    rejected = [r for point in points for r in point.rejected]
    return {
        "ranks": cluster.ranks,
        "tables": len(plan.entries),
        "ranges": sum(len(entry.choices) for entry in plan.entries),
        "sizes": len(points),
        "timed": len(points) + sum(r.predicted_ps is not None for r in rejected),
        "dropped": sum(r.at_least_ps is not None for r in rejected),
        "seconds": taken,
        "cpu": used,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print the page."""
    print("# Speed of the planner\n")
    print("`scripts/plan_speed.py > docs/benchmarks/planner.md` (`make bench-planner`) measured this page in one run:")
    print(f"`zipplan plan --collective all --dtype {','.join(DTYPES)}` at its default sizes, break-evens included,")
    print(f"start-up of the process excluded, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before.\n")
    print(
        "Sizes: those that were decided, with the ones between two choices. Of the candidates at these sizes, simulated"
    )
    print("are those that a lower bound does not rule out; the others are in the plan with that bound.\n")
    print("| machine | GPUs | tables | ranges | sizes | simulated | ruled out | seconds | CPU seconds | peak (MiB) |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for machine in MACHINES:
        for gpus in GPUS:
            command = [sys.executable, __file__, machine, str(gpus)]
            try:
                done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT)
            except subprocess.TimeoutExpired:
                print(f"| {machine} | {gpus:,} | | | | | | more than {LIMIT} | | |", flush=True)
                continue
            row = json.loads(done.stdout)
            print(f"| {machine} | {row['ranks']:,} | {row['tables']} | {row['ranges']} | {row['sizes']} "
                  f"| {row['timed']} | {row['dropped']} | {row['seconds']:.1f} | {row['cpu']:.1f} "
                  f"| {row['peak']:,.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
