"""Pieces of a [[node]] that several importers write."""

from __future__ import annotations

from typing import Any

from zipplan.planner.topology.catalogue import GpuFacts
from zipplan.planner.topology.importers.common import Notes, numbers
from zipplan.planner.units import parse_bandwidth


def host_links(count: int) -> list[dict[str, Any]]:
    """Rows between CPU groups: one link for two, a star for more (each group has one link's worth towards the rest)."""
    if count == 2:
        return [{"a": "cpu0", "b": "cpu1", "kind": "cpu"}]
    return [{"a": f"cpu{numbers(list(range(count)))}", "b": "hub0", "kind": "cpu"}] if count > 2 else []


def pack(ends: list[tuple[str, str]], common: dict[str, Any]) -> list[dict[str, Any]]:
    """Pairs of devices as few rows: one per combination of device kinds."""
    grouped: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for a, b in ends:
        kinds = (a.rstrip("0123456789"), b.rstrip("0123456789"))
        grouped.setdefault(kinds, []).append((int(a[len(kinds[0]) :]), int(b[len(kinds[1]) :])))
    return [
        {"a": left + numbers([p[0] for p in pairs]), "b": right + numbers([p[1] for p in pairs]), **common}
        for (left, right), pairs in grouped.items()
    ]


def nic_source(facts: GpuFacts) -> str:
    """Source text of an assumed NIC rate."""
    return f"adapter of the reference node with {facts.name}: {facts.source.split(' ')[0]}"


def rule_out(ports: list[dict[str, Any]], notes: Notes) -> None:
    """Mark bonds and slow NICs `use = false`: storage and management adapters must not carry collectives.

    A port is slow when it has less than half the rate of the fastest one. Drops the helper key `_name`.
    """
    rates = {p["name"]: parse_bandwidth(p["bandwidth"]) for p in ports}
    fastest = max(rates.values(), default=0)
    out = []
    for port in ports:
        called = port.pop("_name", "") or port["name"]
        if "bond" in called and not all("bond" in (p.get("_name") or "") for p in ports if "_name" in p):
            port |= {"use": False, "why": f"{called} is a bond"}
        elif 2 * rates[port["name"]] < fastest:
            port |= {"use": False, "why": f"{port['bandwidth']}, other NICs are more than twice as fast: management?"}
        if port.get("use") is False:
            out.append(called)
    if out:
        notes.assumed.append(f"left out of the data path (bond, or much slower than other NICs): {', '.join(out)}")


def pack_ports(ports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """NICs that differ only in their number as one row."""
    packed: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for port in ports:
        rest = {key: value for key, value in port.items() if key != "name"}
        packed.setdefault(repr(rest), (rest, []))[1].append(int(port["name"].removeprefix("nic")))
    return [{"name": f"nic{numbers(found)}", **rest} for rest, found in packed.values()]
