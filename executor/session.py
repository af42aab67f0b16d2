"""A session: one plan, agreed on by all ranks of a group, and the collectives that follow it.

Movement returns the bytes that the native call returns. Sums made by zipplan add in FP32 in rank order and round once
(equal on all ranks); native reductions are the transport's. What the plan does not cover runs natively, counted, with
the reason.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zipplan.executor import calls, check, faults, native, repeat, report, uneven
from zipplan.executor.adaptive import Class
from zipplan.executor.agree import agree_on_call
from zipplan.executor.calls import SUM, Call, dtype_name
from zipplan.executor.codec import SlotCodec
from zipplan.executor.coders import Coder, coder_for
from zipplan.executor.decide import Decider, Decision, has_frames, rehearsal, remember
from zipplan.executor.interpreter import Scratch, Traffic, run
from zipplan.executor.streams import device_of, streams_of
from zipplan.executor.uncompiled import uncompiled
from zipplan.executor.work import Forwarded, Handle, Lane, finished
from zipplan.planner.collectives import NATIVE
from zipplan.planner.errors import CollectiveError
from zipplan.planner.plan import Choice, Plan
from zipplan.planner.schedule import OUTPUT, Axis, Collective, Exchange, Schedule

log = logging.getLogger("zipplan")

MOST_ELEMENTS = 1 << 31
"""Of one call to codec and transport; larger tensors go in pieces. A frame holds 2³² elements (kernels.codec)."""


@dataclass(frozen=True)
class Switches:
    """How the session behaves, equal on all ranks. `check`: off, sizes or bits; `adaptive`: see `init`."""

    disabled: bool = False
    check: str = "off"
    adaptive: bool = True


_open: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    with contextlib.ExitStack() as all_:  # each is closed, whatever another one raises
        for session in _open:
            all_.callback(session.close)


class Session:
    """Collectives of one process group that follow a plan. Made by `init`, which every rank must call.

    Every collective takes `async_op` (True: returns a handle with `wait()` and `get_future()`, else None) and `kind`,
    a name for the tensors at hand ("weights"), by which the report and the adaptive choice tell calls apart.
    `store`, a corner of the job's store, carries what ranks say when a collective fails. `make` makes a process group
    of some of the group's ranks. `rehearsal`: why the plan's times mean nothing here (another transport, ranks placed
    otherwise), None if they do.
    """

    def __init__(
        self, plan: Plan | None, ranks_per_node: int, switches: Switches, group: Any, backend: str, store: Any,
        make: native.Make,
    ) -> None:  # fmt: skip
        self.plan, self.switches, self.group, self.backend = plan, switches, group, backend
        self.rank, self.ranks = group.rank(), group.size()
        self.most_elements = MOST_ELEMENTS
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()
        self.last = Traffic()
        self.watch = faults.Watch(store, self.rank, self.ranks, device_of(backend))
        self.device = device_of(backend)
        self.streams = streams_of(self.device)
        self.lane = Lane(self.streams)
        self.number = 0
        schedules = [c.schedule for e in plan.entries for c in e.choices] if plan else []
        axes = frozenset[Axis]().union(*(s.axes for s in schedules))
        self._axes = native.Axes(group, ranks_per_node, axes, make)
        self._parts = {c: calls.parts(c, self.ranks) for c in NATIVE}
        self._scratch: dict[torch.device, Scratch] = {}
        self._codecs: dict[tuple[Any, ...], SlotCodec] = {}
        self._known: dict[tuple[Any, ...], tuple[repeat.Native, Decision, float]] = {}
        self._coders: dict[torch.device, Coder] = {}
        self._sums = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.rehearsal = rehearsal(plan, self.ranks, self.backend) if plan else None
        self.decider = Decider(plan, self.ranks, switches.disabled, comparable=self.rehearsal is None)
        if self.rehearsal and self.rank == 0:
            log.warning("rehearsal: %s; predicted times are not compared", self.rehearsal)
        _open.add(self)

    @uncompiled
    def all_gather(self, output: Tensor, input: Tensor, *, async_op: bool = False, kind: str = "") -> Handle | None:
        """output (ranks × input.numel() elements, same dtype, any shape) = all ranks' input, in rank order."""
        if not async_op and self._repeated(Collective.ALL_GATHER, output, input, SUM, kind):
            return None
        return self._call(Call(Collective.ALL_GATHER, output, input, kind=kind), async_op)

    @uncompiled
    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Any = SUM, *, async_op: bool = False, kind: str = ""
    ) -> Handle | None:
        """output = sum over ranks of the part of input (ranks × output.numel() elements) that is this rank's.

        op: SUM and AVG (the sum, divided) follow the plan, any other runs natively.
        """
        if not async_op and self._repeated(Collective.REDUCE_SCATTER, output, input, op, kind):
            return None
        return self._call(Call(Collective.REDUCE_SCATTER, output, input, op, kind), async_op)

    @uncompiled
    def all_reduce(self, tensor: Tensor, op: Any = SUM, *, async_op: bool = False, kind: str = "") -> Handle | None:
        """tensor = sum over ranks, in place; any number of elements, any shape; op as in `reduce_scatter`."""
        if not async_op and self._repeated(Collective.ALL_REDUCE, tensor, tensor, op, kind):
            return None
        return self._call(Call(Collective.ALL_REDUCE, tensor, tensor, op, kind), async_op)

    @uncompiled
    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: list[int] | None = None,
        input_splits: list[int] | None = None, *, async_op: bool = False, kind: str = "",
    ) -> Handle | None:  # fmt: skip
        """output part p = part of rank p's input that is this rank's.

        Without splits both hold the same number of elements, divisible by ranks. With splits (rows of dimension 0 to
        receive from and to send to each rank, 0 allowed; None: equal rows) parts are as long as they say, and a rank
        may have nothing to send; what rank a sends to b must be what b receives from a.
        """
        splits = None
        if output_splits is None and input_splits is None:
            if not async_op and self._repeated(Collective.ALL_TO_ALL, output, input, SUM, kind):
                return None
        else:
            splits = (
                calls.split_elements(output, output_splits, self.ranks, "output"),
                calls.split_elements(input, input_splits, self.ranks, "input"),
            )
        return self._call(Call(Collective.ALL_TO_ALL, output, input, kind=kind, splits=splits), async_op)

    def choose(self, collective: Collective, dtype: torch.dtype, size: int, device: torch.device) -> Choice | str:
        """The plan's choice for a message of `size` bytes (as nccl-tests counts), or why it runs natively."""
        return self.decider.choose(collective, dtype, size, device)

    @property
    def classes(self) -> dict[tuple[Any, ...], Class]:
        """What ran, by class of calls."""
        return self.decider.classes

    @uncompiled
    def forward(self, name: str, job: Callable[[], Any], ordered: bool = True) -> Any:
        """Run `job`, a call of the transport that no plan covers, after all earlier calls if ordered; count it."""
        self.fallbacks[name, "any", "not accelerated"] += 1
        return self.lane.run(job) if ordered else job()

    def _call(self, call: Call, async_op: bool) -> Handle | None:
        call = call.checked(self.ranks, self.backend)
        if call.elements > self.most_elements and call.splits is None:
            handles = [self._call(piece, async_op) for piece in call.pieces(self.ranks, self.most_elements)]
            return handles[-1]  # calls end in order
        if not async_op:
            self.lane.run(lambda: self._perform(call))
            return None
        if call.device != self.device.type:  # gloo with tensors on a GPU: their streams are not the lane's
            self.lane.run(lambda: self._perform(call))
            return finished([call.output])
        return self._forwarded(call) or self.lane.start(lambda: self._perform(call), [call.output], [call.input])

    def _forwarded(self, call: Call) -> Handle | None:
        """The transport's own handle, for a native call that needs nothing before or after; None for any other."""
        plain = call.splits is None and self.switches.check == "off" and self.ranks > 1 and call.size > 0
        if not plain or not self.lane.idle or self.watch.broken is not None:
            return None
        decision = self.decider.decide(call)
        source, target = calls.flat_bytes(call.input), calls.flat_bytes(call.output)
        if decision.schedule.name != "native" or source is None or target is None:
            return None
        kind = Exchange(call.collective)
        shared = calls.must_copy(call.collective, call.output, call.input, self.rank)
        if shared or native.in_pieces(kind, source, self.group):
            return None
        if call.collective.reduces:
            source, target = call.input.detach(), call.output.detach()
        self.number += 1
        wire = native.wire_bytes(kind, call.input.numel() * call.dtype.itemsize, self.ranks)
        self.last = Traffic(wire_bytes=wire)
        self._count(call, decision)
        inner = native.exchange(kind, target, source, self.group, op=call.op)
        number = self.number
        return Forwarded(inner, [call.output], self.watch, self._named(call, number))

    def _repeated(self, collective: Collective, output: Tensor, input: Tensor, op: Any, kind: str) -> bool:
        """Run a native call like an earlier one, with its decision; False: not such a call, nothing done."""
        known = self._known.get(repeat.key(collective, output, input, kind))
        if known is None or op is not SUM or not repeat.fits(output, input):
            return False
        plain, decision, predicted_s = known
        with self.lane.lock:
            if not self.lane.idle or self.watch.broken is not None:
                return False
            self.number += 1
            begin = time.perf_counter()
            try:
                handle = plain.start(output, input)
                self.last = plain.traffic
                if decision.reason is not None:
                    self.fallbacks[decision.reason] += 1
                decision.tally.count(max(input.nbytes, output.nbytes), plain.traffic)
                self.watch.wait(handle, output, input)
            except BaseException as error:
                with self.watch.following(lambda: self._named(plain.name, self.number)):
                    self.watch.stage = plain.stage
                    raise error
            decision.tally.time(time.perf_counter() - begin, predicted_s)
        return True

    def _know(self, call: Call, decision: Decision) -> None:
        """Remember a native call that needed nothing before or after, for `_repeated`."""
        stages = decision.schedule.stages
        native_call = decision.schedule.name == "native" and len(stages) == 1 and decision.tally.codec == "raw"
        small = self.ranks > 1 and call.elements <= self.most_elements
        if not (native_call and small and self.switches.check == "off" and repeat.fits(call.output, call.input)):
            return
        ready = repeat.Native.of(call, stages[0].name, self.group, self.ranks)
        if ready is not None:
            known = repeat.key(call.collective, call.output, call.input, call.kind)
            remember(self._known, known, (ready, decision, self.decider.predicted_s(call)))

    def _named(self, call: object, number: int) -> str:
        return f"{call} (call {number} of {self.ranks} ranks)"

    @torch.no_grad()
    def _perform(self, call: Call) -> None:
        self.number += 1
        number = self.number
        with self.watch.following(lambda: self._named(call, number)):
            if self.switches.check != "off":
                agree_on_call(call, number, self.group, self.device, self.watch)
            if call.splits is None and call.size == 0:  # equal on all ranks, so no rank enters a collective
                self.last = Traffic()
                return
            expected = check.Expected(call, self.group) if self.switches.check == "bits" else None
            decision = self.decider.decide(call)
            stop = self._timed(call, decision.tally)
            if call.splits is not None:
                self._uneven(call, decision)
            elif decision.choice is None:
                self.last = self.execute(decision.schedule, call.output, call.input, op=call.op)
            else:
                coded = has_frames(decision.schedule)
                codec = self._codec(decision.choice, call) if coded else None
                self.last = self.execute(decision.schedule, call.output, call.input, codec)
                if call.divides:
                    call.output.div_(self.ranks)
            stop()
            self._count(call, decision)
            self._know(call, decision)
            if expected is not None:
                self.watch.stage = "check of bits"
                wrong = expected.problem(call.output, decision.schedule)
                if wrong:
                    raise CollectiveError(f"{call} (call {number}): rank {self.rank} holds wrong bits: {wrong}")
            if decision.tally.due and self.switches.adaptive:
                self._judge(decision.tally)

    def _count(self, call: Call, decision: Decision) -> None:
        if decision.reason is not None:
            self.fallbacks[decision.reason] += 1
        decision.tally.count(call.size, self.last)
        if decision.tally.due and not decision.tally.compressing:
            decision.tally.judge(0, 0)

    def _uneven(self, call: Call, decision: Decision) -> None:
        """All-to-all with splits: each pair of ranks looks its own message up, so both ends choose alike."""
        if decision.choice is None or not has_frames(decision.schedule):
            self.last = uneven.native_call(call, self.group, self.watch)
            return

        def codec_of(elements: int) -> tuple[str, uneven.Parameters] | None:
            size = elements * call.dtype.itemsize * self.ranks
            choice = self.choose(call.collective, call.dtype, size, call.input.device)
            if isinstance(choice, str) or not has_frames(choice.schedule):
                return None
            return choice.codec.id, tuple(sorted(choice.codec.parameters.items()))

        scratch = self._scratch.setdefault(call.input.device, Scratch(call.input.device))
        self.last = uneven.zipped(
            call, self.group, self.watch, scratch, self.coder(call.input.device), dtype_name(call.dtype), codec_of
        )

    def _timed(self, call: Call, tally: Class) -> Callable[[], None]:
        """Start a clock for this call; what is returned stops it."""
        predicted_s = self.decider.predicted_s(call)
        return self.streams.timed(lambda seconds: tally.time(seconds, predicted_s))

    def _judge(self, tally: Class) -> None:
        """All ranks sum what they encoded and decide alike."""
        self.watch.stage = "sum of ratios"
        self._sums.copy_(torch.tensor([tally.window.raw_bytes, tally.window.encoded_bytes]))
        if self.ranks > 1:
            self.watch.wait(native.exchange(Exchange.ALL_REDUCE, self._sums, self._sums, self.group))
        changed = tally.judge(*self._sums.tolist())
        if changed and self.rank == 0:
            log.info("%s of %s %s: %s", tally.collective, tally.dtype, tally.kind, changed)

    def execute(
        self, schedule: Schedule, output: Tensor, input: Tensor, codec: SlotCodec | None = None, op: Any = SUM
    ) -> Traffic:
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
        source, target = calls.flat_bytes(input), calls.flat_bytes(output)
        if source is None or padded != part_bytes or calls.must_copy(schedule.collective, output, input, self.rank):
            fitted = scratch.take("input", slots_in * slot_bytes).view(parts_in, padded)
            flat = source if source is not None else calls.flat_bytes(input.resolve_conj().resolve_neg().contiguous())
            assert flat is not None
            fitted[:, :part_bytes].copy_(flat.view(parts_in, part_bytes))
            fitted[:, part_bytes:].zero_()
            source = fitted.view(-1)
        direct = target is not None and slots_out * slot_bytes == target.numel()
        result = target if direct and target is not None else scratch.take("output", slots_out * slot_bytes)
        traffic = run(schedule, self._axes, codec, scratch, input.dtype, source, result, self.watch, op)
        if not direct:
            rows = result.view(parts_out, -1)[:, : output.numel() * itemsize // parts_out]
            output.copy_(rows.contiguous().view(-1).view(output.dtype).view(output.shape))
        return traffic

    def coder(self, device: torch.device) -> Coder:
        """What codes tensors on a device."""
        if device not in self._coders:
            self._coders[device] = coder_for(device)
        return self._coders[device]

    def _codec(self, choice: Choice, call: Call) -> SlotCodec:
        dtype, device = call.dtype, call.input.device
        elements = -(-choice.schedule.slot_bytes(call.size) // dtype.itemsize)
        parameters = choice.codec.parameters
        key = (choice.schedule.codec, *sorted(parameters.items()), dtype, elements, device)
        if key not in self._codecs:
            self._codecs[key] = SlotCodec(
                self.coder(device), choice.schedule.codec, parameters, dtype_name(dtype), elements
            )
        return self._codecs[key]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the session holds now."""
        return sum(s.held_bytes for s in self._scratch.values())

    def report(self) -> dict[str, Any]:
        """Plain data: what ran how often with which ratio, times and wire bytes, and what ran natively and why."""
        self.streams.settle()
        return report.document(self)

    def close(self) -> None:
        """Wait for what still runs, log the report (level info, rank 0), let the groups go; no call afterwards.

        Ran at exit for every session: a transport whose threads outlive the interpreter would abort the process. Raises
        CodecError for a damaged frame that no later call has told of.
        """
        self.lane.close()
        self.watch.close()
        if self.group is not None and self.rank == 0 and self.classes:
            log.info("%s", report.text(self))
        self.group = None
        self._axes.close()
        _open.discard(self)
        for coder in self._coders.values():
            coder.check()

    def fallback_rows(self) -> list[dict[str, Any]]:
        """Calls that ran natively although a plan was there to follow: collective, dtype, reason, calls."""
        return [
            {"collective": collective, "dtype": dtype, "reason": reason, "calls": count}
            for (collective, dtype, reason), count in sorted(self.fallbacks.items())
        ]
