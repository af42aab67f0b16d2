"""Measures planned collectives beside native ones and checks their bits; one Row per collective, dtype and size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zipplan.executor import check, native
from zipplan.executor.agree import gather_bytes
from zipplan.executor.calls import DTYPES
from zipplan.executor.decide import has_frames
from zipplan.executor.session import Session
from zipplan.planner.bandwidth import bus_factor
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.schedule import Collective, Exchange

SIGMA = 0.02  # of the test data; trained weights have σ about 0.02 (GPT-2 initialises with it)
_PROBLEM_BYTES = 256


@dataclass(frozen=True)
class Row:
    """One measured case. Times are medians over iterations of the slowest rank; sizes and factors as nccl-tests'."""

    collective: str
    dtype: str
    size_bytes: int
    ranks: int
    schedule: str
    codec: str
    native_us: float
    native_min_us: float
    planned_us: float
    planned_min_us: float
    predicted_us: float | None
    ratio: float
    expected_ratio: float
    wire_bytes: int
    algbw_GBps: float
    busbw_GBps: float
    wirebw_GBps: float
    bits_identical: bool | None
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def slowest(call: Callable[[], object]) -> float:
    """Seconds that `call` takes on the slowest rank, all starting together; equal on all ranks. CPU tensors only."""
    dist.barrier()
    start = time.perf_counter()
    call()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


class Bench:
    """Measures on the ranks of a session; every method is a collective call."""

    def __init__(self, session: Session, device: torch.device, iterations: int, warmup: int, check_bits: bool) -> None:
        self.session, self.device = session, device
        self.iterations, self.check_bits = iterations, check_bits
        self.untimed = 1 + warmup  # the first call of a size takes scratch and may compile

    def missing(self, collective: Collective, dtype_name: str) -> str | None:
        """Why no message of this kind can be measured here; None when it can."""
        if dtype_name not in DTYPES:
            return f"dtype {dtype_name!r} is unknown to the executor; {nearest(dtype_name, DTYPES)}"
        try:
            if collective.reduces:
                native.check_summable(DTYPES[dtype_name], self.session.backend)
        except ConfigError as error:
            return str(error)
        return None

    def row(self, collective: Collective, dtype_name: str, size: int) -> Row:
        """Measure a message of about `size` bytes: whole elements for every rank, at least one."""
        case = _Case(self.session, self.device, collective, dtype_name, size)
        native_ns, planned_ns = self._times(case)
        traffic = self.session.last
        choice = self.session.choose(collective, case.dtype, case.size, self.device)
        problem = self._problem(case) if self.check_bits else None
        raw, encoded = self._across([traffic.raw_bytes, traffic.encoded_bytes], dist.ReduceOp.SUM)
        (wire,) = self._across([round(traffic.wire_bytes)], dist.ReduceOp.MAX)
        planned = statistics.median(planned_ns)
        predicted = None if isinstance(choice, str) or self.session.rehearsal else choice.predicted_ps / 1e6
        bandwidth = case.size / planned
        return Row(
            collective=str(collective),
            dtype=dtype_name,
            size_bytes=case.size,
            ranks=self.session.ranks,
            schedule="native" if isinstance(choice, str) else choice.schedule.name,
            codec="raw" if isinstance(choice, str) else choice.schedule.codec,
            native_us=statistics.median(native_ns) / 1e3,
            native_min_us=min(native_ns) / 1e3,
            planned_us=planned / 1e3,
            planned_min_us=min(planned_ns) / 1e3,
            predicted_us=predicted,
            ratio=raw / encoded if encoded else 1.0,
            expected_ratio=1.0 if isinstance(choice, str) else choice.expected_ratio,
            wire_bytes=wire,
            algbw_GBps=bandwidth,
            busbw_GBps=bandwidth * bus_factor(collective, self.session.ranks),
            wirebw_GBps=wire / planned,
            bits_identical=problem is None if self.check_bits else None,
            problem=problem,
        )

    def _times(self, case: _Case) -> tuple[list[int], list[int]]:
        """Nanoseconds per iteration of the slowest rank, native and planned by turns, so that drift meets both."""
        native_ns, planned_ns = [], []
        for _ in range(self.untimed + self.iterations):
            native_ns.append(self._time(case, case.native))
            planned_ns.append(self._time(case, case.planned))
        times = self._across(native_ns[-self.iterations :] + planned_ns[-self.iterations :], dist.ReduceOp.MAX)
        return times[: self.iterations], times[self.iterations :]

    def _time(self, case: _Case, call: Callable[[], None]) -> int:
        case.reset()
        self._synchronize()
        dist.barrier()
        start = time.perf_counter_ns()
        call()
        self._synchronize()
        return max(1, time.perf_counter_ns() - start)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _across(self, numbers: list[int], op: Any) -> list[int]:
        joined = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        dist.all_reduce(joined, op=op)
        return [int(n) for n in joined.tolist()]

    def _problem(self, case: _Case) -> str | None:
        """What the first rank that found wrong bits says about them; the same on every rank."""
        mine = case.problem() or ""
        record = mine.encode()[:_PROBLEM_BYTES].ljust(_PROBLEM_BYTES)
        texts = [r.decode(errors="replace").strip() for r in gather_bytes(record, self.device)]
        return next((f"rank {rank}: {text}" for rank, text in enumerate(texts) if text), None)


class _Case:
    """Tensors of one collective: `given` stays; `input` and `output` (all-reduce: one tensor) are worked on."""

    def __init__(self, session: Session, device: torch.device, collective: Collective, dtype: str, size: int) -> None:
        self.session, self.collective, self.dtype = session, collective, DTYPES[dtype]
        ranks, itemsize = session.ranks, self.dtype.itemsize
        parts = 1 if collective is Collective.ALL_REDUCE else ranks
        elements = max(1, size // (parts * itemsize)) * parts
        self.size = elements * itemsize
        random = torch.Generator().manual_seed(dist.get_rank())
        read = elements // ranks if collective is Collective.ALL_GATHER else elements
        self.given = torch.normal(0.0, SIGMA, (read,), generator=random).to(self.dtype).to(device)
        if collective is Collective.ALL_REDUCE:
            self.input = self.output = torch.empty_like(self.given)
        else:
            made = elements // ranks if collective is Collective.REDUCE_SCATTER else elements
            self.input = self.given
            self.output = torch.empty(made, dtype=self.dtype, device=device)

    def reset(self) -> None:
        """Put the input back where the collective overwrites it."""
        if self.input is not self.given:
            self.input.copy_(self.given)

    def native(self) -> None:
        """The transport's own call."""
        out, src = self.output, self.input
        if not self.collective.reduces:
            out, src = check.bytes_of(out), check.bytes_of(src)
        group = dist.group.WORLD if self.session.ranks > 1 else None
        handle = native.exchange(Exchange(self.collective), out, src, group)
        if handle is not None:
            handle.wait()

    def planned(self) -> None:
        """The call that follows the plan."""
        match self.collective:
            case Collective.ALL_GATHER:
                self.session.all_gather(self.output, self.input)
            case Collective.REDUCE_SCATTER:
                self.session.reduce_scatter(self.output, self.input)
            case Collective.ALL_REDUCE:
                self.session.all_reduce(self.output)
            case Collective.ALL_TO_ALL:
                self.session.all_to_all(self.output, self.input)

    def problem(self) -> str | None:
        """Compare the planned result on this rank with what it must be; None when the bits are right."""
        self.reset()
        self.output.zero_() if self.output is not self.input else None
        self.planned()
        found = self.output.clone()
        wrong = self._against_reference(found)
        if self.collective is Collective.ALL_REDUCE and not check.same_on_all_ranks(found):
            wrong = wrong or "ranks hold different sums"
        return wrong

    def _against_reference(self, found: Tensor) -> str | None:
        if not self.collective.reduces:
            return check.differences(found, check.moved(self.collective, self.output, self.given))
        choice = self.session.choose(self.collective, self.dtype, self.size, self.given.device)
        stages = () if isinstance(choice, str) else choice.schedule.stages
        transport_sums = any(s.exchange is not None and s.exchange.reduces for s in stages)
        if isinstance(choice, str) or (transport_sums and not has_frames(choice.schedule)):
            self.reset()
            self.native()
            return check.differences(found, self.output)
        rows = check.gathered(self.collective, self.given)
        if not transport_sums:
            return check.differences(found, check.summed(rows))
        self.reset()
        self.session.execute(check.raw_twin(choice.schedule), self.output, self.input)
        return check.differences(found, self.output) or check.near(found, rows)
