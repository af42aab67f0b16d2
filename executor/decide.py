"""Which way each call goes: the plan's choice, or natively and why; alike on all ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from zipplan.executor.adaptive import Class, break_even
from zipplan.executor.calls import Call, dtype_name
from zipplan.planner.collectives import NATIVE
from zipplan.planner.plan import Choice, Plan
from zipplan.planner.schedule import Collective, Op, Schedule

MOST_REMEMBERED = 4096
V = TypeVar("V")


@dataclass(frozen=True)
class Decision:
    """How a call runs: by the plan's `choice`, or natively (None), which the plan chose or which has a `reason`.

    `reason`: as `fallbacks` counts it. `compressing`: of the class, when this was decided.
    """

    tally: Class
    schedule: Schedule
    choice: Choice | None
    reason: tuple[str, str, str] | None
    compressing: bool


class Decider:
    """A plan, applied to calls, and what all ranks measured with it.

    `disabled`: everything natively. `comparable`: whether the plan's times are those of this job's machine. `no_plan`:
    why there is none. `no_codec`: by kind of device, why tensors there cannot be coded; "" where they can.
    """

    def __init__(self, plan: Plan | None, ranks: int, disabled: bool, comparable: bool) -> None:
        self._plan, self._disabled, self._comparable = plan, disabled, comparable and plan is not None
        self.no_plan = "no plan"
        self.no_codec: dict[str, str] = {"cpu": ""}
        self.classes: dict[tuple[Any, ...], Class] = {}
        self._native = {c: build(1, ranks, "raw") for c, build in NATIVE.items()}
        self._choices: dict[tuple[Any, ...], Choice | str] = {}
        self._decisions: dict[tuple[Any, ...], Decision] = {}

    def choose(self, collective: Collective, dtype: torch.dtype, size: int, device: torch.device) -> Choice | str:
        """The plan's choice for a message of `size` bytes (as nccl-tests counts), or why it runs natively."""
        key = (collective, dtype, size, device.type)
        held = self._choices.get(key)
        return held if held is not None else remember(self._choices, key, self._choose(*key))

    def _choose(self, collective: Collective, dtype: torch.dtype, size: int, device: str) -> Choice | str:
        if self._disabled:
            return "ZIPPLAN_DISABLE is on"
        if self._plan is None:
            return self.no_plan
        choice = self._plan.choose(collective, dtype_name(dtype), size)
        if choice is None:
            return f"the plan has no table for {collective} of {dtype_name(dtype)}"
        if has_frames(choice.schedule) and (missing := self.no_codec.get(device, f"no codec for tensors on {device}")):
            return missing
        return choice

    def decide(self, call: Call) -> Decision:
        """How to run a call; alike on all ranks, since it depends on what all ranks know. Remembered by what it is."""
        even = call.splits is None
        key = (call.collective, call.dtype, call.size if even else -1, call.kind, call.not_accelerated, call.device)
        held = self._decisions.get(key)
        if held is None or held.compressing != held.tally.compressing:
            held = remember(self._decisions, key, self._decided(call))
        return held

    def _decided(self, call: Call) -> Decision:
        size = call.size
        if call.splits is not None:  # sizes differ between ranks: one class for all
            size = self._zipped_from(call.dtype)
        choice = self.choose(call.collective, call.dtype, size, call.input.device)
        tally = self._class(call, choice)
        native_schedule = self._native[call.collective]

        def why(reason: str) -> tuple[str, str, str]:
            return str(call.collective), dtype_name(call.dtype), reason

        if isinstance(choice, str):
            return Decision(tally, native_schedule, None, why(choice), tally.compressing)
        if choice.schedule.name == "native":
            return Decision(tally, choice.schedule, None, None, tally.compressing)
        if call.not_accelerated is not None:
            return Decision(tally, native_schedule, None, why(call.not_accelerated), tally.compressing)
        if has_frames(choice.schedule) and not tally.compressing:  # judged by what all ranks measured
            return Decision(tally, native_schedule, None, why(tally.reason), False)
        return Decision(tally, choice.schedule, choice, None, tally.compressing)

    def _zipped_from(self, dtype: torch.dtype) -> int:
        """The smallest size from which the plan zips an all-to-all; 0 when it never does."""
        entry = None if self._plan is None else self._plan.entry(Collective.ALL_TO_ALL, dtype_name(dtype))
        rows = () if entry is None else entry.choices
        return next((row.start for row in rows if has_frames(row.schedule)), 0)

    def _class(self, call: Call, choice: Choice | str) -> Class:
        name, spread = dtype_name(call.dtype), "-uneven" if call.splits is not None else ""
        start, stop = (0, None) if isinstance(choice, str) else (choice.start, choice.stop)
        key = (call.collective, name, call.kind, start, call.not_accelerated, spread, isinstance(choice, str))
        tally = self.classes.get(key)
        if tally is None:
            entry = None if self._plan is None else self._plan.entry(call.collective, name)
            if isinstance(choice, str) or call.not_accelerated is not None:
                known = ("native", "raw", start, stop, 1.0, 1.0)
            elif not has_frames(choice.schedule):
                known = (choice.schedule.name, "raw", start, stop, 1.0, 1.0)
            else:
                ratio = choice.expected_ratio
                schedule = choice.schedule.name + spread
                known = (schedule, choice.codec.id, start, stop, ratio, break_even(entry, choice))
            tally = self.classes[key] = Class(str(call.collective), name, call.kind, *known)
        return tally

    def predicted_s(self, call: Call) -> float:
        """Seconds that the plan predicts for a call; 0 where its times mean nothing here."""
        if not self._comparable:
            return 0.0
        choice = self.choose(call.collective, call.dtype, call.size, call.input.device)
        return 0.0 if isinstance(choice, str) else choice.predicted_ps / 1e12


def remember(table: dict[tuple[Any, ...], V], key: tuple[Any, ...], value: V) -> V:
    """Keep `value`; sizes that never come again must not pile up."""
    if len(table) > MOST_REMEMBERED:
        table.clear()
    table[key] = value
    return value


def has_frames(schedule: Schedule) -> bool:
    """Whether a schedule encodes anything."""
    return any(stage.op is Op.ENCODE for stage in schedule.stages)


def rehearsal(plan: Plan, ranks: int, backend: str) -> str | None:
    """Why this job is not the machine that the plan predicts, as far as a rank can see."""
    made_for = plan.topology
    if made_for.transport != backend:
        return f"the plan was made for {made_for.transport} and runs on {backend} here"
    local = min(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    if local != made_for.ranks_per_node:
        planned = f"{made_for.nodes} × {made_for.ranks_per_node}"
        return f"the plan was made for {planned} ranks, here {local} of {ranks} share a host"
    return None
