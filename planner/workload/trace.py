"""A planned step as a trace: the step left raw and the step planned, one process each."""

from __future__ import annotations

from typing import Any

from zipplan.planner.trace import Trace
from zipplan.planner.units import short_size
from zipplan.planner.workload.report import Planned


def step_trace(planned: Planned) -> dict[str, Any]:
    """Trace document: a track for compute and one for each kind of collective.

    One pass over the tasks; the stretch of a pipeline's bubble is not in it.
    """
    trace = Trace()
    choices = {row.call: row.choice for row in planned.rows}
    for pid, (text, step) in enumerate((("raw", planned.raw), ("planned", planned.planned))):
        trace.process(pid, f"{planned.workload.name}, {text}: one rank of {planned.cluster.ranks}")
        trace.track(pid, 0, "compute")
        tracks: dict[str, int] = {}
        for task, (start, end) in zip(planned.step.tasks, step.ran, strict=True):
            call = task.call
            if call is None:
                trace.slice(pid, 0, task.name, start, end, {"slowed by": f"{(end - start) / task.ps - 1:.0%}"})
                continue
            kind = f"{call.what}: {call.collective} on {call.grid.text} ranks"
            if kind not in tracks:
                tracks[kind] = 1 + len(tracks)
                trace.track(pid, tracks[kind], kind)
            choice = choices[call] if text == "planned" else "native"
            args = {"size": short_size(call.size), "bytes": call.size, "dtype": call.dtype, "choice": choice}
            trace.slice(pid, tracks[kind], choice, start, end, args)
    return trace.document()
