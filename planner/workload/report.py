"""A workload planned: each collective of its step decided, and the step's time raw against planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from zipplan.planner.contention import Cost, Shares
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
from zipplan.planner.workload.step import Call, Step, build_step
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
    step: Step
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


def run_call(search: Search, result: Result, call: Call, shares: Shares) -> Cost:
    """A call with the schedule of `result`, ranks as uneven as the call says."""
    skew, timeline = skew_of(call), result.timeline
    if skew is not None:
        rates = search.rates[result.wire.codec]
        timeline = simulate(result.schedule, search.cluster, call.size, result.wire, search.transport, rates, skew)
    return shares.cost(result.schedule, timeline, search.transport)


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
    shares, alone = settings.shares()
    counts = Counter(task.call for task in step.tasks if task.call is not None)
    if not counts:
        raise ConfigError(f"workload {workload.name}: a step on {cluster.ranks} rank(s) has no collective to plan")
    parts = {where: part(cluster, where) for where in dict.fromkeys(call.grid for call in counts)}
    kinds: dict[tuple[Grid, str, str, str], list[Call]] = {}
    for call in counts:
        kinds.setdefault((call.grid, call.collective, call.dtype, call.profile), []).append(call)
    tables = [
        _Table.of(
            Search(parts[where], calls[0].collective, dtype, parse_profile(profile), settings=alone), calls, shares
        )
        for (where, _, dtype, profile), calls in kinds.items()
    ]
    raw = {call: cost for table in tables for call, cost in table.raw.items()}
    planned = {call: cost for table in tables for call, cost in table.planned.items()}
    before, after = run_step(step, raw.__getitem__), run_step(step, planned.__getitem__)
    for table in tables:  # what is hidden anyway may cost compute more than it saves
        if table.planned != table.raw:
            without = run_step(step, {**planned, **table.raw}.__getitem__)
            if without.time < after.time:
                planned, after = {**planned, **table.raw}, without
                table.leave_raw()
    entries: dict[Grid, list[Entry]] = {}
    for table in tables:
        entry = entry_of(table.calls[0].collective, table.search, table.found)
        entries.setdefault(table.calls[0].grid, []).append(entry)
    labels = {call: table.label(call) for table in tables for call in table.calls}
    rows = tuple(
        Row(c, n, labels[c], raw[c].ps, planned[c].ps, before.exposed[c], after.exposed[c]) for c, n in counts.items()
    )
    moved = Counter({where: 0 for where in parts})
    for call, count in counts.items():
        moved[call.grid] += call.size * count
    plans = {where: plan_of(parts[where], entries[where], settings) for where, _ in moved.most_common()}
    return Planned(workload, cluster, rows, step, before, after, plans)


@dataclass
class _Table:
    """The calls of one kind on one group, decided: what they cost raw and planned."""

    search: Search
    calls: list[Call]
    found: list[tuple[int, int | None, list[Decision]]]
    raw: dict[Call, Cost]
    planned: dict[Call, Cost]

    @classmethod
    def of(cls, search: Search, calls: list[Call], shares: Shares) -> _Table:
        found = list(search.decide_all(distinct(call.size for call in calls)))
        table = cls(search, calls, found, {}, {})
        for call in calls:
            decision = table._decision(call)
            table.raw[call] = run_call(search, decision.native, call, shares)
            table.planned[call] = run_call(search, decision.best, call, shares)
        return table

    def _decision(self, call: Call) -> Decision:
        decisions = [decision for _, _, decisions in self.found for decision in decisions]
        return next(d for d in decisions if d.best.size >= call.size)

    def label(self, call: Call) -> str:
        """What was chosen for a call."""
        return self._decision(call).best.label

    def leave_raw(self) -> None:
        """Native at every size, because the step is quicker so."""
        self.planned = self.raw
        why = "hidden behind compute, which its codec kernels would slow by more than they save"
        decisions = []
        for _, _, rows in self.found:
            for decision in rows:
                best = decision.native
                others = (r for r in decision.results if r is not best)
                lost = tuple((r, why if r.time < best.time else self.search.reason(r, best)) for r in others)
                dropped = tuple(replace(d, reason=why) if d.at_least < best.time else d for d in decision.dropped)
                decisions.append(Decision(best, lost, dropped))
        self.found = [(0, None, decisions)]
