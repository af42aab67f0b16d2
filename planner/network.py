"""Flow-level network on simpy: directed links, bandwidth shared max-min among flows, integer picoseconds.

A transfer is a set of flows that start together. Rates change only when flows start or end, so time jumps from one
such moment to the next. Rounding is upwards: no flow is ever faster than its wire.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import simpy
from numpy.typing import NDArray

from zipplan.planner.errors import SimulationError
from zipplan.planner.fold import Fold, Ints, fold
from zipplan.planner.units import PS_PER_SECOND

FOLD_FROM = 5000
"""Flows from which folding is worth its own time: as long as it takes to share 5,000 flows some ten times."""
_ROUNDING = 1e-15  # relative error of one quotient in float64, a few 2⁻⁵³
_DRIFT = 1e-12  # the same after thousands of changes of rate: 0.01 ps in a transfer of 10 ms


def delay(env: simpy.Environment, ps: float) -> simpy.events.Timeout:
    """A timeout of `ps` picoseconds. Raises SimulationError unless finite and ≥ 0 (simpy takes NaN silently)."""
    if not (isinstance(ps, int | np.integer) or math.isfinite(ps)) or ps < 0:
        raise SimulationError(f"a delay of {ps} ps was asked for at {env.now} ps; delays are finite and ≥ 0")
    return env.timeout(math.ceil(ps))


_KEYS = itertools.count()


class Paths:
    """The ways of a set of flows, flattened: entry i says that flow `owner[i]` crosses link `links[i]`.

    `kind` tells flows apart that are given unlike sizes; it is what lets many flows be folded into few.
    """

    def __init__(self, links: Ints, owner: Ints, kind: Ints) -> None:
        self.links, self.owner, self.kind = links, owner, kind
        self.count, self.key = len(kind), next(_KEYS)

    @cached_property
    def load(self) -> Ints:
        """Flows that cross each link, up to the last link that any crosses."""
        return np.bincount(self.links)

    @cached_property
    def used(self) -> Ints:
        """The links that any of the flows crosses, each once."""
        return np.flatnonzero(self.load)

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> Paths:
        """From link indices per flow; flows may have any sizes."""
        flat = np.fromiter((link for path in paths for link in path), dtype=np.int64)
        flows = np.arange(len(paths))
        return cls(flat, np.repeat(flows, [len(path) for path in paths]), flows)

    def subset(self, chosen: NDArray[np.bool_]) -> Paths:
        """The ways of the flows that `chosen` marks; these may have any sizes."""
        kept = chosen[self.owner]
        number = np.cumsum(chosen) - 1
        return Paths(self.links[kept], number[self.owner[kept]], np.arange(int(chosen.sum())))

    @classmethod
    def joined(cls, parts: Sequence[Paths]) -> Paths:
        """The flows of several sets, one after another; kinds of one set are never those of another."""
        before = np.cumsum([0, *(part.count for part in parts)])
        kinds = np.cumsum([0, *(int(part.kind.max(initial=-1)) + 1 for part in parts)])
        return cls(
            np.concatenate([part.links for part in parts]),
            np.concatenate([part.owner + start for part, start in zip(parts, before, strict=False)]),
            np.concatenate([part.kind + start for part, start in zip(parts, kinds, strict=False)]),
        )


class Apart(Exception):
    """Groups that were taken for alike end at different times; the caller simulates every one of them."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What one transfer sent between two changes of rate: `bytes[i]` over link `links[i]` in [start, end) ps."""

    what: str
    start: int
    end: int
    links: Ints
    bytes: NDArray[np.float64]


@dataclass(slots=True)
class Transfer:
    """Flows that started together and end one by one; `done` fires with the last.

    groups: equal parts of the flows that must end together, or Apart is raised.
    """

    what: str
    paths: Paths
    groups: int
    remaining: NDArray[np.float64]  # bytes by flow
    done: simpy.Event
    rates: NDArray[np.float64]  # bytes per ps by flow

    def moving(self) -> NDArray[np.bool_]:
        """Which entries of `paths` belong to flows that have bytes left."""
        moving: NDArray[np.bool_] = (self.remaining > 0)[self.paths.owner]
        return moving


Folds = dict[tuple[int, ...], Fold]
"""Classes of the flows on paths that are in use together, by the keys of the paths."""


class Network:
    """Links of a cluster and the transfers in flight on them. `moved`: everything that was sent, if `record`.

    `folds`: those of earlier simulations on these links, which later ones find there.
    """

    def __init__(
        self,
        env: simpy.Environment,
        bandwidths: NDArray[np.int64],
        record: bool = False,
        folds: Folds | None = None,
    ) -> None:
        self.env = env
        self.capacity = bandwidths.astype(np.float64) / PS_PER_SECOND  # bytes per ps
        self.bytes = np.zeros(len(bandwidths))
        self.busy = np.zeros(len(bandwidths), dtype=np.int64)
        self.moved: list[Moved] = []
        self._record = record
        self._active: list[Transfer] = []
        self._since = 0
        self._version = 0
        self._settling = False
        self._folds: Folds = {} if folds is None else folds

    def transfer(self, paths: Paths, sizes: NDArray[np.float64], what: str = "", groups: int = 1) -> simpy.Event:
        """Start one flow of `sizes[i]` bytes along each path; the event fires when the last byte has left.

        `what` names the transfer in the record. `groups`: so many equal parts of the flows must end together, else the
        simulation ends with Apart.
        """
        if sizes.size and (sizes == sizes[0]).all():
            self.bytes[: len(paths.load)] += paths.load * sizes[0]
        else:
            self.bytes += np.bincount(paths.links, sizes[paths.owner], len(self.bytes))
        self._advance()
        started = Transfer(what, paths, groups, sizes.astype(np.float64), self.env.event(), np.zeros(paths.count))
        self._active.append(started)
        self._settle_soon()
        return started.done

    def _settle_soon(self) -> None:
        """Share anew once, after everything else that happens in this picosecond."""
        if not self._settling:
            self._settling = True
            event = self.env.timeout(0)
            event.callbacks.append(lambda _: self._settle())

    def _settle(self) -> None:
        self._settling = False
        self._advance()
        self._finish()
        if not self._active:
            return
        self._share()
        left = np.concatenate([t.remaining for t in self._active])
        rate = np.concatenate([t.rates for t in self._active])
        moving = left > 0
        wait = math.ceil(float(np.min(left[moving] / rate[moving])) * (1 - _ROUNDING))
        self._version += 1
        event = self.env.timeout(wait)
        version = self._version
        event.callbacks.append(lambda _: self._settle() if version == self._version else None)

    def _advance(self) -> None:
        passed = int(self.env.now) - self._since
        self._since += passed
        if passed:
            used = np.zeros(len(self.busy), dtype=bool)
            for t in self._active:
                used[t.paths.used if t.remaining.all() else t.paths.links[t.moving()]] = True
                moved = t.rates * passed
                left = np.where(t.remaining <= moved * (1 + _DRIFT), 0.0, t.remaining - moved)
                if self._record:
                    sent = np.bincount(t.paths.links, (t.remaining - left)[t.paths.owner], len(self.busy))
                    links = np.flatnonzero(sent)
                    self.moved.append(
                        Moved(t.what, self._since - passed, self._since, links, sent[links].astype(np.float64))
                    )
                t.remaining = left
            self.busy[used] += passed

    def _finish(self) -> None:
        for t in self._active:
            if t.groups > 1:
                left = (t.remaining.reshape(t.groups, -1) > 0).any(axis=1)
                if left.any() and not left.all():
                    raise Apart
        ended = [t for t in self._active if not t.remaining.any()]
        self._active = [t for t in self._active if t.remaining.any()]
        for t in ended:
            t.done.succeed()

    def _share(self) -> None:
        """Rates of all flows anew, by classes where there are many flows."""
        if sum(t.paths.count for t in self._active) >= FOLD_FROM and self._share_folded():
            return
        links, owner, count = [], [], 0
        for t in self._active:
            moving = t.moving()
            links.append(t.paths.links[moving])
            owner.append(t.paths.owner[moving] + count)
            count += t.paths.count
        rates = max_min(np.concatenate(links), np.concatenate(owner), count, self.capacity)
        for t in self._active:
            t.rates, rates = rates[: t.paths.count], rates[t.paths.count :]

    def _share_folded(self) -> bool:
        """One rate for each class; False where flows of one class have unlike bytes left.

        Transfers on the same paths have the same classes, each transfer its own.
        """
        paths = sorted({t.paths.key: t.paths for t in self._active}.items())
        by, start = self._folded([found for _, found in paths]), {}
        for (key, found), before in zip(paths, np.cumsum([0, *(p.count for _, p in paths)]), strict=False):
            start[key] = slice(before, before + found.count)
        links, owner, weight, classes = [], [], [], []
        for number, t in enumerate(self._active):
            which = by.flow_class[start[t.paths.key]]
            left = np.zeros(by.classes)
            left[which] = t.remaining
            if (left[which] != t.remaining).any():
                return False
            moving = left[by.owner] > 0
            links.append(by.links[moving])
            owner.append(by.owner[moving] + number * by.classes)
            weight.append(by.flows_per_link[moving])
            classes.append(which + number * by.classes)
        rates = max_min(
            np.concatenate(links), np.concatenate(owner), by.classes * len(classes), self.capacity[by.link_member],
            np.concatenate(weight),
        )  # fmt: skip
        for t, which in zip(self._active, classes, strict=True):
            t.rates = rates[which]
        return True

    def _folded(self, paths: Sequence[Paths]) -> Fold:
        """The classes of all flows on these paths, found once."""
        key = tuple(p.key for p in paths)
        if key not in self._folds:
            every = Paths.joined(paths)
            self._folds[key] = fold(every.links, every.owner, every.kind, self.capacity)
        return self._folds[key]


def max_min(
    links: Ints, owner: Ints, flows: int, capacity: NDArray[np.float64], weight: Ints | None = None
) -> NDArray[np.float64]:
    """Max-min fair rate of each flow (Bertsekas and Gallager, Data Networks, 2nd ed., §6.5.2), by progressive filling.

    Flow `owner[i]` crosses link `links[i]` (`weight[i]` flows like it do); `capacity` by link. Flows without links keep
    rate 0. Freezes the flows of the tightest link, again and again.
    """
    rates = np.zeros(flows)
    left = capacity.copy()
    weight = np.ones(len(links), dtype=np.int64) if weight is None else weight
    while len(links):
        load = np.bincount(links, weight, len(left))
        used = load > 0
        share = np.full(len(left), np.inf)
        share[used] = left[used] / load[used]
        level = share.min()
        tight = share <= level * (1 + _DRIFT)
        frozen = np.zeros(flows, dtype=bool)
        frozen[owner[tight[links]]] = True
        rates[frozen] = level
        gone = frozen[owner]
        left = np.maximum(left - np.bincount(links[gone], weight[gone], len(left)) * level, 0.0)
        links, owner, weight = links[~gone], owner[~gone], weight[~gone]
    return rates
