"""The trace: the format that Perfetto reads, tracks on which nothing overlaps, and the bytes of the timeline."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from zipplan.planner.costs import Rates, wire
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.simulate import Skew, Timeline, simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.trace import chrome_trace

MACHINES = [("hgx-h100", 2), ("a6000x8-200g", 2), ("loopback", 1), ("mi300x-8", 1)]


def traced(cluster: Cluster, collective: Collective, skew: Skew | None = None) -> tuple[Timeline, list[dict[str, Any]]]:
    """The zipped form of a collective of 16 MiB: its timeline and events."""
    search = Search(cluster, collective, "bf16", parse_profile("gaussian"), "window")
    schedule = next(s for s in search.schedules if s.codec == "window")
    rates, wired = search.rates["window"], search.wires["window"]
    timeline = simulate(schedule, cluster, 16 << 20, wired, search.transport, rates, skew, record=True)
    text = json.dumps(chrome_trace(schedule, timeline, cluster), allow_nan=False)
    return timeline, json.loads(text)["traceEvents"]


@pytest.mark.parametrize(("machine", "nodes"), MACHINES)
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_format_tracks_and_bytes(machine: str, nodes: int, collective: Collective) -> None:
    """Named processes and tracks, times that rise, no overlap, and on every link the bytes that the timeline counts."""
    cluster = build_cluster(load_machine(machine), nodes=nodes)
    timeline, events = traced(cluster, collective)
    check_format(events)
    slices = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(timeline.time / 1e6, abs=2e-3)
    ranks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name" and "rank" in e["args"]["name"]}
    assert list(ranks) == list(range(cluster.ranks))
    carried = np.zeros(len(cluster.links))
    busy = np.zeros(len(cluster.links))
    for e in slices:
        if e["tid"] >= 1000:
            carried[e["tid"] - 1000] += sum(e["args"]["bytes"].values())
            busy[e["tid"] - 1000] += e["dur"]
            assert 0 < e["args"]["of the link"] <= 1 + 1e-6
    assert carried == pytest.approx(timeline.link_bytes, rel=1e-9)
    assert busy == pytest.approx(timeline.link_busy / 1e6, abs=2e-3 * len(slices))


def check_format(events: list[dict[str, Any]]) -> None:
    """What the trace-event format asks of names, numbers and order, and no overlap on a track."""
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    timed = [e for e in events if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    for e in timed:
        assert isinstance(e["pid"], int)
        assert e["pid"] in processes
        assert isinstance(e["ts"], float | int)
        assert e["ts"] >= 0
        if e["ph"] == "X":
            assert (e["pid"], e["tid"]) in named
            assert e["dur"] >= 0
            assert e["name"]
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        else:
            assert e["ph"] == "C"
            assert list(e["args"]) == ["GB/s"]
    for spans in tracks.values():
        assert all(a[1] <= b[0] + 1e-9 * b[0] for a, b in pairwise(spans))


def test_two_transfers_share_a_link(toy: Callable[..., Cluster]) -> None:
    """A late rank sends while others still do: one slice names both, and the counter never exceeds the link."""
    cluster = toy(4)
    timeline, events = traced(cluster, Collective.ALL_TO_ALL, Skew((0, 0, 0, 10**9), (0.5, 1.0, 1.0, 1.5)))
    check_format(events)
    assert timeline.moved
    rates = [e["args"]["GB/s"] for e in events if e["ph"] == "C"]
    assert 0 < max(rates) <= 1000 * (1 + 1e-6)
    nics = [e for e in events if e["ph"] == "C" and "nic" in e["name"] and e["name"].startswith("n3/")]
    assert nics[-1]["args"]["GB/s"] == 0


def test_recording_changes_nothing(toy: Callable[..., Cluster]) -> None:
    """The same picoseconds with and without a record; without, nothing is kept."""
    cluster = toy(3, 2)
    search = Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"), "window")
    schedule = search.schedules[-1]
    wired = wire("window", "bf16", parse_profile("gaussian"))
    plain, kept = (
        simulate(schedule, cluster, 1 << 20, wired, search.transport, Rates.of(cluster), record=record)
        for record in (False, True)
    )
    assert plain.stage_times() == kept.stage_times()
    assert not plain.moved
    assert kept.moved
