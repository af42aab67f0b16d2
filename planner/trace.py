"""A timeline as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens.

One process per rank, one track for the codec engine and one for the exchanges.
Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (complete events, "ph": "X").
"""

from __future__ import annotations

from typing import Any

from zipplan.planner.schedule import Op, Schedule
from zipplan.planner.simulate import Timeline

_TRACKS = {0: "codec and copies", 1: "exchanges"}


def chrome_trace(schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    """Trace document; time stamps in µs, as the format wants."""
    track = {s.name: int(s.op is Op.EXCHANGE) for s in schedule.stages}
    events: list[dict[str, Any]] = []
    for rank in range(schedule.ranks):
        node, local = divmod(rank, schedule.ranks_per_node)
        events.append(_name("process_name", rank, 0, f"rank {rank} (node {node}, local {local})"))
        events += [_name("thread_name", rank, t, text) for t, text in _TRACKS.items()]
    for span in timeline.spans:
        events.append(
            {
                "ph": "X",
                "name": span.stage,
                "pid": span.rank,
                "tid": track[span.stage],
                "ts": span.start / 1e6,
                "dur": (span.end - span.start) / 1e6,
                "args": {"carried by": " ".join(timeline.carried.get(span.stage, ()))} if track[span.stage] else {},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _name(kind: str, rank: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": track, "args": {"name": text}}
