"""A Machine as TOML that a person can read and edit, with comments on what was read and what was assumed."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from zipplan.planner.topology.exact import exact_rate, exact_time
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.model import FabricLink, LinkRow, Machine, NicRow
from zipplan.planner.units import format_bandwidth

_RATES = {
    "bandwidth", "hbm_bandwidth", "codec_encode", "codec_decode", "cascade_encode", "cascade_decode", "local_bandwidth",
    "global_bandwidth",
}  # fmt: skip
_TIMES = {"latency", "launch", "step_intra", "step_inter"}


def _value(key: str, value: Any, bits: bool = False) -> str:
    if key in _RATES:
        return f'"{exact_rate(value, bits)}"'
    if key in _TIMES:
        return f'"{exact_time(value)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML basic strings escape like JSON
    return repr(value)


def _table(title: str, item: BaseModel, skip: Iterable[str] = (), note: str = "") -> list[str]:
    lines = [f"# {note}"] if note else []
    lines.append(title)
    for key in type(item).model_fields:
        value = getattr(item, key)
        if key in item.model_fields_set and key not in skip and value is not None:
            lines.append(f"{key} = {_value(key, value, isinstance(item, NicRow | FabricLink))}")
    return [*lines, ""]


def _comment(heading: str, sentences: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for sentence in sentences:
        lines += textwrap.wrap(sentence, 112, initial_indent="#  - ", subsequent_indent="#    ")
    return [f"# {heading}:", *lines] if lines else []


def _link_note(machine: Machine, row: LinkRow) -> str:
    if row.bandwidth is not None:
        return ""
    return f"{format_bandwidth(machine.link_bandwidth(row))} each way"


def to_toml(described: Machine | Imported) -> str:
    """The text; loads back to a machine with the same fingerprint."""
    imported = described if isinstance(described, Imported) else Imported(described, "")
    machine = imported.machine
    lines: list[str] = []
    if imported.format:
        lines.append(
            f"# Imported from {imported.format} by `zipplan topo import`. Edit freely; `zipplan topo check` lints."
        )
    lines += _comment("Read", imported.read)
    lines += _comment("Assumed", imported.assumed)
    lines += _comment("Unknown", imported.unknown)
    lines += _comment("Warnings", imported.warnings)
    lines += [""] if lines else []
    lines += ["schema = 1"]
    for key in ("name", "summary", "source"):
        lines.append(f"{key} = {_value(key, getattr(machine, key))}")
    lines.append("")
    if machine.gpu:
        facts, gpu = machine.gpu.facts, machine.gpu
        known = facts is not None and (facts.sms, facts.hbm_bandwidth) == (gpu.sms, gpu.hbm_bandwidth)
        note = f"{gpu.sms} SMs, {format_bandwidth(gpu.hbm_bandwidth)} memory" if known else ""
        lines += _table("[gpu]", gpu, ("sms", "hbm_bandwidth") if known else (), note)
    if machine.cpu:
        lines += _table("[cpu]", machine.cpu)
    if machine.transport.model_fields_set:
        lines += _table("[transport]", machine.transport)
    for node in machine.node:
        lines += _table("[[node]]", node, ("link", "nic"))
        for row in node.link:
            lines += _table("[[node.link]]", row, note=_link_note(machine, row))
        for port in node.nic:
            lines += _table("[[node.nic]]", port)
    if machine.fabric.model_fields_set:
        lines += _table("[fabric]", machine.fabric, ("link",))
        for cable in machine.fabric.link:
            lines += _table("[[fabric.link]]", cable)
    for override in machine.override:
        lines += _table("[[override]]", override)
    return "\n".join(lines).rstrip() + "\n"
