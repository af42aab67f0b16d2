"""No simulated time is below a lower bound: random machines, random sizes, every schedule, ranks even and uneven."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from zipplan.planner.bounds import Bounds
from zipplan.planner.collectives import studied
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.topology import Cluster, build_cluster, parse_machine
from zipplan.planner.trees import cut_bound
from zipplan.planner.trees.cut import BOUNDED

HEAD = """
schema = 1
name = "random"
source = "made up for tests"
[gpu]
model = "{gpu}"
[[node]]
ranks = {ranks}
count = {count}
source = "made up for tests"
"""
LINK = """
[[node.link]]
a = "gpu{a}"
b = "{b}"
kind = "{kind}"
lanes = {lanes}
source = "made up for tests"
"""
NIC = """
[[node.nic]]
name = "nic{nic}"
bandwidth = "{rate}GB/s"
source = "made up for tests"
[[node.link]]
a = "nic{nic}"
b = "cpu0"
kind = "pcie"
source = "made up for tests"
"""
FABRIC = """
[fabric]
kind = "{kind}"
source = "made up for tests"
"""
CABLES = ("nodes_per_leaf = {per_leaf}", "spines = {spines}", "oversubscription = {over}")


@dataclass(frozen=True)
class Job:
    """A cluster, and what runs on it."""

    cluster: Cluster
    text: str
    algorithm: str
    settings: Settings

    def __repr__(self) -> str:
        return f"{self.text}\n{self.cluster}, {self.algorithm}, {self.settings}"


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Nodes of 1 to 4 GPUs, each on PCIe and with some NVLinks, 1 or 2 NICs; up to 4 nodes below switches or leaves."""
    ranks, nodes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    nodes = max(nodes, 2) if ranks == 1 else nodes
    text = HEAD.format(gpu=draw(st.sampled_from(["V100", "A100", "H100"])), ranks=ranks, count=nodes)
    for a in range(ranks):
        text += LINK.format(a=a, b="cpu0", kind="pcie", lanes=draw(st.integers(1, 2)))
        for b in range(a + 1, ranks):
            if draw(st.booleans()):
                text += LINK.format(a=a, b=f"gpu{b}", kind="nvlink", lanes=draw(st.integers(1, 4)))
    if nodes > 1:
        for nic in range(draw(st.integers(1, 2))):
            text += NIC.format(nic=nic, rate=draw(st.sampled_from([1, 12.5, 50])))
        kind = draw(st.sampled_from(["switch", "tree", "rail"]))
        text += FABRIC.format(kind=kind)
        if kind != "switch":
            leaves = {"per_leaf": draw(st.integers(1, 2)), "spines": draw(st.integers(1, 2)),
                      "over": draw(st.sampled_from([1, 2.5, 7]))}  # fmt: skip
            text += "\n".join(CABLES).format(**leaves) + "\n"
        if draw(st.booleans()):
            text += f'[[override]]\nnode = {draw(st.integers(0, nodes - 1))}\nlink = "gpu0-cpu0"\nbandwidth = "1GB/s"\n'
            text += 'source = "made up for tests"\n'
    uneven = draw(st.sampled_from([(), ("ranks.load=1.7",), ("ranks.late=300us",), ("ranks.load=3", "ranks.late=2ms")]))
    algorithm = draw(st.sampled_from(["auto", "ring", "tree", "direct", "pat"]))
    return Job(build_cluster(parse_machine(text, "random")), text, algorithm, Settings.read(uneven))


@given(jobs(), st.sampled_from(list(Collective)), st.integers(1, 2**31))
@settings(max_examples=80)
def test_no_schedule_beats_its_bounds(job: Job, collective: Collective, size: int) -> None:
    cluster = job.cluster
    search = Search(cluster, collective, "bf16", parse_profile("gaussian"), "auto", job.algorithm, job.settings)
    more = studied(collective, cluster.nodes, cluster.ranks_per_node, ("window",))
    bounds = Bounds(cluster, search.transport)
    cut = cut_bound(cluster, collective) if collective in BOUNDED else None
    for schedule in (*search.schedules, *more):
        time = search.run(schedule, size).time
        found = bounds.of(schedule, size, search.wires[schedule.codec], search.rates[schedule.codec], search.skew)
        for bound in found:
            assert bound.time <= time, (schedule.name, schedule.codec, bound)
        if cut is not None:  # whatever is compressed, at least so much of the message crosses the tightest cut
            wire, load = search.wires[schedule.codec], min(search.skew.load) if search.skew else 1.0
            assert cut.time_ps(int(size / max(1.0, wire.ratio) * min(1.0, load))) <= time, (schedule.name, cut)
