"""Symbolic check of a schedule: every slot arrives once at its owner, every sum covers every rank once.

Values are followed backwards from the outputs. A raw value is (block, ranks whose contributions are summed in it); a
frame region is the same, wrapped. Worlds up to `EXHAUSTIVE_RANKS` are checked on every rank and slot; larger ones on
a fixed sample of ranks and slots, since a schedule is the same program on every rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from zipplan.planner.errors import ScheduleError
from zipplan.planner.schedule import INPUT, OUTPUT, Collective, Exchange, Op, Payload, Schedule, Stage

EXHAUSTIVE_RANKS = 32  # 32 ranks all-reduce: 32·32 slots of 32 contributions, about 0.1 s
SAMPLES = 6


@dataclass(frozen=True, slots=True)
class Value:
    """What a slot holds: a block of the message, summed over `ranks`."""

    block: tuple[int, ...]
    ranks: frozenset[int]

    def __str__(self) -> str:
        names = ",".join(map(str, sorted(self.ranks)))
        return f"block {self.block[-1] if len(self.block) == 1 else self.block} of ranks {{{names}}}"


def verify(schedule: Schedule, values: bool = True) -> None:
    """Raise ScheduleError, one line per broken stage, unless the schedule does what its collective promises.

    `values`: whether to follow them too; one with the stages of another that was verified needs no second look.
    """
    problems = structural_problems(schedule)
    if values and not problems:
        problems = _Evaluator(schedule).problems()
    if problems:
        lines = "\n  ".join(problems[:12])
        raise ScheduleError(
            f"schedule {schedule.name} for {schedule.collective} is wrong:\n  {lines}", problems=problems
        )


def structural_problems(schedule: Schedule) -> list[str]:
    """Names, dependencies, single writers, slot counts: everything that needs no values."""
    problems: list[str] = []
    names = Counter(s.name for s in schedule.stages)
    problems += [f"stage {n}: the name is used {c} times" for n, c in names.items() if c > 1]
    writers: dict[tuple[str, Payload], str] = {}
    framed = {s.dst for s in schedule.stages if Payload.STATIC in s.regions}
    before: dict[str, set[str]] = {}
    for stage in schedule.stages:
        known = [d for d in stage.after if d in before]
        problems += [
            f"stage {stage.name}: waits for {d!r}, which is not an earlier stage (a cycle, or a misspelt name)"
            for d in stage.after
            if d not in before
        ]
        before[stage.name] = set(known).union(*(before[d] for d in known))
        problems += _stage_problems(stage, framed)
        for region in _needs(stage):
            writer = writers.get((stage.src, region))
            if stage.src != INPUT and writer is None:
                problems.append(f"stage {stage.name}: reads {stage.src!r} ({region}), which no earlier stage wrote")
            elif writer is not None and writer not in before[stage.name]:
                problems.append(f"stage {stage.name}: reads {stage.src!r} of stage {writer} without waiting for it")
        for region in stage.regions:
            if stage.dst == INPUT:
                problems.append(f"stage {stage.name}: writes the input buffer")
            if (stage.dst, region) in writers:
                other = writers[stage.dst, region]
                problems.append(f"stage {stage.name}: writes {stage.dst!r} ({region}) again after stage {other}")
            writers[stage.dst, region] = stage.name
    read = {(s.src, r) for s in schedule.stages for r in _needs(s)}
    for stage in schedule.stages:
        if stage.payload is Payload.DYNAMIC:
            problems += _sizes_problems(schedule, stage, writers, before)
            read.add((stage.dst, Payload.SIZES))
    problems += [
        f"stage {name}: nobody reads its {buffer!r} ({region})"
        for (buffer, region), name in writers.items()
        if buffer != OUTPUT and (buffer, region) not in read
    ]
    problems += _chunk_problems(schedule)
    if (OUTPUT, Payload.RAW) not in writers:
        problems.append("no stage writes the output")
    if not problems:
        try:
            _ = schedule.buffer_slots
        except ScheduleError as error:
            problems.append(str(error))
    return problems


def _chunk_problems(schedule: Schedule) -> list[str]:
    """A part of a slot of the input or output is no run of bytes, so only codecs and copies may touch those."""
    if schedule.chunks < 1:
        return [f"chunks: expected 1 or more, found {schedule.chunks}"]
    if schedule.chunks == 1:
        return []
    rows = (Op.ENCODE, Op.DECODE, Op.DECODE_REDUCE, Op.PERMUTE)
    return [
        f"stage {s.name}: {s.op} of the {INPUT if s.src == INPUT else OUTPUT} in {schedule.chunks} chunks; only codec "
        "stages and permute can take them"
        for s in schedule.stages
        if s.op not in rows and (s.src == INPUT or s.dst == OUTPUT)
    ]


def _needs(stage: Stage) -> tuple[Payload, ...]:
    """Regions of its source that a stage reads."""
    if stage.op is Op.EXCHANGE:
        return (Payload.STATIC,) if stage.payload is Payload.SIZES else (stage.payload,)
    return (Payload.STATIC, Payload.DYNAMIC) if stage.op in (Op.DECODE, Op.DECODE_REDUCE) else (Payload.RAW,)


def _sizes_problems(
    schedule: Schedule, stage: Stage, writers: dict[tuple[str, Payload], str], before: dict[str, set[str]]
) -> list[str]:
    """A dynamic region can be received once its size is known: from the static region's header, or from `sizes`."""
    told = {region: writers.get((stage.dst, region)) for region in (Payload.SIZES, Payload.STATIC)}
    if not any(name in before[stage.name] for name in told.values()):
        return [f"stage {stage.name}: waits for no exchange that tells it the sizes of {stage.dst!r}"]
    other = next((s for s in schedule.stages if s.name == told[Payload.SIZES]), stage)
    if (other.src, other.exchange, other.axis) != (stage.src, stage.exchange, stage.axis):
        return [f"stage {stage.name}: the sizes from stage {other.name} are those of another exchange"]
    return []


def _stage_problems(stage: Stage, framed: set[str]) -> list[str]:
    if (stage.op is Op.EXCHANGE) != (stage.exchange is not None):
        return [f"stage {stage.name}: op {stage.op} with exchange {stage.exchange}"]
    if stage.exchange is not None and stage.exchange.reduces and stage.payload is not Payload.RAW:
        return [f"stage {stage.name}: a transport cannot sum encoded bytes ({stage.exchange} of {stage.payload})"]
    if stage.op in (Op.DECODE, Op.DECODE_REDUCE) and stage.src not in framed:
        return [f"stage {stage.name}: decodes {stage.src!r}, which holds no frames"]
    if bool(stage.order) != (stage.op is Op.PERMUTE) or sorted(stage.order) != list(range(len(stage.order))):
        return [f"stage {stage.name}: order {stage.order} is not a permutation"]
    return []


class _Evaluator:
    """Value of any slot of any rank, by demand, remembered."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.writer = {(s.dst, region): s for s in schedule.stages for region in s.regions}
        self.memo: dict[tuple[str, Payload, int, int], Value] = {}

    def problems(self) -> list[str]:
        """Compare the output of ranks and slots with what the collective promises."""
        want_slots = {Collective.ALL_GATHER: self.schedule.ranks, Collective.REDUCE_SCATTER: 1}.get(
            self.schedule.collective, self.schedule.slots
        )
        have_slots = self.schedule.buffer_slots[OUTPUT]
        if self.schedule.collective is Collective.REDUCE_SCATTER:
            want_slots = self.schedule.slots // self.schedule.ranks
        last = self.writer[OUTPUT, Payload.RAW]
        if have_slots != want_slots:
            return [
                f"stage {last.name}: the output has {have_slots} slots, {self.schedule.collective} makes {want_slots}"
            ]
        found: list[str] = []
        for rank in _sample(self.schedule.ranks):
            for slot in _sample(have_slots):
                try:
                    value = self.value(OUTPUT, Payload.RAW, rank, slot)
                except ScheduleError as error:
                    found.append(str(error))
                    continue
                want = self.promised(rank, slot)
                if value != want:
                    found.append(f"stage {last.name}: output slot {slot} on rank {rank} holds {value}, expected {want}")
        return list(dict.fromkeys(found))

    def promised(self, rank: int, slot: int) -> Value:
        """Post-condition of the collective."""
        everyone = frozenset(range(self.schedule.ranks))
        match self.schedule.collective:
            case Collective.ALL_GATHER:
                return Value((slot,), frozenset([slot]))
            case Collective.ALL_TO_ALL:
                per_peer = self.schedule.slots // self.schedule.ranks
                sender, part = divmod(slot, per_peer)
                return Value((sender, rank * per_peer + part), frozenset([sender]))
            case Collective.REDUCE_SCATTER:
                return Value((rank * (self.schedule.slots // self.schedule.ranks) + slot,), everyone)
            case Collective.ALL_REDUCE:
                return Value((slot,), everyone)

    def given(self, rank: int, slot: int) -> Value:
        """Pre-condition: what the input holds."""
        match self.schedule.collective:
            case Collective.ALL_GATHER:
                return Value((rank,), frozenset([rank]))
            case Collective.ALL_TO_ALL:
                return Value((rank, slot), frozenset([rank]))
            case _:
                return Value((slot,), frozenset([rank]))

    def value(self, buffer: str, region: Payload, rank: int, slot: int) -> Value:
        """What `slot` of `buffer` holds on `rank`. Raises ScheduleError naming the stage that breaks it."""
        if buffer == INPUT:
            return self.given(rank, slot)
        key = (buffer, region, rank, slot)
        if key not in self.memo:
            self.memo[key] = self._made_by(self.writer[buffer, region], region, rank, slot)
        return self.memo[key]

    def _made_by(self, stage: Stage, region: Payload, rank: int, slot: int) -> Value:
        match stage.op:
            case Op.ENCODE:
                return self.value(stage.src, Payload.RAW, rank, slot)
            case Op.PERMUTE:
                return self.value(stage.src, Payload.RAW, rank, stage.order[slot])
            case Op.DECODE:
                return self._decoded(stage, rank, slot)
            case Op.REDUCE | Op.DECODE_REDUCE:
                per_sender = self.schedule.buffer_slots[stage.dst]
                peers = self.schedule.axis_size(stage.axis)
                read = self._decoded if stage.op is Op.DECODE_REDUCE else self._raw
                return self._sum(stage, rank, [read(stage, rank, p * per_sender + slot) for p in range(peers)])
            case Op.EXCHANGE:
                return self._exchanged(stage, region, rank, slot)

    def _raw(self, stage: Stage, rank: int, slot: int) -> Value:
        return self.value(stage.src, Payload.RAW, rank, slot)

    def _decoded(self, stage: Stage, rank: int, slot: int) -> Value:
        static = self.value(stage.src, Payload.STATIC, rank, slot)
        dynamic = self.value(stage.src, Payload.DYNAMIC, rank, slot)
        if static != dynamic:
            raise ScheduleError(
                f"stage {stage.name}: slot {slot} on rank {rank} joins the static region of {static} "
                f"with the dynamic region of {dynamic}"
            )
        return static

    def _exchanged(self, stage: Stage, region: Payload, rank: int, slot: int) -> Value:
        group = self.schedule.group(stage.axis, rank)
        me = group.index(rank)
        read = self.schedule.buffer_slots[stage.src]
        match stage.exchange:
            case Exchange.ALL_GATHER:
                peer, part = divmod(slot, read)
                return self.value(stage.src, region, group[peer], part)
            case Exchange.ALL_TO_ALL:
                per_peer = read // len(group)
                peer, part = divmod(slot, per_peer)
                return self.value(stage.src, region, group[peer], me * per_peer + part)
            case Exchange.REDUCE_SCATTER:
                slot += me * (read // len(group))
            case Exchange.BROADCAST | Exchange.REDUCE | Exchange.SEND_RECV:
                raise ScheduleError(f"stage {stage.name}: no schedule may hold a {stage.exchange}")
        return self._sum(stage, rank, [self.value(stage.src, region, peer, slot) for peer in group])

    def _sum(self, stage: Stage, rank: int, values: list[Value]) -> Value:
        counted = frozenset[int]().union(*(v.ranks for v in values))
        twice = len(counted) < sum(len(v.ranks) for v in values)
        blocks = {v.block for v in values}
        if twice or len(blocks) > 1:
            times = Counter(r for v in values for r in v.ranks)
            again = sorted(r for r, count in times.items() if count > 1)
            wrong = f"counts ranks {again} more than once" if twice else f"adds unlike blocks {sorted(blocks)}"
            raise ScheduleError(f"stage {stage.name}: on rank {rank} {wrong}")
        return Value(values[0].block, counted)


def _sample(count: int) -> list[int]:
    """All of few; of many: both ends and some between, the same each time."""
    if count <= EXHAUSTIVE_RANKS:
        return list(range(count))
    return sorted({0, 1, count // 2, count - 2, count - 1, *(count * 7919 * i % count for i in range(1, SAMPLES))})
