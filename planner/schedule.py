"""The schedule: one collective as a small DAG of stages, read by verifier, simulator and executor alike.

Every rank of a `nodes × ranks_per_node` grid runs the same stages (rank = node · ranks_per_node + local). A stage reads
one buffer and writes one buffer; a buffer is a row of equal *slots*, and the stages say how slots move:

    encode         k raw slots → k frames
    exchange       frames or raw slots among the ranks of an axis (see Exchange)
    decode         k frames → k raw slots
    decode_reduce  g·k frames, by sender → k raw slots, summed in FP32 in rank order, rounded once
    reduce         g·k raw slots, by sender → k raw slots, summed in FP32 in rank order, rounded once
    permute        k raw slots → k raw slots in another order

A frame travels as two regions: `static` (its size follows from the element count alone, so it can be sent at once;
its header tells the size of the other) and `dynamic`. A frame can be decoded once both have arrived. Where the dynamic
region does not wait for the static one, an exchange of `sizes` goes before it.
A stage says *what*; ring against tree inside one exchange is the transport's choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from zipplan.planner.errors import ScheduleError

INPUT, OUTPUT = "input", "output"

PART_GRAIN = 16384
"""Bytes of which a part of a slot is a multiple: whole tiles of 4,096 elements for every dtype that codecs know."""


class Collective(StrEnum):
    """The collectives, by nccl-tests' names; sizes count as nccl-tests counts them (see `slot_bytes`)."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"

    @property
    def reduces(self) -> bool:
        """Whether ranks' values are summed."""
        return self in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)


class Op(StrEnum):
    """What a stage does to its slots."""

    ENCODE = "encode"
    EXCHANGE = "exchange"
    DECODE = "decode"
    DECODE_REDUCE = "decode_reduce"
    REDUCE = "reduce"
    PERMUTE = "permute"


class Exchange(StrEnum):
    """The native collective that an exchange stage issues on its axis, g = ranks on the axis, k slots read.

    all_gather: k → g·k, by sender. all_to_all: k → k, slot block p goes to peer p. reduce_scatter: k → k/g, summed by
    the transport. all_reduce: k → k, summed by the transport. broadcast, reduce (root: the first rank) and send_recv
    (to the next rank) are known to the transport only, for `zipplan validate`; the verifier refuses them.
    """

    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"

    @property
    def reduces(self) -> bool:
        """Whether the transport does arithmetic, so that the payload must be typed and raw."""
        return self in (Exchange.REDUCE_SCATTER, Exchange.ALL_REDUCE)


class Axis(StrEnum):
    """The ranks that an exchange joins: all; those of one node; those with equal local rank, one per node."""

    WORLD = "world"
    NODE = "node"
    RAIL = "rail"


class Payload(StrEnum):
    """What an exchange carries: raw slots, one region of the frames, or the sizes of the dynamic regions."""

    RAW = "raw"
    STATIC = "static"
    DYNAMIC = "dynamic"
    SIZES = "sizes"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step that all ranks take. `exchange`, `payload` only for exchanges; `axis` also for sums by sender."""

    name: str
    op: Op
    src: str
    dst: str
    after: tuple[str, ...] = ()
    axis: Axis = Axis.WORLD
    exchange: Exchange | None = None
    payload: Payload = Payload.RAW
    order: tuple[int, ...] = ()  # permute: slot i of dst is slot order[i] of src

    @property
    def regions(self) -> tuple[Payload, ...]:
        """The parts of its destination that this stage fills."""
        if self.op is Op.EXCHANGE:
            return (self.payload,)
        return (Payload.STATIC, Payload.DYNAMIC) if self.op is Op.ENCODE else (Payload.RAW,)


@dataclass(frozen=True)
class Schedule:
    """A named DAG of stages for one collective on a grid of ranks.

    `slots`: slots of the input buffer (1 for all-gather; a multiple of the ranks for reduce-scatter, all-to-all).
    `codec`: id of the codec of its encode stages, "raw" when it has none.
    `chunks`: how many parts of every slot run through the stages one after another, so that the codec works on one
    while others travel. A schedule knows elements only by their place, so each part is the whole collective on less.
    """

    name: str
    collective: Collective
    nodes: int
    ranks_per_node: int
    slots: int
    codec: str
    stages: tuple[Stage, ...]
    chunks: int = 1

    @property
    def ranks(self) -> int:
        """World size."""
        return self.nodes * self.ranks_per_node

    @property
    def axes(self) -> frozenset[Axis]:
        """Axes that its exchanges use; a schedule that uses only `world` fits any grid of as many ranks."""
        return frozenset(s.axis for s in self.stages if s.op is Op.EXCHANGE)

    def axis_size(self, axis: Axis) -> int:
        """Ranks that meet on an axis."""
        return {Axis.WORLD: self.ranks, Axis.NODE: self.ranks_per_node, Axis.RAIL: self.nodes}[axis]

    def group(self, axis: Axis, rank: int) -> range:
        """The world ranks that `rank` meets on an axis, in group order."""
        node, local = divmod(rank, self.ranks_per_node)
        if axis is Axis.WORLD:
            return range(self.ranks)
        if axis is Axis.NODE:
            return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
        return range(local, self.ranks, self.ranks_per_node)

    def groups(self, axis: Axis) -> Iterator[range]:
        """Every group of an axis once; together they hold every rank once."""
        leaders = {
            Axis.WORLD: range(1),
            Axis.NODE: range(0, self.ranks, self.ranks_per_node),
            Axis.RAIL: range(self.ranks_per_node),
        }[axis]
        return (self.group(axis, leader) for leader in leaders)

    @cached_property
    def buffer_slots(self) -> dict[str, int]:
        """Slots of every buffer, in order of first writing. Raises ScheduleError when slots do not divide."""
        slots = {INPUT: self.slots}
        for stage in self.stages:
            if stage.src not in slots:
                raise ScheduleError(f"schedule {self.name}: stage {stage.name} reads {stage.src!r}, not yet written")
            made = self._slots_after(stage, slots[stage.src])
            if slots.setdefault(stage.dst, made) != made:
                raise ScheduleError(
                    f"schedule {self.name}: stage {stage.name} makes {made} slots of {stage.dst!r}, "
                    f"an earlier stage made {slots[stage.dst]}"
                )
        return slots

    def _slots_after(self, stage: Stage, slots: int) -> int:
        size = self.axis_size(stage.axis)
        if stage.exchange is Exchange.ALL_GATHER:
            return slots * size
        divides = stage.exchange in (Exchange.ALL_TO_ALL, Exchange.REDUCE_SCATTER)
        sums = stage.op in (Op.DECODE_REDUCE, Op.REDUCE) or stage.exchange is Exchange.REDUCE_SCATTER
        if (divides or sums) and slots % size:
            raise ScheduleError(
                f"schedule {self.name}: stage {stage.name} shares {slots} slots of {stage.src!r} among the "
                f"{size} ranks of axis {stage.axis}, which does not divide"
            )
        if stage.order and len(stage.order) != slots:
            raise ScheduleError(
                f"schedule {self.name}: stage {stage.name} orders {len(stage.order)} slots, {stage.src!r} has {slots}"
            )
        return slots // size if sums else slots

    def slot_bytes(self, size: int) -> int:
        """Raw bytes of one slot for a message of `size` bytes, rounded up.

        nccl-tests' sizes: all_gather counts output bytes, reduce_scatter input bytes, all_to_all bytes per rank over
        all peers, all_reduce the buffer (NVIDIA/nccl-tests doc/PERFORMANCE.md).
        """
        parts = self.ranks if self.collective is Collective.ALL_GATHER else self.slots
        return -(-size // parts)

    def scratch_bytes(self, size: int, frame_bytes: int) -> int:
        """Bytes of all buffers between input and output, with `frame_bytes` the bound of one encoded slot."""
        raw = self.slot_bytes(size)
        frame_bytes = raw + len(self.parts(raw)) * (frame_bytes - raw)
        framed = {s.dst for s in self.stages if Payload.STATIC in s.regions}
        inner = {b: n for b, n in self.buffer_slots.items() if b not in (INPUT, OUTPUT)}
        return sum(n * (frame_bytes if b in framed else raw) for b, n in inner.items())

    def parts(self, slot: int) -> tuple[int, ...]:
        """Bytes of each part of a slot of `slot` bytes: at most `chunks`, whole grains but the last, as equal as that
        allows. A larger slot has no fewer parts, and none but the last is smaller.
        """
        grains = -(-slot // PART_GRAIN)
        if self.chunks == 1 or grains < 2:
            return (slot,)
        count = min(self.chunks, grains)
        each, more = divmod(grains, count)
        sizes = [(each + (i < more)) * PART_GRAIN for i in range(count)]
        sizes[-1] -= grains * PART_GRAIN - slot
        return tuple(sizes)

    def unrolled(self, parts: int) -> Iterator[tuple[int, Stage]]:
        """(part, stage) in the order in which every rank issues them.

        Behind an exchange a part is one turn late, so that the next part's stages before it are issued first and what
        waits for the exchange comes after them.
        """
        if parts == 1:
            yield from ((0, stage) for stage in self.stages)
            return
        late: dict[str, int] = {}
        exchanges = {s.name for s in self.stages if s.op is Op.EXCHANGE}
        for stage in self.stages:
            late[stage.name] = max((late[name] + (name in exchanges) for name in stage.after), default=0)
        levels = range(max(late.values()) + 1)
        for turn in range(parts + levels[-1]):
            for level in levels:
                if 0 <= turn - level < parts:
                    yield from ((turn - level, stage) for stage in self.stages if late[stage.name] == level)

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields of a stage that hold their default are left out."""
        plain = Stage(name="", op=Op.ENCODE, src="", dst="")
        defaults = {k: v for k, v in asdict(plain).items() if k not in ("name", "op", "src", "dst")}
        stages = [{k: v for k, v in asdict(s).items() if k not in defaults or v != defaults[k]} for s in self.stages]
        data = {**asdict(self), "collective": str(self.collective), "stages": stages}
        if self.chunks == 1:
            del data["chunks"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Schedule:
        """The inverse of `to_json`. Raises ScheduleError naming the field that does not fit."""
        try:
            stages = tuple(
                Stage(
                    **{
                        **stage,
                        "op": Op(stage["op"]),
                        "axis": Axis(stage.get("axis", "world")),
                        "payload": Payload(stage.get("payload", "raw")),
                        "exchange": Exchange(stage["exchange"]) if stage.get("exchange") else None,
                        "after": tuple(stage.get("after", ())),
                        "order": tuple(stage.get("order", ())),
                    }
                )
                for stage in data["stages"]
            )
            return cls(**{**data, "collective": Collective(data["collective"]), "stages": stages})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ScheduleError(f"not a schedule: {error}") from error
