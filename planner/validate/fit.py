"""Fits the constants of topologies/transport_nccl.toml to measured tables.

Coordinate descent on the logarithms of the constants. Loss: Σ w·log(1 + (ln(simulated / measured) / C)²), so that sick
points pull little, plus a prior that holds every constant near the value it starts from.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from zipplan.planner.schedule import Exchange
from zipplan.planner.transport import Transport
from zipplan.planner.transport.constants import generation_of, shipped_tables
from zipplan.planner.validate.compare import LARGE, Row, Summary, cluster_of, predict
from zipplan.planner.validate.points import Table

_SCALE = 0.08  # C: an error of 8 % starts to count less
_LARGE_WEIGHT = 2.0
_ROUNDS = 30
_DELTA = 0.2
_TOO_SMALL = 0.004
# Spread of the prior: rates that follow from the hardware are held closer than latencies.
_SPREAD = {"share": 0.1, "tree": 0.1, "tree_share": 0.1, "one_peer": 0.1, "peak": 0.5, "channel": 0.3, "sync": 1.0}
_USUAL_SPREAD = 0.4
# Where the fit starts: NCCL's own constants (2.27), and what nothing is known of at "no effect".
_START = {
    "tree_share": 0.92,
    "one_peer": 0.95,
    "base.ring.LL128": 14.0,
    "start.threads": 10.0,
    "start.framework": 10.0,
    "start.peer": 1.0,
    "*.step": 1.0,
    "generation.*.LL128.share": 0.92,
    "network.*.LL128.share": 0.95,
    "network.*.tree": 0.87,
    "network.*.LL.peak": 22.5 / 8,
    "generation.volta.LL.peak": 39.0,
    "generation.ampere.LL.peak": 87.7,
    "generation.hopper.LL.peak": 141.0,
    "generation.blackwell.LL.peak": 282.0,
    "generation.*.LL.channel": 282.0 / 32,
    "generation.*.LL128.channel": 40.0 / 2,
    "generation.*.Simple.channel": 40.0,
    "generation.ada.LL.peak": 12.0,
    "*.nvls.latency": 25.0,
    "generation.hopper.nvls.share": 0.85,
    "generation.blackwell.nvls.share": 0.74,
    "*.nvls.depth": 2.0,
    "*.nvls.sync": 3.0,
    "generation.blackwell.nvls.tree": 0.936,  # no table: as Hopper
    "*.nvls.tree": 1.0,
}


@dataclass(frozen=True, slots=True)
class Constant:
    """One number of the data file: its path, and the kind of clusters that it matters for."""

    path: tuple[str, ...]

    def value(self, tables: Any) -> float:
        """µs, GB/s, share or factor."""
        for key in self.path:
            tables = tables[key]
        return float(str(tables).removesuffix("us"))

    def put(self, tables: Any, value: float) -> None:
        """Replace it in `tables`."""
        for key in self.path[:-1]:
            tables = tables[key]
        tables[self.path[-1]] = f"{value:.9f}us" if isinstance(tables[self.path[-1]], str) else value

    @property
    def spread(self) -> float:
        """Standard deviation of the prior, of the logarithm."""
        return _SPREAD.get(self.path[-1], _USUAL_SPREAD)

    def matters(self, table: Table) -> bool:
        """Whether the prediction of a table depends on it."""
        cluster = cluster_of(table.topology, table.nodes, table.ranks_per_node)
        if self.path[0] == "generation":
            return generation_of(cluster) == self.path[1]
        return self.path[0] != "network" or (table.nodes > 1 and cluster.transport.network == self.path[1])


def constants(tables: Any) -> list[Constant]:
    """Everything in the file that is fitted: what stands in [start], [generation.*] and [network.*], and three more."""
    found = [Constant(("tree_share",)), Constant(("one_peer",)), Constant(("base", "ring", "LL128"))]
    found += [Constant(("start", key)) for key in ("threads", "framework", "peer")]
    for group in ("generation", "network"):
        for name, row in tables[group].items():
            found += [Constant((group, name, "tree"))] if "tree" in row else []
            for part, values in row.items():
                if isinstance(values, dict):
                    keys = (k for k in values if k not in ("channels", "wide") and (part, k) != ("LL", "share"))
                    found += [Constant((group, name, part, key)) for key in keys]
    return found


def loss(table: Table, tables: Any) -> float:
    """Of one table; priced as the simulator would find it, since nothing else is on the links."""
    cluster = cluster_of(table.topology, table.nodes, table.ranks_per_node)
    transport = Transport(cluster, table.algorithm, start=table.start, channels=table.channels, tables=tables)
    # What no constant changes: how exchanges are lowered, and where NCCL's own table switches.
    transport._ways = _WAYS.setdefault((table.topology, table.nodes, table.ranks_per_node), {})
    transport._later = _PICKS.setdefault((table.topology, table.nodes, table.ranks_per_node, table.algorithm), {})
    everyone, total = range(cluster.ranks), 0.0
    for point in table.counted:
        sent = point.size / cluster.ranks if table.exchange is Exchange.ALL_GATHER else float(point.size)
        algorithm, protocol = transport.pick(table.exchange, everyone, sent)
        way = transport.way(algorithm, table.exchange, everyone)
        price = transport.price(way, transport.running, protocol, table.exchange, sent)
        error = math.log(price.total / 1e6 / point.time_us) / _SCALE
        total += (_LARGE_WEIGHT if point.size >= LARGE else 1.0) * math.log1p(error * error)
    return total


_WAYS: dict[tuple[str, int, int], Any] = {}
_PICKS: dict[tuple[str, int, int, str], Any] = {}


def fit(measured: Sequence[Table], rounds: int = _ROUNDS) -> tuple[Any, list[Constant]]:
    """(fitted tables, the constants in them that were fitted)."""
    tables = copy.deepcopy(dict(shipped_tables()))
    found = [c for c in constants(tables) if any(map(c.matters, measured))]
    for constant in found:
        start_at = next((v for name, v in _START.items() if fnmatch(".".join(constant.path), name)), None)
        if start_at is not None:
            constant.put(tables, start_at)
    start = {c: c.value(tables) for c in found}
    concerned = {c: [t for t in measured if c.matters(t)] for c in found}
    now = {t.name: loss(t, tables) for t in measured}
    delta = dict.fromkeys(found, _DELTA)

    def prior(constant: Constant, value: float) -> float:
        return 0.5 * (math.log(value / start[constant]) / constant.spread) ** 2

    for _ in range(rounds):
        for constant in found:
            value = constant.value(tables)
            before = sum(now[t.name] for t in concerned[constant]) + prior(constant, value)
            for factor in (math.exp(delta[constant]), math.exp(-delta[constant])):
                tried = value * factor
                if constant.path[-1] in ("share", "tree", "tree_share", "one_peer") and tried > 1:
                    continue
                constant.put(tables, tried)
                new = {t.name: loss(t, tables) for t in concerned[constant]}
                if sum(new.values()) + prior(constant, tried) < before - 1e-6:
                    now.update(new)
                    delta[constant] *= 1.3
                    break
                constant.put(tables, value)
            else:
                delta[constant] *= 0.5
        if max(delta.values()) < _TOO_SMALL:
            break
    return tables, found


def fitted(measured: Sequence[Table]) -> Iterator[str]:
    """Lines 'constant = fitted (present)'."""
    usable = [t for t in measured if not t.yardstick and t.counted]
    tables, found = fit(usable)
    for constant in found:
        present = constant.value(shipped_tables())
        yield f"{'.'.join(constant.path)} = {constant.value(tables):.3g} ({present:.3g})"


def unseen(measured: Sequence[Table]) -> Iterator[str]:
    """Lines 'table: median % (median % with the shipped constants)': each predicted by a fit that never saw it."""
    usable = [t for t in measured if not t.yardstick and t.counted]
    rows: list[Row] = []
    for table in usable:
        tables, _ = fit([t for t in usable if t is not table])
        found = predict(table, tables=tables)
        rows += found
        yield f"{table.name}: {Summary.of(found).median:.1f} % ({Summary.of(predict(table)).median:.1f} %)"
    whole, large = Summary.of(rows), Summary.of(row for row in rows if row.size >= LARGE)
    yield f"all: median {whole.median:.1f} %, p90 {whole.p90:.1f} %; from 256 MiB: median {large.median or 0:.1f} %"
