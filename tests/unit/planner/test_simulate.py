"""The simulator against closed forms, bounds and what must never happen (field cases F102, F104, F106, F112)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zipplan.planner.collectives import NATIVE, all_gather, candidates, chunked
from zipplan.planner.costs import Rates, wire
from zipplan.planner.errors import ConfigError, SimulationError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import PART_GRAIN, Axis, Collective, Op, Schedule
from zipplan.planner.simulate import Timeline, simulate
from zipplan.planner.topology import Cluster
from zipplan.planner.transport import Transport

Toy = Callable[..., Cluster]
US, MS = 10**6, 10**9
FREE = Rates(launch=0, encode=float("inf"), decode=float("inf"), copy=float("inf"))


def run(
    schedule: Schedule, cluster: Cluster, size: int, rates: Rates | None = None, algorithm: str = "auto"
) -> Timeline:
    """Simulate with the usual costs."""
    sent = wire(schedule.codec, "bf16", parse_profile("gaussian"))
    return simulate(schedule, cluster, size, sent, Transport(cluster, algorithm), rates or Rates.of(cluster))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
@pytest.mark.parametrize(
    ("collective", "rounds"),
    [(Collective.ALL_GATHER, 1), (Collective.REDUCE_SCATTER, 1), (Collective.ALL_REDUCE, 2)],
)
def test_ring_is_alpha_beta_to_the_picosecond(toy: Toy, ranks: int, collective: Collective, rounds: int) -> None:
    """launch + steps·(α + hops·latency) + steps·(size/n)/bandwidth; latency counts per hop (F106): NIC out, NIC in."""
    cluster = toy(ranks, wire="1GB/s", latency="3us", launch="50us", step="7us")
    size = ranks * 10**6
    steps = rounds * (ranks - 1)
    timeline = run(NATIVE[collective](ranks, 1, "raw"), cluster, size, algorithm="ring")
    assert timeline.time == 50 * US + steps * (7 * US + 2 * 3 * US) + steps * 10**6 * 1000


def test_direct_all_to_all_is_bound_by_the_port(toy: Toy) -> None:
    """Every rank sends 3 of its 4 slots through one port at 1 GB/s."""
    timeline = run(NATIVE[Collective.ALL_TO_ALL](4, 1, "raw"), toy(4), 4 * 10**6)
    assert timeline.time == 3 * MS


def test_two_level_all_gather_is_the_sum_of_its_stages(toy: Toy) -> None:
    """Encode, two exchanges on the rail, decode, one inside the node, one copy; worked out by hand."""
    cluster = toy(2, 2, wire="1GB/s", inside="10GB/s", codec="10GB/s")
    schedule = all_gather.zipped_across_nodes(2, 2, "window")
    sent = wire("window", "bf16", parse_profile("gaussian"))
    times = run(schedule, cluster, 4 * 10**6).stage_times()
    launch = Rates.of(cluster).launch
    assert times["all_gather_rail_encode"] == launch + 10**6 * 100
    on_rail = times["all_gather_rail_static"] + times["all_gather_rail_dynamic"]
    assert on_rail == pytest.approx((10**6 / sent.ratio + sent.header) * 1000, abs=2)
    assert times["all_gather_rail_decode"] == launch + 2 * 10**6 * 100
    assert times["all_gather_node"] == 2 * 10**6 * 100
    assert times["permute"] == launch + 4 * 10**6 * 100


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("grid", [(4, 1), (1, 4), (2, 3)], ids=str)
def test_bytes_leave_and_arrive_in_full(toy: Toy, collective: Collective, grid: tuple[int, int]) -> None:
    """Conservation: what ranks send out of their NICs equals what NICs hand to ranks."""
    cluster = toy(*grid)
    for schedule in candidates(collective, *grid, ("window",)):
        timeline = run(schedule, cluster, 6 * 4 * 10**5)
        out = sum(timeline.link_bytes[link.index] for link in cluster.links if "/rank" in link.src)
        into = sum(timeline.link_bytes[link.index] for link in cluster.links if "/rank" in link.dst)
        assert out == pytest.approx(into, rel=1e-12)
        assert out > 0
        wire_time = (timeline.link_bytes / cluster.bandwidths).max() * 10**12
        assert timeline.time >= wire_time * (1 - 1e-12)
        assert (timeline.link_busy <= timeline.time).all()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    collective=st.sampled_from(Collective),
    grid=st.sampled_from([(2, 1), (3, 1), (1, 3), (2, 2)]),
    size=st.integers(1, 10**8),
)
def test_worse_is_never_faster(toy: Toy, collective: Collective, grid: tuple[int, int], size: int) -> None:
    """F104: more bytes, slower links, longer latencies, a slower codec never shorten any candidate.

    In chunks the grain counts: the last part is ragged, and shrinks where a grain more goes to another part.
    """
    good = toy(*grid, latency="1us", launch="5us", step="2us")
    worse = {
        "wire": toy(*grid, latency="1us", launch="5us", step="2us", wire="0.5GB/s"),
        "inside": toy(*grid, latency="1us", launch="5us", step="2us", inside="50GB/s"),
        "latency": toy(*grid, latency="2us", launch="5us", step="2us"),
        "launch": toy(*grid, latency="1us", launch="6us", step="2us"),
        "step": toy(*grid, latency="1us", launch="5us", step="3us"),
        "codec": toy(*grid, latency="1us", launch="5us", step="2us", codec="1GB/s"),
    }
    for schedule in candidates(collective, *grid, ("window",)):
        time = run(schedule, good, size).time
        grains = schedule.chunks * PART_GRAIN * size // max(1, schedule.slot_bytes(size))
        assert run(schedule, good, size + (4096 if schedule.chunks == 1 else grains)).time >= time
        for what, cluster in worse.items():
            assert run(schedule, cluster, size).time >= time, what


def test_what_gets_worse_shows(toy: Toy) -> None:
    """F104, the other half: the answer does change."""
    native = NATIVE[Collective.ALL_GATHER](4, 1, "raw")
    assert run(native, toy(4, wire="0.5GB/s"), 4 * 10**8).time == 2 * run(native, toy(4), 4 * 10**8).time
    zipped = all_gather.zipped(4, 1, "window")
    assert run(zipped, toy(4, codec="1GB/s"), 10**8).time > run(zipped, toy(4, codec="2GB/s"), 10**8).time


def test_compression_gains_what_the_ratio_allows_and_no_more(toy: Toy) -> None:
    """With a free codec on a slow wire the gain is the ratio, within the fixed costs."""
    native = run(NATIVE[Collective.ALL_GATHER](4, 1, "raw"), toy(4), 4 * 10**8).time
    zipped = run(all_gather.zipped(4, 1, "window"), toy(4), 4 * 10**8, FREE).time
    ratio = wire("window", "bf16", parse_profile("gaussian")).ratio
    assert 0.999 * ratio < native / zipped <= ratio


def test_nothing_to_do_takes_no_time(toy: Toy) -> None:
    assert run(NATIVE[Collective.ALL_REDUCE](1, 1, "raw"), toy(1), 10**6).time == 0
    assert run(NATIVE[Collective.ALL_REDUCE](4, 1, "raw"), toy(4), 0).time == 0


def test_a_schedule_for_another_grid_is_refused(toy: Toy) -> None:
    """F105: both numbers are in the message."""
    with pytest.raises(SimulationError, match=r"4 × 1 ranks, toy has 3 × 1"):
        run(NATIVE[Collective.ALL_REDUCE](4, 1, "raw"), toy(3), 10**6)


def test_a_deadlock_is_found_and_names_its_stages(toy: Toy) -> None:
    """F102: simpy returns from a deadlock as if all were well. Two stages that wait for each other never start."""
    schedule = all_gather.zipped(2, 1, "window")
    crossed = tuple(replace(s, after=("all_gather_world_decode",)) if s.op is Op.ENCODE else s for s in schedule.stages)
    with pytest.raises(SimulationError, match=r"stands still at 0 ps; waiting: .*all_gather_world_decode"):
        run(replace(schedule, stages=crossed), toy(2), 10**6)


def test_an_infinitely_slow_codec_is_refused(toy: Toy) -> None:
    """F112: a delay that is not finite must not become a plausible time."""
    stuck = replace(FREE, encode=1e-320)
    with pytest.raises(SimulationError, match="inf ps was asked for"):
        run(all_gather.zipped(2, 1, "window"), toy(2), 10**9, stuck)


def test_unknown_algorithm_is_refused_with_the_nearest_name(toy: Toy) -> None:
    with pytest.raises(ConfigError, match="did you mean ring"):
        Transport(toy(2), "rign")


def test_same_answer_for_any_hash_seed() -> None:
    """Event order must not depend on the order of sets and dictionaries."""
    command = [sys.executable, "-m", "zipplan.planner.cli", "simulate", "--topology", "a6000x8-200g", "--nodes", "2",
               "--collective", "all", "--size", "1M,8M", "--codec", "window", "--json"]  # fmt: skip
    outs = {
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outs) == 1
    assert len(json.loads(outs.pop())["rows"]) == 4 * 2


def test_axis_groups_cover_every_rank_once() -> None:
    schedule = all_gather.zipped_across_nodes(3, 4, "window")
    for axis in Axis:
        assert sorted(r for g in schedule.groups(axis) for r in g) == list(range(12))


def test_chunks_hide_the_codec_behind_the_wire(toy: Toy) -> None:
    """A wire that takes longer than encoding and decoding a part: what stays is the first part's encoding, the wire of
    all parts, and the last part's decoding, to the picosecond.
    """
    cluster, size = toy(2, wire="100MB/s", codec="10GB/s"), 2**23
    whole = all_gather.zipped(2, 1, "window")
    cut = chunked(whole, 4)
    (part,) = set(cut.parts(cut.slot_bytes(size)))
    sent, rates = wire("window", "bf16", parse_profile("gaussian")), Rates.of(cluster)
    encode, *_, decode = (rates.duration(s, cut, part) for s in (whole.stages[0], whole.stages[-1]))
    moved = 4 * (sent.bytes(whole.stages[1].payload, part) + sent.bytes(whole.stages[2].payload, part))
    expected = encode + moved * 10**4 + decode
    assert run(cut, cluster, size).time == pytest.approx(expected, abs=20)
    assert run(whole, cluster, size).time > expected
