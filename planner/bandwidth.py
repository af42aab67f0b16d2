"""Bandwidths as nccl-tests defines them (NVIDIA/nccl-tests, doc/PERFORMANCE.md), and what moved for them.

algbw = size / time. busbw = algbw × factor counts raw bytes that cross a rank's port, so it can pass the wire's speed
when the bytes are compressed; wirebw counts the encoded bytes instead.
"""

from __future__ import annotations

from zipplan.planner.costs import Wire
from zipplan.planner.schedule import Collective, Exchange, Payload, Schedule


def bus_factor(collective: Collective | Exchange, ranks: int) -> float:
    """busbw / algbw; 0 for one rank."""
    kind = Exchange(collective)
    if kind in (Exchange.BROADCAST, Exchange.REDUCE, Exchange.SEND_RECV):
        return 1.0 if ranks > 1 else 0.0
    return (2 if kind is Exchange.ALL_REDUCE else 1) * (ranks - 1) / ranks


def gigabytes_per_second(size: float, ps: int) -> float:
    """Decimal GB/s; 0 when no time passed."""
    return size / ps * 1000 if ps else 0.0


def moved_bytes(schedule: Schedule, size: int, wire: Wire) -> tuple[float, float]:
    """(raw, encoded) bytes that one rank sends over all exchanges of a schedule."""
    slot = schedule.slot_bytes(size)
    raw = encoded = 0.0
    for stage in schedule.stages:
        if stage.exchange is None:
            continue
        peers = schedule.axis_size(stage.axis)
        factor = {
            Exchange.ALL_GATHER: peers - 1.0,
            Exchange.ALL_TO_ALL: (peers - 1) / peers,
            Exchange.REDUCE_SCATTER: (peers - 1) / peers,
            Exchange.ALL_REDUCE: 2 * (peers - 1) / peers,
        }[stage.exchange]
        sent = factor * schedule.buffer_slots[stage.src]
        encoded += sent * wire.bytes(stage.payload, slot)
        raw += sent * slot if stage.payload in (Payload.RAW, Payload.STATIC) else 0
    return raw, encoded
