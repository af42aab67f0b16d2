"""How long one simulation takes, on this machine: scripts/simulator_speed.py > docs/benchmarks/simulator.md (minutes).

Each row is a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import simpy

from zipplan.planner.collectives import candidates
from zipplan.planner.costs import Rates, wire
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import build_cluster, load_machine
from zipplan.planner.transport import Transport

MACHINES = ("hgx-h100", "gb200-nvl72")
GPUS = (64, 1024, 16384)
SIZE = 64 << 20
# Seconds of ASTRA-sim's analytical backend (March 2026) for the ring all-reduce of 64 MiB, process start included.
ASTRA = {64: 0.04, 256: 0.2, 1024: 3.1}


def measure(machine: str, gpus: int, collective: str) -> dict[str, object]:
    """Seconds of the first and of a second call of every schedule, and MiB in all."""
    found = load_machine(machine)
    cluster = build_cluster(found, nodes=-(-gpus // found.node[0].ranks))
    rates = Rates.of(cluster)
    rows = []
    for schedule in candidates(Collective(collective), cluster.nodes, cluster.ranks_per_node, ("window",)):
        sent, transport = wire(schedule.codec, "bf16", parse_profile("gaussian")), Transport(cluster)
        rows.append((schedule.name, *timed(partial(simulate, schedule, cluster, SIZE, sent, transport, rates))))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ranks": cluster.ranks, "rows": rows, "peak": peak}


def ring(gpus: int) -> tuple[float, float]:
    """Seconds of a ring all-reduce on H100 nodes."""
    cluster = build_cluster(load_machine("hgx-h100"), nodes=gpus // 8)
    schedule = next(candidates(Collective.ALL_REDUCE, cluster.nodes, cluster.ranks_per_node, ()))
    raw, transport, rates = (
        wire("raw", "bf16", parse_profile("gaussian")),
        Transport(cluster, "ring"),
        Rates.of(cluster),
    )
    return timed(lambda: simulate(schedule, cluster, SIZE, raw, transport, rates))


def per_send(ranks: int, steps: int) -> float:
    """Seconds that simpy takes for one event per send of a ring, `steps` of its steps measured, all of them counted."""
    env = simpy.Environment()
    arrived = [[env.event() for _ in range(ranks)] for _ in range(steps)]

    def work(rank: int) -> Iterator[simpy.Event]:
        for step in range(steps):
            yield env.timeout(1000)
            arrived[step][(rank + 1) % ranks].succeed()
            yield arrived[step][rank]

    for rank in range(ranks):
        env.process(work(rank))
    start = time.perf_counter()
    env.run()
    return (time.perf_counter() - start) / steps * 2 * (ranks - 1)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the first and of the second call."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[0], times[1]


def main() -> None:
    """Print the page."""
    print("# Speed of the simulator\n")
    print("`scripts/simulator_speed.py > docs/benchmarks/simulator.md` measured this page; one collective of 64 MiB,")
    print(f"start-up excluded, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before. First: routes and classes")
    print("are made; again: the same call once more.\n")
    print("| machine | GPUs | collective | schedule | first (ms) | again (ms) | peak of all schedules (MiB) |")
    print("|---|--:|---|---|--:|--:|--:|")
    for machine in MACHINES:
        for gpus in GPUS:
            for collective in Collective:
                command = [sys.executable, __file__, machine, str(gpus), collective]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for name, first, again in found["rows"]:
                    print(f"| {machine} | {found['ranks']:,} | {collective} | {name} | {first * 1e3:,.1f} "
                          f"| {again * 1e3:,.1f} | {found['peak']:,.0f} |", flush=True)  # fmt: skip
    print(
        "\nRing all-reduce against one simpy event per send (a part of its steps measured) and ASTRA-sim's analytical"
    )
    print("backend (its time with process start, measured once on a 2-core machine):\n")
    print(
        "| GPUs | zipplan, first (ms) | simpy per send (s) | sends per second | ASTRA-sim (s) | × simpy | × ASTRA-sim |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for gpus, astra in ASTRA.items():
        (first, _), plain = ring(gpus), per_send(gpus, 40)
        rate = 2 * (gpus - 1) * gpus / plain
        print(f"| {gpus:,} | {first * 1e3:.1f} | {plain:.2f} | {rate:,.0f} | {astra} | {plain / first:.0f} "
              f"| {astra / first:.0f} |")  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
