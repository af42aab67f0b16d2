"""A timeline as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.

One process per rank: a track for codec and copies, tracks for exchanges, a track and a counter for each direction of
each link of its own. Links that no rank has to itself stand with their node, those between nodes with the fabric.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: complete events ("X"), counters
("C"), names ("M"); times in µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zipplan.planner.schedule import Op, Schedule
from zipplan.planner.simulate import Span, Timeline
from zipplan.planner.topology import Cluster
from zipplan.planner.units import PS_PER_SECOND

_SAME = 1e-6  # rates nearer than this are one rate: what is left is rounding


@dataclass
class Trace:
    """Events as they are added; `document` sorts them."""

    names: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes stand in the order of their numbers."""
        self._name("process_name", pid, 0, {"name": name})
        self._name("process_sort_index", pid, 0, {"sort_index": pid})

    def track(self, pid: int, tid: int, name: str) -> None:
        """Name a track; tracks of a process stand in the order of their numbers."""
        self._name("thread_name", pid, tid, {"name": name})
        self._name("thread_sort_index", pid, tid, {"sort_index": tid})

    def slice(self, pid: int, tid: int, name: str, start: int, end: int, args: Mapping[str, Any] | None = None) -> None:
        """Something that lasts from `start` to `end` ps."""
        at = start // 1000
        long = (end // 1000 - at) / 1000
        self.events.append(
            {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at / 1000, "dur": long, "args": dict(args or {})}
        )

    def counter(self, pid: int, name: str, at: int, unit: str, value: float) -> None:
        """From `at` ps on the counter has this value."""
        self.events.append({"ph": "C", "name": name, "pid": pid, "ts": at // 1000 / 1000, "args": {unit: value}})

    def document(self) -> dict[str, Any]:
        """The whole file: names, then events in order of time. Whole ns, as Perfetto keeps them, so that no slice
        reaches into the next one.
        """
        return {
            "traceEvents": [*self.names, *sorted(self.events, key=lambda e: (e["ts"], e["pid"], -e.get("dur", 0.0)))],
            "displayTimeUnit": "ns",
        }

    def _name(self, kind: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self.names.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args})


@dataclass(frozen=True, slots=True)
class Busy:
    """A link while its traffic stays the same: by transfer, bytes; [start, end) ps."""

    start: int
    end: int
    bytes: dict[str, float]

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return sum(self.bytes.values()) / (self.end - self.start) * PS_PER_SECOND


def link_use(timeline: Timeline) -> dict[int, list[Busy]]:
    """What every link carried when, by link number, in order of time. Needs a timeline that was recorded."""
    pieces: dict[int, dict[tuple[int, int], dict[str, float]]] = {}
    for moved in timeline.moved:
        for link, count in zip(moved.links.tolist(), moved.bytes.tolist(), strict=True):
            at = pieces.setdefault(link, {}).setdefault((moved.start, moved.end), {})
            at[moved.what] = at.get(moved.what, 0.0) + count
    return {
        link: _joined(Busy(start, end, found) for (start, end), found in sorted(by_time.items()))
        for link, by_time in sorted(pieces.items())
    }


def _joined(pieces: Iterable[Busy]) -> list[Busy]:
    """Neighbours with the same transfers at the same rate become one."""
    joined: list[Busy] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.end == piece.start
            and last.bytes.keys() == piece.bytes.keys()
            and abs(last.rate / piece.rate - 1) < _SAME
        ):
            total = {what: last.bytes[what] + count for what, count in piece.bytes.items()}
            joined[-1] = Busy(last.start, piece.end, total)
        else:
            joined.append(piece)
    return joined


def chrome_trace(schedule: Schedule, timeline: Timeline, cluster: Cluster) -> dict[str, Any]:
    """Trace document of one simulated collective."""
    trace = Trace()
    for rank in range(schedule.ranks):
        node, local = divmod(rank, schedule.ranks_per_node)
        trace.process(rank, f"rank {rank} (node {node}, local {local})")
    _stages(trace, schedule, timeline)
    _links(trace, timeline, cluster)
    return trace.document()


def _stages(trace: Trace, schedule: Schedule, timeline: Timeline) -> None:
    """Local stages on track 0; exchanges on as many tracks as run at once."""
    exchanges = {s.name for s in schedule.stages if s.op is Op.EXCHANGE}
    lanes: dict[int, list[int]] = {rank: [] for rank in range(schedule.ranks)}
    for rank in lanes:
        trace.track(rank, 0, "codec and copies")
    for span in sorted(timeline.spans, key=lambda s: (s.start, s.end)):
        if span.stage not in exchanges:
            trace.slice(span.rank, 0, span.stage, span.start, span.end)
            continue
        lane = _free(lanes[span.rank], span)
        if lane == len(lanes[span.rank]):
            lanes[span.rank].append(0)
            trace.track(span.rank, 1 + lane, "exchanges" if lane == 0 else f"exchanges, {lane + 1} at once")
        lanes[span.rank][lane] = span.end
        carried = " ".join(timeline.carried.get(span.stage, ()))
        trace.slice(span.rank, 1 + lane, span.stage, span.start, span.end, {"carried by": carried})


def _free(ends: list[int], span: Span) -> int:
    return next((lane for lane, end in enumerate(ends) if end <= span.start), len(ends))


def _links(trace: Trace, timeline: Timeline, cluster: Cluster) -> None:
    owners: dict[str, int] = {}
    for rank in range(cluster.ranks):
        owners.setdefault(f"n{rank // cluster.ranks_per_node}/{cluster.device_of(rank)}", rank)
    shared: dict[int, str] = {}
    for link, spans in link_use(timeline).items():
        row = cluster.links[link]
        pid = owners.get(row.src, owners.get(row.dst))
        if pid is None:
            node = row.src.partition("/")[0]
            inside = row.kind != "nic" and "/" in row.src and row.dst.partition("/")[0] == node
            pid = cluster.ranks + (int(node[1:]) if inside else cluster.nodes)
            shared[pid] = f"node {node[1:]}: shared links" if inside else "network"
        track = 1000 + link
        name = f"{row.src} → {row.dst}"
        trace.track(pid, track, f"{name} ({row.kind}, {row.bandwidth / 1e9:g} GB/s)")
        for span, after in zip(spans, [*spans[1:], None], strict=True):
            full = span.rate / row.bandwidth
            args = {"GB/s": round(span.rate / 1e9, 6), "of the link": round(full, 6), "bytes": span.bytes}
            trace.slice(pid, track, " + ".join(span.bytes), span.start, span.end, args)
            trace.counter(pid, name, span.start, "GB/s", round(span.rate / 1e9, 6))
            if after is None or after.start > span.end:
                trace.counter(pid, name, span.end, "GB/s", 0.0)
    for pid, text in shared.items():
        trace.process(pid, text)
