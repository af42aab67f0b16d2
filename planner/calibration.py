"""Calibration: what a cluster's exchanges and its ranks' codec took, measured; read by `plan` and `simulate`.

Every curve is t = a + n/b over bytes: a fixed part and a rate. JSON, sorted keys, no time stamp; `hash` covers
everything else in the file. `python -m zipplan.executor.calibrate` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from zipplan.planner.costs import Rates
from zipplan.planner.errors import ConfigError
from zipplan.planner.plan import write_whole
from zipplan.planner.schedule import Axis, Exchange, Op
from zipplan.planner.transport import Alone, Carried, Transport
from zipplan.planner.units import PS_PER_SECOND, format_bandwidth

WARN_ERROR = 0.20
"""Error of a fit on held-out points from which a person is told."""
_FASTEST = 1e13  # bytes/s; more than the memory of any GPU (NVIDIA B200: 8e12, its data sheet)
_WIRE_TOLERANCE = 1.05  # a shaped link lets bursts pass, a clock drifts
_HELD_OUT = 3  # every third point


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Curve(_Strict):
    """t = fixed_ps + n / rate, n in bytes, rate in bytes/s; `error`: largest on points that the fit had not seen.

    points: (bytes, ps), ascending.
    """

    points: Annotated[tuple[tuple[Annotated[int, Field(gt=0)], Annotated[int, Field(gt=0)]], ...], Field(min_length=2)]
    fixed_ps: Annotated[float, Field(ge=0)]
    rate: Annotated[float, Field(gt=0, le=_FASTEST)]
    error: Annotated[float, Field(ge=0)]

    @property
    def ps_per_byte(self) -> float:
        """Slope."""
        return PS_PER_SECOND / self.rate


class ExchangeCurve(_Strict):
    """One exchange of a transport on the ranks of an axis; n counts the bytes that each rank puts in."""

    exchange: Exchange
    axis: Axis
    curve: Curve


class StageCurve(_Strict):
    """One local stage while all ranks do the same; n counts raw bytes that a rank handles. codec "raw": no codec."""

    codec: str
    dtype: str
    op: Op
    curve: Curve


class LinkCurve(_Strict):
    """One message from a rank to another, inside a node or across nodes; n counts its bytes."""

    across: bool
    curve: Curve


class Calibration(_Strict):
    """A whole file. `transport`, `nodes`, `ranks_per_node`: the job that was measured."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    kind: Literal["zipplan-calibration"] = "zipplan-calibration"
    made_by: str
    transport: Literal["nccl", "gloo"]
    nodes: Annotated[int, Field(ge=1)]
    ranks_per_node: Annotated[int, Field(ge=1)]
    links: tuple[LinkCurve, ...]
    exchanges: tuple[ExchangeCurve, ...]
    stages: tuple[StageCurve, ...]

    @model_validator(mode="after")
    def _no_twins(self) -> Calibration:
        keys = [("exchange", e.exchange, e.axis) for e in self.exchanges]
        keys += [("stage", s.codec, s.dtype, s.op) for s in self.stages]  # type: ignore[misc]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two curves for {' '.join(key)}")
        return self

    @property
    def id(self) -> str:
        """What a plan says about where its numbers come from."""
        return f"calibration {_hash(self._data())[:19]}"

    def warnings(self) -> list[str]:
        """One sentence for each curve that a straight line does not describe."""
        named = [(f"link {'across nodes' if e.across else 'inside a node'}", e.curve) for e in self.links]
        named += [(f"{e.exchange} on {e.axis}", e.curve) for e in self.exchanges]
        named += [(f"{s.op} {s.codec} {s.dtype}", s.curve) for s in self.stages]
        return [
            f"{name}: t = a + n/b misses held-out points by up to {curve.error:.0%}"
            for name, curve in named
            if curve.error > WARN_ERROR
        ]

    def rates(self, rates: Rates, codec: str, dtype: str) -> Rates:
        """Measured speeds in place of those of the machine file, where there are any."""
        curves = {s.op: s.curve for s in self.stages if (s.codec, s.dtype) in ((codec, dtype), ("raw", dtype))}
        if not curves:
            return rates

        def rate(op: Op, other: float) -> float:
            return curves[op].rate if op in curves else other

        decode = rate(Op.DECODE, rates.decode)
        return Rates(
            launch=round(float(np.median([c.fixed_ps for c in curves.values()]))),
            encode=rate(Op.ENCODE, rates.encode),
            decode=decode,
            copy=rate(Op.PERMUTE, rates.copy),
            decode_reduce=rate(Op.DECODE_REDUCE, decode),
            reduce=rate(Op.REDUCE, rates.copy),
        )

    def transport_of(self, modelled: Transport) -> Transport:
        """A transport that takes the measured times. Raises ConfigError for another job."""
        cluster = modelled.cluster
        measured, here = (self.nodes, self.ranks_per_node), (cluster.nodes, cluster.ranks_per_node)
        if (self.transport, *measured) != (cluster.transport.kind, *here):
            raise ConfigError(
                f"--calibration: measured on {self.nodes} × {self.ranks_per_node} ranks with {self.transport}, planned "
                f"for {cluster.nodes} × {cluster.ranks_per_node} with {cluster.transport.kind}; calibrate that job, or "
                "leave --calibration out"
            )
        return _Measured(modelled, {(e.exchange, e.axis): e.curve for e in self.exchanges})

    def _data(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def save(self, path: Path) -> None:
        """Write the whole file or nothing. Raises PlanError when the folder cannot be written."""
        data = self._data()
        write_whole(path, json.dumps({**data, "hash": _hash(data)}, indent=1, sort_keys=True, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read and check. Raises ConfigError naming file and field."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--calibration {path}: cannot read: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"--calibration {path}: not a whole JSON file: {error}") from None
        if not isinstance(data, dict) or data.get("kind") != "zipplan-calibration" or data.get("schema") != 1:
            raise ConfigError(
                f"--calibration {path}: expected a zipplan calibration of schema 1; make it with calibrate"
            )
        said = data.pop("hash", None)
        if said != _hash(data):
            raise ConfigError(f"--calibration {path}: the hash does not fit the content: edited or damaged")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise ConfigError(f"--calibration {path}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


class _Measured(Transport):
    """Exchanges with a curve take its time; their flows still share links with whatever else is in flight."""

    beyond = _WIRE_TOLERANCE

    def __init__(self, modelled: Transport, curves: dict[tuple[Exchange, Axis], Curve]) -> None:
        vars(self).update(vars(modelled))  # all that was asked for of the model holds here too
        self.curves = curves
        self._slopes: dict[tuple[str, Exchange, range], float] = {}

    def carry(self, exchange: Exchange, group: range, sent: float) -> Carried:
        """Fixed part as launch, the rest as flows that take n / b when they are alone.

        Raises ConfigError for a time that the links do not allow.
        """
        carried = super().carry(exchange, group, sent)
        curve = self.curves.get((exchange, self._axis(group)))
        if curve is None:
            return carried
        key = (carried.algorithm, exchange, group)
        if key not in self._slopes:
            self._slopes[key] = self._wire_slope(*key, curve)
        way = self.way(*key)
        sizes = way.share * (sent * curve.ps_per_byte / self._slopes[key])
        return Carried(carried.algorithm, carried.protocol, way.paths, sizes, round(curve.fixed_ps), 0)

    def alone(self, exchange: Exchange, group: range, sent: float) -> Alone:
        """The measured time."""
        curve = self.curves.get((exchange, self._axis(group)))
        if curve is None:
            return super().alone(exchange, group, sent)
        return Alone(round(curve.fixed_ps), sent * curve.ps_per_byte, 0)

    def _wire_slope(self, algorithm: str, exchange: Exchange, group: range, curve: Curve) -> float:
        """ps per byte that the busiest link needs at its full rate."""
        way, links = self.way(algorithm, exchange, group), self.cluster.bandwidths
        load = np.bincount(way.paths.links, way.share[way.paths.owner], len(links))
        slope = float((load / links).max()) * PS_PER_SECOND
        if curve.ps_per_byte * _WIRE_TOLERANCE < slope:
            raise ConfigError(
                f"--calibration: {exchange} at {format_bandwidth(round(curve.rate))} for each rank is faster than the "
                f"links of {self.cluster.machine.name} allow ({format_bandwidth(round(PS_PER_SECOND / slope))}); "
                "it was measured on another machine, or --set or the machine file gives too low a bandwidth"
            )
        return slope

    def _axis(self, group: range) -> Axis:
        if len(group) == self.cluster.ranks:
            return Axis.WORLD
        return Axis.NODE if group.step == 1 else Axis.RAIL


def fit(points: Sequence[tuple[int, float]]) -> Curve:
    """Least squares of relative errors over (bytes, ps). Raises ConfigError for times that cannot be measured ones.

    The error is that of a fit without every third point, on those points.
    """
    for size, ps in points:
        if not (np.isfinite(ps) and ps > 0 and size / ps * PS_PER_SECOND <= _FASTEST):
            raise ConfigError(
                f"a measurement of {size} bytes in {ps} ps cannot be: expected a time above 0 and at most "
                f"{format_bandwidth(round(_FASTEST))}, more than any memory; the clock or the measurement is wrong"
            )
    held = [p for i, p in enumerate(points) if i % _HELD_OUT == 1]
    a, slope = _line([p for i, p in enumerate(points) if i % _HELD_OUT != 1])
    error = max(abs((a + slope * n) / t - 1) for n, t in held)
    a, slope = _line(points)
    return Curve(
        points=tuple((n, max(1, round(t))) for n, t in points), fixed_ps=a, rate=PS_PER_SECOND / slope, error=error
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(a ≥ 0, slope > 0)."""
    n, t = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    rows = np.stack([1 / t, n / t], axis=1)
    a, slope = np.linalg.lstsq(rows, np.ones(len(n)), rcond=None)[0]
    if a < 0 or slope <= PS_PER_SECOND / _FASTEST:
        # Through the origin, or flat up to the largest size: the nearest lines that are possible.
        a, slope = (0.0, (n / t).sum() / ((n / t) ** 2).sum()) if a < 0 else (float(t.min()), PS_PER_SECOND / _FASTEST)
    return float(a), float(slope)


def _hash(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
