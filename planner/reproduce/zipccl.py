"""ZipCCL as its paper describes it: its schedules, its codec, no choice except the reduce-scatter switcher (§3, §5).

What the paper leaves open is assumed once, in the machine and workload files and here, for all rows alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from zipplan.planner.collectives import all_to_all
from zipplan.planner.contention import Cost, Shares
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import Settings
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.workload import Call, StepTime, build_step, load_workload, run_step
from zipplan.planner.workload.grid import part
from zipplan.planner.workload.report import skew_of

A6000, H800 = "a6000x8-200g", "hgx-h800"
ONE_NIC = "+one-nic"
CODEC = "window"


@cache
def cluster_of(machine: str, nodes: int, ranks_per_node: int | None = None) -> Cluster:
    """A shipped machine; NAME + ONE_NIC lets the GPUs of a node share the rate of one NIC."""
    name, _, changed = machine.partition("+")
    loaded = load_machine(name)
    if changed:
        loaded = Settings((("link.nic.bandwidth", f"{1 / loaded.node[0].ranks}x"),)).machine(loaded)
    return build_cluster(loaded, nodes=nodes, ranks_per_node=ranks_per_node)


@cache
def search_of(cluster: Cluster, collective: Collective, dtype: str, profile: str) -> Search:
    """ZipCCL's candidates: native, and zipped over all ranks."""
    search = Search(cluster, collective, dtype, parse_profile(profile), CODEC if dtype == "bf16" else "raw")
    search.schedules = [s for s in search.schedules if s.name in ("native", "zipped")]
    return search


def time_of(machine: str, nodes: int, call: Call, how: str) -> int:
    """ps of a call: "native", "zipped" (all-to-all: design 2) or "design-1"."""
    return cost_of(machine, nodes, call, how).ps


@cache
def cost_of(machine: str, nodes: int, call: Call, how: str) -> Cost:
    """The same with what it takes from compute beside it."""
    cluster = part(cluster_of(machine, nodes), call.grid)
    search = search_of(cluster, call.collective, call.dtype, call.profile)
    if how == "design-1":
        schedule = all_to_all.sizes_first(cluster.nodes, cluster.ranks_per_node, CODEC)
    else:
        schedule = next(s for s in search.schedules if s.name == how)
    wire = search.wires[schedule.codec]
    rates = search.rates[schedule.codec]
    timeline = simulate(schedule, cluster, call.size, wire, search.transport, rates, skew_of(call))
    return Shares().cost(schedule, timeline, search.transport)


def half_width(call: Call) -> Call:
    """The same gradients in bf16."""
    return Call(call.what, call.collective, call.size // 2, "bf16", call.profile, call.grid)


@dataclass(frozen=True)
class Run:
    """One of the paper's training runs: the step with NCCL and with ZipCCL."""

    machine: str
    nodes: int
    raw: StepTime
    zipped: StepTime

    @property
    def gain(self) -> float:
        """End to end."""
        return self.raw.time / self.zipped.time

    def communication_gain(self, collective: Collective) -> float:
        """Time in one collective, raw over zipped."""
        before, after = (
            sum(ps for call, ps in step.communicating.items() if call.collective is collective)
            for step in (self.raw, self.zipped)
        )
        return before / after


@cache
def run(workload: str, machine: str, nodes: int, dispatch: str = "zipped") -> Run:
    """MoE models on Megatron, where only the all-to-alls are zipped (§6.1); Llama on TorchTitan: only the all-gathers,
    as its reduce-scatters were found faster left native (§6.3). `dispatch`: "zipped" (design 2) or "design-1".
    """
    step = build_step(load_workload(workload), cluster_of(machine, nodes))
    moe = any(task.call is not None and task.call.collective is Collective.ALL_TO_ALL for task in step.tasks)

    def raw(call: Call) -> Cost:
        return cost_of(machine, nodes, call, "native")

    def zipped(call: Call) -> Cost:
        if call.collective is Collective.ALL_TO_ALL:
            return cost_of(machine, nodes, call, dispatch)
        if call.collective is Collective.ALL_GATHER and not moe:
            return cost_of(machine, nodes, call, "zipped")
        return raw(call)

    return Run(machine, nodes, run_step(step, raw), run_step(step, zipped))
