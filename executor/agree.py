"""Start-up agreement: ranks compare plan, versions and switches before any data collective.

Every rank sends one record of the same size, so the gather itself cannot fail when ranks differ. Only when records
differ, short texts follow, so that every rank can say who holds what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from zipplan.executor import native
from zipplan.executor.calls import Call, dtype_name, op_name
from zipplan.executor.faults import Watch
from zipplan.planner.errors import AgreementError
from zipplan.planner.schedule import Exchange

_TEXT_BYTES = 512
_CALL_BYTES = 160


@dataclass(frozen=True)
class Item:
    """One thing that must be equal on all ranks. `value` is compared; `text` is what a person reads."""

    name: str
    value: str
    text: str


def gather_bytes(record: bytes, device: torch.device, group: Any = None, watch: Watch | None = None) -> list[bytes]:
    """Every rank's record, by rank of `group` (None: all); records are equally long. A collective call."""
    mine = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
    group = dist.group.WORLD if group is None else group
    everyone = torch.empty(group.size() * len(record), dtype=torch.uint8, device=device)
    handle = native.exchange(Exchange.ALL_GATHER, everyone, mine, group)
    if watch is None:
        handle.wait()
    else:
        watch.wait(handle, mine, everyone)
    flat = everyone.cpu().numpy().tobytes()
    return [flat[len(record) * rank : len(record) * (rank + 1)] for rank in range(group.size())]


def agree(items: Sequence[Item], device: torch.device, group: Any = None, watch: Watch | None = None) -> None:
    """Compare `items` (same names in the same order) on all ranks of `group` (None: all). A collective call.

    Raises AgreementError, the same on every rank, that groups ranks by value for each item that differs.
    """
    digests = b"".join(hashlib.sha256(f"{i.name}={i.value}".encode()).digest() for i in items)
    records = gather_bytes(digests, device, group, watch)
    if all(record == records[0] for record in records):
        return
    texts = gather_bytes(
        b"".join(i.text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES) for i in items), device, group, watch
    )
    lines = []
    for place, item in enumerate(items):
        held: dict[bytes, list[int]] = {}
        for rank, record in enumerate(records):
            held.setdefault(record[32 * place : 32 * (place + 1)], []).append(rank)
        if len(held) > 1:
            groups = (f"{_ranges(ranks)}: {_text(texts[ranks[0]], place)}" for ranks in held.values())
            lines.append(f"{item.name} differs between ranks: {'; '.join(groups)}")
    raise AgreementError("\n  ".join([*lines, "start every rank with the same plan file, versions and environment"]))


def agree_on_call(call: Call, number: int, group: Any, device: torch.device, watch: Watch) -> None:
    """Compare one call on all ranks before its data moves (ZIPPLAN_CHECK). A collective call.

    Raises AgreementError, the same on every rank: who makes which call, or which pairs of splits do not fit.
    """
    watch.stage = "agreement"
    what = f"{call.collective} {op_name(call.op)} of {dtype_name(call.dtype)}"
    if call.splits is None:
        what += f", {call.input.numel()} elements in, {call.output.numel()} out"
    splits = np.array(call.splits or np.zeros((2, group.size())), np.int64)
    records = gather_bytes(what.encode()[:_CALL_BYTES].ljust(_CALL_BYTES) + splits.tobytes(), device, group, watch)
    held: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        held.setdefault(record[:_CALL_BYTES].decode().strip(), []).append(rank)
    if len(held) > 1:
        groups = "; ".join(f"{_ranges(ranks)}: {text}" for text, ranks in held.items())
        raise AgreementError(f"call {number} differs between ranks: {groups}; every rank must make the same call")
    if call.splits is None:
        return
    receive, send = np.array([np.frombuffer(r[_CALL_BYTES:], np.int64).reshape(2, -1) for r in records]).swapaxes(0, 1)
    wrong = np.argwhere(send != receive.T)
    if len(wrong):
        pairs = "; ".join(
            f"rank {a} sends {send[a, b]} elements to rank {b}, which expects {receive[b, a]}" for a, b in wrong[:8]
        )
        raise AgreementError(f"call {number}, {call.collective}: splits do not fit: {pairs}")


def _text(record: bytes, place: int) -> str:
    return record[_TEXT_BYTES * place : _TEXT_BYTES * (place + 1)].decode(errors="replace").strip(" \ufffd")


def _ranges(ranks: Sequence[int]) -> str:
    """'0,2-3' for ascending ranks 0, 2, 3."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
