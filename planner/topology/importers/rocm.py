"""`rocm-smi --showtopo`: link types and hops between AMD GPUs, and their NUMA nodes."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from zipplan.planner.topology.importers.common import (
    Imported,
    Notes,
    choose_gpu,
    finish,
    numbers,
    source_of,
    told_by,
)
from zipplan.planner.topology.importers.matrix import Matrix, fill_hidden, parse_matrix
from zipplan.planner.topology.importers.rows import host_links, pack

TOOL = "rocm-smi --showtopo"
_ENTRY = re.compile("XGMI|PCIE|N/A")
_VALID = ["XGMI", "PCIE", "N/A"]
_SECTION = re.compile(r"={3,}\s*(.*?)\s*={3,}")


def is_rocm(lines: list[str]) -> bool:
    """A link type section, or a matrix of XGMI."""
    return any("Link Type between two GPUs" in line or re.search(r"\bXGMI\b", line) for line in lines)


def import_rocm(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine; only direct links (one hop) become links. Raises TopologyError."""
    notes = Notes()
    sections = _sections(lines)
    matrix = parse_matrix(sections.get("Link Type between two GPUs", lines), where, _ENTRY, _VALID, self_mark="0")
    fill_hidden(matrix, where, notes)
    facts = choose_gpu(gpu, None, "rocm-smi --showtopo names no model", where, notes)
    hops = _hops(sections, where)
    gpus = matrix.gpus
    index = {g: i for i, g in enumerate(gpus)}
    direct = [
        (index[a], index[b])
        for a, b in combinations(gpus, 2)
        if matrix.get(a, b) == "XGMI" and (hops is None or hops.get(a, b) in (None, "1"))
    ]
    rows: list[dict[str, Any]] = []
    if direct:
        own = (
            {}
            if facts.lane is not None
            else {"bandwidth": "25GB/s", "source": "assumed: no xGMI rate in the catalogue"}
        )
        left, right = (numbers([p[i] for p in direct]) for i in (0, 1))
        rows.append({"a": f"gpu{left}", "b": f"gpu{right}", "kind": "xgmi", **own})
        notes.assumed.append("one xGMI link per joined pair; a pair with several does not show here")
        if hops is None:
            notes.assumed.append("every XGMI pair is one hop: the text has no hop section")
    numa = _numa(lines)
    homes = sorted(set(numa.values()))
    rows += pack([(f"gpu{index[g]}", f"cpu{homes.index(numa[g]) if g in numa else 0}") for g in gpus], {"kind": "pcie"})
    rows += host_links(len(homes))
    if not numa:
        notes.assumed.append("all GPUs on one CPU: the text has no NUMA lines")
    notes.read.append(f"{len(gpus)} GPUs, {len(direct)} pairs joined by xGMI")
    notes.unknown.append(
        "NICs, PCIe switches and the fabric: rocm-smi does not show them, so this describes one node only"
    )
    data = {
        "schema": 1,
        "name": name,
        "summary": f"{len(gpus)} x {facts.name}, imported from {TOOL}",
        "source": source_of(lines, where, TOOL),
        "gpu": {"model": facts.name},
        "node": [{"ranks": len(gpus), "source": told_by(TOOL, where), "link": rows}],
    }
    labels = {(f"gpu{index[a]}", f"gpu{index[b]}"): matrix.get(a, b) or "?" for a, b in combinations(gpus, 2)}
    return finish(data, where, TOOL, notes, labels)


def _sections(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        title = _SECTION.search(line)
        if title:
            current = found.setdefault(title[1], [])
        elif current is not None:
            current.append(line)
    return found


def _hops(sections: dict[str, list[str]], where: str) -> Matrix | None:
    lines = sections.get("Hops between two GPUs")
    if not lines:
        return None
    return parse_matrix(lines, where, re.compile(r"\d+|N/A"), ["hop counts"], self_mark="0")


def _numa(lines: list[str]) -> dict[str, int]:
    """GPU → NUMA node; -1 (a virtual machine) counts as not told."""
    found = {}
    for line in lines:
        told = re.match(r"\s*GPU\s*\[?(\d+)\]?\s*:\s*\(Topology\) Numa Node:\s*(-?\d+)", line)
        if told and int(told[2]) >= 0:
            found[f"GPU{told[1]}"] = int(told[2])
    return found
