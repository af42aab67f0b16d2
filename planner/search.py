"""Candidates → verify → bound → simulate → choose: the best schedule at every size, and why the others lost.

Candidates are simulated in order of their lower bounds. One is dropped when its bound alone shows that simulating it
would change nothing of what is said about a size: not the choice, not the runner-up, not the fastest compressed form.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zipplan.planner.bounds import Bound, Bounds, told
from zipplan.planner.collectives import candidates
from zipplan.planner.costs import CODECS, ELEMENT_BYTES, Rates, Wire, wire
from zipplan.planner.plan import label
from zipplan.planner.profiles import Profile
from zipplan.planner.schedule import Collective, Op, Schedule
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.simulate import Timeline, simulate
from zipplan.planner.topology import Cluster, Link
from zipplan.planner.units import PS_PER_SECOND, format_bandwidth, format_time
from zipplan.planner.verify import verify

# A candidate must be this much faster than a simpler one to be chosen: ties and model noise must not flip a plan. Above
# the model's own error: half of the published points are within 4 % (docs/validation.md).
HYSTERESIS = 0.05
# Ends of the predicted range over the prediction, by transport. nccl: nine of ten published points are within 17 %
# (`zipplan validate`). gloo: nine of ten choices of docs/benchmarks/lab.md (59 cases, both tables) have
# |predicted / measured - 1| of at most 38 %, so measured is at least predicted / 1.38 and at most predicted / 0.62.
MODEL_RANGE = {"nccl": (0.83, 1.17), "gloo": (0.72, 1.61)}
_THIRDS = 3  # halvings in search of a third choice between two planned sizes: ranges wider than an eighth of the gap
_STEPS = 128  # break-even sizes to this part of the gap: within 5 % when planned sizes are a factor of 1,000 apart


@dataclass(frozen=True)
class Result:
    """One candidate, simulated at one size."""

    schedule: Schedule
    wire: Wire
    size: int
    timeline: Timeline

    @property
    def time(self) -> int:
        """Predicted picoseconds."""
        return self.timeline.time

    @property
    def label(self) -> str:
        """What a person reads: 'zipped window', or just 'native'."""
        return label(self.schedule.name, self.wire.codec)

    def shares(self) -> tuple[int, int]:
        """Longest times of its exchanges and of its local stages, summed, ps."""
        times = self.timeline.stage_times()
        exchanges = {s.name for s in self.schedule.stages if s.op is Op.EXCHANGE}
        on_wire = sum(t for name, t in times.items() if name in exchanges)
        return on_wire, sum(times.values()) - on_wire


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one link carried: bytes, protocol overhead included; ps with any traffic; share of what it could carry."""

    link: Link
    bytes: float
    busy: int
    full: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that was not simulated, because it takes `at_least` ps, which is too long already."""

    schedule: Schedule
    at_least: int
    reason: str

    @property
    def label(self) -> str:
        """'zipped window', or just 'native'."""
        return label(self.schedule.name, self.schedule.codec)


@dataclass(frozen=True)
class Decision:
    """The choice at one size; `others` by time, each with the reason it lost; `dropped` by bound, without a time."""

    best: Result
    others: tuple[tuple[Result, str], ...]
    dropped: tuple[Dropped, ...] = ()

    @property
    def results(self) -> list[Result]:
        """Everything that was simulated, the choice first."""
        return [self.best, *(result for result, _ in self.others)]

    @property
    def native(self) -> Result:
        """The transport's own collective."""
        return next(result for result in self.results if result.schedule.name == "native")


class Shared:
    """What all searches on one cluster have in common: lowered exchanges, bounds, verified schedules, raw results."""

    def __init__(self, cluster: Cluster, algorithm: str = "auto", settings: Settings = UNCHANGED) -> None:
        self.cluster = cluster
        self.transport = settings.transport(cluster, algorithm)
        self.bounds = Bounds(cluster, self.transport)
        self.raw: dict[tuple[Collective, str, Rates, int], Result] = {}
        self._schedules: dict[tuple[Collective, tuple[str, ...]], list[Schedule]] = {}
        self._verified: set[Schedule] = set()

    def schedules(self, collective: Collective, codecs: Sequence[str]) -> list[Schedule]:
        """The candidates, verified; those that differ only in codec and chunks move the same slots.

        Raises ScheduleError.
        """
        key = collective, tuple(codecs)
        if key not in self._schedules:
            cluster = self.cluster
            found = list(candidates(collective, cluster.nodes, cluster.ranks_per_node, codecs, cluster.transport.kind))
            for schedule in found:
                shape = replace(schedule, name="", codec="", chunks=1)
                verify(schedule, values=shape not in self._verified)
                self._verified.add(shape)
            self._schedules[key] = found
        return self._schedules[key]


class Search:
    """Everything that stays the same while one collective of one kind of tensor is planned."""

    def __init__(
        self,
        cluster: Cluster,
        collective: Collective,
        dtype: str,
        profile: Profile,
        codec: str = "auto",
        algorithm: str = "auto",
        settings: Settings = UNCHANGED,
        shared: Shared | None = None,
    ) -> None:
        """`codec`: "auto" tries every codec that serves `dtype`. Raises ConfigError for one that does not serve it.

        `settings`: only those that are not part of the cluster count. `shared`: that of an earlier search on the same
        cluster with the same algorithm and settings.
        """
        self.cluster, self.collective, self.dtype, self.profile = cluster, collective, dtype, profile
        codecs: Sequence[str] = CODECS.get(dtype, ()) if codec == "auto" else () if codec == "raw" else (codec,)
        self.wires = {c: settings.wire(wire(c, dtype, profile)) for c in ("raw", *codecs)}
        measured = settings.calibration
        modelled = {c: Rates.of(cluster, c) for c in self.wires}
        self.rates = {
            c: settings.rates(measured.rates(rates, c, dtype) if measured else rates) for c, rates in modelled.items()
        }
        self.shared = shared or Shared(cluster, algorithm, settings)
        self.transport = self.shared.transport
        self.skew = settings.skew(cluster.ranks)
        self.schedules = self.shared.schedules(collective, codecs)

    def run(self, schedule: Schedule, size: int) -> Result:
        """Simulate one candidate at one size; what travels raw is the same for every dtype."""
        wired, rates = self.wires[schedule.codec], self.rates[schedule.codec]
        key = self.collective, schedule.name, rates, size
        if schedule.codec == "raw" and key in self.shared.raw:
            return self.shared.raw[key]
        timeline = simulate(schedule, self.cluster, size, wired, self.transport, rates, self.skew)
        result = Result(schedule, wired, size, timeline)
        if schedule.codec == "raw":
            self.shared.raw[key] = result
        return result

    def bounds(self, schedule: Schedule, size: int) -> list[Bound]:
        """Every lower bound of one candidate at one size."""
        wired, rates = self.wires[schedule.codec], self.rates[schedule.codec]
        return self.shared.bounds.of(schedule, size, wired, rates, self.skew)

    def floor(self, schedule: Schedule, size: int) -> int:
        """The largest of its lower bounds, ps."""
        return max(bound.time for bound in self.bounds(schedule, size))

    def decide(self, size: int) -> Decision:
        """The simplest schedule within `HYSTERESIS` of the fastest, with its fastest codec; why not the others."""
        pool = self._distinct(size)
        bounds = [self.bounds(s, size) for s in pool]
        floor = [max(bound.time for bound in found) for found in bounds]
        order = sorted(range(len(pool)), key=lambda i: (pool[i].name != "native", floor[i]))
        found: dict[int, Result] = {}
        for i in order:
            if self._counts(pool[i], floor[i], found.values()):
                found[i] = self.run(pool[i], size)
        results = [found[i] for i in sorted(found)]  # simplest first
        limit = min(r.time for r in results) * (1 + HYSTERESIS)
        simplest = next(r for r in results if r.time <= limit).schedule.name
        best = min((r for r in results if r.schedule.name == simplest), key=lambda r: r.time)
        for i in order:
            if i not in found and floor[i] < min((r.time for r in found.values() if r is not best), default=math.inf):
                found[i] = self.run(pool[i], size)
        others = sorted((found[i] for i in sorted(found) if found[i] is not best), key=lambda r: r.time)
        dropped = [Dropped(pool[i], floor[i], told(bounds[i])) for i in range(len(pool)) if i not in found]
        dropped.sort(key=lambda d: d.at_least)
        return Decision(best, tuple((r, self.reason(r, best)) for r in others), tuple(dropped))

    def _counts(self, schedule: Schedule, floor: int, found: Collection[Result]) -> bool:
        """Whether a candidate can be chosen, or be the fastest compressed one, or the fastest of these in one piece."""

        def fastest(among: Callable[[Schedule], bool]) -> float:
            return min((r.time for r in found if among(r.schedule)), default=math.inf)

        if floor <= fastest(lambda _: True) * (1 + HYSTERESIS):
            return True
        if schedule.codec == "raw":
            return False
        zipped = fastest(lambda s: s.codec != "raw")
        whole = fastest(lambda s: s.codec != "raw" and s.chunks == 1)
        return floor < zipped or (schedule.chunks == 1 and floor < whole)

    def fastest(self, size: int, codec: str) -> Result:
        """What `--codec` asks for: the planner's choice for "auto", else the fastest schedule of that codec."""
        if codec == "auto":
            return self.decide(size).best
        return min((self.run(s, size) for s in self._distinct(size) if s.codec == codec), key=lambda r: r.time)

    def _distinct(self, size: int) -> list[Schedule]:
        """The candidates without those whose slots are too small to be cut: they are the same in one piece."""
        return [s for s in self.schedules if s.chunks == 1 or len(s.parts(s.slot_bytes(size))) > 1]

    def decide_all(self, sizes: Sequence[int]) -> Iterator[tuple[int, int | None, list[Decision]]]:
        """Half-open ranges [start, stop) of sizes with one choice, gap-free from 0; the last has no stop.

        Between two planned sizes with unlike choices the break-even is found by bisection on the logarithm of the size;
        a third choice that wins between them gets a range of its own.
        """
        decisions: list[Decision] = []
        for size in sorted(set(sizes)):
            decision = self.decide(size)
            decisions += self._between(decisions[-1], decision) if decisions else []
            decisions.append(decision)
        start, row = 0, [decisions[0]]
        for decision in decisions[1:]:
            if decision.best.schedule != row[-1].best.schedule:
                border = self.break_even(row[-1], decision)
                yield start, border, row
                start, row = border, []
            row.append(decision)
        yield start, None, row

    def _between(self, low: Decision, high: Decision, depth: int = _THIRDS) -> list[Decision]:
        """Decisions for a schedule that is neither the choice of `low` nor of `high`, where one wins between them."""
        ends = (low.best.schedule, high.best.schedule)
        middle = 1 << round(math.log2(max(low.best.size, 1) * high.best.size) / 2)  # sizes that people know
        if depth == 0 or ends[0] == ends[1] or not low.best.size < middle < high.best.size:
            return []
        found = self.decide(middle)
        if found.best.schedule not in ends:
            return [*self._between(low, found, depth - 1), found, *self._between(found, high, depth - 1)]
        nearer = (low, found) if found.best.schedule == ends[1] else (found, high)
        return self._between(*nearer, depth - 1)

    def break_even(self, low: Decision, high: Decision) -> int:
        """Smallest size found at which the choice of `high` beats that of `low`, a whole number of elements.

        By bisection of the logarithm of the size; bounds say where to look first.
        """
        below, above, element = low.best.size, high.best.size, ELEMENT_BYTES[self.dtype]

        def size(step: int) -> int:
            return round(below * (above / below) ** (step / _STEPS)) // element * element if step < _STEPS else above

        def beaten(step: int, keeps: Callable[[Schedule, Schedule, int], bool]) -> bool:
            return size(step) > below and not keeps(low.best.schedule, high.best.schedule, size(step))

        near = bisect_left(range(_STEPS), True, key=lambda step: beaten(step, self._seems_to_keep))
        return size(_smallest(lambda step: beaten(step, self._keeps), near, _STEPS))

    def _preferred(self, low: Schedule, high: Schedule, before: int, after: int) -> bool:
        """Whether a plan stays with `low`, which takes `before`, where `high` takes `after`."""
        names = [s.name for s in self.schedules]
        left, right = names.index(low.name), names.index(high.name)
        if left == right:  # the same schedule with another codec
            return before <= after
        return before <= after * (1 + HYSTERESIS) if left < right else before * (1 + HYSTERESIS) < after

    def _seems_to_keep(self, low: Schedule, high: Schedule, size: int) -> bool:
        return self._preferred(low, high, self.floor(low, size), self.floor(high, size))

    def _keeps(self, low: Schedule, high: Schedule, size: int) -> bool:
        """Simulates both only where one of them and the bound of the other do not decide."""
        least_before, least_after = self.floor(low, size), self.floor(high, size)
        if self._preferred(low, high, least_before, least_after):
            before = self.run(low, size).time
            return self._preferred(low, high, before, least_after) or self._preferred(
                low, high, before, self.run(high, size).time
            )
        after = self.run(high, size).time
        return self._preferred(low, high, least_before, after) and self._preferred(
            low, high, self.run(low, size).time, after
        )

    def codec_break_even(self, decision: Decision) -> int | None:
        """Codec speed, raw bytes/s each way, at which the fastest compressed candidate takes as long as native.

        Its stages run one after another, so what the wire saves is what the codec may take: for one sender and one
        receiver that is 2 · link / (1 − 1/ratio). None when not even an infinitely fast codec would do.
        """
        plain = (r for r in decision.results if r.schedule.codec != "raw" and r.schedule.chunks == 1)
        zipped = min(plain, key=lambda r: r.time, default=None)
        if zipped is None or zipped.time == 0:
            return None
        native = decision.native
        slot, rates = zipped.schedule.slot_bytes(zipped.size), self.rates[zipped.schedule.codec]
        codec = [s for s in zipped.schedule.stages if s.op in (Op.ENCODE, Op.DECODE, Op.DECODE_REDUCE)]
        handled = sum(zipped.schedule.buffer_slots[s.src] * slot for s in codec)
        spent = sum(rates.duration(s, zipped.schedule, slot) - rates.launch for s in codec)
        left = native.time - (zipped.time - spent)
        return round(handled / left * PS_PER_SECOND) if left > 0 else None

    def reason(self, loser: Result, best: Result) -> str:
        """One sentence: which resource costs the loser more than the winner."""
        lost_wire, lost_local = loser.shares()
        won_wire, won_local = best.shares()
        more = f"{loser.time / max(best.time, 1) - 1:+.0%}"
        if loser.time <= best.time:
            return f"{more}, within {HYSTERESIS:.0%}: the simpler schedule is preferred"
        wire_part = f"exchanges {format_time(lost_wire)} against {format_time(won_wire)}"
        local_part = f"codec and copies {format_time(lost_local)} against {format_time(won_local)}"
        cause = (
            f"{wire_part}; {local_part}"
            if lost_wire - won_wire >= lost_local - won_local
            else f"{local_part}; {wire_part}"
        )
        return f"{more}: {cause}{self.busiest(loser)}"

    def busiest(self, result: Result) -> str:
        """The fullest link, with its share of what it could have carried in the time."""
        found = self.fullest(result, 1)
        if not found:
            return ""
        link = found[0].link
        return f"; busiest {link.kind} link {link.name} ({format_bandwidth(link.bandwidth)}) {found[0].full:.0%} full"

    def fullest(self, result: Result, count: int) -> list[LinkUse]:
        """The links that carry most for their rate, at most `count`; none when nothing travels."""
        carried = result.timeline.link_bytes
        if result.time == 0 or not carried.any():
            return []
        full = carried / self.cluster.bandwidths * PS_PER_SECOND / result.time
        busy = result.timeline.link_busy
        order = np.argsort(-full, kind="stable")[:count]
        return [
            LinkUse(self.cluster.links[i], float(carried[i]), int(busy[i]), float(full[i])) for i in order if full[i]
        ]


def _smallest(holds: Callable[[int], bool], near: int, stop: int) -> int:
    """The smallest number of 1 … stop from which on something holds, which it does at `stop` and does not at 0.

    Looks near `near` first, in doubling steps, then halves what is left.
    """
    low, high, step = 0, stop, 1
    while high - low > 1:
        at = near if low < near < high else (low + high) // 2
        if holds(at):
            high, near = at, at - step
        else:
            low, near = at, at + step
        step *= 2
    return high
