"""A session: one plan, agreed on by all ranks, and the collectives that follow it.

Movement returns the bytes that the native call returns. Sums made by zipplan add in FP32 in rank order and round once
(equal on all ranks); native sums are the transport's. What the plan does not cover runs natively, counted, with the
reason.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import native
from zipplan.executor.agree import Item, agree
from zipplan.executor.codec import SlotCodec
from zipplan.executor.interpreter import Scratch, Traffic, run
from zipplan.planner.collectives import NATIVE
from zipplan.planner.errors import ConfigError, PlanError, ZipplanError
from zipplan.planner.plan import Choice, Plan
from zipplan.planner.schedule import OUTPUT, Axis, Collective, Op, Schedule
from zipplan.planner.topology import build_cluster, load_machine

log = logging.getLogger("zipplan")

_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """'bf16' for torch.bfloat16, torch's own name for a dtype that plans do not know."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


@dataclass
class Use:
    """What a session did with one (collective, dtype, schedule, codec)."""

    calls: int = 0
    traffic: Traffic = field(default_factory=Traffic)


def init(
    plan: Plan | str | os.PathLike[str] | None = None,
    *,
    ranks_per_node: int | None = None,
    topology: str | None = None,
    timeout: timedelta | None = None,
) -> Session:
    """Load the plan, agree with all ranks of the default process group, make groups. A collective call.

    plan: a Plan, a path, or None for the path in ZIPPLAN_PLAN (unset: everything runs natively, counted).
    ranks_per_node: how the job's ranks lie on nodes; None: torchrun's LOCAL_WORLD_SIZE. topology: the machine at hand
    (shipped name or file), to be compared with the plan's; None: not compared. timeout: of the groups made here; None:
    torch's default. Raises PlanError, AgreementError and what reading plan or topology raises, alike on every rank.
    """
    if not dist.is_initialized():
        raise ConfigError(
            "no process group: call torch.distributed.init_process_group() before zipplan.executor.init()"
        )
    local = ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    loaded, path, disabled, problem = None, "", False, None
    try:
        disabled = _switch("ZIPPLAN_DISABLE")
        loaded, path = _load(plan)
        if loaded is not None:
            _check_fit(loaded, local)
            if topology is not None:
                _check_machine(loaded, topology)
    except ZipplanError as error:
        problem = error
    held = loaded.hash.removeprefix("sha256:") if loaded else "not loaded" if problem else "none"
    versions = f"zipplan {importlib.metadata.version('zipplan')}, torch {torch.__version__}"
    agree(
        [
            Item("plan", held, f"{held[:12]}{path and f' ({path})'}"),
            Item("start-up", str(problem), str(problem) if problem else "no problem"),
            Item("versions", versions, versions),
            Item("switch ZIPPLAN_DISABLE", str(disabled), "on" if disabled else "off"),
            Item("ranks per node", str(local), str(local)),
        ],
        device_of_backend(),
    )
    if problem is not None:
        raise problem
    return Session(loaded, local, disabled, timeout)


class Session:
    """Collectives that follow a plan. Made by `init`, which every rank must call.

    `rehearsal`: why the plan's times mean nothing here (another transport, ranks placed otherwise), None if they do.
    """

    def __init__(
        self, plan: Plan | None, ranks_per_node: int, disabled: bool = False, timeout: timedelta | None = None
    ) -> None:
        self.plan, self.disabled = plan, disabled
        self.ranks = dist.get_world_size()
        self.backend = dist.get_backend()
        self.used: dict[tuple[str, str, str, str], Use] = {}
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()
        self.last = Traffic()
        schedules = [c.schedule for e in plan.entries for c in e.choices] if plan else []
        axes = frozenset[Axis]().union(*(s.axes for s in schedules))
        self._axes = native.Axes(self.ranks // ranks_per_node, ranks_per_node, axes, timeout)
        self._native = {c: build(1, self.ranks, "raw") for c, build in NATIVE.items()}
        self._parts = {
            Collective.ALL_GATHER: (1, self.ranks),
            Collective.REDUCE_SCATTER: (self.ranks, 1),
            Collective.ALL_REDUCE: (1, 1),
            Collective.ALL_TO_ALL: (self.ranks, self.ranks),
        }
        self._scratch: dict[torch.device, Scratch] = {}
        self._codecs: dict[tuple[Any, ...], SlotCodec] = {}
        self.rehearsal = _rehearsal(plan, self.ranks, self.backend) if plan else None
        if self.rehearsal and self._axes.rank == 0:
            log.warning("rehearsal: %s; predicted times are not compared", self.rehearsal)

    def all_gather(self, output: Tensor, input: Tensor) -> None:
        """output (ranks × input.numel() elements, same dtype, any shape) = all ranks' input, in rank order."""
        self._check(Collective.ALL_GATHER, output, input, output.numel() == self.ranks * input.numel())
        self._call(Collective.ALL_GATHER, output, input)

    def reduce_scatter(self, output: Tensor, input: Tensor) -> None:
        """output = sum over ranks of the part of input (ranks × output.numel() elements) that is this rank's."""
        self._check(Collective.REDUCE_SCATTER, output, input, input.numel() == self.ranks * output.numel())
        self._call(Collective.REDUCE_SCATTER, output, input)

    def all_reduce(self, tensor: Tensor) -> None:
        """tensor = sum over ranks, in place; any number of elements, any shape."""
        self._check(Collective.ALL_REDUCE, tensor, tensor, True)
        self._call(Collective.ALL_REDUCE, tensor, tensor)

    def all_to_all(self, output: Tensor, input: Tensor) -> None:
        """output part p = part of rank p's input that is this rank's; both hold the same number, divisible by ranks."""
        fits = input.numel() == output.numel() and input.numel() % self.ranks == 0
        self._check(Collective.ALL_TO_ALL, output, input, fits)
        self._call(Collective.ALL_TO_ALL, output, input)

    def choose(self, collective: Collective, dtype: torch.dtype, size: int, device: torch.device) -> Choice | str:
        """The plan's choice for a message of `size` bytes (as nccl-tests counts), or why it runs natively."""
        name = dtype_name(dtype)
        if self.disabled:
            return "ZIPPLAN_DISABLE is on"
        if self.plan is None:
            return "no plan"
        choice = self.plan.choose(collective, name, size)
        if choice is None:
            return f"the plan has no table for {collective} of {name}"
        if has_frames(choice.schedule) and device.type != "cpu":
            return f"no codec for tensors on {device.type}"
        return choice

    def _check(self, collective: Collective, output: Tensor, input: Tensor, sizes_fit: bool) -> None:
        if output.dtype != input.dtype or output.device != input.device:
            raise ConfigError(
                f"{collective}: input is {input.dtype} on {input.device}, output is {output.dtype} on {output.device}; "
                "they must be alike"
            )
        if not sizes_fit:
            raise ConfigError(
                f"{collective} on {self.ranks} ranks: input has {input.numel()} elements, output {output.numel()}; "
                "all_gather needs output = ranks × input, reduce_scatter input = ranks × output, all_to_all equal "
                "numbers that divide by ranks"
            )
        if collective.reduces:
            native.check_summable(input.dtype, self.backend)

    @torch.no_grad()
    def _call(self, collective: Collective, output: Tensor, input: Tensor) -> None:
        size = max(input.numel(), output.numel()) * input.dtype.itemsize
        self.last = Traffic()
        if size == 0:  # sizes are equal on all ranks, so no rank enters a collective
            return
        choice = self.choose(collective, input.dtype, size, input.device)
        if isinstance(choice, str):
            self.fallbacks[collective, dtype_name(input.dtype), choice] += 1
            schedule, codec = self._native[collective], None
        else:
            schedule, codec = choice.schedule, None
            if has_frames(schedule):
                codec = self._codec(choice, input.dtype, size)
        self.last = self.execute(schedule, output, input, codec)
        key = (str(collective), dtype_name(input.dtype), schedule.name, schedule.codec)
        use = self.used.setdefault(key, Use())
        use.calls += 1
        use.traffic += self.last

    def execute(self, schedule: Schedule, output: Tensor, input: Tensor, codec: SlotCodec | None = None) -> Traffic:
        """Run one schedule on tensors of any layout: pad parts to whole slots and straighten views where needed.

        A part is what one rank contributes to or gets from another; it is padded at its end, in scratch.
        """
        parts_in, parts_out = self._parts[schedule.collective]
        scratch = self._scratch.setdefault(input.device, Scratch(input.device))
        itemsize = input.dtype.itemsize
        slots_in, slots_out = schedule.slots, schedule.buffer_slots[OUTPUT]
        part_bytes = input.numel() * itemsize // parts_in
        per_part = slots_in // parts_in
        slot_bytes = -(-input.numel() // slots_in) * itemsize
        padded = per_part * slot_bytes
        source, target = _flat_bytes(input), _flat_bytes(output)
        if source is None or padded != part_bytes:
            fitted = scratch.take("input", slots_in * slot_bytes).view(parts_in, padded)
            flat = source if source is not None else _flat_bytes(input.resolve_conj().resolve_neg().contiguous())
            assert flat is not None
            fitted[:, :part_bytes].copy_(flat.view(parts_in, part_bytes))
            fitted[:, part_bytes:].zero_()
            source = fitted.view(-1)
        direct = target is not None and slots_out * slot_bytes == target.numel()
        result = target if direct and target is not None else scratch.take("output", slots_out * slot_bytes)
        traffic = run(schedule, self._axes, codec, scratch, input.dtype, source, result)
        if not direct:
            rows = result.view(parts_out, -1)[:, : output.numel() * itemsize // parts_out]
            output.copy_(rows.contiguous().view(-1).view(output.dtype).view(output.shape))
        return traffic

    def _codec(self, choice: Choice, dtype: torch.dtype, size: int) -> SlotCodec:
        elements = -(-choice.schedule.slot_bytes(size) // dtype.itemsize)
        parameters = choice.codec.parameters
        key = (choice.schedule.codec, *sorted(parameters.items()), dtype, elements)
        if key not in self._codecs:
            self._codecs[key] = SlotCodec(choice.schedule.codec, parameters, dtype_name(dtype), elements)
        return self._codecs[key]

    def report(self) -> dict[str, Any]:
        """Plain data: what ran how often with which ratio and wire bytes, and what ran natively and why."""
        return {
            "used": [
                {
                    **dict(zip(("collective", "dtype", "schedule", "codec"), key, strict=True)),
                    "calls": use.calls,
                    "ratio": use.traffic.ratio,
                    "wire_bytes": round(use.traffic.wire_bytes),
                }
                for key, use in self.used.items()
            ],
            "fallbacks": self.fallback_rows(),
        }

    def fallback_rows(self) -> list[dict[str, Any]]:
        """Calls that ran natively although a plan was there to follow: collective, dtype, reason, calls."""
        return [
            {"collective": collective, "dtype": dtype, "reason": reason, "calls": calls}
            for (collective, dtype, reason), calls in sorted(self.fallbacks.items())
        ]


def has_frames(schedule: Schedule) -> bool:
    """Whether a schedule encodes anything."""
    return any(stage.op is Op.ENCODE for stage in schedule.stages)


def device_of_backend() -> torch.device:
    """Where the default process group wants its tensors."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _load(plan: Plan | str | os.PathLike[str] | None) -> tuple[Plan | None, str]:
    if isinstance(plan, Plan):
        return plan, ""
    path = plan or os.environ.get("ZIPPLAN_PLAN")
    return (Plan.load(Path(path)), os.fspath(path)) if path else (None, "")


def _check_fit(plan: Plan, ranks_per_node: int) -> None:
    """Raise PlanError unless the plan fits the job's world."""
    ranks = dist.get_world_size()
    if ranks % ranks_per_node:
        raise ConfigError(f"{ranks} ranks do not fall into nodes of {ranks_per_node} ranks each")
    nodes = ranks // ranks_per_node
    shape, planned = (nodes, ranks_per_node), (plan.topology.nodes, plan.topology.ranks_per_node)
    flat = all(c.schedule.axes <= {Axis.WORLD} for e in plan.entries for c in e.choices)
    if plan.ranks != ranks or (shape != planned and not flat):
        advice = f"start {plan.ranks} ranks" if plan.ranks != ranks else f"rehearse with --ranks-per-node {planned[1]}"
        needs = f"{plan.ranks} ranks ({planned[0]} {'node' if planned[0] == 1 else 'nodes'} × {planned[1]})"
        raise PlanError(
            f"plan needs {needs}, job has {ranks} ({nodes} × {ranks_per_node}); {advice}, or make a plan for this job"
        )


def _rehearsal(plan: Plan, ranks: int, backend: str) -> str | None:
    """Why this job is not the machine that the plan predicts, as far as a rank can see."""
    made_for = plan.topology
    if made_for.transport != backend:
        return f"the plan was made for {made_for.transport} and runs on {backend} here"
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if local != made_for.ranks_per_node:
        planned = f"{made_for.nodes} × {made_for.ranks_per_node}"
        return f"the plan was made for {planned} ranks, here {local} of {ranks} share a host"
    return None


def _check_machine(plan: Plan, topology: str) -> None:
    """Raise PlanError unless the plan was made for this machine, TopologyError when the machine cannot be read."""
    planned = plan.topology
    cluster = build_cluster(load_machine(topology), nodes=planned.nodes, ranks_per_node=planned.ranks_per_node)
    if cluster.fingerprint != planned.fingerprint:
        found, expected = (f.removeprefix("sha256:")[:12] for f in (cluster.fingerprint, planned.fingerprint))
        raise PlanError(
            f"plan was made for topology {planned.name} (fingerprint {expected}), but {topology} has fingerprint "
            f"{found}; plan again for this machine"
        )


def _switch(name: str) -> bool:
    """Whether an on/off environment variable is on. Raises ConfigError for anything but 0, 1, on, off or nothing."""
    value = os.environ.get(name, "").lower()
    if value not in ("", "0", "1", "on", "off"):
        raise ConfigError(f"{name}={value!r}: expected 1 or 0")
    return value in ("1", "on")


def _flat_bytes(tensor: Tensor) -> Tensor | None:
    """The tensor's own memory as flat uint8, or None when it is not one plain run of bytes."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.detach().reshape(-1).view(torch.uint8)
