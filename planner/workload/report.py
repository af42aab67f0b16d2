"""A workload planned: each collective of its step decided, and the step's time raw against planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from zipplan.planner.errors import ConfigError
from zipplan.planner.make import entry_of, plan_of
from zipplan.planner.plan import Entry, Plan
from zipplan.planner.profiles import parse_profile
from zipplan.planner.search import Decision, Result, Search
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.simulate import Skew, simulate
from zipplan.planner.topology import Cluster
from zipplan.planner.workload.grid import Grid, part
from zipplan.planner.workload.model import Workload
from zipplan.planner.workload.step import Call, build_step
from zipplan.planner.workload.timeline import StepTime, run_step


@dataclass(frozen=True)
class Row:
    """One collective of the step: what was chosen for it, ps of one call, exposed ps of all calls of a step."""

    call: Call
    count: int
    choice: str
    raw: int
    planned: int
    raw_exposed: int
    planned_exposed: int


@dataclass(frozen=True)
class Planned:
    """A planned workload. `plans` by the grid of ranks that they are for, the one that moves most bytes first."""

    workload: Workload
    cluster: Cluster
    rows: tuple[Row, ...]
    raw: StepTime
    planned: StepTime
    plans: dict[Grid, Plan]

    @property
    def gain(self) -> float:
        """Step time raw over planned."""
        return self.raw.time / self.planned.time if self.planned.time else 1.0


def skew_of(call: Call) -> Skew | None:
    """How uneven the ranks of a call are."""
    return Skew.busiest(call.grid.ranks, call.load, call.late)


def run_call(search: Search, result: Result, call: Call) -> int:
    """ps of a call with the schedule of `result`, ranks as uneven as the call says."""
    skew = skew_of(call)
    if skew is None:
        return result.time
    timeline = simulate(
        result.schedule, search.cluster, call.size, result.wire, search.transport, search.rates[result.wire.codec], skew
    )
    return timeline.time


def native(decision: Decision) -> Result:
    """The transport's own collective among the candidates."""
    results = (decision.best, *(result for result, _ in decision.others))
    return next(result for result in results if result.schedule.name == "native")


def distinct(sizes: Iterable[int]) -> list[int]:
    """The sizes to plan, ascending: one stands for all that are less than 1 % smaller."""
    kept: list[int] = []
    for size in sorted(set(sizes), reverse=True):
        if not kept or size < 0.99 * kept[-1]:
            kept.append(size)
    return kept[::-1]


def plan_workload(workload: Workload, cluster: Cluster, settings: Settings = UNCHANGED) -> Planned:
    """Decide every collective of a step and run the step with both. Raises ConfigError when they do not fit."""
    step = build_step(workload, cluster)
    counts = Counter(task.call for task in step.tasks if task.call is not None)
    if not counts:
        raise ConfigError(f"workload {workload.name}: a step on {cluster.ranks} rank(s) has no collective to plan")
    tables: dict[tuple[Grid, str, str, str], list[Call]] = {}
    for call in counts:
        tables.setdefault((call.grid, call.collective, call.dtype, call.profile), []).append(call)
    raw: dict[Call, int] = {}
    planned: dict[Call, int] = {}
    choices: dict[Call, str] = {}
    entries: dict[Grid, list[Entry]] = {}
    parts = {where: part(cluster, where) for where in dict.fromkeys(call.grid for call in counts)}
    for (where, _, dtype, profile), calls in tables.items():
        search = Search(parts[where], calls[0].collective, dtype, parse_profile(profile), settings=settings)
        sizes = distinct(call.size for call in calls)
        found = list(search.decide_all(sizes))
        entries.setdefault(where, []).append(entry_of(calls[0].collective, search, found))
        decided = {decision.best.size: decision for _, _, decisions in found for decision in decisions}
        for call in calls:
            decision = decided[min(size for size in sizes if size >= call.size)]
            raw[call] = run_call(search, native(decision), call)
            planned[call] = run_call(search, decision.best, call)
            choices[call] = decision.best.label
    before, after = run_step(step, raw.__getitem__), run_step(step, planned.__getitem__)
    rows = (Row(c, n, choices[c], raw[c], planned[c], before.exposed[c], after.exposed[c]) for c, n in counts.items())
    moved = Counter({where: 0 for where in parts})
    for call, count in counts.items():
        moved[call.grid] += call.size * count
    plans = {where: plan_of(parts[where], entries[where], settings) for where, _ in moved.most_common()}
    return Planned(workload, cluster, tuple(rows), before, after, plans)
