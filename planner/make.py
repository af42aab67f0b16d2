"""From a cluster and a list of collectives to a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import Progress

from zipplan.planner.costs import Wire
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import CodecUse, Entry, Plan, PlanTopology, Point, Range, Rejected, zipplan_version
from zipplan.planner.profiles import Profile
from zipplan.planner.schedule import Collective, Schedule
from zipplan.planner.search import MODEL_RANGE, Decision, Search, Shared
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.topology import Cluster


def make_plan(
    cluster: Cluster,
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    dtypes: str | Sequence[str],
    profile: Profile,
    *,
    settings: Settings = UNCHANGED,
    progress: bool = False,
) -> Plan:
    """One table for each collective and dtype, at every size (bytes ≥ 1, as nccl-tests counts them).

    Raises ConfigError where nothing is to plan.
    `settings` beside the machine stand in the plan as part of its calibration; the others are in its fingerprint.
    """
    kinds = [dtypes] if isinstance(dtypes, str) else dtypes
    if not sizes or not collectives or not kinds or min(sizes) < 1:
        raise ConfigError("nothing to plan: name at least one --collective, one --dtype and one --size above 0 bytes")
    work = [(collective, dtype) for collective in collectives for dtype in kinds]
    entries, shared = [], Shared(cluster, settings=settings)
    with Progress(console=Console(stderr=True), transient=True, disable=not (progress and sys.stderr.isatty())) as bar:
        for collective, dtype in bar.track(work, description="planning"):
            search = Search(cluster, collective, dtype, profile, settings=settings, shared=shared)
            entries.append(entry_of(collective, search, search.decide_all(sizes)))
    return plan_of(cluster, entries, settings)


def calibration_of(settings: Settings) -> str:
    """Where the numbers come from that the machine's fingerprint does not show, as the plan says it."""
    source = settings.calibration.id if settings.calibration else "machine file"
    return f"{source} {settings.beside_machine}".strip()


def plan_of(cluster: Cluster, entries: Sequence[Entry], settings: Settings) -> Plan:
    """The plan that holds these tables."""
    return Plan(
        made_by=f"zipplan {zipplan_version()}",
        calibration=calibration_of(settings),
        topology=PlanTopology(
            name=cluster.machine.name,
            fingerprint=cluster.fingerprint,
            nodes=cluster.nodes,
            ranks_per_node=cluster.ranks_per_node,
            transport=cluster.transport.kind,
        ),
        entries=tuple(entries),
    )


def entry_of(collective: Collective, search: Search, rows: Iterable[tuple[int, int | None, list[Decision]]]) -> Entry:
    """One table from what `Search.decide_all` found."""
    ranges = tuple(_range(search, *row) for row in rows)
    return Entry(collective=collective, dtype=search.dtype, tensor_class=search.profile.text, choices=ranges)


def _range(search: Search, start: int, stop: int | None, decisions: Sequence[Decision]) -> Range:
    best = decisions[0].best
    return Range(
        start=start,
        stop=stop,
        schedule=best.schedule,
        codec=CodecUse(id=best.wire.codec),
        expected_ratio=round(best.wire.ratio, 4),
        points=tuple(_point(search, d) for d in decisions),
    )


def _point(search: Search, decision: Decision) -> Point:
    best = decision.best
    low, high = MODEL_RANGE[search.cluster.transport.kind]
    return Point(
        size_bytes=best.size,
        predicted_ps=best.time,
        low_ps=round(best.time * low),
        high_ps=round(best.time * high),
        scratch_bytes=scratch_bound(best.schedule, best.wire, best.size),
        carried=best.timeline.carried,
        codec_break_even=search.codec_break_even(decision),
        rejected=(
            *(
                Rejected(name=r.schedule.name, codec=r.wire.codec, predicted_ps=r.time, reason=reason)
                for r, reason in decision.others
            ),
            *(
                Rejected(name=d.schedule.name, codec=d.schedule.codec, at_least_ps=d.at_least, reason=d.reason)
                for d in decision.dropped
            ),
        ),
    )


def scratch_bound(schedule: Schedule, wire: Wire, size: int) -> int:
    """Bytes of scratch in the worst case: every slot incompressible, so a frame is its raw bytes and a header."""
    return schedule.scratch_bytes(size, schedule.slot_bytes(size) + wire.header)
