"""One point of a sweep: everything that decides a plan for one message, and what the planner decides there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from zipplan.planner.errors import ZipplanError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Decision, Search
from zipplan.planner.settings import UNCHANGED, Settings
from zipplan.planner.topology import Cluster, Machine, build_cluster


@dataclass(frozen=True)
class Case:
    """A machine as loaded, what is changed on it, how much of it is used, and one message of `size` bytes.

    `at`: the swept keys with their values, as the user wrote them.
    """

    machine: Machine
    collective: Collective
    size: int
    dtype: str = "bf16"
    profile: str = "gaussian"
    algorithm: str = "auto"
    nodes: int | None = None
    ranks_per_node: int | None = None
    gpus: tuple[int, ...] | None = None
    settings: Settings = UNCHANGED
    at: tuple[tuple[str, str], ...] = ()

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
        with _named(self):
            machine = self.settings.machine(self.machine).model_dump(mode="json")
        text = json.dumps([_sources(), machine, content, self.settings.codec_part.values], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def cluster(self) -> Cluster:
        """The changed machine, expanded. Raises TopologyError or ConfigError."""
        machine = self.settings.machine(self.machine)
        return build_cluster(machine, nodes=self.nodes, ranks_per_node=self.ranks_per_node, gpus=self.gpus)

    def search(self) -> Search:
        """The search that plans this case; kept for a few cases that differ only in size or name."""
        return _search(replace(self, size=0, at=()))

    def changed(self, key: str, value: str) -> Case:
        """With one more setting, which works on what the others made."""
        return replace(self, settings=Settings((*self.settings.values, (key, value))))


@lru_cache(maxsize=4)
def _search(case: Case) -> Search:
    profile = parse_profile(case.profile)
    return Search(case.cluster(), case.collective, case.dtype, profile, "auto", case.algorithm, case.settings)


@dataclass(frozen=True)
class Outcome:
    """What the planner decides for a case; times in ps. `candidates`: (label, time, reason), the chosen one first."""

    choice: str
    time: int
    native: int
    ratio: float
    busiest: str
    candidates: tuple[tuple[str, int, str], ...]

    @property
    def gain(self) -> float:
        """Native time over the time of the choice; 1 where nothing is to be done."""
        return self.native / self.time if self.time else 1.0

    @property
    def best_zipped(self) -> str | None:
        """The fastest candidate that is not native; None where there is no other."""
        zipped = [(time, name) for name, time, _ in self.candidates if name != "native"]
        return min(zipped)[1] if zipped else None

    @property
    def best_zipped_gain(self) -> float:
        """Native time over the time of `best_zipped`: below 1 where compression does not pay."""
        fastest = min((time for name, time, _ in self.candidates if name != "native"), default=0)
        return self.native / fastest if fastest else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain data; the inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """Raises KeyError, TypeError or ValueError for anything that `to_json` did not make."""
        candidates = tuple((str(n), int(t), str(why)) for n, t, why in data["candidates"])
        return cls(**{**data, "candidates": candidates})


def evaluate(case: Case) -> Outcome:
    """Plan one case. Raises ZipplanError that begins with the case's name."""
    with _named(case):
        return outcome(case.search(), case.search().decide(case.size))


@contextmanager
def _named(case: Case) -> Iterator[None]:
    """Errors begin with the name of the case that they are about."""
    try:
        yield
    except ZipplanError as error:
        raise type(error)(f"{case.name}: {error}" if case.at else str(error)) from None


def outcome(search: Search, decision: Decision) -> Outcome:
    """The part of a decision that a sweep keeps."""
    best = decision.best
    results = [best, *(result for result, _ in decision.others)]
    native = next(r.time for r in results if r.schedule.name == "native")
    reasons = ["chosen", *(reason for _, reason in decision.others)]
    return Outcome(
        choice=best.label,
        time=best.time,
        native=native,
        ratio=round(best.wire.ratio, 4),
        busiest=search.busiest(best).removeprefix("; "),
        candidates=tuple((r.label, r.time, why) for r, why in zip(results, reasons, strict=True)),
    )


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
