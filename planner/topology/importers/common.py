"""What all importers share: cleaning of pasted text, the report, GPU model guesses, the parts of a Machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import GpuFacts, find_gpu, gpu_facts, gpus
from zipplan.planner.topology.model import Machine

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\[[0-9;]{1,5}m(?=GPU|NIC|CPU|\s)")


@dataclass(frozen=True)
class Imported:
    """A Machine and what stands behind it, as sentences. labels: raw text per pair of devices, where there was one."""

    machine: Machine
    format: str
    read: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    labels: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass
class Notes:
    """The report while it grows."""

    read: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def clean(text: str) -> list[str]:
    """Lines without terminal escapes, carriage returns and trailing blanks; tabs stay."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").replace("\ufeff", "")
    return [_ANSI.sub("", line).rstrip(" ") for line in text.split("\n")]


def source_of(lines: list[str], where: str, tool: str) -> str:
    """'source:' comment of the first lines when there is one, else the tool and the file."""
    for line in lines[:3]:
        match = re.search(r"source:\s*(.+?)(?:-->)?\s*$", line)
        if match:
            return match[1].strip()
    return told_by(tool, where)


def told_by(tool: str, where: str) -> str:
    """'nvidia-smi topo -m, node.txt': the source of what an importer writes."""
    return f"{tool}, file {where.rsplit('/', 1)[-1]}"


def choose_gpu(gpu: str | None, found: str | None, why: str, where: str, notes: Notes) -> GpuFacts:
    """The GPU model: --gpu first, then what the text tells. Raises TopologyError when neither is there."""
    told = find_gpu(found) if found else None
    if gpu is not None:
        facts = gpu_facts(gpu)
        notes.assumed.append(f"GPU model {facts.name}: given with --gpu")
        if told is not None and told.name != facts.name:
            notes.warnings.append(f"the text says {told.name} ({why}), --gpu says {facts.name}; --gpu is used")
        return facts
    if told is not None:
        notes.read.append(f"GPU model {told.name}: {why}")
        return told
    raise TopologyError(
        f"{where}: the text does not tell the GPU model{f' ({found}: {why})' if found else ''}; "
        f"say which with --gpu, for example --gpu H100. Valid: {', '.join(gpus())}"
    )


def finish(data: dict[str, Any], where: str, tool: str, notes: Notes, labels: dict[tuple[str, str], str]) -> Imported:
    """Validate what an importer put together; a mistake here names the file."""
    try:
        machine = Machine.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise TopologyError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return Imported(
        machine,
        tool,
        tuple(notes.read),
        tuple(notes.assumed),
        tuple(notes.unknown),
        tuple(notes.warnings),
        labels,
    )


def numbers(items: list[int]) -> str:
    """'{0,0,1,1}' or '{0-7}' when they count up by one."""
    if len(items) > 1 and items == list(range(items[0], items[0] + len(items))):
        return f"{{{items[0]}-{items[-1]}}}"
    return "{" + ",".join(map(str, items)) + "}" if len(items) != 1 else str(items[0])
