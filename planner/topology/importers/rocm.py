"""`rocm-smi --showtopo` and `amd-smi topology`: link types, weights and rates between AMD GPUs, and NUMA nodes."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.importers.common import (
    Imported,
    Notes,
    choose_gpu,
    finish,
    numbers,
    source_of,
    told_by,
)
from zipplan.planner.topology.importers.matrix import fill_hidden, header_of, parse_matrix
from zipplan.planner.topology.importers.rows import host_links, pack

TOOL = "rocm-smi --showtopo"
_ENTRY = re.compile("XGMI|PCIE|N/A")
_VALID = ["XGMI", "PCIE", "N/A"]
_SECTION = re.compile(r"={3,}\s*(.*?)\s*={3,}|\*\*(.*?)\*\*|\s*([A-Z-][A-Z -]* TABLE):\s*")
_NAMES = {"LINK TYPE TABLE": "Link Type", "WEIGHT TABLE": "Weight", "HOPS TABLE": "Hops", "NUMA BW TABLE": "Bandwidth"}
_BUSID = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")


def is_rocm(lines: list[str]) -> bool:
    """A link type section, or a matrix of XGMI."""
    return any(
        re.search(r"(Link Type|Weight|Hops) between two GPUs|^\s*LINK TYPE TABLE:|\bXGMI\b", line) for line in lines
    )


def import_rocm(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine; only direct links (one hop) become links. Raises TopologyError."""
    notes = Notes()
    sections = _sections(lines)
    types = sections.get("Link Type", [] if sections.keys() & {"Weight", "Hops"} else lines)
    if not types:
        raise TopologyError(
            f"{where}: no link types in it; expected the whole output of `rocm-smi --showtopo` or `amd-smi topology`"
        )
    matrix = parse_matrix(types, where, _ENTRY, _VALID, self_mark="0")
    fill_hidden(matrix, where, notes)
    facts = choose_gpu(gpu, None, "rocm-smi --showtopo names no model", where, notes)
    gpus = matrix.gpus
    index = {g: i for i, g in enumerate(gpus)}
    joined = [(a, b) for a, b in combinations(gpus, 2) if matrix.get(a, b) == "XGMI"]
    lanes = _lanes(sections, joined, where, notes)
    direct = {(index[a], index[b]): n for (a, b), n in lanes.items()}
    rows: list[dict[str, Any]] = []
    if direct:
        own = (
            {}
            if facts.lane is not None
            else {"bandwidth": "25GB/s", "source": "assumed: no xGMI rate in the catalogue"}
        )
        for count in sorted(set(direct.values()), reverse=True):
            left, right = (numbers([p[i] for p, n in direct.items() if n == count]) for i in (0, 1))
            rows.append({"a": f"gpu{left}", "b": f"gpu{right}", "kind": "xgmi", "lanes": count, **own})
    if len(direct) < len(joined):
        notes.read.append(f"{len(joined) - len(direct)} XGMI pairs are not neighbours; their way leads through others")
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
            words = title[1] or title[2] or title[3] or ""
            current = found.setdefault(_NAMES.get(words, words.removesuffix(" between two GPUs")), [])
        elif current is not None:
            current.append(line)
    return {title: _numbered(section) for title, section in found.items()}


def _numbered(section: list[str]) -> list[str]:
    """amd-smi names GPUs by bus id and the diagonal SELF; here they are GPU0, GPU1, ... and 0."""
    order = next((_BUSID.findall(line) for line in section if _BUSID.search(line)), [])
    for number, busid in enumerate(order):
        section = [line.replace(busid, f"GPU{number}") for line in section]
    return [re.sub(r"\bSELF\b", "0", line) for line in section] if order else section


def _lanes(
    sections: dict[str, list[str]], joined: list[tuple[str, str]], where: str, notes: Notes
) -> dict[tuple[str, str], int]:
    """XGMI pair → links between the two, for neighbours only.

    Rates tell it all; else weights tell neighbours (15 for each link on the way), as hops are 1 for every XGMI pair:
    https://github.com/ROCm/rocm-systems/issues/5763
    """
    tables = {}
    for title, form in (("Bandwidth", r"\d+-\d+|N/A|0"), ("Weight", r"\d+|N/A"), ("Hops", r"\d+|N/A")):
        if joined and header_of(sections.get(title, [])) is not None:
            tables[title] = parse_matrix(sections[title], where, re.compile(form), [title.lower()], self_mark=None)
    if "Bandwidth" in tables:
        rates = {p: [int(n) for n in (tables["Bandwidth"].get(*p) or "").split("-") if n.isdigit()] for p in joined}
        return {pair: max(1, rate[1] // rate[0]) for pair, rate in rates.items() if len(rate) == 2 and rate[0] > 0}
    notes.assumed.append("one xGMI link per joined pair; a pair with several does not show here")
    if not tables:
        notes.assumed.append("every XGMI pair is joined directly: the text has link types only")
    if "Hops" in tables:
        joined = [pair for pair in joined if tables["Hops"].get(*pair) in (None, "1")]
    if "Weight" in tables:
        weights = {pair: int(text) for pair in joined if (text := tables["Weight"].get(*pair) or "").isdigit()}
        joined = [pair for pair in joined if weights.get(pair, 0) <= min(weights.values())]
    return dict.fromkeys(joined, 1)


def _numa(lines: list[str]) -> dict[str, int]:
    """GPU → NUMA node; -1 (a virtual machine) counts as not told."""
    found = {}
    for line in lines:
        told = re.match(r"\s*GPU\s*\[?(\d+)\]?\s*:\s*\(Topology\) Numa Node:\s*(-?\d+)", line)
        if told and int(told[2]) >= 0:
            found[f"GPU{told[1]}"] = int(told[2])
    return found
