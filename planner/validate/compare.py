"""Predicted beside measured: each table is simulated on its cluster, the way a plan is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from zipplan.planner.costs import Rates, wire
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import INPUT, OUTPUT, Collective, Exchange, Op, Schedule, Stage
from zipplan.planner.simulate import simulate
from zipplan.planner.topology import Cluster, build_cluster, load_machine
from zipplan.planner.transport import Tables, Transport
from zipplan.planner.validate.points import Table

LARGE = 256 << 20
"""Bytes from which start-up no longer counts."""
DROP = 1.15
SLOW = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """One point: bytes, µs measured, simulated and by NCCL's own model (None where it has none), what NCCL runs.

    abnormal: why no healthy machine gives this time, "" when one may.
    """

    size: int
    measured_us: float
    simulated_us: float
    nccl_us: float | None
    algorithm: str
    protocol: str
    abnormal: str = ""

    @property
    def error(self) -> float:
        """simulated / measured − 1."""
        return self.simulated_us / self.measured_us - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """One table and its rows."""

    table: Table
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors over points, in percent; None without points. NCCL's own model over the points that it covers."""

    points: int
    median: float | None
    p90: float | None
    bias: float | None
    nccl_median: float | None
    nccl_p90: float | None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Summary:
        """Median and 90th percentile of |error|, mean of error."""
        rows = list(rows)
        errors = np.array([r.error for r in rows]) * 100
        native = np.array([abs(r.nccl_us / r.measured_us - 1) for r in rows if r.nccl_us is not None]) * 100

        def share(values: np.ndarray[tuple[int], np.dtype[np.float64]], percent: int) -> float | None:
            return float(np.percentile(values, percent)) if len(values) else None

        return cls(
            len(rows),
            share(np.abs(errors), 50),
            share(np.abs(errors), 90),
            float(errors.mean()) if len(errors) else None,
            share(native, 50),
            share(native, 90),
        )


@cache
def cluster_of(topology: str, nodes: int, ranks_per_node: int) -> Cluster:
    """The cluster that a table was measured on. Raises TopologyError."""
    return build_cluster(load_machine(topology), nodes=nodes, ranks_per_node=ranks_per_node)


def schedule_of(table: Table) -> Schedule:
    """The native collective as one exchange."""
    ranks = table.nodes * table.ranks_per_node
    splits = table.exchange in (Exchange.ALL_TO_ALL, Exchange.REDUCE_SCATTER)
    counted = Collective.ALL_GATHER if table.exchange is Exchange.ALL_GATHER else Collective.ALL_REDUCE
    stage = Stage("native", Op.EXCHANGE, INPUT, OUTPUT, exchange=table.exchange)
    return Schedule("native", counted, table.nodes, table.ranks_per_node, ranks if splits else 1, "raw", (stage,))


def predict(table: Table, cluster: Cluster | None = None, tables: Tables | None = None) -> list[Row]:
    """Simulate every point that counts. `cluster`: another one than the table's; `tables`: other constants."""
    cluster = cluster or cluster_of(table.topology, table.nodes, table.ranks_per_node)
    transport = Transport(cluster, table.algorithm, start=table.start, channels=table.channels, tables=tables)
    schedule, rates = schedule_of(table), Rates.of(cluster)
    raw = wire("raw", "bf16", parse_profile("gaussian"))
    everyone = range(cluster.ranks)
    rows = []
    for point in table.counted:
        timeline = simulate(schedule, cluster, point.size, raw, transport, rates)
        native = transport.nccl_time(table.exchange, everyone, point.size) if cluster.ranks > 1 else None
        algorithm, protocol = timeline.carried.get("native", ("none", "none"))
        rows.append(Row(point.size, point.time_us, timeline.time / 1e6, native, algorithm, protocol))
    return rows


def compare(table: Table) -> Compared:
    """Predict a table and flag what is abnormal in it."""
    rows = sorted(predict(table), key=lambda row: row.size)
    return Compared(table, tuple(replace(row, abnormal=_abnormal(row, rows[i + 1 :])) for i, row in enumerate(rows)))


def _abnormal(row: Row, larger: Sequence[Row]) -> str:
    """The rule that a point breaks."""
    quickest = min((other.measured_us for other in larger), default=row.measured_us)
    if row.measured_us > DROP * quickest:
        return f"drop: a larger message took {quickest:g} µs, less by more than {DROP - 1:.0%}"
    if row.measured_us > SLOW * row.simulated_us:
        return f"slow: more than {SLOW:g} × the time of a healthy machine"
    return ""
