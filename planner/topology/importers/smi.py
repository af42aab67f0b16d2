"""`nvidia-smi topo -m`: GPUs, NICs and their distance classes, no rates and no GPU model."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import GpuFacts, find_gpu
from zipplan.planner.topology.importers.common import (
    Imported,
    Notes,
    choose_gpu,
    finish,
    numbers,
    source_of,
    told_by,
)
from zipplan.planner.topology.importers.matrix import Matrix, fill_hidden, header_of, parse_matrix
from zipplan.planner.topology.importers.rows import host_links, nic_source, pack, pack_ports

TOOL = "nvidia-smi topo -m"
PCI_LABELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_RANK = {label: i for i, label in enumerate(PCI_LABELS)}
_NV = re.compile(r"NV([1-9]|[12]\d|3[0-6])")
_ENTRY = re.compile(rf"PIX|PXB|PHB|NODE|SYS|N/A|{_NV.pattern}")
MOST_NVLINKS = 18
"""No GPU so far has more NVLinks; a GPU whose row adds up to more is behind an NVSwitch."""


def is_smi(lines: list[str]) -> bool:
    """A header of GPU names, and nothing of rocm-smi."""
    return header_of(lines) is not None and not any("Link Type" in line or "XGMI" in line for line in lines)


def import_smi(lines: list[str], *, name: str, where: str, gpu: str | None = None) -> Imported:
    """Text → Machine. Unknown entries, asymmetry and holes that symmetry does not fill are TopologyErrors."""
    notes = Notes()
    if any(re.match(r"\s*(CNS|GNS|TNS)\s*=", line) for line in lines):
        raise TopologyError(
            f"{where}: this is `nvidia-smi topo -p2p`, which tells what the driver allows and not how GPUs are joined; "
            "expected the output of `nvidia-smi topo -m`"
        )
    matrix = parse_matrix(lines, where, _ENTRY, [*PCI_LABELS, "NV1 to NV36", "N/A"])
    _check_entries(matrix, where, notes)
    fill_hidden(matrix, where, notes)
    facts = choose_gpu(gpu, *_guess(matrix, lines), where, notes)
    gpus = matrix.gpus
    index = {device: f"gpu{i}" for i, device in enumerate(gpus)}
    nics = sorted(matrix.nics, key=lambda n: (_digits(n), n))
    index |= {device: f"nic{i}" for i, device in enumerate(nics)}
    notes.read.append(", ".join([f"{len(gpus)} GPUs", f"{len(nics)} NICs", *_label_count(matrix)]))

    rows = _nvlink_rows(matrix, facts, index, notes)
    rows += _pcie_rows(matrix, index, notes)
    used, idle = _choose_nics(matrix, nics, notes)
    ports = [
        {"name": index[n], "bandwidth": facts.nic_text, "source": f"assumed: {nic_source(facts)}", **_idle(idle.get(n))}
        for n in nics
    ]
    if nics:
        names = ", ".join(f"{index[n]} = {matrix.nic_names.get(n, n)}" for n in nics)
        notes.read.append(f"NIC names: {names}")
        notes.assumed.append(f"every NIC runs at {facts.nic_text} ({facts.name} reference node)")
        notes.unknown.append("NIC rates and link layer (see ibstat), the fabric beyond the NICs")
    else:
        notes.unknown.append("NICs: the matrix has no NIC column, so this describes one node only")
    notes.assumed.append(f"PCIe {facts.pcie}.0 x16 slots; a slot that runs slower does not show in a matrix")
    notes.unknown.append("PCIe link widths and speeds (see nvidia-smi -q), CPU model and inter-socket rate")
    _virtualised(matrix, notes)
    if any(re.match(r"\s*MIG \d", line) for line in lines):
        notes.warnings.append("MIG is on: NCCL joins whole GPUs only, so turn it off on the GPUs that take part")
    if facts.name in ("GB200", "GB300") and len(gpus) <= 4:
        notes.warnings.append("the trays of a rack share one NVLink domain; for a whole rack take gb200-nvl72")

    data: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "summary": f"{len(gpus)} x {facts.name}, imported from {TOOL}",
        "source": source_of(lines, where, TOOL),
        "gpu": {"model": facts.name},
        "node": [{"ranks": len(gpus), "source": told_by(TOOL, where), "link": rows, "nic": pack_ports(ports)}],
    }
    if used:
        data["fabric"] = {"kind": "switch", "source": "assumed: all NICs on one non-blocking switch"}
        notes.assumed.append("with --nodes: all NICs on one non-blocking switch (edit [fabric], or give a fabric file)")
    labels = {(a, b): matrix.get(a, b) or "" for a, b in combinations([*gpus, *nics], 2) if matrix.get(a, b)}
    return finish(data, where, TOOL, notes, {(index[a], index[b]): t for (a, b), t in labels.items()})


def _idle(why: str | None) -> dict[str, Any]:
    return {"use": False, "why": why} if why else {}


def _digits(name: str) -> int:
    found = re.findall(r"\d+", name)
    return int(found[-1]) if found else 0


def _label_count(matrix: Matrix) -> list[str]:
    count: dict[str, int] = {}
    for a, b in combinations(matrix.gpus, 2):
        label = matrix.get(a, b) or "?"
        count[label] = count.get(label, 0) + 1
    return [f"{n} GPU pairs {label}" for label, n in sorted(count.items())]


def _check_entries(matrix: Matrix, where: str, notes: Notes) -> None:
    untold = []
    for (row, column), text in matrix.cells.items():
        if text == "N/A":
            untold.append(f"{row}-{column}")
            matrix.cells[row, column] = "SYS"
        elif _NV.fullmatch(text) and not (row in matrix.gpus and column in matrix.gpus):
            raise TopologyError(f"{where}: row {row}, column {column}: {text!r} between a GPU and a NIC")
    if untold:
        notes.unknown.append(f"N/A entries: {', '.join(untold)}")
        notes.assumed.append("N/A entries count as SYS, the slowest class")


def _guess(matrix: Matrix, lines: list[str]) -> tuple[str | None, str]:
    """(GPU model or None, why): from `nvidia-smi` or `nvidia-smi -L` lines beside the matrix, or 12 links each."""
    for line in lines:
        listed = re.match(r"\s*GPU [\d,]+: (?:NVIDIA )?(.+?)(?: \(UUID.*)?$", line) or re.match(
            r"\s*\|\s+\d+\s+(?:NVIDIA )?((?:Tesla|GeForce|RTX|[A-Z]+\d)\S*.*?)\s{2,}", line
        )
        if listed:
            words = listed[1].replace("Tesla ", "").replace("GeForce ", "").replace("RTX ", "RTX").split(" ")
            model = words[0] if find_gpu(words[0]) else words[0].split("-")[0]
            return model, f"line {line.strip()!r}"
    labels = {matrix.get(a, b) for a, b in combinations(matrix.gpus, 2)}
    if labels == {"NV12"} and len(matrix.gpus) > 2:
        return "A100", "12 NVLinks to every peer through a switch is A100 only (80 GB assumed)"
    return None, "NVLink counts do not tell one model from another" if any(
        t and t.startswith("NV") for t in labels
    ) else "no NVLink"


def _nvlink_rows(matrix: Matrix, facts: GpuFacts, index: dict[str, str], notes: Notes) -> list[dict[str, Any]]:
    lanes: dict[tuple[str, str], int] = {}
    for a, b in combinations(matrix.gpus, 2):
        found = _NV.fullmatch(matrix.get(a, b) or "")
        if found:
            lanes[a, b] = int(found[1])
    if not lanes:
        if facts.lanes and len(matrix.gpus) > 1:
            notes.unknown.append(
                f"NVLink: {facts.name} comes with {facts.lanes} links and no entry shows one; `nvidia-smi topo -mp` "
                "and some virtual machines hide them (use `topo -m` on the host), PCIe cards have none without a bridge"
            )
        return []
    own = {"bandwidth": "25GB/s", "source": "assumed: the catalogue has no NVLink rate for this GPU"}
    rate: dict[str, Any] = {} if facts.lane is not None else own
    most = {g: max([n for pair, n in lanes.items() if g in pair], default=0) for g in matrix.gpus}
    total = {g: sum(n for pair, n in lanes.items() if g in pair) for g in matrix.gpus}
    rows: list[dict[str, Any]] = []
    switched = {g for g in matrix.gpus if total[g] > max(facts.lanes or MOST_NVLINKS, most[g])}
    if switched:
        typical = max(most.values())
        if facts.lanes and typical < facts.lanes:
            notes.warnings.append(
                f"{typical} NVLinks per GPU, {facts.name} comes with {facts.lanes}: another model, or links down?"
            )
        for count in sorted({most[g] for g in switched}, reverse=True):
            members = [int(index[g][3:]) for g in matrix.gpus if g in switched and most[g] == count]
            rows.append({"a": f"gpu{numbers(members)}", "b": "nvswitch0", "kind": "nvlink", "lanes": count, **rate})
            if count < typical:
                notes.warnings.append(f"GPUs {members} have {count} NVLinks, others have {typical}: links down?")
        notes.read.append(f"NVSwitch: {len(switched)} GPUs, row sums exceed the NVLinks of a GPU")
        notes.assumed.append("the NVSwitches act as one crossbar; how many there are does not show in a matrix")
    direct: dict[int, list[tuple[int, int]]] = {}
    for (a, b), count in lanes.items():
        if not (a in switched and b in switched):
            direct.setdefault(count, []).append((int(index[a][3:]), int(index[b][3:])))
    for count, pairs in sorted(direct.items()):
        left, right = (numbers([p[i] for p in pairs]) for i in (0, 1))
        rows.append({"a": f"gpu{left}", "b": f"gpu{right}", "kind": "nvlink", "lanes": count, **rate})
    bare = [g for g in matrix.gpus if not most[g]]
    if bare:
        notes.warnings.append(f"no NVLink at {', '.join(bare)}, though other GPUs of the node have it")
    return rows


def _groups(items: list[str], joined: Any) -> list[list[str]]:
    """Connected parts of `items` under the pair predicate `joined`, in order of their first member."""
    parts: list[list[str]] = []
    for item in items:
        touching = [part for part in parts if any(joined(item, other) for other in part)]
        merged = [x for part in touching for x in part] + [item]
        parts = [part for part in parts if part not in touching] + [merged]
    order = {item: i for i, item in enumerate(items)}
    return sorted((sorted(p, key=order.__getitem__) for p in parts), key=lambda p: order[p[0]])


def _pcie_rows(matrix: Matrix, index: dict[str, str], notes: Notes) -> list[dict[str, Any]]:
    """Switches from PIX and PXB, one CPU per group that PHB, NODE or an equal affinity joins, SYS between them."""
    devices = [*matrix.gpus, *matrix.nics]

    def within(*labels: str) -> Any:
        return lambda a, b: matrix.get(a, b) in labels

    hidden = {g for g in matrix.gpus if g not in matrix.rows}
    far = {n for n in matrix.nics if all(matrix.get(g, n) in (None, "SYS") for g in matrix.gpus)}
    unplaced = hidden | (far if hidden else set())
    if unplaced:
        notes.assumed.append(f"no row tells where these are, so they share one CPU: {', '.join(sorted(unplaced))}")

    def same_host(a: str, b: str) -> bool:
        label = matrix.get(a, b)
        if label is None or (a in unplaced and b in unplaced):
            return a in unplaced and b in unplaced
        if label.startswith("NV"):
            return _home(matrix, a) == _home(matrix, b)
        return label != "SYS"

    hosts = _groups(devices, same_host)
    rows: list[dict[str, Any]] = []
    pci = 0
    ends: list[tuple[str, str]] = []
    for cpu, host in enumerate(hosts):
        for complex_ in _groups(host, within("PIX", "PXB")):
            leaves = _groups(complex_, within("PIX"))
            if len(complex_) == 1:
                ends.append((index[complex_[0]], f"cpu{cpu}"))
                continue
            top = pci
            ends.append((f"pci{top}", f"cpu{cpu}"))
            pci += 1
            for leaf in leaves:
                below = top
                if len(leaves) > 1:
                    below = pci
                    ends.append((f"pci{below}", f"pci{top}"))
                    pci += 1
                ends += [(index[d], f"pci{below}") for d in leaf]
    rows += pack(ends, {"kind": "pcie"})
    rows += host_links(len(hosts))
    if len(hosts) > 1:
        notes.assumed.append(
            f"{len(hosts)} CPU groups, 16 GB/s each way between groups (NCCL's figure for AMD sockets)"
        )
    return rows


def _home(matrix: Matrix, device: str) -> str | None:
    """Where a GPU's CPUs are: NUMA list, or the CPU list when the NUMA column says nothing."""
    row = matrix.extra.get(device, {})
    numa = row.get("NUMA Affinity", row.get("CPU NUMA Affinity", ""))
    return numa if re.match(r"\d", numa) else row.get("CPU Affinity")


def _choose_nics(matrix: Matrix, nics: list[str], notes: Notes) -> tuple[list[str], dict[str, str]]:
    """(NICs in use, NIC → why it is left out): a NIC is used when it is the nearest of some GPU."""
    used: set[str] = set()
    for gpu in matrix.gpus:
        ranks = {n: _RANK[label] for n in nics if (label := matrix.get(gpu, n)) is not None}
        used |= {n for n, r in ranks.items() if r == min(ranks.values())}
    if any(g not in matrix.rows and not any(matrix.get(g, n) for n in nics) for g in matrix.gpus):
        used = set(nics)  # any of them may be the nearest of a GPU whose row is missing
    idle = {n: "every GPU has a nearer NIC: storage or management?" for n in nics if n not in used}
    if idle:
        names = ", ".join(matrix.nic_names.get(n, n) for n in idle)
        notes.assumed.append(f"left out of the data path, because every GPU has a nearer NIC: {names}")
    return [n for n in nics if n in used], idle


def _virtualised(matrix: Matrix, notes: Notes) -> None:
    labels = {matrix.get(a, b) for a, b in combinations(matrix.gpus, 2)}
    sys_at_home = any(
        matrix.get(a, b) == "SYS" and (home := _home(matrix, a)) is not None and home == _home(matrix, b)
        for a, b in combinations(matrix.gpus, 2)
    )
    if len(matrix.gpus) >= 4 and (labels == {"PHB"} or labels == {"SYS"} or sys_at_home):
        notes.warnings.append(
            "topology looks virtualised (a flat PCIe tree); rates are conservative. Supply the provider's NCCL "
            "topology XML, or take the matrix on the bare host"
        )
