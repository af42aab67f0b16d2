"""A study: one base case and sweeps; its cross product run in parallel, each outcome kept as soon as it is there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from zipplan.planner.costs import ELEMENT_BYTES
from zipplan.planner.errors import ConfigError, PlanError, nearest
from zipplan.planner.plan import write_whole
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.settings import SETTINGS, find
from zipplan.planner.units import parse_size
from zipplan.planner.whatif.case import Outcome, Where, evaluate

FEW = 8
"""Fewer cases than this run in this process: starting workers takes longer."""

Sweep = tuple[str, tuple[str, ...]]


def _whole(key: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{key}: cannot use {text!r}; expected a whole number from 1")
        return int(text)

    return parse


def _one_of(key: str, names: Iterable[str]) -> Callable[[str], str]:
    valid = tuple(names)

    def parse(text: str) -> str:
        if text not in valid:
            raise ConfigError(f"{key}: unknown {text!r}; {nearest(text, valid)}")
        return text

    return parse


JOB: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "size": (lambda text: parse_size(text, "size"), "1M,16M", "message size"),
    "nodes": (_whole("nodes"), "2,4,8", "number of nodes"),
    "ranks_per_node": (_whole("ranks_per_node"), "4,8", "ranks used on each node"),
    "collective": (_one_of("collective", map(str, Collective)), "all_gather", "collective"),
    "dtype": (_one_of("dtype", ELEMENT_BYTES), "bf16,fp32", "element type"),
    "profile": (lambda text: parse_profile(text).text, "gaussian,relu", "shape of the values"),
    "algorithm": (str, "ring,direct", "forced algorithm of the transport"),
}
"""What else can be swept: parser, example, meaning; on one case these are options of their own."""


def read_sweep(text: str) -> Sweep:
    """('codec.speed', ('0.5x', '1x')) from 'codec.speed=0.5x,1x'; values once each. Raises ConfigError."""
    name, equals, listed = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in listed.split(",")))
    if not equals or not all(values):
        raise ConfigError(f"--sweep: cannot read {text!r}; expected KEY=V,V,…, such as codec.speed=0.5x,1x,2x")
    name = name.strip()
    if name in JOB:
        parse: Callable[[str], Any] = JOB[name][0]
    else:
        try:
            name, parse = find(name).key, find(name).parse
        except ConfigError as error:
            if "ambiguous" in str(error):
                raise
            raise ConfigError(f"--sweep: no parameter {name!r}; {nearest(name, [*JOB, *SETTINGS])}") from None
    for value in values:
        parse(value)
    return name, values


@dataclass(frozen=True)
class Study:
    """The cross product of `sweeps` round `base`."""

    base: Where
    sweeps: tuple[Sweep, ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.sweeps]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ConfigError(f"--sweep: {', '.join(twice)} is swept twice")
        own = [name for name in names if name in JOB and not hasattr(self.base, name)]
        if own:
            raise ConfigError(f"--sweep: {', '.join(own)}: {self.base.what} says that itself")

    def cases(self) -> list[Where]:
        """In the order of the sweeps, the last one fastest."""
        names = [name for name, _ in self.sweeps]
        return [self._case(tuple(zip(names, values, strict=True))) for values in product(*(v for _, v in self.sweeps))]

    def _case(self, at: tuple[tuple[str, str], ...]) -> Where:
        case = self.base
        for name, value in at:
            case = replace(case, **{name: JOB[name][0](value)}) if name in JOB else case.changed(name, value)
        return replace(case, at=at)


def run(
    cases: Sequence[Where],
    *,
    cache: Path | None = None,
    jobs: int | None = None,
    each: Callable[[], object] = lambda: None,
) -> list[Outcome]:
    """Outcomes in the order of `cases`; `each` is called once per case.

    joblib runs them: `jobs` processes, or (None) what `joblib.parallel_config` says, so a Dask or Ray cluster can.
    With `cache`, a folder, an outcome is written when it arrives and never made again, also after a run was killed.
    Raises ZipplanError naming the case that cannot be planned, PlanError when the cache cannot be written.
    """
    keys = [case.key for case in cases]
    done = {key: kept for key in keys if cache and (kept := _read(cache, key))}
    to_do = {key: case for key, case in zip(keys, cases, strict=True) if key not in done}
    for _ in range(len(cases) - len(to_do)):
        each()
    if to_do:
        if cache is not None:
            _make(cache)
        from joblib import Parallel, delayed

        few = jobs is not None and len(to_do) < FEW
        work = Parallel(n_jobs=1 if few else jobs, return_as="generator_unordered")
        for key, result in work(delayed(_keyed)(key, case) for key, case in to_do.items()):
            done[key] = result
            if cache is not None:
                write_whole(_file(cache, key), json.dumps(result.to_json(), allow_nan=False))
            each()
    return [done[key] for key in keys]


def cache_folder() -> Path:
    """Where outcomes are kept when nothing else is said: beside the compiled kernels of `zipplan.kernels`."""
    if chosen := os.environ.get("ZIPPLAN_CACHE_DIR"):
        return Path(chosen) / "whatif"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zipplan" / "whatif"


def _keyed(key: str, case: Where) -> tuple[str, Outcome]:
    return key, evaluate(case)


def _file(cache: Path, key: str) -> Path:
    return cache / f"{key}.json"


def _read(cache: Path, key: str) -> Outcome | None:
    """A kept outcome; None when there is none that can be read."""
    try:
        return Outcome.from_json(json.loads(_file(cache, key).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"{cache}: cannot make the cache folder: {error.strerror}", path=cache) from None
