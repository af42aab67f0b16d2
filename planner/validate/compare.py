"""Predicted beside measured: each table is simulated on its cluster, the way a plan is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from zipplan.planner.costs import Rates, wire
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import INPUT, OUTPUT, Collective, Exchange, Op, Schedule, Stage
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import Transport
from zipplan.planner.transport.constants import Tables
from zipplan.planner.validate.points import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One point: bytes, µs measured and simulated, what NCCL is thought to run."""

    size: int
    measured_us: float
    simulated_us: float
    algorithm: str
    protocol: str

    @property
    def error(self) -> float:
        """simulated / measured − 1."""
        return self.simulated_us / self.measured_us - 1


@cache
def cluster_of(topology: str, nodes: int, ranks_per_node: int) -> Cluster:
    """The cluster that a table was measured on. Raises TopologyError."""
    return build_cluster(load_machine(topology), nodes=nodes, ranks_per_node=ranks_per_node)


def schedule_of(table: Table) -> Schedule:
    """The native collective as one exchange."""
    ranks = table.nodes * table.ranks_per_node
    splits = table.exchange in (Exchange.ALL_TO_ALL, Exchange.REDUCE_SCATTER)
    gathers = table.exchange is Exchange.ALL_GATHER
    stage = Stage("native", Op.EXCHANGE, INPUT, OUTPUT, exchange=table.exchange)
    counted = Collective.ALL_GATHER if gathers else Collective.ALL_REDUCE
    return Schedule("native", counted, table.nodes, table.ranks_per_node, ranks if splits else 1, "raw", (stage,))


def transport_of(table: Table, cluster: Cluster, tables: Tables | None = None) -> Transport:
    """As the table was run: who called NCCL, what was forced."""
    return Transport(cluster, table.algorithm, start=table.start, channels=table.channels, tables=tables)


def predict(table: Table) -> list[Row]:
    """Simulate every point that counts."""
    cluster = cluster_of(table.topology, table.nodes, table.ranks_per_node)
    transport, schedule = transport_of(table, cluster), schedule_of(table)
    raw, rates = wire("raw", "bf16", parse_profile("gaussian")), Rates.of(cluster)
    rows = []
    for point in table.counted:
        timeline = simulate(schedule, cluster, point.size, raw, transport, rates)
        rows.append(Row(point.size, point.time_us, timeline.time / 1e6, *timeline.carried["native"]))
    return rows
