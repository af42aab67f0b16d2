"""Routes go by time, not by the number of hops (field case F113)."""

from __future__ import annotations

from zipplan.planner.topology import build_cluster, parse_machine

HOST = """
schema = 1
name = "triangle"
source = "made up for tests"

[cpu]
codec_encode = "1GB/s"
codec_decode = "1GB/s"
source = "made up for tests"

[transport]
kind = "gloo"

[[node]]
ranks = 1
source = "made up for tests"

[[node.link]]
a = "rank0"
b = "nic0"
kind = "loopback"
bandwidth = "100GB/s"
latency = "0ns"
source = "made up for tests"

[[node.nic]]
name = "nic0"
bandwidth = "1GB/s"
latency = "0ns"
source = "made up for tests"

[fabric]
kind = "graph"
source = "made up for tests"
"""


def cable(a: str, b: str, latency: str) -> str:
    return f'[[fabric.link]]\na = "{a}"\nb = "{b}"\nbandwidth = "1GB/s"\nlatency = "{latency}"\n'


def names(*cables: str) -> list[tuple[str, int, int]]:
    """(name, bandwidth, latency) of the switch links from rank 0 to rank 1."""
    hosts = cable("node0/nic0", "A", "0ns") + cable("node1/nic0", "B", "0ns")
    cluster = build_cluster(parse_machine(HOST + hosts + "".join(cables), "triangle"), nodes=2)
    used = (cluster.links[index] for index in cluster.path(0, 1))
    return [(link.name, link.bandwidth, link.latency) for link in used if link.kind == "fabric"]


def test_two_quick_hops_beat_one_slow_one() -> None:
    """A→B direct at 10 µs, A→C→B at 1 + 1 µs."""
    found = names(cable("A", "B", "10us"), cable("A", "C", "1us"), cable("C", "B", "1us"))
    assert [name for name, _, _ in found] == ["A>C", "C>B"]
    assert sum(latency for _, _, latency in found) == 2 * 10**6


def test_a_double_cable_carries_twice() -> None:
    assert names(cable("A", "B", "1us"), cable("A", "B", "1us")) == [("A>B", 2 * 10**9, 10**6)]


def test_cables_without_latency_are_cables() -> None:
    found = names(cable("A", "B", "1us"), cable("A", "C", "0ns"), cable("C", "B", "0ns"))
    assert [name for name, _, _ in found] == ["A>C", "C>B"]
