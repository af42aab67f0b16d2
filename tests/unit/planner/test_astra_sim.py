"""ASTRA-sim's analytical backend (https://github.com/astra-sim/astra-sim, built in March 2026), ring all-reduce.

64 MiB, one split, 50 GiB/s and 500 ns a link, 10 ns a step, local memory of 1,600 GB/s that every reduction crosses
three times. It counts whole nanoseconds, rounded down, in each step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zipplan.planner.collectives import NATIVE
from zipplan.planner.costs import Rates, wire
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import Cluster
from zipplan.planner.transport import Transport

SIZE = 64 << 20
LINK = 50 << 30


@pytest.mark.parametrize(("ranks", "astra_us"), [(8, 2304.7), (64, 2649.0), (256, 2874.6), (1024, 3662.4)])
def test_ring_all_reduce_agrees_to_a_hundredth_of_a_percent(
    ranks: int, astra_us: float, toy: Callable[..., Cluster]
) -> None:
    part = SIZE // ranks
    sending = part * 10**12 / LINK
    reducing = 3 * (part * 1000 // 1600 // 1000) * 1000  # in half of the steps
    step = 510_000 + reducing / 2 - sending % 1000
    cluster = toy(ranks, wire=f"{LINK}B/s", step=f"{round(step)}ps")
    schedule = NATIVE[Collective.ALL_REDUCE](ranks, 1, "raw")
    raw = wire("raw", "bf16", parse_profile("gaussian"))
    time = simulate(schedule, cluster, SIZE, raw, Transport(cluster, "ring"), Rates.of(cluster)).time
    assert time / 1e6 == pytest.approx(astra_us, rel=1e-4)
