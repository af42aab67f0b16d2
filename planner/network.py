"""Flow-level network on simpy: directed links, bandwidth shared max-min among flows, integer picoseconds.

A transfer is a set of flows that start together. Rates change only when flows start or end, so time jumps from one
such moment to the next. Rounding is upwards: no flow is ever faster than its wire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


class Paths:
    """The ways of a set of flows, flattened: entry i says that flow `owner[i]` crosses link `links[i]`.

    `kind` tells flows apart that are given unlike sizes; it is what lets many flows be folded into few.
    """

    def __init__(self, links: Ints, owner: Ints, kind: Ints) -> None:
        self.links, self.owner, self.kind = links, owner, kind
        self.count = len(kind)
        self._fold: Fold | None = None

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

    def folded(self, capacity: NDArray[np.float64]) -> Fold:
        """The classes of these flows on links of this capacity, found once."""
        if self._fold is None:
            self._fold = fold(self.links, self.owner, self.kind, capacity)
        return self._fold


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
    """Flows that started together and end one by one; `done` fires with the last."""

    what: str
    paths: Paths
    remaining: NDArray[np.float64]  # bytes by flow
    done: simpy.Event
    rates: NDArray[np.float64]  # bytes per ps by flow
    alike: bool = True  # flows of one class have always had equal rates

    def moving(self) -> NDArray[np.bool_]:
        """Which entries of `paths` belong to flows that have bytes left."""
        moving: NDArray[np.bool_] = (self.remaining > 0)[self.paths.owner]
        return moving


class Network:
    """Links of a cluster and the transfers in flight on them. `moved`: everything that was sent, if `record`."""

    def __init__(self, env: simpy.Environment, bandwidths: NDArray[np.int64], record: bool = False) -> None:
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

    def transfer(self, paths: Paths, sizes: NDArray[np.float64], what: str = "") -> simpy.Event:
        """Start one flow of `sizes[i]` bytes along each path; the event fires when the last byte has left.

        `what` names the transfer in the record.
        """
        self.bytes += np.bincount(paths.links, sizes[paths.owner], len(self.bytes))
        self._advance()
        started = Transfer(what, paths, sizes.astype(np.float64), self.env.event(), np.zeros(paths.count))
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
                used[t.paths.links[t.moving()]] = True
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
        ended = [t for t in self._active if not t.remaining.any()]
        self._active = [t for t in self._active if t.remaining.any()]
        for t in ended:
            t.done.succeed()

    def _share(self) -> None:
        """Rates of all flows anew; a large transfer that is alone on the network is shared by classes."""
        if len(self._active) == 1 and self._active[0].alike and self._active[0].paths.count >= FOLD_FROM:
            self._share_folded(self._active[0])
            return
        links, owner, count = [], [], 0
        for t in self._active:
            moving = t.moving()
            links.append(t.paths.links[moving])
            owner.append(t.paths.owner[moving] + count)
            count += t.paths.count
            t.alike = len(self._active) == 1
        rates = max_min(np.concatenate(links), np.concatenate(owner), count, self.capacity)
        for t in self._active:
            t.rates, rates = rates[: t.paths.count], rates[t.paths.count :]

    def _share_folded(self, t: Transfer) -> None:
        by = t.paths.folded(self.capacity)
        left = np.zeros(by.classes)
        left[by.flow_class] = t.remaining
        moving = left[by.owner] > 0
        capacity = self.capacity[by.link_member]
        rates = max_min(by.links[moving], by.owner[moving], by.classes, capacity, by.flows_per_link[moving])
        t.rates = rates[by.flow_class]


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
