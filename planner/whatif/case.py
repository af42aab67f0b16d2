"""One point of a sweep: a message or a training step on a machine, and what the planner decides there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Self

from zipplan.planner.errors import ZipplanError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.topology import Cluster, Machine, build_cluster
from zipplan.planner.units import format_size
from zipplan.planner.workload import Workload, plan_workload


@dataclass(frozen=True)
class Where:
    """A machine as loaded, what is changed on it, and how much of it is used.

    `at`: the swept keys with their values, as the user wrote them.
    """

    machine: Machine
    nodes: int | None = field(default=None, kw_only=True)
    ranks_per_node: int | None = field(default=None, kw_only=True)
    gpus: tuple[int, ...] | None = field(default=None, kw_only=True)
    settings: Settings = field(default=UNCHANGED, kw_only=True)
    at: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        """'codec.speed=0.5x, size=1M'."""
        return ", ".join(f"{key}={value}" for key, value in self.at)

    @property
    def key(self) -> str:
        """Content key: equal for equal inputs and equal zipplan sources, whatever the case is called.

        Raises ConfigError when the machine has no use for a setting.
        """
        content = {f: v for f, v in vars(self).items() if f not in ("machine", "settings", "at")}
        with self.named():
            content["machine"] = self.settings.machine(self.machine)
        parts = [_sources(), content, vars(self.settings.beside_machine)]
        text = json.dumps(parts, sort_keys=True, default=lambda model: model.model_dump(mode="json"))
        return hashlib.sha256(text.encode()).hexdigest()

    def cluster(self) -> Cluster:
        """The changed machine, expanded. Raises TopologyError or ConfigError."""
        machine = self.settings.machine(self.machine)
        return build_cluster(machine, nodes=self.nodes, ranks_per_node=self.ranks_per_node, gpus=self.gpus)

    def changed(self, key: str, value: str) -> Self:
        """With one more setting, which works on what the others made."""
        settings = replace(self.settings, values=(*self.settings.values, (key, value)))
        return replace(self, settings=settings)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors begin with the name of the case that they are about."""
        try:
            yield
        except ZipplanError as error:
            raise type(error)(f"{self.name}: {error}" if self.at else str(error)) from None

    @property
    def what(self) -> str:
        """What is planned, for a person."""
        raise NotImplementedError

    def outcome(self) -> Outcome:
        """What the planner decides."""
        raise NotImplementedError


@dataclass(frozen=True)
class Case(Where):
    """One message of `size` bytes."""

    collective: Collective
    size: int
    dtype: str = "bf16"
    profile: str = "gaussian"
    algorithm: str = "auto"

    @property
    def what(self) -> str:
        """'all_gather of 16M bf16 (gaussian)'."""
        return f"{self.collective} of {format_size(self.size)} {self.dtype} ({self.profile})"

    def search(self) -> Search:
        """The search that plans this case; kept for a few cases that differ only in size or name."""
        return _search(replace(self, size=0, at=()))

    def outcome(self) -> Outcome:
        """The part of a decision that a sweep keeps."""
        search = self.search()
        decision = search.decide(self.size)
        best = decision.best
        reasons = ["chosen", *(reason for _, reason in decision.others)]
        return Outcome(
            choice=best.label,
            time=best.time,
            native=decision.native.time,
            busiest=search.busiest(best).removeprefix("; "),
            candidates=tuple((r.label, r.time, why) for r, why in zip(decision.results, reasons, strict=True)),
            dropped=tuple((d.label, d.reason) for d in decision.dropped),
        )


@dataclass(frozen=True)
class StepCase(Where):
    """One step of training."""

    workload: Workload

    @property
    def what(self) -> str:
        """'a step of llama3-8b'."""
        return f"a step of {self.workload.name}"

    def outcome(self) -> Outcome:
        """The step planned against the step left raw; `candidates` are its collectives, times of one call."""
        planned = plan_workload(self.workload, self.cluster(), self.settings)
        zipped = sum(row.choice != "native" for row in planned.rows)
        rows = tuple(
            (
                f"{row.call.what}: {row.call.collective} of {row.call.size / 1e6:.1f} MB {row.call.dtype}",
                row.planned,
                f"{row.count} × {row.choice}, {row.raw / row.planned:.2f}× of native" if row.planned else row.choice,
            )
            for row in planned.rows
        )
        exposed = sum(planned.planned.exposed.values()) / planned.planned.time
        return Outcome(
            choice=f"{zipped} of {len(planned.rows)} collectives zipped" if zipped else "native",
            time=planned.planned.time,
            native=planned.raw.time,
            busiest=f"communication exposed {exposed:.0%} of the step",
            candidates=rows,
        )


@lru_cache(maxsize=4)
def _search(case: Case) -> Search:
    profile = parse_profile(case.profile)
    return Search(case.cluster(), case.collective, case.dtype, profile, "auto", case.algorithm, case.settings)


@dataclass(frozen=True)
class Outcome:
    """What the planner decides for a case; times in ps.

    `candidates`: (label, time, reason), the chosen one first; of a step its collectives. `dropped`: (label, reason) of
    those that were not simulated, since a bound shows that they lose. `busiest`: what bounds it.
    """

    choice: str
    time: int
    native: int
    busiest: str
    candidates: tuple[tuple[str, int, str], ...]
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def gain(self) -> float:
        """Native time over the time of the choice; 1 where nothing is to be done."""
        return self.native / self.time if self.time else 1.0

    @property
    def best_zipped(self) -> str | None:
        """The fastest candidate that is not native; None where there is no other."""
        if all(name != "native" for name, _, _ in self.candidates):
            return None
        return min(((t, name) for name, t, _ in self.candidates if name != "native"), default=(0, None))[1]

    @property
    def best_zipped_gain(self) -> float:
        """Native time over the time of `best_zipped`: below 1 where compression does not pay."""
        fastest = dict((name, time) for name, time, _ in self.candidates).get(self.best_zipped or "", self.time)
        return self.native / fastest if fastest else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; the inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """Raises KeyError, TypeError or ValueError for anything that `to_json` did not make."""
        candidates = tuple((str(n), int(t), str(why)) for n, t, why in data["candidates"])
        dropped = tuple((str(n), str(why)) for n, why in data["dropped"])
        return cls(**{**data, "candidates": candidates, "dropped": dropped})


def evaluate(case: Where) -> Outcome:
    """Plan one case. Raises ZipplanError that begins with the case's name."""
    with case.named():
        return case.outcome()


@cache
def _sources() -> str:
    """Digest of the planner and of all shipped data, so that no cache outlives what made it."""
    digest = hashlib.sha256()
    for package in ("zipplan.planner", "zipplan.topologies"):
        for name, data in sorted(_files(resources.files(package), "")):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _files(folder: Any, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith((".py", ".toml", ".csv", ".json")):
            found.append((prefix + entry.name, entry.read_bytes()))
    return found
