"""One rank of a lab measurement: calibrate, then time raw and compressed schedules beside gloo's own collectives.

Started by torchrun; rank 0 prints one JSON document. Times are in µs, of the slowest rank, of the least disturbed of
several calls by turns: ranks share the machine's cores, with each other and with other programs. A case that misses a
floor gets as many calls again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from zipplan.executor import native
from zipplan.executor.calibrate import measure
from zipplan.executor.calls import parts
from zipplan.executor.codec import SlotCodec
from zipplan.executor.coders import CpuCoder
from zipplan.executor.measure import SIGMA, slowest
from zipplan.executor.session import Session
from zipplan.executor.start import init
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective, Exchange
from zipplan.planner.search import Result, Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import build_cluster, load_machine

UNSHAPED = 10**10  # bytes/s that the model is told for links without a limit; calibration brings the real rate
_CALLS, _SECONDS = (3, 9), 8.0
FLOOR_ONE = 0.85
"""Of the gain that the ratio allows, where the link is the bottleneck: (raw time / compressed time) / ratio. All-reduce
on four hosts comes to 89 to 94 % on two cores (docs/benchmarks/lab.md), every other case to more."""
FLOOR_REGRET = 0.15
"""What the planner's choice may take over the other one: its own hysteresis (0.05) and the noise of shared cores."""
# Bytes of one rank; larger messages take longer on slow links than what they tell is worth.
_CALIBRATE = sorted([*((128 << 10) << i for i in range(6)), 3 << 19, 3 << 20])


@dataclass(frozen=True)
class Row:
    """One collective at one size: gloo's own, the best raw and compressed schedules; `choice`: the planner's.

    `bare_us`: predicted time of the compressed form's local stages that no transfer can hide, the first part's or the
    last's.
    """

    hosts: int
    rate: int | None
    collective: str
    size: int
    wire_us: float | None
    own_us: float
    raw: str
    raw_us: float
    raw_predicted_us: float
    zipped: str
    zipped_us: float
    zipped_predicted_us: float
    bare_us: float
    ratio: float
    choice: str

    @property
    def gain(self) -> float:
        """Time of the quicker raw form over that of the compressed schedule."""
        return min(self.own_us, self.raw_us) / self.zipped_us

    @property
    def share(self) -> float:
        """Of the gain that the ratio allows."""
        return self.gain / self.ratio

    @property
    def link_bound(self) -> bool:
        """Whether the link decides: what it cannot hide is at most 5 % of what it needs for the encoded bytes."""
        return self.wire_us is not None and self.bare_us <= 0.05 * self.wire_us / self.ratio

    @property
    def regret(self) -> float:
        """What the choice takes over the better of the two measured ones."""
        chosen = self.raw_us if self.choice == self.raw else self.zipped_us
        return chosen / min(self.raw_us, self.zipped_us) - 1

    @property
    def missed(self) -> str | None:
        """Which floor the case misses."""
        if self.link_bound and self.share < FLOOR_ONE:
            return f"gain {self.gain:.2f} is {self.share:.0%} of the ratio {self.ratio:.2f}, floor {FLOOR_ONE:.0%}"
        if self.regret > FLOOR_REGRET:
            return f"the planner chose {self.choice}, {self.regret:.0%} slower than the other, floor {FLOOR_REGRET:.0%}"
        return None

    @property
    def errors(self) -> tuple[float, float]:
        """|predicted / measured − 1|, raw and compressed."""
        pairs = (self.raw_predicted_us, self.raw_us), (self.zipped_predicted_us, self.zipped_us)
        return tuple(abs(p / m - 1) for p, m in pairs)  # type: ignore[return-value]


def _row(session: Session, settings: Settings, rate: int | None, collective: Collective, size: int) -> Row:
    ranks = session.ranks
    cluster = build_cluster(settings.machine(load_machine("lab")), nodes=ranks, ranks_per_node=1)
    search = Search(cluster, collective, "bf16", parse_profile(f"gaussian:{SIGMA}"), settings=settings)
    results = [search.run(s, size) for s in search.schedules]
    raw = min((r for r in results if r.schedule.codec == "raw"), key=lambda r: r.time)
    zipped = min((r for r in results if r.schedule.codec != "raw"), key=lambda r: r.time)
    into, out = parts(collective, ranks)
    unit = size // ranks // 2 if collective is not Collective.ALL_REDUCE else size // 2
    source = torch.normal(0.0, SIGMA, (unit * into,)).bfloat16()
    output = torch.empty(unit * out, dtype=torch.bfloat16)

    def own() -> None:
        if collective is Collective.ALL_REDUCE:
            output.copy_(source)
        native.own(Exchange(collective), output, source, session.group).wait()

    def execute(result: Result) -> Callable[[], Any]:
        schedule, coder = result.schedule, None
        if schedule.codec != "raw":
            coder = SlotCodec(CpuCoder(), schedule.codec, {}, "bf16", -(-schedule.slot_bytes(size) // 2))
        return lambda: session.execute(schedule, output, source, coder)

    traffic = execute(zipped)()
    wire = native.wire_bytes(Exchange(collective), source.nbytes, ranks)
    chosen = search.decide(size).best

    calls = [own, execute(raw), execute(zipped)]
    times: list[list[float]] = [[] for _ in calls]

    def measured() -> Row:
        _take_turns(calls, times)
        own_us, raw_us, zipped_us = (min(taken) * 1e6 for taken in times)
        return Row(
            hosts=ranks,
            rate=rate,
            collective=str(collective),
            size=size,
            wire_us=wire / rate * 1e6 if rate else None,
            own_us=own_us,
            raw=raw.label,
            raw_us=raw_us,
            raw_predicted_us=raw.time / 1e6,
            zipped=zipped.label,
            zipped_us=zipped_us,
            zipped_predicted_us=zipped.time / 1e6,
            bare_us=zipped.shares()[1] / zipped.schedule.chunks / 1e6,
            ratio=traffic.ratio,
            choice=raw.label if chosen.schedule.codec == "raw" else zipped.label,
        )

    row = measured()
    return measured() if row.missed else row


def _take_turns(calls: list[Callable[[], Any]], times: list[list[float]]) -> None:
    """Add to the times of each; equal on all ranks."""
    turns, seconds = 0, 0.0
    while turns < _CALLS[0] or (turns < _CALLS[1] and seconds < _SECONDS):
        for call, taken in zip(calls, times, strict=True):
            taken.append(slowest(call))
            seconds += taken[-1]
        turns += 1


def main() -> None:
    """Entry point: one JSON argument, {"rate": bytes/s or null, "cases": [[collective, bytes], …]}."""
    asked = json.loads(sys.argv[1])
    rate = asked["rate"]
    dist.init_process_group("gloo")
    try:
        made = measure(_CALIBRATE, "bf16", 1)
        settings = Settings((("link.nic.bandwidth", f"{(rate or UNSHAPED) / 1e6:g}MB/s"),), made)
        session = init(None, adaptive=False)
        rows = [asdict(_row(session, settings, rate, Collective(c), size)) for c, size in asked["cases"]]
        if session.rank == 0:
            print(json.dumps({"calibration": made.model_dump(mode="json", by_alias=True), "rows": rows}), flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
