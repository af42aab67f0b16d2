"""Failures that people met with other tools when describing clusters, each under its number among the field cases."""

from __future__ import annotations

import pytest

from zipplan.planner.errors import ConfigError, TopologyError
from zipplan.planner.topology import build_cluster, load_machine, parse_machine
from zipplan.planner.topology.check import check
from zipplan.planner.topology.describe import rate_between
from zipplan.planner.topology.importers import Imported
from zipplan.planner.topology.model import Machine
from zipplan.planner.units import parse_bandwidth

TWO_NODES = """
schema = 1
name = "pair"
source = "test"
[transport]
kind = "gloo"
[[node]]
ranks = 1
source = "test"
[[node.link]]
a = "rank0"
b = "nic0"
kind = "loopback"
bandwidth = "10GB/s"
latency = "0ns"
source = "test"
[[node.nic]]
name = "nic0"
bandwidth = "400Gb/s"
latency = "1us"
source = "test"
"""


def islands(joined: bool) -> Machine:
    text = TWO_NODES + '[fabric]\nkind = "graph"\ndefault_nodes = 8\nsource = "test"\n'
    for node in range(8):
        text += f'[[fabric.link]]\na = "node{node}/nic0"\nb = "sw{node // 4}"\nbandwidth = "400Gb/s"\n'
    if joined:
        text += '[[fabric.link]]\na = "sw0"\nb = "sw1"\nbandwidth = "25Gb/s"\n'
    return parse_machine(text, "islands.toml")


def test_f097_two_islands_meet_over_the_thin_link() -> None:
    cluster = build_cluster(islands(joined=True))
    assert rate_between(cluster, 0, 3) == parse_bandwidth("10GB/s")
    assert rate_between(cluster, 0, 4) == parse_bandwidth("25Gb/s")
    found = check(Imported(islands(joined=True), ""), cluster)
    assert [f.rule for f in found] == ["oversubscribed"]


def test_f097_disconnected_islands_are_an_error_that_names_the_parts() -> None:
    with pytest.raises(TopologyError, match=r"2 parts .* nodes 0-3; 4-7"):
        build_cluster(islands(joined=False))


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-a100", "gh200-quad"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 6, 7, 9, 12, 33])
def test_f098_any_number_of_nodes_is_a_cluster(name: str, nodes: int) -> None:
    cluster = build_cluster(load_machine(name), nodes=nodes)
    assert cluster.ranks == nodes * cluster.ranks_per_node
    last = cluster.ranks - 1
    assert cluster.links[cluster.path(0, last)[-1]].dst == f"n{nodes - 1}/{cluster.device_of(last)}"


def test_f100_two_ranks_on_one_gpu_are_refused() -> None:
    machine = load_machine("hgx-h100")
    for wrong in ({"gpus": [0, 0]}, {"ranks_per_node": 9}):
        with pytest.raises(TopologyError, match="NCCL does not allow two ranks on one GPU"):
            build_cluster(machine, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bandwidth = 1e9", "has no unit"),
        ("bandwidth = 400e9", "has no unit"),
        ("bandwidth = 12500000000", "has no unit"),
        ("bandwidth = 010", "As TOML"),
        ("bandwidth = 0000:41:00.0", "As TOML"),
        ('bandwidth = "400Gb/s"\nbandwidth = "200Gb/s"', "As TOML.*overwrite"),
        ('bandwidth = "400Gb/s"\nuse = "off"', "node.1.nic.1.use"),
        ('bandwidth = "400Gb/s"\nuse = off', "As TOML"),
        ('bandwith = "400Gb/s"', "unknown key node.1.nic.1.bandwith; did you mean bandwidth"),
        ('bandwidth = "-50GB/s"', "cannot read"),
        ('bandwidth = "0GB/s"', "not above zero"),
        ('bandwidth = "inf"', "cannot read"),
    ],
)
def test_f101_values_that_loose_formats_misread_are_refused(line: str, message: str) -> None:
    text = TWO_NODES.replace('bandwidth = "400Gb/s"', line)
    assert text != TWO_NODES
    with pytest.raises(TopologyError, match=f"(?s)bad.toml.*{message}"):
        parse_machine(text, "bad.toml")


def test_f109_hybrid_cube_mesh_with_single_and_double_links() -> None:
    cluster = build_cluster(load_machine("dgx-1v"))
    rates = {(link.src[3:], link.dst[3:]): link.bandwidth for link in cluster.links if link.kind == "nvlink"}
    assert (rates["gpu0", "gpu1"], rates["gpu0", "gpu3"]) == (25e9, 50e9)
    assert sum(rate for (src, _), rate in rates.items() if src == "gpu0") == 150e9
    assert cluster.graph.number_of_edges() == len(cluster.links)


def test_f109_parallel_rows_add_up() -> None:
    row = '[[node.link]]\na = "gpu0"\nb = "gpu1"\nkind = "nvlink"\n'
    text = (
        f'schema = 1\nname = "two"\nsource = "test"\n[gpu]\nmodel = "V100"\n[[node]]\nranks = 2\nsource = "test"\n{row}'
    )
    once, twice = (build_cluster(parse_machine(t, "x")) for t in (text, text + row))
    assert (rate_between(once, 0, 1), rate_between(twice, 0, 1)) == (25e9, 50e9)
    lanes = build_cluster(parse_machine(text + "lanes = 2\n", "x"))
    assert lanes.fingerprint == twice.fingerprint != once.fingerprint


def triangle(direct: str, via: str) -> Machine:
    text = TWO_NODES + '[fabric]\nkind = "graph"\nsource = "test"\n'
    ends = [
        ("node0/nic0", "A", "0ns"),
        ("node1/nic0", "B", "0ns"),
        ("A", "B", direct),
        ("A", "C", via),
        ("C", "B", via),
    ]
    for a, b, latency in ends:
        text += f'[[fabric.link]]\na = "{a}"\nb = "{b}"\nbandwidth = "400Gb/s"\nlatency = "{latency}"\n'
    return parse_machine(text, "triangle.toml")


@pytest.mark.parametrize(
    ("direct", "via", "route"), [("10us", "1us", ["A", "C"]), ("1us", "1us", ["A"]), ("0ns", "0ns", ["A"])]
)
def test_f113_routes_by_time_then_hops(direct: str, via: str, route: list[str]) -> None:
    cluster = build_cluster(triangle(direct, via), nodes=2)
    assert [cluster.links[i].src for i in cluster.path(0, 1) if cluster.links[i].kind == "fabric"] == route


def test_f113_parallel_cables_are_counted_twice() -> None:
    cable = '[[fabric.link]]\na = "A"\nb = "B"\nbandwidth = "25Gb/s"\n'
    ends = "".join(
        f'[[fabric.link]]\na = "node{i}/nic0"\nb = "{s}"\nbandwidth = "400Gb/s"\n' for i, s in enumerate("AB")
    )
    for count in (1, 2):
        text = TWO_NODES + '[fabric]\nkind = "graph"\nsource = "test"\n' + ends + cable * count
        assert rate_between(build_cluster(parse_machine(text, "x"), nodes=2), 0, 1) == count * 25e9 / 8


@pytest.mark.parametrize("text", ["400Gb/s", "50GB/s", "46.566128730774GiB/s"])
def test_f114_units_that_say_bits_or_bytes_agree(text: str) -> None:
    machine = parse_machine(TWO_NODES.replace("400Gb/s", text), "u.toml")
    assert machine.node[0].nic[0].bandwidth == pytest.approx(50e9, rel=1e-9)


@pytest.mark.parametrize("text", ["400Gbps", "400G", "400"])
def test_f114_ambiguous_units_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=f"cannot read '{text}'"):
        parse_machine(TWO_NODES.replace("400Gb/s", text), "u.toml")
    with pytest.raises(ConfigError):
        parse_bandwidth(text)
