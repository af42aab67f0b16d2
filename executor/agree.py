"""Start-up agreement: ranks compare plan, versions and switches before any data collective.

Every rank sends one record of the same size, so the gather itself cannot fail when ranks differ. Only when records
differ, short texts follow, so that every rank can say who holds what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from zipplan.executor import native
from zipplan.planner.errors import AgreementError
from zipplan.planner.schedule import Exchange

_TEXT_BYTES = 512


@dataclass(frozen=True)
class Item:
    """One thing that must be equal on all ranks. `value` is compared; `text` is what a person reads."""

    name: str
    value: str
    text: str


def gather_bytes(record: bytes, device: torch.device) -> list[bytes]:
    """Every rank's record, by rank; records are equally long. A collective call."""
    mine = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
    world = dist.get_world_size()
    everyone = torch.empty(world * len(record), dtype=torch.uint8, device=device)
    handle = native.exchange(Exchange.ALL_GATHER, everyone, mine, dist.group.WORLD)
    handle.wait()
    flat = everyone.cpu().numpy().tobytes()
    return [flat[len(record) * rank : len(record) * (rank + 1)] for rank in range(world)]


def agree(items: Sequence[Item], device: torch.device) -> None:
    """Compare `items` (same names in the same order) on all ranks of the world. A collective call.

    Raises AgreementError, the same on every rank, that groups ranks by value for each item that differs.
    """
    digests = b"".join(hashlib.sha256(f"{i.name}={i.value}".encode()).digest() for i in items)
    records = gather_bytes(digests, device)
    if all(record == records[0] for record in records):
        return
    texts = gather_bytes(b"".join(i.text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES) for i in items), device)
    lines = []
    for place, item in enumerate(items):
        held: dict[bytes, list[int]] = {}
        for rank, record in enumerate(records):
            held.setdefault(record[32 * place : 32 * (place + 1)], []).append(rank)
        if len(held) > 1:
            groups = (f"{_ranges(ranks)}: {_text(texts[ranks[0]], place)}" for ranks in held.values())
            lines.append(f"{item.name} differs between ranks: {'; '.join(groups)}")
    raise AgreementError("\n  ".join([*lines, "start every rank with the same plan file, versions and environment"]))


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
