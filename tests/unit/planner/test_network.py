"""The flow network: exact where theory is exact, max-min where flows share (field cases F106, F112)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from zipplan.planner.errors import SimulationError
from zipplan.planner.network import Apart, Network, Paths, delay, max_min

GB = 10**9


def finish_times(bandwidths: list[int], transfers: list[tuple[int, list[tuple[list[int], int]]]]) -> list[int]:
    """End of each transfer (start ps, [(path, bytes), …])."""
    env = simpy.Environment()
    network = Network(env, np.array(bandwidths))
    ends = [-1] * len(transfers)

    def run(number: int, start: int, flows: list[tuple[list[int], int]]):  # type: ignore[no-untyped-def]
        yield env.timeout(start)
        yield network.transfer(Paths.of([p for p, _ in flows]), np.array([float(b) for _, b in flows]))
        ends[number] = int(env.now)

    for number, (start, flows) in enumerate(transfers):
        env.process(run(number, start, flows))
    env.run()
    return ends


def test_one_flow_takes_bytes_over_bandwidth_rounded_up() -> None:
    assert finish_times([50 * GB], [(0, [([0], 1)])]) == [20]
    assert finish_times([3 * GB], [(0, [([0], 1)])]) == [334]
    assert finish_times([50 * GB, 10 * GB, 40 * GB], [(0, [([0, 1, 2], 10**9)])]) == [10**11]


@given(size=st.integers(1, 2**40), bandwidth=st.integers(10**6, 10**12))
def test_exact_to_the_picosecond(size: int, bandwidth: int) -> None:
    exact = -(-size * 10**12 // bandwidth)
    (end,) = finish_times([bandwidth], [(0, [([0], size)])])
    assert abs(end - exact) <= max(1, exact * 2**-48)  # float64 beyond a minute
    if exact < 10**12 and size * 10**12 % bandwidth == 0:
        assert end == exact


def test_two_flows_share_and_the_rest_speeds_up() -> None:
    """10 and 30 bytes on a 1 B/ns link: half rate until the small one ends at 20 ns, then full rate: 40 ns."""
    ends = finish_times([GB], [(0, [([0], 10)]), (0, [([0], 30)])])
    assert ends == [20_000, 40_000]


def test_a_late_flow_takes_half_from_then_on() -> None:
    """20 bytes alone for 10 ns, then shared: both have 10 left or more."""
    ends = finish_times([GB], [(0, [([0], 20)]), (10_000, [([0], 20)])])
    assert ends == [30_000, 40_000]


def test_zero_bytes_end_at_once() -> None:
    assert finish_times([GB], [(5, [([0], 0)])]) == [5]


@pytest.mark.parametrize(("bandwidths", "apart"), [([GB, GB], False), ([GB, 2 * GB], True)])
def test_groups_that_do_not_end_together_are_told_apart(bandwidths: list[int], apart: bool) -> None:
    """The one that stands for all would not; the caller then simulates every one of them."""
    env = simpy.Environment()
    network = Network(env, np.array(bandwidths))
    done = network.transfer(Paths.of([[0], [1]]), np.array([8.0, 8.0]), groups=2)
    if apart:
        with pytest.raises(Apart):
            env.run()
    else:
        env.run()
        assert done.processed


def test_max_min_textbook_case() -> None:
    """Links of 10 and 4: flow A on both, B on the first, C on the second: A = C = 2, B = 8."""
    paths = Paths.of([[0, 1], [0], [1]])
    rates = max_min(paths.links, paths.owner, 3, np.array([10.0, 4.0]))
    assert rates.tolist() == [2.0, 8.0, 2.0]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    links = draw(st.integers(1, 6))
    capacity = draw(st.lists(st.floats(0.5, 100.0), min_size=links, max_size=links))
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
    return capacity, draw(st.lists(path, min_size=1, max_size=10))


@given(networks())
def test_max_min_is_feasible_and_every_flow_has_a_full_link_where_it_is_largest(
    network: tuple[list[float], list[list[int]]],
) -> None:
    """The defining property of max-min fairness."""
    capacity, ways = network
    paths = Paths.of(ways)
    rates = max_min(paths.links, paths.owner, len(ways), np.array(capacity))
    load = np.bincount(paths.links, weights=rates[paths.owner], minlength=len(capacity))
    assert (load <= np.array(capacity) * (1 + 1e-9)).all()
    for flow, way in enumerate(ways):
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(rates[flow] >= rates[other] * (1 - 1e-9) for other, w in enumerate(ways) if link in w)
            for link in way
        )


@given(networks(), st.randoms(use_true_random=False))
def test_bytes_are_conserved_and_no_link_is_beaten(
    network: tuple[list[float], list[list[int]]], random: object
) -> None:
    capacity, ways = network
    env = simpy.Environment()
    net = Network(env, np.array([round(c * GB) for c in capacity]))
    sizes = np.array([random.randrange(0, 10**6) for _ in ways], dtype=np.float64)  # type: ignore[attr-defined]
    paths = Paths.of(ways)
    net.transfer(paths, sizes)
    env.run()
    want = np.bincount(paths.links, weights=sizes[paths.owner], minlength=len(capacity))
    assert net.bytes.tolist() == want.tolist()
    assert env.now >= (want / net.capacity).max() * (1 - 1e-12)
    assert (net.busy <= env.now).all()


def test_a_link_is_busy_while_flows_cross_it() -> None:
    """Link 0 carries 10 bytes in 10 ns, link 1 nothing; then both carry 20 at half rate of link 1."""
    env = simpy.Environment()
    net = Network(env, np.array([GB, GB // 2, GB]))
    net.transfer(Paths.of([[0]]), np.array([10.0]))
    env.run()
    net.transfer(Paths.of([[0, 1]]), np.array([20.0]))
    env.run()
    assert net.busy.tolist() == [10_000 + 40_000, 40_000, 0]
    assert net.bytes.tolist() == [30, 20, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, -1e-9])
def test_impossible_delays_are_refused(bad: float) -> None:
    """F112: simpy itself takes NaN and inf."""
    with pytest.raises(SimulationError, match="finite and ≥ 0"):
        delay(simpy.Environment(), bad)
