"""The search against simulating every candidate at every size: pruning by bounds changes no decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from zipplan.planner.make import entry_of, make_plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import HYSTERESIS, MODEL_RANGE, Decision, Result, Search, Shared
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster, load_machine, parse_machine
from zipplan.planner.topology.write import to_toml

K, M, G = 1 << 10, 1 << 20, 1 << 30
SIZES = (K, 100_000, M, 16 * M, G)
GAUSSIAN = parse_profile("gaussian")
SLOW = '[[override]]\nnode = 1\nlink = "nic0>fabric"\nbandwidth = "2GB/s"\nsource = "made up for tests"\n'


def machines() -> Iterator[tuple[str, Cluster, Settings]]:
    """One switch of CPUs, NVLink in one node, rails, part of a mesh, one lame NIC, uneven ranks."""
    plain = Settings()
    yield "gloo", build_cluster(load_machine("lab"), nodes=3), plain
    yield "one node", build_cluster(load_machine("hgx-h100"), nodes=1, ranks_per_node=4), plain
    yield "rails", build_cluster(load_machine("hgx-h100"), nodes=2, ranks_per_node=4), plain
    yield "ethernet", build_cluster(load_machine("a6000x8-200g"), nodes=2, ranks_per_node=4), plain
    yield "part of a mesh", build_cluster(load_machine("dgx-1v"), nodes=1, gpus=(0, 1, 2, 5, 7)), plain
    lame = parse_machine(to_toml(load_machine("a6000x8-200g")) + SLOW, "lame")
    yield "a lame NIC", build_cluster(lame, nodes=3, ranks_per_node=2), plain
    uneven = Settings.read(["ranks.load=1.6", "ranks.late=80us"])
    yield "uneven ranks", build_cluster(load_machine("hgx-h100"), nodes=2, ranks_per_node=2), uneven


MACHINES = {name: (cluster, settings) for name, cluster, settings in machines()}


def exhaustive(search: Search, size: int) -> list[Result]:
    """Every candidate that is not the same as one in one piece, simulated, simplest first."""
    return [search.run(s, size) for s in search.schedules if s.chunks == 1 or len(s.parts(s.slot_bytes(size))) > 1]


def fastest(results: list[Result], among: Callable[[Result], bool]) -> int | None:
    return min((r.time for r in results if among(r)), default=None)


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize("machine", MACHINES)
def test_simulating_everything_finds_nothing_better(machine: str, collective: Collective) -> None:
    cluster, settings = MACHINES[machine]
    search = Search(cluster, collective, "bf16", GAUSSIAN, settings=settings)
    for size in SIZES:
        everything, decision = exhaustive(search, size), search.decide(size)
        known = {r.label: r.time for r in everything}
        assert {**{r.label: r.time for r in decision.results}} == {r.label: known[r.label] for r in decision.results}
        assert len(decision.results) + len(decision.dropped) == len(everything)
        limit = min(known.values()) * (1 + HYSTERESIS)
        simplest = next(r for r in everything if r.time <= limit).schedule.name
        assert decision.best.schedule.name == simplest
        assert decision.best.time == fastest(everything, lambda r, name=simplest: r.schedule.name == name)
        others = [t for label, t in known.items() if label != decision.best.label]
        assert fastest([r for r, _ in decision.others], lambda _: True) == min(others)
        for among in (
            lambda r: r.schedule.codec != "raw",
            lambda r: r.schedule.codec != "raw" and r.schedule.chunks == 1,
        ):
            assert fastest(decision.results, among) == fastest(everything, among)
        for dropped in decision.dropped:
            assert limit < dropped.at_least <= known[dropped.label], dropped
        whole = Decision(decision.best, tuple((r, "") for r in everything if r.label != decision.best.label))
        assert search.codec_break_even(decision) == search.codec_break_even(whole)


def test_most_candidates_are_dropped_unsimulated() -> None:
    cluster, _ = MACHINES["rails"]
    simulated = dropped = 0
    for collective in Collective:
        search = Search(cluster, collective, "bf16", GAUSSIAN)
        for size in SIZES:
            decision = search.decide(size)
            simulated += len(decision.results)
            dropped += len(decision.dropped)
    assert dropped > simulated


@pytest.mark.parametrize("machine", ["gloo", "rails", "a lame NIC"])
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_TO_ALL])
def test_break_even_sizes_are_where_the_decision_turns(machine: str, collective: Collective) -> None:
    """Just below a border the left choice still holds against the right one, from it on it does not."""
    cluster, settings = MACHINES[machine]
    search = Search(cluster, collective, "bf16", GAUSSIAN, settings=settings)
    rows = list(search.decide_all([K, M, G]))
    assert [start for start, _, _ in rows] == [0, *(stop for _, stop, _ in rows[:-1])]
    for (_, border, low), (_, _, high) in pairwise(rows):
        assert border is not None
        assert border % 2 == 0
        left, right = low[-1].best, high[0].best
        step = (right.size / left.size) ** (1 / 128)
        turned = []
        for size in (max(left.size, int(border / step**1.5) // 2 * 2), border):
            before, after = search.run(left.schedule, size).time, search.run(right.schedule, size).time
            names = [s.name for s in search.schedules]
            simpler = names.index(right.schedule.name) - names.index(left.schedule.name)
            slower = {0: 1.0}.get(simpler, 1 + HYSTERESIS if simpler > 0 else 1 / (1 + HYSTERESIS))
            turned.append(before > after * slower)
        assert turned == [False, True] or border == right.size


@pytest.mark.parametrize("simple", [999, 1000, 1049, 1050, 1051, 1100])
def test_a_border_is_where_one_size_would_choose_anew(simple: int) -> None:
    """Of two schedules, the simpler in `simple` ps and the other in 1000: both sides of a border go by one rule."""
    cluster, settings = MACHINES["gloo"]
    search = Search(cluster, Collective.ALL_GATHER, "bf16", GAUSSIAN, settings=settings)
    first, last = search.schedules[0], search.schedules[-1]
    chosen = simple <= 1000 * (1 + HYSTERESIS)
    assert search._preferred(first, last, simple, 1000) is chosen
    assert search._preferred(last, first, 1000, simple) is not chosen


def test_what_is_shared_between_searches_changes_no_plan() -> None:
    cluster, settings = MACHINES["rails"]
    dtypes = ("bf16", "fp32", "u8")
    together = make_plan(cluster, list(Collective), SIZES, dtypes, GAUSSIAN, settings=settings)
    again = make_plan(cluster, list(Collective), SIZES, dtypes, GAUSSIAN, settings=settings)
    assert together.to_json() == again.to_json()
    alone = Search(cluster, Collective.ALL_GATHER, "fp32", GAUSSIAN)
    entry = entry_of(Collective.ALL_GATHER, alone, alone.decide_all(SIZES))
    assert entry == together.entry(Collective.ALL_GATHER, "fp32")


def test_values_of_schedules_alike_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    monkeypatch.setattr("zipplan.planner.search.verify", lambda s, values: followed.append(s.name) if values else None)
    shared = Shared(MACHINES["rails"][0])
    for dtype in ("bf16", "fp16", "u8"):
        Search(shared.cluster, Collective.ALL_GATHER, dtype, GAUSSIAN, shared=shared)
    assert followed == ["native", "zipped", "zipped-across-nodes"]


@pytest.mark.parametrize("machine", ["gloo", "rails", "ethernet"])
def test_ties_go_to_the_simpler_and_the_file_says_so(machine: str) -> None:
    """Whoever is faster than the choice is within the hysteresis and less simple; whoever is simpler is beyond it."""
    cluster, _ = MACHINES[machine]
    plan = make_plan(cluster, list(Collective), [K << i for i in range(8, 20)], "bf16", GAUSSIAN)
    ties = 0
    for entry in plan.entries:
        order = [s.name for s in Search(cluster, entry.collective, "bf16", GAUSSIAN).schedules]
        for row in entry.choices:
            mine = order.index(row.schedule.name)
            for point in row.points:
                timed = [(r, r.predicted_ps) for r in point.rejected if r.predicted_ps is not None]
                fastest = min(point.predicted_ps, *(time for _, time in timed))
                assert point.predicted_ps <= fastest * (1 + HYSTERESIS)
                assert point.margin is not None
                assert -HYSTERESIS <= point.margin == min(time for _, time in timed) / point.predicted_ps - 1
                for rejected, time in timed:
                    if time <= point.predicted_ps:
                        assert order.index(rejected.name) > mine
                        assert rejected.reason.endswith("the simpler schedule is preferred")
                        ties += 1
                    elif order.index(rejected.name) < mine:
                        assert time > fastest * (1 + HYSTERESIS)
    assert ties


def test_hysteresis_and_range_are_the_errors_on_the_validation_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "validation.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| all points"))
    median, p90 = (float(cell) / 100 for cell in row.split("|")[3:5])
    assert median < HYSTERESIS < p90
    low, high = MODEL_RANGE["nccl"]
    assert 1 - low == pytest.approx(high - 1) == pytest.approx(p90, abs=0.01)


def test_the_file_and_explain_keep_bounds_and_times_apart() -> None:
    """Runner-up and margin come from what was simulated; a bound stands beside no time."""
    cluster, _ = MACHINES["rails"]
    plan = make_plan(cluster, list(Collective), SIZES, "bf16", GAUSSIAN)
    points = [point for entry in plan.entries for row in entry.choices for point in row.points]
    for point in points:
        timed = [r.predicted_ps for r in point.rejected if r.predicted_ps is not None]
        bounds = [r.at_least_ps for r in point.rejected if r.at_least_ps is not None]
        assert len(timed) + len(bounds) == len(point.rejected)
        assert point.runner_up is not None
        assert point.runner_up.predicted_ps == min(timed) <= min(bounds, default=math.inf)
        assert point.margin == pytest.approx(min(timed) / point.predicted_ps - 1)
        assert point.margin >= -HYSTERESIS
        assert point.low_ps < point.predicted_ps < point.high_ps
    reasons = [r.reason for point in points for r in point.rejected if r.at_least_ps is not None]
    assert reasons
    assert all(reason.startswith("at least ") for reason in reasons)
    assert any("for the NICs of one node alone" in reason for reason in reasons)
    assert any("one after another" in reason for reason in reasons)
