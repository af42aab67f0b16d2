"""Reduction in the network's switches: what it moves, what it costs, where it is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zipplan.planner.costs import Rates, wire
from zipplan.planner.errors import ConfigError, TopologyError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import INPUT, OUTPUT, Collective, Exchange, Op, Schedule, Stage
from zipplan.planner.settings import Settings
from zipplan.planner.simulate import Timeline, simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine, parse_machine
from zipplan.planner.transport import Transport

ON = Settings((("fabric.sharp", "on"),))
NAMES = ("collnetdirect", "collnetchain", "nvls")


def sharp(machine: str, nodes: int, ranks_per_node: int = 8) -> Cluster:
    return build_cluster(ON.machine(load_machine(machine)), nodes=nodes, ranks_per_node=ranks_per_node)


def all_reduce(cluster: Cluster, size: int, algorithm: str = "auto") -> Timeline:
    stage = Stage("native", Op.EXCHANGE, INPUT, OUTPUT, exchange=Exchange.ALL_REDUCE)
    schedule = Schedule(
        "native", Collective.ALL_REDUCE, cluster.nodes, cluster.ranks_per_node, 1, "raw", (stage,)
    )  # fmt: skip
    raw = wire("raw", "bf16", parse_profile("gaussian"))
    return simulate(schedule, cluster, size, raw, Transport(cluster, algorithm), Rates.of(cluster))


def test_closed_form_with_one_gpu_on_each_node() -> None:
    """start + the trip + the links' latency + bytes / (0.8 · NIC) + one chunk of 256 KiB on 2 channels."""
    cluster = sharp("hgx-a100-hdr8", 4, 1)
    for size in (1 << 20, 1 << 30):
        out, into = cluster.path(0, 1), cluster.path(1, 0)
        hop = max(sum(cluster.links[i].latency for i in way) for way in (out, into))
        moved = size / (0.8 * 25e9) * 1e12
        chunk = moved / max(1, size / (2 * 262144))
        expected = 8.4e6 + 30e6 + hop + moved + chunk
        assert all_reduce(cluster, size, "collnetchain").time == pytest.approx(expected, abs=4)


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-a100", 2), ("hgx-a100-hdr8", 4), ("hgx-h100", 3)])
@pytest.mark.parametrize("algorithm", NAMES)
def test_nics_carry_the_message_once(machine: str, nodes: int, algorithm: str) -> None:
    """Out of and into each node go the bytes of the message, once each, whatever the number of nodes; half of a ring's.

    Nothing is faster than that on the node's NICs, and all GPUs of a node send at least their own part inside it.
    """
    cluster, size = sharp(machine, nodes), 1 << 28
    if algorithm == "nvls" and not cluster.transport.nvls:
        with pytest.raises(ConfigError, match="NVLink SHARP"):
            Transport(cluster, algorithm)
        return
    timeline = all_reduce(cluster, size, algorithm)
    out = [link for link in cluster.links if link.kind == "nic" and link.src.startswith("n0/nic")]
    into = [link for link in cluster.links if link.kind == "nic" and link.dst.startswith("n0/nic")]
    for way in (out, into):
        carried = sum(timeline.link_bytes[link.index] for link in way) * 0.8  # payload of wire bytes
        assert carried == pytest.approx(size, rel=1e-9)
    assert timeline.time >= size / sum(link.bandwidth for link in out) * 1e12
    if algorithm != "collnetchain":  # a chain crosses NVLink twice, which a ring does not
        assert timeline.time < all_reduce(cluster, size, "ring").time


def test_rate_that_its_authors_name() -> None:
    """NVIDIA/nccl issue 320, CollNetChain on A100 nodes: algbw ~80 GB/s with 4 HDR NICs, ~110 with 8."""
    for machine, expected in (("hgx-a100", 80), ("hgx-a100-hdr8", 110)):
        size = 4 << 30
        found = size / all_reduce(sharp(machine, 8), size, "collnetchain").time * 1e3
        assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("machine", ["hgx-a100", "hgx-h100"])
@pytest.mark.parametrize("algorithm", [*NAMES, "auto"])
def test_time_rises_with_bytes_and_hardly_with_nodes(machine: str, algorithm: str) -> None:
    cluster = sharp(machine, 4)
    if algorithm == "nvls" and not cluster.transport.nvls:
        algorithm = "auto"
    times = [all_reduce(cluster, 1 << n, algorithm).time for n in range(10, 33)]
    assert times == sorted(times)
    more = sharp(machine, 16)
    if algorithm != "auto":
        assert all_reduce(more, 1 << 26, algorithm).time == pytest.approx(times[16], rel=0.05)


def test_off_unless_said() -> None:
    """The shipped machine picks what it picked; with SHARP NCCL takes CollNet or NVLS across nodes."""
    plain = build_cluster(load_machine("hgx-h100"), nodes=4)
    assert plain.fingerprint != sharp("hgx-h100", 4).fingerprint
    assert all_reduce(plain, 1 << 30).carried["native"][0] in ("ring", "tree", "nvlstree")
    assert Transport(plain, "nvls").algorithms(Exchange.ALL_REDUCE, range(32)) == ("nvlstree",)
    on = sharp("hgx-h100", 4)
    assert all_reduce(on, 1 << 30).carried["native"][0] == "nvls"
    assert Transport(on, "nvlstree").algorithms(Exchange.ALL_REDUCE, range(32)) == ("nvlstree",)
    assert "collnetdirect" not in Transport(sharp("gb200-nvl72", 2, 72)).algorithms(Exchange.ALL_REDUCE, range(144))
    assert np.array_equal(on.bandwidths, plain.bandwidths)


def test_inside_one_node_there_is_no_network_to_reduce() -> None:
    cluster = sharp("hgx-h100", 2)
    assert Transport(cluster, "collnetchain").algorithms(Exchange.ALL_REDUCE, range(8)) == ("ring", "tree", "nvls")
    assert math.isfinite(all_reduce(sharp("hgx-h100", 1), 1 << 20, "collnetchain").time)


def test_refused_where_nothing_reduces() -> None:
    with pytest.raises(ConfigError, match=r"do not reduce.*fabric\.sharp"):
        Transport(build_cluster(load_machine("hgx-h100"), nodes=2), "collnetdirect")
    for machine in ("p5", "gh200-quad", "lab", "dgx-1v"):
        loaded = load_machine(machine)
        if (loaded.transport.kind, loaded.transport.network) != ("nccl", "infiniband"):
            with pytest.raises(ConfigError, match=r"fabric\.sharp.*no InfiniBand switches"):
                ON.machine(loaded)
    with pytest.raises((ConfigError, TopologyError), match="sharp"):
        parse_machine(
            'schema = 1\nname = "x"\nsource = "made up"\n[gpu]\nmodel = "H100"\n[[node]]\nranks = 1\n'
            'source = "made up"\n[fabric]\nkind = "none"\nsharp = true\n', "x"
        )  # fmt: skip
