"""The plan file: what was chosen for every size, and what was rejected; the contract between planner and executor.

JSON, sorted keys, no time stamp: equal inputs give equal bytes, and `hash` covers everything else in the file.
Sizes are half-open ranges [start, stop), gap-free from 0; the last has no stop.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from zipplan.planner.errors import PlanError, ScheduleError
from zipplan.planner.schedule import Collective, Schedule
from zipplan.planner.verify import verify

SCHEMA = 2
"""Number of the file format; the type of `Plan.schema_` repeats it."""

Whole = Annotated[int, Field(ge=0, strict=True)]


def _schedule(data: Any) -> Schedule:
    if isinstance(data, Schedule):
        return data
    try:
        schedule = Schedule.from_json(data)
        verify(schedule)
    except ScheduleError as error:
        raise ValueError(str(error)) from None
    return schedule


ScheduleField = Annotated[
    Schedule, BeforeValidator(_schedule), PlainSerializer(lambda s: s.to_json(), return_type=dict[str, Any])
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)


def label(schedule: str, codec: str) -> str:
    """What a person reads for a candidate."""
    return schedule if codec == "raw" else f"{schedule} {codec}"


class Rejected(_Strict):
    """A candidate that lost at one size: simulated (`predicted_ps`), or dropped because it takes `at_least_ps`."""

    name: str
    codec: str
    predicted_ps: Whole | None = None
    at_least_ps: Whole | None = None
    reason: str

    @model_validator(mode="after")
    def _one_time(self) -> Rejected:
        if (self.predicted_ps is None) == (self.at_least_ps is None):
            raise ValueError(f"{self.label}: expected either predicted_ps or at_least_ps")
        return self

    @property
    def label(self) -> str:
        """'zipped window', or just 'native'."""
        return label(self.name, self.codec)


class Point(_Strict):
    """What was predicted at one planned size.

    carried: algorithm and protocol by exchange stage of the choice. codec_break_even: codec speed, raw bytes/s each way
    on one rank, at which the fastest compressed candidate would take as long as native, its stages one after another;
    None when no speed would do, or nothing compressed was tried.
    """

    size_bytes: Whole
    predicted_ps: Whole
    low_ps: Whole
    high_ps: Whole
    scratch_bytes: Whole
    carried: dict[str, tuple[str, str]] = {}
    codec_break_even: Whole | None = None
    rejected: tuple[Rejected, ...]

    @property
    def runner_up(self) -> Rejected | None:
        """The fastest candidate that was not chosen; one that was dropped is never faster."""
        return self._fastest(lambda _: True)

    @property
    def native_ps(self) -> int | None:
        """Time of the transport's own collective; None where that is the choice."""
        found = self._fastest(lambda r: r.name == "native")
        return None if found is None else found.predicted_ps

    @property
    def margin(self) -> float | None:
        """Time of the runner-up over the time of the choice, minus 1; below 0 when a simpler one was preferred."""
        second = self.runner_up
        if second is None or second.predicted_ps is None or not self.predicted_ps:
            return None
        return second.predicted_ps / self.predicted_ps - 1

    def _fastest(self, among: Callable[[Rejected], bool]) -> Rejected | None:
        timed = [(r.predicted_ps, i) for i, r in enumerate(self.rejected) if r.predicted_ps is not None and among(r)]
        return self.rejected[min(timed)[1]] if timed else None


class CodecUse(_Strict):
    """Codec of a schedule and its parameters; none are fixed while the encoder picks them per tile."""

    id: str
    parameters: dict[str, int | float | str] = {}


class Range(_Strict):
    """One choice for sizes in [start, stop)."""

    start: Whole
    stop: Whole | None
    schedule: ScheduleField
    codec: CodecUse
    expected_ratio: Annotated[float, Field(gt=0)]
    points: Annotated[tuple[Point, ...], Field(min_length=1)]

    @property
    def label(self) -> str:
        """'zipped window', or just 'native'."""
        return label(self.schedule.name, self.codec.id)


class Choice(_Strict):
    """A range as it applies to one message size."""

    start: Whole
    stop: Whole | None
    schedule: Annotated[Schedule, Field()]
    codec: CodecUse
    expected_ratio: float
    predicted_ps: Whole
    low_ps: Whole
    high_ps: Whole
    scratch_bytes: Whole


class Entry(_Strict):
    """The table of one collective on one kind of tensor."""

    collective: Collective
    dtype: str
    tensor_class: str
    choices: Annotated[tuple[Range, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _gap_free(self) -> Entry:
        at: int | None = 0
        for row in self.choices:
            if row.start != at:
                what = "an overlap" if at is None or row.start < at else "a gap"
                raise ValueError(f"{what} before size {row.start}: ranges are half-open, expected start {at}")
            if row.stop is not None and row.stop <= row.start:
                raise ValueError(f"the range from {row.start} stops at {row.stop}; expected a larger stop")
            if row.schedule.collective is not self.collective:
                raise ValueError(f"a schedule for {row.schedule.collective} in the table of {self.collective}")
            at = row.stop
        if at is not None:
            raise ValueError(f"a gap: no range from size {at} on; the last range has no stop (null)")
        return self

    @property
    def sizes_planned(self) -> tuple[int, ...]:
        """Sizes that were simulated."""
        return tuple(point.size_bytes for row in self.choices for point in row.points)

    def choose(self, size: int) -> Choice:
        """The choice for a message of `size` bytes, times interpolated between planned sizes."""
        row = self.choices[bisect_right([r.start for r in self.choices], size) - 1]
        point = max((p for p in row.points if p.size_bytes <= size), key=lambda p: p.size_bytes, default=row.points[0])
        later = min((p for p in row.points if p.size_bytes > size), key=lambda p: p.size_bytes, default=None)
        if later is not None and later is not point:
            share = (size - point.size_bytes) / (later.size_bytes - point.size_bytes)
            scale = (1 - share) + share * later.predicted_ps / max(point.predicted_ps, 1)
        else:
            scale = max(size, 1) / point.size_bytes if size > point.size_bytes > 0 else 1.0
        return Choice(
            start=row.start,
            stop=row.stop,
            schedule=row.schedule,
            codec=row.codec,
            expected_ratio=row.expected_ratio,
            predicted_ps=round(point.predicted_ps * scale),
            low_ps=round(point.low_ps * scale),
            high_ps=round(point.high_ps * scale),
            scratch_bytes=round(point.scratch_bytes * max(1.0, size / max(point.size_bytes, 1))),
        )


class PlanTopology(_Strict):
    """The machine that the plan was made for."""

    name: str
    fingerprint: str
    nodes: Annotated[int, Field(ge=1, strict=True)]
    ranks_per_node: Annotated[int, Field(ge=1, strict=True)]
    transport: Literal["nccl", "gloo"]

    @property
    def shape(self) -> str:
        """'8 ranks (2 nodes × 4)'."""
        return f"{self.nodes * self.ranks_per_node} ranks ({self.nodes} nodes × {self.ranks_per_node})"


class Plan(_Strict):
    """A whole plan."""

    schema_: Annotated[Literal[2], Field(alias="schema")] = 2
    kind: Literal["zipplan-plan"] = "zipplan-plan"
    made_by: str
    calibration: str
    topology: PlanTopology
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        keys = [(e.collective, e.dtype, e.tensor_class) for e in self.entries]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two tables for {' '.join(key)}")
        for entry in self.entries:
            for row in entry.choices:
                have = (row.schedule.nodes, row.schedule.ranks_per_node)
                want = (self.topology.nodes, self.topology.ranks_per_node)
                if have != want:
                    raise ValueError(f"{entry.collective}: a schedule for {have} in a plan for {want} nodes × ranks")
        return self

    @property
    def schema_version(self) -> int:
        """Number of the file format."""
        return self.schema_

    @property
    def ranks(self) -> int:
        """World size that the plan needs."""
        return self.topology.nodes * self.topology.ranks_per_node

    @cached_property
    def hash(self) -> str:
        """sha256 over everything but itself; equal plans have equal hashes on every rank."""
        return _hash(self._data())

    def entry(self, collective: Collective, dtype: str) -> Entry | None:
        """The first table for this collective and dtype."""
        return next((e for e in self.entries if (e.collective, e.dtype) == (collective, dtype)), None)

    def choose(self, collective: Collective, dtype: str, size: int) -> Choice | None:
        """The choice for one message; None when the plan has no table for it (then: raw, counted)."""
        entry = self.entry(collective, dtype)
        return None if entry is None else entry.choose(size)

    def _data(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def document(self) -> dict[str, Any]:
        """The file as plain data, hash included."""
        return {**self._data(), "hash": self.hash}

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(self.document(), indent=1, sort_keys=True, allow_nan=False) + "\n"

    def save(self, path: Path) -> None:
        """Write the whole file or nothing. Raises PlanError when the folder cannot be written."""
        write_whole(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read, check shape, ranges, every schedule and the hash. Raises PlanError naming file and field."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise PlanError(f"{path}: cannot read the plan: {reason}", path=path) from None
        if path.suffix == ".toml":
            raise PlanError(
                f"{path}: a TOML file, not a plan (JSON, from `zipplan plan -o`); a topology file is for "
                f"`zipplan plan --topology {path}`",
                path=path,
            )
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(
                f"{path}: not a whole JSON file (line {error.lineno}: {error.msg}); is it cut off? "
                "Make it again with `zipplan plan -o`",
                path=path,
            ) from None
        if not isinstance(data, dict) or data.get("kind") != "zipplan-plan":
            raise PlanError(f'{path}: not a zipplan plan: expected "kind": "zipplan-plan"', path=path)
        if data.get("schema") != SCHEMA:
            raise PlanError(
                f"{path}: plan schema {data.get('schema')!r}, this zipplan reads schema {SCHEMA}; "
                "make the plan again with this version",
                path=path,
            )
        said = data.pop("hash", None)
        if said != _hash(data):
            raise PlanError(f"{path}: the hash does not fit the content: the file was edited or damaged", path=path)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "plan"
            raise PlanError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}", path=path) from None


def _hash(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it, so that no reader ever sees half. Raises PlanError."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise PlanError(f"{path}: cannot write: {error.strerror}", path=path) from None


def zipplan_version() -> str:
    """Version of the installed package."""
    try:
        return version("zipplan")
    except PackageNotFoundError:
        return "unknown"
