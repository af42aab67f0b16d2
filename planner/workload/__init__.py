"""Training workloads: a step as data, the collectives that it issues, and its time raw and planned."""

from __future__ import annotations

from zipplan.planner.workload.load import load_workload, shipped
from zipplan.planner.workload.model import Workload
from zipplan.planner.workload.report import Planned, Row, plan_workload
from zipplan.planner.workload.step import Call, Task, build_step
from zipplan.planner.workload.timeline import StepTime, run_step
from zipplan.planner.workload.trace import step_trace

__all__ = [
    "Call", "Planned", "Row", "StepTime", "Task", "Workload", "build_step", "load_workload", "plan_workload",
    "run_step", "shipped", "step_trace",
]  # fmt: skip
