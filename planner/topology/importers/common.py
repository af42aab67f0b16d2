"""What all importers share: cleaning of pasted text, the report, GPU model guesses, the parts of a Machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from zipplan.planner.errors import TopologyError
from zipplan.planner.topology.catalogue import GpuFacts, find_gpu, gpu_facts, gpus
from zipplan.planner.topology.model import Machine

_ANSI = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\[[0-9;]{1,5}m(?=GPU|NIC|CPU|\s|$)")
_TAGS = (
    re.compile(r"\[\d+,\d+\]<std(?:out|err)>: ?"),
    re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\S+ ?"),
    re.compile(r"[\w.-]+: ?"),
    re.compile(r"\s*\|"),
    re.compile(r"\s*\d+(?: *[:|]|\t| {2})"),
)
"""What stands before every line of a pasted text: mpirun, log times, host or task names (pdsh, srun -l), a table's bar,
line numbers."""


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
    """Lines without terminal escapes, quoting, tags before every line, carriage returns and trailing blanks.

    Tabs stay, and so does the number of lines, which errors name. Markdown tables become tabs.
    """
    text = re.sub(r"\r+\n?", "\n", text)
    for odd, plain in (("\u00a0", " "), ("&nbsp;", " "), ("\ufeff", "")):
        text = text.replace(odd, plain)
    lines = [_ANSI.sub("", line).rstrip(" ") for line in text.split("\n")]
    if sum(line.startswith("> ") for line in lines) > 1:
        lines = [re.sub(r"^(?:>[ ]?)+", "", line) for line in lines]
    lines = ["" if line.lstrip().startswith("```") else line for line in lines]
    return _untagged(lines)


def _untagged(lines: list[str]) -> list[str]:
    full = [line for line in lines if line.strip()]
    for tag in _TAGS:
        heads = [tag.match(line) for line in full]
        found = [head[0].rstrip() for head in heads if head is not None]
        if len(full) < 2 or len(found) < len(full):
            continue
        if tag.pattern.startswith("[\\w") and len(set(found)) > 1:
            continue  # a list of names and values, not the output of one host
        rows = [tag.sub("", line, count=1) for line in lines]
        bars = tag.pattern.endswith(r"\|") and sum(line.count("|") for line in rows) > len(full)
        return [line.replace("|", "\t") for line in rows] if bars else rows
    return lines


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
